"""Send attempts: one send over all its tries; chooses queue and broker, and tells whether to try again.

Rule: retries are the one `for attempt` loop of `deliver`; a queue that was chosen is never left for another.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Collection
from typing import NamedTuple, TypeVar

from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import Instance
from rocketspark.client.hooks import HookSet, Sending, guarded
from rocketspark.client.producer.latency_faults import LatencyFaults
from rocketspark.client.producer.prepared_message import PreparedMessage, queue_of_key
from rocketspark.client.results import STATUS, SendResult, SendStatus
from rocketspark.errors import (
    FrameError,
    NotSent,
    RocketSparkError,
    SendFailed,
    ServerError,
    TransportError,
    UsageError,
)
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RESPONSES, RequestCode, ResponseCode, verdict
from rocketspark.protocol.headers import SendHeader, SendReply
from rocketspark.protocol.message import batch, properties
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import ReplyWaiter

T = TypeVar("T")


class FailedAttempt(NamedTuple):
    """A first attempt that failed: which queue, how, and the monotonic time when it began."""

    queue: MessageQueue
    error: RocketSparkError
    began_s: float


# Pauses before the same broker is tried again; together they outlast a quick restart.
PAUSE_S = (0.25, 0.75, 1.0)
RETRY_CODES = frozenset(code for code, row in RESPONSES.items() if row.retriable)


class SendRules(NamedTuple):
    """The rules by which a send is tried again (rule: DefaultMQProducer, 5.x).

    `retry_codes`: response codes after which it is; `retry_not_stored`: also after a status other than SEND_OK.
    """

    timeout_ms: float = 3000
    retry_codes: Collection[int] = RETRY_CODES
    retry_not_stored: bool = False
    default_topic: str = "TBW102"
    default_queue_count: int = 4
    vip_channel: bool = False


class SendAttempts:
    """Sends prepared messages to the brokers of one instance. `faults`: brokers to leave alone, None for no such
    record.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        rules: SendRules,
        hooks: HookSet,
        faults: LatencyFaults | None = None,
    ) -> None:
        self._instance = instance
        self._routes = instance.routes
        self._group = group
        self._rules = rules
        self._faults = faults
        self._hooks = hooks
        self._frames: dict[tuple[MessageQueue, int, bool], client_api.SendFrames] = {}
        self._turns: dict[str, int] = {}
        # True if one attempt may go without `deliver`: latency faults are off, and no stored message is sent again.
        self._plain = faults is None and not rules.retry_not_stored

    def end_s(self, timeout_ms: float | None, began_s: float | None = None) -> float:
        """Return the monotonic time at which the budget of a send ends that begins now, or began at `began_s`."""
        began_s = time.monotonic() if began_s is None else began_s
        if timeout_ms is None:
            return began_s + self._rules.timeout_ms / 1000
        if not math.isfinite(timeout_ms):
            raise UsageError(f"timeout_ms={timeout_ms}: a number of milliseconds is needed, or None")
        return began_s + timeout_ms / 1000

    # -- one send ------------------------------------------------------------------------------------------------

    def post(self, out: PreparedMessage, end_s: float, waiting: ReplyWaiter) -> MessageQueue | None:
        """Send it at once, if nothing has to be waited for; `waiting` gets the reply to this one attempt.

        Returns the queue it went to; None if `deliver` is needed, with nothing sent.
        """
        if not self._plain or self._hooks.sends or self._instance.rpc_hooks is not None:
            return None
        queues = self._routes.write_queues(out.topic)
        if not queues:
            return None
        queue = self._choose(out.topic, queues)
        peer = self.open_peer(queue)
        if peer is None or not peer.is_writable:
            # `deliver` has this turn.
            self._turns[out.topic] -= 1
            return None
        frames = self._frames.get((queue, out.code, False)) or self._frames_to(queue, out.code)
        opaque = peer.next_opaque()
        try:
            frame = frames.frame(opaque, out.body, out.properties, out.sys_flag, int(time.time() * 1000), out.flag)
        except FrameError:
            self._turns[out.topic] -= 1
            return None
        peer.ask_for(waiting, opaque, frame, out.code, max((end_s - time.monotonic()) * 1000, 1))
        return queue

    async def deliver(
        self,
        out: PreparedMessage,
        sharding_key: str | None,
        chosen: MessageQueue | None,
        end_s: float,
        attempts: int,
        *,
        tried: FailedAttempt | None = None,
        codes: Collection[int] | None = None,
    ) -> SendResult:
        """Send it, within a budget of attempts and time. `tried`: the first of them was made by `post`, and failed.

        `codes`: after which responses it is tried again, if not those of the rules.

        Raises RouteNotFound, NotSent if no queue can be had; SendFailed if all attempts failed.
        """
        started_s = time.monotonic() if tried is None else tried.began_s
        brokers: list[str] = []
        cause: RocketSparkError | None = None
        if tried is None:
            queue = chosen or await self._first_queue(out.topic, sharding_key, end_s)
        else:
            queue, cause, _ = tried
            brokers.append(queue.broker_name)
            again = attempts > 1 and self._may_retry(cause, codes)
            if again:
                queue = await self._next_queue(out.topic, queue, chosen, cause, 0, end_s)
            if not again or time.monotonic() >= end_s:
                raise _failed(out.topic, cause, brokers, started_s)
        if self._routes.master(queue.broker_name) is None and chosen is None and not sharding_key:
            # A queue of an order topic, whose broker is away: others take its turn.
            others = [q for q in self._routes.write_queues(out.topic) if self._routes.master(q.broker_name) is not None]
            queue = self._choose(out.topic, tuple(others)) if others else queue
        # Without a broker nothing can be tried: what hinders that is raised as it is.
        if self._routes.master(queue.broker_name) is None:
            await self.within(end_s, self._routes.find_master(queue), f"route of topic {out.topic!r}")
        in_hand: SendResult | None = None
        for attempt in range(len(brokers), attempts):
            brokers.append(queue.broker_name)
            began_s = time.monotonic()
            try:
                result = await self._attempt(out, queue, end_s)
            except RocketSparkError as e:
                cause = e
                if self._faults is not None:
                    self._note_failure(queue, began_s, e)
            else:
                if self._faults is not None:
                    now_s = time.monotonic()
                    self._faults.sent(queue.broker_name, (now_s - began_s) * 1000, now_s)
                if result.status is SendStatus.SEND_OK or not self._rules.retry_not_stored:
                    return result
                in_hand, cause = result, None
            if attempt + 1 == attempts or not self._may_retry(cause, codes):
                break
            fixed = chosen or (queue if sharding_key else None)
            if fixed is not None and cause is None:
                break
            queue = await self._next_queue(out.topic, queue, fixed, cause, attempt, end_s)
            if time.monotonic() >= end_s:
                break
        if in_hand is not None:
            return in_hand
        assert cause is not None
        raise _failed(out.topic, cause, brokers, started_s)

    def _may_retry(self, cause: RocketSparkError | None, codes: Collection[int] | None) -> bool:
        if isinstance(cause, ServerError):
            return cause.code in (self._rules.retry_codes if codes is None else codes)
        return cause is None or cause.retriable

    def _note_failure(self, queue: MessageQueue, began_s: float, cause: RocketSparkError) -> None:
        assert self._faults is not None
        now_s = time.monotonic()
        unreachable = isinstance(cause, TransportError)
        self._faults.failed(queue.broker_name, (now_s - began_s) * 1000, now_s, unreachable=unreachable)

    async def _attempt(self, out: PreparedMessage, queue: MessageQueue, end_s: float) -> SendResult:
        if self._hooks.sends or self._instance.rpc_hooks is not None:
            return await self._attempt_hooked(out, queue, end_s)
        peer = self.open_peer(queue) or await self.connect(queue, end_s)
        frames = self._frames.get((queue, out.code, False)) or self._frames_to(queue, out.code)
        opaque = peer.next_opaque()
        frame = frames.frame(opaque, out.body, out.properties, out.sys_flag, int(time.time() * 1000), out.flag)
        left_ms = max((end_s - time.monotonic()) * 1000, 1)
        code, reply = await client_api.send_frame(peer, opaque, frame, timeout_ms=left_ms)
        return result_of(out, queue, code, reply)

    async def _attempt_hooked(self, out: PreparedMessage, queue: MessageQueue, end_s: float) -> SendResult:
        peer = self.open_peer(queue) or await self.connect(queue, end_s)
        sending = self._begin(out, queue, peer)
        began_s = time.monotonic()
        try:
            header = self._header(out, sending)
            left_ms = max((end_s - began_s) * 1000, 1)
            code, reply = await client_api.send(peer, header, out.body, code=out.code, timeout_ms=left_ms)
            sending.result = result_of(out, queue, code, reply)
            sending.region, sending.trace_on = reply.region, reply.trace_on is not False
            return sending.result
        except BaseException as e:
            sending.error = e
            raise
        finally:
            self._end(sending, began_s)

    def _begin(self, out: PreparedMessage, queue: MessageQueue, peer: Peer, *, oneway: bool = False) -> Sending:
        sending = Sending(
            group=self._group,
            topic=out.topic,
            queue=queue,
            address=peer.address,
            message_id=out.message_id,
            properties=properties.decode(out.properties),
            body_bytes=len(out.body),
            born_time_ms=int(time.time() * 1000),
            oneway=oneway,
        )
        sending.keys = sending.properties.get(properties.KEYS, "")
        if out.code == RequestCode.SEND_BATCH_MESSAGE:
            sending.keys = _keys_of_batch(out.body)
        sending.notes["pairs"] = len(sending.properties)
        for hooks in self._hooks.sends:
            hooks.check_forbidden(sending)
        for hooks in self._hooks.sends:
            guarded(hooks.before_send, sending)
        return sending

    def _end(self, sending: Sending, began_s: float) -> None:
        sending.cost_ms = (time.monotonic() - began_s) * 1000
        for hooks in self._hooks.sends:
            guarded(hooks.after_send, sending)

    def _header(self, out: PreparedMessage, sending: Sending) -> SendHeader:
        queue = sending.queue
        text = out.properties
        if len(sending.properties) != sending.notes.pop("pairs"):
            # A hook added some, such as the context of a trace.
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

    async def send_oneway(
        self, out: PreparedMessage, sharding_key: str | None, chosen: MessageQueue | None, end_s: float
    ) -> None:
        """Send it once, without waiting for a reply. Raises what is known before it leaves."""
        queue = chosen or await self._first_queue(out.topic, sharding_key, end_s)
        peer = self.open_peer(queue) or await self.connect(queue, end_s)
        if self._hooks.sends or self._instance.rpc_hooks is not None:
            if not peer.is_writable:
                await self.within(end_s, peer.writable(), f"{peer.address} does not read")
            sending = self._begin(out, queue, peer, oneway=True)
            peer.oneway(out.code, self._header(out, sending), out.body)
            self._end(sending, time.monotonic())
            return
        frames = self._frames.get((queue, out.code, True)) or self._frames_to(queue, out.code, oneway=True)
        frame = frames.frame(
            peer.next_opaque(), out.body, out.properties, out.sys_flag, int(time.time() * 1000), out.flag
        )
        if not peer.is_writable:
            await self.within(end_s, peer.writable(), f"{peer.address} does not read")
        peer.send(frame)

    # -- queues --------------------------------------------------------------------------------------------------

    def known_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues a topic's messages are sent to, as far as they are known."""
        return self._routes.write_queues(topic)

    async def queues(self, topic: str, end_s: float) -> tuple[MessageQueue, ...]:
        """Return the queues a topic's messages are sent to. Raises RouteNotFound, NotSent."""
        known = self._routes.write_queues(topic)
        what = f"route of topic {topic!r}"
        return known or await self.within(end_s, self._routes.find_write_queues(topic), what)

    async def _first_queue(self, topic: str, sharding_key: str | None, end_s: float) -> MessageQueue:
        queues = self._routes.write_queues(topic) or await self.queues(topic, end_s)
        return queue_of_key(sharding_key, queues) if sharding_key else self._choose(topic, queues)

    def _choose(self, topic: str, queues: tuple[MessageQueue, ...], avoid: str | None = None) -> MessageQueue:
        """Return the next queue in turn, of a broker that is available and not `avoid`, as far as there is one."""
        turn = self._turns.get(topic)
        if turn is None:
            turn = random.randrange(len(queues))
        if self._faults is None and avoid is None:
            self._turns[topic] = turn = turn + 1
            return queues[turn % len(queues)]
        now_s = time.monotonic()
        faults = self._faults
        spare: MessageQueue | None = None
        for step in range(1, len(queues) + 1):
            queue = queues[(turn + step) % len(queues)]
            if faults is not None and not faults.is_available(queue.broker_name, now_s):
                continue
            if queue.broker_name != avoid:
                self._turns[topic] = turn + step
                return queue
            spare = spare or queue
        self._turns[topic] = turn = turn + 1
        if spare is None and faults is not None:
            name = faults.least_bad((q.broker_name for q in queues), now_s)
            of_it = [q for q in queues if q.broker_name == name]
            if of_it:
                return of_it[turn % len(of_it)]
        return spare or queues[turn % len(queues)]

    async def _next_queue(
        self,
        topic: str,
        last: MessageQueue,
        fixed: MessageQueue | None,
        cause: RocketSparkError | None,
        attempt: int,
        end_s: float,
    ) -> MessageQueue:
        code = cause.code if isinstance(cause, ServerError) else None
        if isinstance(cause, NotSent) or (code is not None and verdict(code).refresh_route):
            try:
                # Half of the time left, so that one attempt more is possible even if no NameServer answers.
                async with asyncio.timeout((end_s - time.monotonic()) / 2):
                    await self._routes.find_write_queues(topic, refresh=True)
            except (RocketSparkError, TimeoutError):
                pass  # What is known is tried again; the send's own error tells more than this one.
        queue = fixed
        if queue is None:
            queues = self._routes.write_queues(topic)
            queue = self._choose(topic, queues, avoid=last.broker_name) if queues else last
        if queue.broker_name == last.broker_name and code != ResponseCode.TOPIC_NOT_EXIST:
            left_s = end_s - time.monotonic()
            await asyncio.sleep(max(0.0, min(PAUSE_S[min(attempt, len(PAUSE_S) - 1)], left_s / 2)))
        return queue

    # -- connections ---------------------------------------------------------------------------------------------

    def _address(self, broker_name: str) -> str | None:
        address = self._routes.master(broker_name)
        if address is not None and self._rules.vip_channel:
            host, _, port = address.rpartition(":")
            return f"{host}:{int(port) - 2}"
        return address

    def open_peer(self, queue: MessageQueue) -> Peer | None:
        """Return the connection to a queue's broker, if it is open."""
        address = self._address(queue.broker_name)
        return None if address is None else self._instance.open_broker(address)

    async def is_ready(self, queue: MessageQueue, end_s: float) -> bool:
        """Wait until the first attempt at this queue can be written at once, before anything else runs; tell whether it
        can.
        """
        peer = self.open_peer(queue)
        if peer is not None and not peer.is_writable:
            await self.within(end_s, peer.writable(), f"{peer.address} does not read")
            peer = self.open_peer(queue)
        return peer is not None and peer.is_writable

    async def connect(self, queue: MessageQueue, end_s: float) -> Peer:
        """Return the connection to a queue's broker. Raises BrokerNotFound, NotSent."""
        if self._routes.master(queue.broker_name) is None:
            await self.within(end_s, self._routes.find_master(queue), f"route of topic {queue.topic!r}")
        address = self._address(queue.broker_name)
        assert address is not None
        return await self.within(end_s, self._instance.broker(address), f"connection to {address}")

    async def within(self, end_s: float, act: Awaitable[T], what: str) -> T:
        """Return the result of `act`. Raises NotSent at `end_s`."""
        try:
            async with asyncio.timeout(max(end_s - time.monotonic(), 0.001)):
                return await act
        except TimeoutError:
            raise NotSent(f"{what}: not had in time, nothing was sent") from None

    def _frames_to(self, queue: MessageQueue, code: int, oneway: bool = False) -> client_api.SendFrames:
        key = (queue, code, oneway)
        frames = self._frames.get(key)
        if frames is None:
            frames = self._frames[key] = client_api.SendFrames(
                queue,
                group=self._group,
                code=code,
                oneway=oneway,
                default_topic=self._rules.default_topic,
                default_queue_count=self._rules.default_queue_count,
                unit_mode=self._instance.unit_mode,
            )
        return frames


def _keys_of_batch(body: bytes) -> str:
    found = (properties.find(item.properties, properties.KEYS.encode()) for item in batch.decode(body))
    return " ".join(keys.decode() for keys in found if keys)


def _failed(topic: str, cause: RocketSparkError, brokers: list[str], started_s: float) -> SendFailed:
    cost_ms = (time.monotonic() - started_s) * 1000
    return SendFailed(topic, cause, attempts=len(brokers), brokers=tuple(brokers), cost_ms=cost_ms)


def result_of(out: PreparedMessage, queue: MessageQueue, code: int, reply: SendReply) -> SendResult:
    """Make the result of a send from its reply."""
    return SendResult(
        STATUS[code],
        out.message_id,
        reply.message_id,
        queue,
        reply.queue_offset,
        reply.transaction_id,
        reply.recall_handle,
    )
