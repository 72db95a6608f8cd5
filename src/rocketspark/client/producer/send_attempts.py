"""One attempt of a send: where it goes, how it is written, what its reply says, whether another may follow and where.

The loop of retries is `in_flight_send`'s. Rule: a queue that was chosen is never left for another.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from rocketspark import machine
from rocketspark.client.connection import client_api
from rocketspark.client.connection.topic_routes import NO_MASTER_CODES
from rocketspark.client.hooks import HookSet, LogSends, Sending, guarded
from rocketspark.client.producer.latency_faults import LatencyFaults, QueueTurns
from rocketspark.client.producer.prepared_message import PreparedMessage, queue_of_key
from rocketspark.client.producer.send_states import AFTER_REPLY, AFTER_WRITE, State
from rocketspark.client.results import STATUS, SendResult
from rocketspark.errors import FrameError, NotSent, RocketSparkError, ServerError, TransportError, UsageError
from rocketspark.model import BrokerData, MessageQueue, is_logical
from rocketspark.model.route import DEFAULT_QUEUE_COUNT
from rocketspark.protocol.codes import RESPONSES, RequestCode, ResponseCode, verdict
from rocketspark.protocol.headers import SendHeader, SendReply, decode_ext
from rocketspark.protocol.message import batch, properties
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import ReplyWaiter
from rocketspark.transport.request_frames import Reply

if TYPE_CHECKING:
    # Not with the module, which options need too: each stream of Spark's starts a process that imports those.
    from rocketspark.client.connection.instance import Instance

T = TypeVar("T")

# Pauses before the same broker is tried again; together they outlast a quick restart.
PAUSE_S = (0.25, 0.75, 1.0)
# A route that was fetched so short a time ago is not fetched again because a broker is busy.
ROUTE_AGE_S = 0.2
RETRY_CODES = frozenset(code for code, row in RESPONSES.items() if row.retriable)
# What a broker answers to a send to a queue that its topic has no more: the route is from before.
QUEUE_GONE = ResponseCode.INVALID_PARAMETER


class Attempted(Protocol):
    """The part of a send that an attempt sees."""

    out: PreparedMessage
    state: State

    def attempt_end_s(self) -> float:
        """Return the monotonic time at which an attempt that begins now is given up."""


class SendSettings(NamedTuple):
    """The rules by which a send is tried again (rule: DefaultMQProducer, 5.x).

    `retry_codes`: response codes after which it is; `retry_not_stored`: also after a status other than SEND_OK.
    `attempt_timeout_ms`: of one attempt, where others may follow; None: what is left of all time.
    """

    timeout_ms: float = 3000
    retry_codes: Collection[int] = RETRY_CODES
    retry_not_stored: bool = False
    default_topic: str = "TBW102"
    default_queue_count: int = DEFAULT_QUEUE_COUNT
    vip_channel: bool = False
    attempt_timeout_ms: float | None = None


class Lack(NamedTuple):
    """What a send waits for: a `future`, its name in errors (None: room), the queue if it is that queue's broker."""

    future: asyncio.Future[Any]
    what: str | None
    queue: MessageQueue | None = None


# Queue, request code, and whether a send is one-way.
TargetKey = tuple[MessageQueue, int, bool]


class Target:
    """What sends to one queue use: its frames, its broker as the route said last, and the connection to that broker."""

    __slots__ = ("broker", "frames", "peer")

    def __init__(self, frames: client_api.SendFrames) -> None:
        self.frames = frames
        self.broker: BrokerData | None = None
        self.peer: Peer | None = None


