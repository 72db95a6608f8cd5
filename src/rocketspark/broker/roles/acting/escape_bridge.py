"""The door by which due messages of a slave leave to another broker while their master is away (enableRemoteEscape).

Rule: a message is sent once at a time and counts as gone only when the other broker answered that it has it; whoever
delivers comes again until then. An answer that is lost doubles the message, nothing else does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from rocketspark.broker.roles.acting.escape_rules import Exit, Outgoing, chosen, exits, inner_group, outgoing
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import MessageStays, NotSent, RocketSparkError, RouteNotFound, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.namesrv import RouteHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import RouteBody
from rocketspark.protocol.message.record import Record
from rocketspark.transport.connections import Connections

log = LimitedLog("rocketspark.broker.replication")

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


class EscapeBridge:
    """One broker's door. `is_open`: messages may leave; `escaped_count`: how many have."""

    def __init__(self, settings: BrokerSettings, connections: Connections) -> None:
        self._settings = settings
        self._connections = connections
        self.is_open = False
        self.escaped_count = 0
        self._sends: dict[Key, asyncio.Task[bool]] = {}
        self._routes: dict[str, tuple[float, list[Exit]]] = {}
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
        """Return if another broker has the message. Raises MessageStays: come again, once a send has ended."""
        key = kept.position, topic
        send = self._sends.get(key)
        if send is None:
            send = self._begin(key, kept, topic, stored, delayed, added_flags, reconsume_times)
            if send is None:
                return
        if not send.done():
            raise MessageStays("a due message is on its way to another broker", partial(_when_ended, send))
        del self._sends[key]
        if send.cancelled() or not send.result():
            raise MessageStays("a due message did not reach another broker")

    def _begin(
        self,
        key: Key,
        kept: Record,
        topic: str,
        stored: bytes,
        delayed: bool,
        added_flags: int,
        reconsume_times: int | None,
    ) -> asyncio.Task[bool] | None:
        s = self._settings
        if not s.remote_escape:
            log.info("due messages wait for the master: enableRemoteEscape=true lets them go to another broker")
            raise MessageStays("due messages wait for the master (enableRemoteEscape=false)")
        if not self.is_open:
            raise MessageStays("due messages stay here: the master comes back")
        own_group = inner_group(s.broker_name, s.broker_id)
        message = outgoing(
            kept,
            topic,
            stored,
            own_group,
            delayed=delayed,
            added_flags=added_flags,
            reconsume_times=reconsume_times,
        )
        if message is None:
            log.warning("the recall of a timer message that is not due yet is lost: no other broker could follow it")
            return None
        found = self._sends[key] = asyncio.get_running_loop().create_task(self._send(message))
        return found

    async def _send(self, message: Outgoing) -> bool:
        """Send a message to some other broker; True if it is stored there."""
        try:
            way = chosen(await self._exits(message.topic), self._turn)
            if way is None:
                raise RouteNotFound(message.topic, remark="no other broker has a writable queue of it: make it there")
            self._turn += 1
            async with asyncio.timeout(SEND_MS / 1000):
                peer = await self._connections.get(way.address)
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
        return True

    async def _exits(self, topic: str) -> list[Exit]:
        """Return where messages of a topic may go, as known for some seconds. Raises RocketSparkError."""
        now_s = asyncio.get_running_loop().time()
        known = self._routes.get(topic)
        if known is not None and now_s - known[0] < (ROUTE_KEPT_S if known[1] else NO_ROUTE_KEPT_S):
            return known[1]
        found = exits(await self._route(topic), self._settings.broker_name)
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
        """Let nothing more leave; return when whoever delivers has heard of all that did."""
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
        """Let due messages leave."""
        self._routes.clear()
        self.is_open = True

    async def close(self) -> None:
        """Give up what is under way."""
        self.is_open = False
        sends = list(self._sends.values())
        for send in sends:
            send.cancel()
        if sends:
            await asyncio.wait(sends)


def _when_ended(send: asyncio.Task[bool], call: Callable[[], None]) -> None:
    send.add_done_callback(lambda _: call())
