"""How a due message of an acting slave leaves for another broker while the master is away (enableRemoteEscape).

`EscapeBridge` sends; the functions above it decide, without input or output, what is sent and to which queue.

Rules: a message is sent to any writable queue of its topic whose broker has another name and a master; a half message
is sent as its producer sent it, so that the other broker checks the transaction (EscapeBridge,
TransactionalMessageUtil, 5.5.0). A message is sent by one request at a time, and has left once the other broker
answered that it is stored; until then whoever delivers asks again. A lost answer may double the message; nothing else
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from rocketspark.broker import topic_names
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.left_messages import LeftMessages
from rocketspark.errors import MessageStays, NotSent, RocketSparkError, RouteNotFound, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID, PERM_WRITE
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import SendHeader
from rocketspark.protocol.headers.namesrv import RouteHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import QUEUES_OF_BROKER_MAX, RouteBody
from rocketspark.protocol.message import properties, record_layout, sysflags
from rocketspark.protocol.message.record import Record
from rocketspark.transport.connections import Connections

log = LimitedLog("rocketspark.broker.replication")

# What parked the message: the other broker would park it once more.
_PARKED = (b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
# Of a place in this broker's store.
_PLACE = (b"REAL_TOPIC", b"REAL_QID", b"__CRC32#", b"TRANSACTION_PREPARED_QUEUE_OFFSET")
_ON_THE_WHEEL = (b"TIMER_OUT_MS", b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS", b"TIMER_ROLL_TIMES", b"TIMER_GRID_MS")

SEND_MS = 3000
ROUTE_MS = 3000
ROUTE_KEPT_S = 30.0
ROUTES_MAX = 10_000
# A topic's route that names nobody is asked for again.
NO_ROUTE_KEPT_S = 1.0
DRAIN_STEP_S = 0.01
# Stored, and maybe not yet on a disk or at a slave.
_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)

# The physical offset of a message here, and the topic that it would be stored under.
Key = tuple[int, str]


class EscapingMessage(NamedTuple):
    """A message that is sent to another broker."""

    topic: str
    producer_group: str
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_time_ms: int
    reconsume_times: int

    def header(self, broker_name: str, queue_id: int) -> SendHeader:
        """Return its header of SEND_MESSAGE_V2 for a queue of a broker."""
        return SendHeader(
            producer_group=self.producer_group,
            topic=self.topic,
            queue_id=queue_id,
            sys_flag=self.sys_flag,
            born_time_ms=self.born_time_ms,
            flag=self.flag,
            properties=self.properties.decode("utf-8", "replace"),
            reconsume_times=self.reconsume_times,
            broker_name=broker_name,
        )


class EscapeQueue(NamedTuple):
    """A writable queue of another broker, to which a message may escape."""

    broker_name: str
    address: str
    queue_id: int


def inner_group(broker_name: str, broker_id: int) -> str:
    """Return the producer group under which messages without one are sent."""
    return f"InnerProducerGroup_{broker_name}_{broker_id}"


def outgoing(
    kept: Record,
    topic: str,
    stored: bytes,
    own_group: str,
    *,
    delayed: bool = False,
    added_flags: int = 0,
    reconsume_times: int | None = None,
) -> EscapingMessage | None:
    """Return what leaves for a message that would be stored here under a topic with these properties.

    None for the recall of a timer message that is rolled on: it means nothing to another broker, which may not have
    the message it recalls. `delayed`: it may still be parked there. Raises ServerError 13 if it names no topic.
    """
    pairs = properties.pairs_of(stored)
    sys_flag = kept.sys_flag & ~record_layout.HOST_FLAGS | added_flags
    dropped = set(_PLACE)
    added = {b"WAIT": b"false"}
    if topic == topic_names.HALF_TOPIC:
        topic = pairs.get(b"REAL_TOPIC", b"").decode("utf-8", "replace")
        sys_flag |= sysflags.TRANSACTION_PREPARED
        added[b"TRAN_MSG"] = b"true"
    elif topic == topic_names.TIMER_TOPIC:
        # Not due yet: a timer message of the other broker, at the same time.
        if b"TIMER_DEL_UNIQKEY" in pairs:
            return None
        topic = pairs.get(b"REAL_TOPIC", b"").decode("utf-8", "replace")
        added[b"TIMER_DELIVER_MS"] = pairs.get(b"TIMER_OUT_MS", b"0")
        dropped.update(_PARKED, _ON_THE_WHEEL)
    elif not delayed:
        dropped.update(_PARKED)
    if not topic:
        raise ServerError(ResponseCode.MESSAGE_ILLEGAL, f"the message at {kept.position} names no topic it may go to")
    kept_pairs = {name: value for name, value in pairs.items() if name not in dropped}
    return EscapingMessage(
        topic,
        pairs.get(b"PGROUP", b"").decode("utf-8", "replace") or own_group,
        kept.body,
        properties.of_pairs(kept_pairs | added),
        kept.flag,
        sys_flag,
        kept.born_time_ms,
        kept.reconsume_times if reconsume_times is None else reconsume_times,
    )


def escape_queues(route: RouteBody, own_name: str) -> list[EscapeQueue]:
    """Return the queues that a message may be sent to, in the order of the route."""
    masters = {
        data.broker_name: data.broker_addrs[MASTER_ID]
        for data in route.broker_datas
        if data.broker_name != own_name and MASTER_ID in data.broker_addrs
    }
    return [
        EscapeQueue(queues.broker_name, masters[queues.broker_name], queue_id)
        for queues in sorted(route.queue_datas, key=lambda q: q.broker_name)
        if queues.broker_name in masters and queues.perm & PERM_WRITE
        for queue_id in range(min(queues.write_queue_nums, QUEUES_OF_BROKER_MAX))
    ]


def chosen(found: Iterable[EscapeQueue], turn: int) -> EscapeQueue | None:
    """Return the queue for the message with the number `turn`, one after the other; None if there is no queue."""
    queues = list(found)
    return queues[turn % len(queues)] if queues else None


class EscapeBridge:
    """Sends due messages to other brokers.

    `is_open`: messages may leave, while `is_sure` tells that the master is still away; `escaped_count`: how many left.
    """

    def __init__(self, settings: BrokerSettings, connections: Connections, left: LeftMessages) -> None:
        self._settings = settings
        self._left = left
        self._connections = connections
        self.is_open = False
        self.is_sure: Callable[[], bool] = lambda: True
        self.escaped_count = 0
        self._sends: dict[Key, asyncio.Task[bool]] = {}
        self._routes: dict[str, tuple[float, list[EscapeQueue]]] = {}
        self._turn = 0

    def leave(
        self,
        kept: Record,
        topic: str,
        queue_id: int,
        stored: bytes,
        *,
        delayed: bool,
        added_flags: int,
        reconsume_times: int | None,
    ) -> None:
        """Send a message away, over several calls: return once another broker has stored it.

        Raises MessageStays until then; its callback tells when to call again.
        """
        key = kept.position, topic
        send = self._sends.get(key)
        if send is None:
            self._check_open()
            message = outgoing(
                kept,
                topic,
                stored,
                inner_group(self._settings.broker_name, self._settings.broker_id),
                delayed=delayed,
                added_flags=added_flags,
                reconsume_times=reconsume_times,
            )
            if message is None:
                log.warning(
                    "the recall of a timer message that is not due yet is lost: no other broker could follow it"
                )
                return
            send = self._sends[key] = asyncio.get_running_loop().create_task(self._send(kept, message))
        if not send.done():
            raise MessageStays("a due message is on its way to another broker", partial(_when_ended, send))
        del self._sends[key]
        if send.cancelled() or not send.result():
            raise MessageStays("a due message did not reach another broker")

    def _check_open(self) -> None:
        """Raise MessageStays while no message may leave."""
        if not self._settings.remote_escape:
            log.info("due messages wait for the master: enableRemoteEscape=true lets them go to another broker")
            raise MessageStays("due messages wait for the master (enableRemoteEscape=false)")
        if not self.is_open:
            raise MessageStays("due messages stay here: the master comes back")
        if not self.is_sure():
            raise MessageStays("due messages stay here until a NameServer tells that the master is away")

    async def _send(self, kept: Record, message: EscapingMessage) -> bool:
        """Send a message to some other broker; True if it is stored there."""
        try:
            way = chosen(await self._queues(message.topic), self._turn)
            if way is None:
                raise RouteNotFound(message.topic, remark="no other broker has a writable queue of it: make it there")
            self._turn += 1
            async with asyncio.timeout(SEND_MS / 1000):
                peer = await self._connections.get(way.address)
                if not self.is_sure():
                    raise NotSent("the master may be back", address=way.address)
                header = message.header(way.broker_name, way.queue_id)
                reply = await peer.request(RequestCode.SEND_MESSAGE_V2, header, message.body, timeout_ms=SEND_MS)
            if reply.code not in _STORED:
                # Its topics may have moved.
                self._routes.pop(message.topic, None)
                raise ServerError(reply.code, reply.remark or "", address=way.address)
        except (RocketSparkError, TimeoutError) as e:
            self._routes.pop(message.topic, None)
            log.warning("a due message of topic %s stays here and is tried again: %s", message.topic, e)
            return False
        except Exception:
            log.exception("a due message of topic %s stays here and is tried again", message.topic)
            return False
        self.escaped_count += 1
        self._left.add(kept)
        return True

    async def _queues(self, topic: str) -> list[EscapeQueue]:
        """Return where messages of a topic may go, as known for some seconds. Raises RocketSparkError."""
        now_s = asyncio.get_running_loop().time()
        known = self._routes.get(topic)
        if known is not None and now_s - known[0] < (ROUTE_KEPT_S if known[1] else NO_ROUTE_KEPT_S):
            return known[1]
        found = escape_queues(await self._route(topic), self._settings.broker_name)
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = now_s, found
        return found

    async def _route(self, topic: str) -> RouteBody:
        error: RocketSparkError = NotSent("no NameServer is set (namesrvAddr)")
        for namesrv in self._settings.namesrvs():
            try:
                peer = await self._connections.get(namesrv)
                header = RouteHeader(topic=topic)
                reply = await peer.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_ms=ROUTE_MS)
                if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                    return RouteBody()
                return java_json.decode(reply.raise_for_code("ask for a route").body, RouteBody)
            except RocketSparkError as e:
                error = e
        raise error

    async def drain(self) -> None:
        """Stop sending. Returns once the callers know of every message that was sent what became of it."""
        self.is_open = False
        sends = list(self._sends.values())
        if sends:
            await asyncio.wait(sends)
            # Those who deliver come again in their own turns of the loop.
            for _ in range(round(1 / DRAIN_STEP_S)):
                if not self._sends:
                    break
                await asyncio.sleep(DRAIN_STEP_S)

    def open(self) -> None:
        """Send due messages to other brokers from now on."""
        self._routes.clear()
        self.is_open = True

    async def close(self) -> None:
        """Cancel the sends that are under way."""
        self.is_open = False
        sends = list(self._sends.values())
        for send in sends:
            send.cancel()
        if sends:
            await asyncio.wait(sends)


def _when_ended(send: asyncio.Task[bool], call: Callable[[], None]) -> None:
    send.add_done_callback(lambda _: call())