class SendAttempts:
    """Sends prepared messages to the brokers of one instance. `faults`: brokers to leave alone, None for no such
    record.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        rules: SendSettings,
        hooks: HookSet,
        faults: LatencyFaults | None = None,
    ) -> None:
        self._instance = instance
        self._routes = instance.routes
        # Of a topic, as far as they are known; not a method of its own, as it is called for every message of a key.
        self.known_queues = self._routes.write_queues
        self._group = group
        self._rules = rules
        self._faults = faults
        self._hooks = hooks
        self._targets: dict[TargetKey, Target] = {}
        self._turns = QueueTurns(self._routes.leader, faults)
        # What several sends wait for, each once: a topic's queues, a queue's broker, the connection to an address.
        self._awaited: dict[Hashable, asyncio.Future[Any]] = {}
        self.timeout_s = rules.timeout_ms / 1000
        self.attempt_s = None if rules.attempt_timeout_ms is None else rules.attempt_timeout_ms / 1000
        self.retry_not_stored = rules.retry_not_stored
        # True if `post` may write: latency faults are off, and no stored message is sent again.
        self._plain = faults is None and not rules.retry_not_stored

    def end_s(self, timeout_ms: float | None, began_s: float | None = None) -> float:
        """Return the monotonic time at which the budget of a send ends that begins now, or began at `began_s`."""
        began_s = machine.monotonic() if began_s is None else began_s
        if timeout_ms is None:
            return began_s + self.timeout_s
        if not isinstance(timeout_ms, Real) or not math.isfinite(timeout_ms):
            raise UsageError(f"timeout_ms={timeout_ms!r}: a number of milliseconds is needed, or None")
        return began_s + timeout_ms / 1000

    # -- one send ------------------------------------------------------------------------------------------------

    @property
    def _is_plain(self) -> bool:
        return self._plain and not self._hooks.sends and self._instance.rpc_hooks is None

    def post(
        self,
        out: PreparedMessage,
        sharding_key: str | None,
        queue: MessageQueue | None,
        end_s: float,
        waiting: ReplyWaiter | None,
    ) -> MessageQueue | None:
        """Write a send's request at once, if nothing has to be waited for; `waiting`, if given, gets the reply.

        Returns the queue it went to; None if nothing was sent, and `attempt` is needed.
        """
        if not self._plain or self._hooks.sends or self._instance.rpc_hooks is not None:
            return None
        in_turn = queue is None and not sharding_key
        if queue is None:
            queues = self._routes.write_queues(out.topic)
            if not queues:
                return None
            queue = queue_of_key(sharding_key, queues) if sharding_key else self._turns.choose(out.topic, queues)
        key = (queue, out.code, waiting is None)
        target = self._targets.get(key) or self._target(key)
        broker = self._routes.broker_of(queue)
        if target.broker is not broker or target.peer is None:
            target.broker, target.peer = broker, self.open_peer(queue)
        if target.peer is not None and target.peer.is_writable:
            try:
                self._write(out, target, target.peer, end_s, waiting)
                return queue
            except NotSent:
                target.peer = None
            except FrameError:
                pass  # `attempt` raises it.
        if in_turn:
            # `attempt` has this turn.
            self._turns.take_back(out.topic)
        return None

    def lacks(self, topic: str, sharding_key: str | None, queue: MessageQueue | None) -> Lack | None:
        """Return what kept `post` from writing a send: a route, a connection or room, which is being fetched.

        Sends that lack the same share one fetch. None if only `attempt` finds out what is lacking.
        """
        route = f"route of topic {topic!r}"
        if queue is None:
            queues = self._routes.write_queues(topic)
            if not queues:
                return Lack(self._once(topic, lambda: self._routes.find_write_queues(topic)), route)
            if not self._is_plain:
                return None
            queue = queue_of_key(sharding_key, queues) if sharding_key else self._turns.choose(topic, queues)
        elif self._is_plain and self._routes.master_of(queue) is None:
            fixed = queue
            return Lack(self._once(queue, lambda: self._routes.find_master(fixed)), route)
        address = self._address(queue)
        if not self._is_plain or address is None:
            return None
        peer = self.open_peer(queue)
        if peer is None:
            connection = self._once(address, lambda: self._instance.broker(address))
            return Lack(connection, f"connection to {address}", queue)
        if peer.is_writable:
            return None
        return Lack(self._once(peer, peer.writable), f"{address} does not read", queue)

    def _once(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Future[Any]:
        future = self._awaited.get(key)
        if future is None:
            future = self._awaited[key] = asyncio.ensure_future(begin())
            future.add_done_callback(lambda done: self._looked_at(key, done))
        return future

    def _looked_at(self, key: Hashable, done: asyncio.Future[Any]) -> None:
        del self._awaited[key]
        if not done.cancelled():
            done.exception()  # Looked at, in case that nobody waits for it any more.

    async def attempt(self, send: Attempted, queue: MessageQueue) -> SendResult:
        """Send the message once, to `queue`, and wait for the reply. Raises what this attempt failed with."""
        began_s, end_s = machine.monotonic(), send.attempt_end_s()
        try:
            if self._hooks.sends or self._instance.rpc_hooks is not None:
                result = await self._attempt_hooked(send, queue, end_s)
            else:
                peer = await self._writable_peer(queue, end_s)
                waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
                self._write(send.out, self._target((queue, send.out.code, False)), peer, end_s, waiting)
                send.state = AFTER_WRITE[send.state]
                reply = await waiting
                send.state = AFTER_REPLY[send.state]
                result = result_of(send.out, queue, reply)
        except RocketSparkError as e:
            self._note_fault(queue, began_s, e)
            raise
        self._note_fault(queue, began_s, None)
        return result

    def _note_fault(self, queue: MessageQueue, began_s: float, error: RocketSparkError | None) -> None:
        """Note for later sends what an attempt, also a one-way one, came to."""
        if self._faults is None:
            return
        now_s, name = machine.monotonic(), self._routes.leader(queue)
        cost_ms = (now_s - began_s) * 1000
        if error is None:
            self._faults.sent(name, cost_ms, now_s)
        else:
            self._faults.failed(name, cost_ms, now_s, unreachable=isinstance(error, TransportError))

    async def _writable_peer(self, queue: MessageQueue, end_s: float) -> Peer:
        peer = self.open_peer(queue) or await self.connect(queue, end_s)
        if not peer.is_writable:
            await self.within(end_s, peer.writable(), f"{peer.address} does not read")
        return peer

    async def _attempt_hooked(self, send: Attempted, queue: MessageQueue, end_s: float) -> SendResult:
        out = send.out
        sending, given = self._begin(out, queue)
        began_s = machine.monotonic()
        try:
            peer = await self._writable_peer(queue, end_s)
            header = self._header(out, sending, given)
            send.state = AFTER_WRITE[send.state]
            left_ms = max((end_s - machine.monotonic()) * 1000, 1)
            reply = await peer.request(out.code, header, sending.body, timeout_ms=left_ms)
            send.state = AFTER_REPLY[send.state]
            told = stored(reply)
            sending.result = result_of(out, queue, reply, told)
            sending.region, sending.trace_on = told.region, told.trace_on is not False
            return sending.result
        except BaseException as e:
            sending.error = e
            raise
        finally:
            self._end(sending, began_s)

    def _write(
        self, out: PreparedMessage, target: Target, peer: Peer, end_s: float, waiting: ReplyWaiter | None
    ) -> None:
        """Write it; `waiting` gets the reply, None: there is none.

        Raises NotSent if the connection ended, FrameError if it is over 16 MiB.
        """
        opaque, born_ms = peer.next_opaque(), int(machine.time() * 1000)
        frame = target.frames.frame(opaque, out.body, out.properties, out.sys_flag, born_ms, out.flag)
        if waiting is None:
            if not peer.is_open:
                raise NotSent(f"no connection to {peer.address}: the message was not sent", address=peer.address)
            peer.send(frame)
        else:
            peer.ask_for(waiting, opaque, frame, out.code, max((end_s - machine.monotonic()) * 1000, 1))

    def may_retry(self, cause: RocketSparkError | None, codes: Collection[int] | None, last: MessageQueue) -> bool:
        """Tell whether a send to `last` may be tried again after `cause`; None: it is stored, but not with SEND_OK."""
        if isinstance(cause, ServerError):
            # Nothing was stored, and the route names who leads it now.
            moved = cause.code == ResponseCode.NOT_LEADER_FOR_QUEUE and is_logical(last)
            return moved or cause.code in (self._rules.retry_codes if codes is None else codes)
        return cause is None or cause.retriable

    async def is_gone(
        self, cause: RocketSparkError | None, codes: Collection[int] | None, last: MessageQueue, end_s: float
    ) -> bool:
        """Tell whether the topic has lost queue `last`, by a route fetched anew, so that another queue may be tried."""
        if not (isinstance(cause, ServerError) and cause.code == QUEUE_GONE) or (codes is not None and not codes):
            return False
        await self.look_again(last.topic, end_s)
        return last not in (self._routes.write_queues(last.topic) or (last,))

    def note_last(self, topic: str, cause: RocketSparkError | None) -> None:
        """Have the route fetched for the next send, if this one's broker was not reached or had no such queue."""
        if isinstance(cause, TransportError) or (isinstance(cause, ServerError) and cause.code == QUEUE_GONE):
            self._routes.begin_refresh(topic)

    def _begin(
        self, out: PreparedMessage, queue: MessageQueue, *, oneway: bool = False
    ) -> tuple[Sending, dict[str, str]]:
        """Run the hooks before an attempt and its connection; returns also the properties before them."""
        given = properties.decode(out.properties)
        sending = Sending(
            group=self._group,
            topic=out.topic,
            queue=queue,
            address=self._address(queue) or "",
            message_id=out.message_id,
            properties=dict(given),
            body=out.body,
            body_bytes=len(out.body),
            born_time_ms=int(machine.time() * 1000),
            oneway=oneway,
        )
        sending.keys = sending.properties.get(properties.KEYS, "")
        if out.code == RequestCode.SEND_BATCH_MESSAGE:
            sending.keys = _keys_of_batch(out.body)
        for hooks in self._hooks.sends:
            hooks.check_forbidden(sending)
        for hooks in self._hooks.sends:
            guarded(hooks.before_send, sending)
        return sending, given

    def _end(self, sending: Sending, began_s: float) -> None:
        sending.cost_ms = (machine.monotonic() - began_s) * 1000
        for hooks in self._hooks.sends:
            guarded(hooks.after_send, sending)

    def _header(self, out: PreparedMessage, sending: Sending, given: dict[str, str]) -> SendHeader:
        queue = sending.queue
        text = out.properties
        if sending.properties != given:
            # A hook added some, such as the context of a trace, or changed them.
            text = properties.encode(sending.properties)
        return SendHeader(
            producer_group=self._group,
            topic=queue.topic,
            default_topic=self._rules.default_topic,
            default_topic_queue_count=self._rules.default_queue_count,
            queue_id=queue.queue_id,
            sys_flag=out.sys_flag,
            born_time_ms=sending.born_time_ms,
            flag=out.flag,
            properties=text,
            unit_mode=self._instance.unit_mode,
            batch=out.code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=queue.broker_name,
        )

    async def send_oneway(self, send: Attempted, queue: MessageQueue) -> None:
        """Send the message once, without waiting for a reply. Raises what is known before it leaves."""
        out, began_s, end_s = send.out, machine.monotonic(), send.attempt_end_s()
        try:
            if self._hooks.sends or self._instance.rpc_hooks is not None:
                sending, given = self._begin(out, queue, oneway=True)
                try:
                    peer = await self._writable_peer(queue, end_s)
                    peer.oneway(out.code, self._header(out, sending, given), sending.body)
                except BaseException as e:
                    sending.error = e
                    raise
                finally:
                    self._end(sending, began_s)
            else:
                peer = await self._writable_peer(queue, end_s)
                self._write(out, self._target((queue, out.code, True)), peer, end_s, None)
        except RocketSparkError as e:
            self._note_fault(queue, began_s, e)
            raise
        self._note_fault(queue, began_s, None)
        send.state = AFTER_WRITE[send.state]

    # -- queues --------------------------------------------------------------------------------------------------

    async def queues(self, topic: str, end_s: float) -> tuple[MessageQueue, ...]:
        """Return the queues a topic's messages are sent to. Raises RouteNotFound, NotSent."""
        known = self._routes.write_queues(topic)
        what = f"route of topic {topic!r}"
        return known or await self.within(end_s, self._routes.find_write_queues(topic), what)

    async def first_queue(self, topic: str, sharding_key: str | None, end_s: float) -> MessageQueue:
        """Return the queue of the first attempt: the sharding key's, else the next in turn."""
        queues = self._routes.write_queues(topic) or await self.queues(topic, end_s)
        return queue_of_key(sharding_key, queues) if sharding_key else self._turns.choose(topic, queues)

    async def with_broker(self, queue: MessageQueue, fixed: bool, end_s: float) -> MessageQueue:
        """Return the queue once its master is known; until then another queue, unless this one is `fixed`.

        Raises BrokerNotFound, NotSent: without a broker nothing can be tried.
        """
        if self._routes.master_of(queue) is None and not fixed:
            # A queue of an order topic, whose broker is away: others take its turn.
            queues = self._routes.write_queues(queue.topic)
            others = tuple(q for q in queues if self._routes.master_of(q) is not None)
            queue = self._turns.choose(queue.topic, others) if others else queue
        if self._routes.master_of(queue) is None:
            await self.within(end_s, self._routes.find_master(queue), f"route of topic {queue.topic!r}")
        return queue

    async def next_queue(
        self,
        topic: str,
        last: MessageQueue,
        fixed: MessageQueue | None,
        cause: RocketSparkError | None,
        attempt: int,
        end_s: float,
        sharding_key: str | None = None,
    ) -> MessageQueue:
        """Return the queue of the next attempt, after a pause if it is at the same broker; `fixed`: the only one that
        may be, unless it was the sharding key's and is gone.
        """
        code = cause.code if isinstance(cause, ServerError) else None
        asked = self._routes.leader(last)
        if isinstance(cause, TransportError) or (code is not None and self._may_be_old(topic, code)):
            await self.look_again(topic, end_s)
        queues = self._routes.write_queues(topic)
        is_gone = code == QUEUE_GONE and last not in (queues or (last,))
        if fixed is None:
            queue = self._turns.choose(topic, queues, avoid=None if is_gone else asked) if queues else last
        else:
            queue = queue_of_key(sharding_key, queues) if is_gone and sharding_key else fixed
        if self._routes.leader(queue) == asked and code != ResponseCode.TOPIC_NOT_EXIST and not is_gone:
            await self.pause(attempt, end_s)
        return queue

    async def look_again(self, topic: str, end_s: float) -> None:
        """Fetch the route, if that is possible in time."""
        try:
            # Half of the time left, so that one attempt more is possible even if no NameServer answers.
            async with asyncio.timeout((end_s - machine.monotonic()) / 2):
                await self._routes.find_write_queues(topic, refresh=True)
        except (RocketSparkError, TimeoutError):
            pass  # What is known is tried again; the send's own error tells more than this one.

    def _may_be_old(self, topic: str, code: int) -> bool:
        """Tell whether an answer hints that the route is: a busy master answers as one that is no master any more."""
        return verdict(code).refresh_route or (code in NO_MASTER_CODES and self._routes.age_s(topic) > ROUTE_AGE_S)

    async def pause(self, attempt: int, end_s: float) -> None:
        """Wait before the next attempt at the same broker: longer after each attempt, at most half of the time left."""
        left_s = end_s - machine.monotonic()
        await asyncio.sleep(max(0.0, min(PAUSE_S[min(attempt, len(PAUSE_S) - 1)], left_s / 2)))

    @property
    def is_logged(self) -> bool:
        """Tell whether each attempt is logged."""
        return any(isinstance(each, LogSends) for each in self._hooks.sends)

    def was_known(self, topic: str) -> bool:
        """Tell whether a route of the topic was ever fetched: then its brokers may come back."""
        return self._routes.age_s(topic) != math.inf

    def is_without_master(self, topic: str) -> bool:
        """Tell whether no broker takes messages of a topic because none of them has a master."""
        return self._routes.is_without_master(topic)

    async def peer_to_end(self, queue: MessageQueue) -> Peer:
        """Return the connection to the present master, to end a transaction. Raises RouteNotFound, NotSent."""
        end_s = self.end_s(None)
        try:
            return await self.connect(queue, end_s)
        except NotSent:
            await self.within(end_s, self._routes.refresh(queue.topic), f"route of topic {queue.topic!r}")
            return await self.connect(queue, end_s)

    # -- connections ---------------------------------------------------------------------------------------------

    def _address(self, queue: MessageQueue) -> str | None:
        address = self._routes.master_of(queue)
        if address is not None and self._rules.vip_channel:
            host, _, port = address.rpartition(":")
            return f"{host}:{int(port) - 2}"
        return address

    def open_peer(self, queue: MessageQueue) -> Peer | None:
        """Return the connection to a queue's broker, if it is open."""
        address = self._address(queue)
        return None if address is None else self._instance.open_broker(address)

    async def is_ready(self, queue: MessageQueue, end_s: float) -> bool:
        """Wait until the queue's broker reads what is sent to it; tell whether its connection is open and can be
        written to at once.
        """
        peer = self.open_peer(queue)
        if peer is not None and not peer.is_writable:
            await self.within(end_s, peer.writable(), f"{peer.address} does not read")
            peer = self.open_peer(queue)
        return peer is not None and peer.is_writable

    async def connect(self, queue: MessageQueue, end_s: float) -> Peer:
        """Return the connection to a queue's broker. Raises BrokerNotFound, NotSent."""
        if self._routes.master_of(queue) is None:
            await self.within(end_s, self._routes.find_master(queue), f"route of topic {queue.topic!r}")
        address = self._address(queue)
        assert address is not None
        return await self.within(end_s, self._instance.broker(address), f"connection to {address}")

    async def within(self, end_s: float, act: Awaitable[T], what: str) -> T:
        """Wait for `act` and return its result. Raises NotSent, naming `what`, at the monotonic time `end_s`."""
        try:
            async with asyncio.timeout(max(end_s - machine.monotonic(), 0.001)):
                return await act
        except TimeoutError:
            raise not_in_time(what) from None

    def _target(self, key: TargetKey) -> Target:
        target = self._targets.get(key)
        if target is None:
            queue, code, oneway = key
            frames = client_api.SendFrames(
                queue,
                group=self._group,
                code=code,
                oneway=oneway,
                default_topic=self._rules.default_topic,
                default_queue_count=self._rules.default_queue_count,
                unit_mode=self._instance.unit_mode,
            )
            target = self._targets[key] = Target(frames)
        return target


def not_in_time(what: str) -> NotSent:
    """Return the error of a send whose time ran out while it waited for `what`."""
    return NotSent(f"{what}: not had in time, nothing was sent")


def _keys_of_batch(body: bytes) -> str:
    found = (properties.find(item.properties, properties.KEYS.encode()) for item in batch.decode(body))
    return " ".join(keys.decode() for keys in found if keys)


def stored(reply: Reply) -> SendReply:
    """Read the reply to a send. Raises ServerError if the message is not stored."""
    if reply.code not in STATUS:
        reply.raise_for_code("send")
    return decode_ext(SendReply, reply.ext)


def result_of(out: PreparedMessage, queue: MessageQueue, reply: Reply, told: SendReply | None = None) -> SendResult:
    """Make a send's result from its reply; `told`: the reply as `stored` read it. Raises ServerError if not stored."""
    if told is None:
        told = decode_ext(SendReply, reply.ext) if reply.code in STATUS else stored(reply)
    if told.queue_id != queue.queue_id:  # A broker chooses another for a message with a priority.
        queue = MessageQueue(queue.topic, queue.broker_name, told.queue_id)
    return SendResult(
        STATUS[reply.code],
        out.message_id,
        told.message_id,
        queue,
        told.queue_offset,
        told.transaction_id,
        told.recall_handle,
    )
