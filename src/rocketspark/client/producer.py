"""The producer. Rule: retries are the one `for attempt` loop of `_deliver`; only the code table allows a retry."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

from rocketspark.client import requests, validate
from rocketspark.client.instance import Instance
from rocketspark.client.lanes import Lanes
from rocketspark.client.options import ClientOptions
from rocketspark.client.outgoing import Outgoing, Packing, make_message, pack, pack_batch, queue_of_key
from rocketspark.client.results import STATUS, SendResult
from rocketspark.client.routes import DEFAULT_TOPIC
from rocketspark.errors import ConfigError, NotSent, RocketSparkError, SendFailed, ServerError, StateError
from rocketspark.model import Message, MessageFields, MessageQueue
from rocketspark.protocol.codes import ResponseCode, verdict
from rocketspark.protocol.compression import KINDS
from rocketspark.transport.peer import Peer

T = TypeVar("T")

GROUP = "rocketspark_producer"
# Pauses before the same broker is tried again; together they outlast a quick restart.
PAUSE_S = (0.25, 0.75, 1.0)


class AsyncProducer:
    """Sends messages, on the running asyncio loop.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        group: the producer group.
        send_timeout_ms: the budget of one send, over all its attempts.
        retries: attempts after the first (rule: DefaultMQProducer, 5.x).
        compress_over_bytes: bodies over this are compressed; `compression`: zlib, lz4 or zstd, with `compress_level`.
        body_bytes_max: larger bodies are refused.
        default_topic, default_queue_count: whose route a topic that does not exist yet takes, on how many queues.
        options: see ClientOptions.

    Use it as a context manager, or `start` and `close` it.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = GROUP,
        *,
        send_timeout_ms: float = 3000,
        retries: int = 2,
        compress_over_bytes: int = 4096,
        compression: str = "zlib",
        compress_level: int = 5,
        body_bytes_max: int = validate.BODY_BYTES_MAX,
        default_topic: str = DEFAULT_TOPIC,
        default_queue_count: int = 4,
        **options: Unpack[ClientOptions],
    ) -> None:
        if compression not in KINDS:
            raise ConfigError(f"compression {compression!r} is not one of {', '.join(KINDS)}")
        if retries < 0 or send_timeout_ms <= 0:
            raise ConfigError("retries must be 0 or more, send_timeout_ms more than 0")
        self.group = validate.check_group(group)
        self._timeout_ms = send_timeout_ms
        self._attempts = retries + 1
        self.packing = Packing(compress_over_bytes, compression, compress_level, body_bytes_max)
        self._default_topic = default_topic
        self._default_queue_count = default_queue_count
        self._instance = Instance(
            namesrv,
            default_topic=default_topic,
            default_queue_count=default_queue_count,
            **options,
        )
        self._instance.producers.add(self.group)
        self._routes = self._instance.routes
        self._lanes = Lanes()
        self._frames: dict[tuple[MessageQueue, bool, bool], requests.SendFrames] = {}
        self._turns: dict[str, int] = {}
        self._state = "new"
        self._in_flight = 0
        self._idle = asyncio.Event()

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin. Nothing is connected yet; the first send does that."""
        if self._state != "new":
            raise StateError(f"the producer is {self._state}: make a new one")
        self._state = "started"
        await self._instance.start()

    async def close(self) -> None:
        """Finish what is in flight, leave the group, close the connections. May be called again."""
        if self._state != "started":
            self._state = "closed"
            return
        self._state = "closed"
        if self._in_flight:
            self._idle.clear()
            # Every send has its own time-out; this bound is for those that wait for their turn.
            try:
                async with asyncio.timeout(2 * self._timeout_ms / 1000):
                    await self._idle.wait()
            except TimeoutError:
                pass
        await self._instance.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """The id brokers know this client by."""
        return self._instance.client_id

    # -- sending -------------------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendResult:
        """Send one message and wait until a broker has stored it.

        Args:
            message: a Message; or a topic, with `body` and `fields`, the other fields of a Message.
            queue: where to; then no other queue is tried. Else the sharding key's, else each in turn.
            timeout_ms: the budget over all attempts, if not the producer's.

        Sends of one sharding key keep their order: each waits for the one before.

        Raises:
            MessageIllegal: a rule of RocketMQ's is broken; nothing was sent.
            RouteNotFound: no broker takes the topic.
            NotSent: no NameServer answers, and no route is known from before.
            SendFailed: all attempts failed, or the broker's code allows no retry.
            StateError: before start or after close.
        """
        message = make_message(message, body, fields)
        return await self.send_packed(pack(message, self.packing), message.sharding_key, queue, timeout_ms)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request: all are stored, one after another in one queue, or none.

        The result holds all ids, comma separated, and the first queue offset. Raises as `send` does.
        """
        out = pack_batch(messages, self.packing)
        return await self.send_packed(out, messages[0].sharding_key, queue, timeout_ms)

    async def send_oneway(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        **fields: Unpack[MessageFields],
    ) -> None:
        """Send one message without waiting for a reply: it may be lost. Raises what is known before it leaves."""
        message = make_message(message, body, fields)
        out = pack(message, self.packing)
        self._check_started()
        queue = queue or await self._choose(out.topic, message.sharding_key)
        address = self._routes.master(queue.broker_name) or await self._routes.find_master(queue)
        peer = await self._connect(address, time.monotonic() + self._timeout_ms / 1000)
        frame = self._frames_to(queue, out.is_batch, oneway=True).frame(
            peer.next_opaque(), out.body, out.properties, out.sys_flag, int(time.time() * 1000), out.flag
        )
        await peer.writable()
        peer.send(frame)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that the topic's messages are sent to, ordered by broker and id. Raises RouteNotFound."""
        self._check_started()
        validate.check_topic(topic)
        return list((await self._routes.get(topic)).write_queues())

    # -- one send ------------------------------------------------------------------------------------------------

    def _check_started(self) -> None:
        if self._state != "started":
            raise StateError(
                "the producer is closed: make a new one"
                if self._state == "closed"
                else "the producer is not started: call start(), or use it in a with block"
            )

    async def send_packed(
        self, out: Outgoing, sharding_key: str | None, queue: MessageQueue | None, timeout_ms: float | None
    ) -> SendResult:
        """Send what `pack` made of a message. Raises as `send` does."""
        self._check_started()
        self._in_flight += 1
        try:
            if not sharding_key:
                return await self._deliver(out, None, queue, timeout_ms)
            lane = (out.topic, sharding_key)
            await self._lanes.enter(lane)
            try:
                return await self._deliver(out, sharding_key, queue, timeout_ms)
            finally:
                self._lanes.leave(lane)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def _deliver(
        self, out: Outgoing, sharding_key: str | None, chosen: MessageQueue | None, timeout_ms: float | None
    ) -> SendResult:
        started_s = time.monotonic()
        end_s = started_s + (self._timeout_ms if timeout_ms is None else timeout_ms) / 1000
        # Without a queue and its broker nothing can be tried: what hinders that is raised as it is.
        if chosen is not None and self._routes.master(chosen.broker_name) is None:
            await self._within(end_s, self._routes.find_master(chosen), f"route of topic {out.topic!r}")
        elif chosen is None and not self._routes.write_queues(out.topic):
            await self._within(end_s, self._routes.find_write_queues(out.topic), f"route of topic {out.topic!r}")
        queue = chosen or await self._choose(out.topic, sharding_key)
        tried: list[str] = []
        cause: RocketSparkError | None = None
        for attempt in range(self._attempts):
            tried.append(queue.broker_name)
            try:
                return await self._attempt(out, queue, end_s)
            except RocketSparkError as e:
                cause = e
            if not cause.retriable or attempt + 1 == self._attempts:
                break
            fixed = chosen or (queue if sharding_key else None)
            queue = await self._next_queue(out.topic, queue, fixed, cause, attempt, end_s)
            if time.monotonic() >= end_s:
                break
        assert cause is not None
        cost_ms = (time.monotonic() - started_s) * 1000
        raise SendFailed(out.topic, cause, attempts=len(tried), brokers=tuple(tried), cost_ms=cost_ms)

    async def _attempt(self, out: Outgoing, queue: MessageQueue, end_s: float) -> SendResult:
        address = self._routes.master(queue.broker_name) or await self._routes.find_master(queue)
        peer = self._instance.open_broker(address) or await self._connect(address, end_s)
        frames = self._frames.get((queue, out.is_batch, False)) or self._frames_to(queue, out.is_batch)
        opaque = peer.next_opaque()
        now_s = time.time()
        frame = frames.frame(opaque, out.body, out.properties, out.sys_flag, int(now_s * 1000), out.flag)
        left_ms = max((end_s - time.monotonic()) * 1000, 1)
        code, reply = await requests.send_frame(peer, opaque, frame, timeout_ms=left_ms)
        return SendResult(
            STATUS[code], out.message_id, reply.message_id, queue, reply.queue_offset, reply.transaction_id
        )

    async def _choose(self, topic: str, sharding_key: str | None, avoid: str | None = None) -> MessageQueue:
        queues = self._routes.write_queues(topic) or await self._routes.find_write_queues(topic)
        if sharding_key:
            return queue_of_key(sharding_key, queues)
        turn = self._turns.get(topic)
        if turn is None:
            turn = random.randrange(len(queues))
        for _ in queues:
            turn += 1
            queue = queues[turn % len(queues)]
            if queue.broker_name != avoid:
                break
        self._turns[topic] = turn
        return queue

    async def _next_queue(
        self,
        topic: str,
        last: MessageQueue,
        fixed: MessageQueue | None,
        cause: RocketSparkError,
        attempt: int,
        end_s: float,
    ) -> MessageQueue:
        code = cause.code if isinstance(cause, ServerError) else None
        if isinstance(cause, NotSent) or (code is not None and verdict(code).refresh_route):
            try:
                await self._routes.find_write_queues(topic, refresh=True)
            except RocketSparkError:
                pass  # What is known is tried again; the send's own error tells more than this one.
        queue = fixed
        if queue is None:
            try:
                queue = await self._choose(topic, None, avoid=last.broker_name)
            except RocketSparkError:
                queue = last
        if queue.broker_name == last.broker_name and code != ResponseCode.TOPIC_NOT_EXIST:
            left_s = end_s - time.monotonic()
            await asyncio.sleep(max(0.0, min(PAUSE_S[min(attempt, len(PAUSE_S) - 1)], left_s / 2)))
        return queue

    async def _connect(self, address: str, end_s: float) -> Peer:
        return await self._within(end_s, self._instance.broker(address), f"connection to {address}")

    async def _within(self, end_s: float, act: Awaitable[T], what: str) -> T:
        try:
            async with asyncio.timeout(max(end_s - time.monotonic(), 0.001)):
                return await act
        except TimeoutError:
            raise NotSent(f"{what}: not had in time, nothing was sent") from None

    def _frames_to(self, queue: MessageQueue, is_batch: bool, oneway: bool = False) -> requests.SendFrames:
        key = (queue, is_batch, oneway)
        frames = self._frames.get(key)
        if frames is None:
            frames = self._frames[key] = requests.SendFrames(
                queue,
                group=self.group,
                batch=is_batch,
                oneway=oneway,
                default_topic=self._default_topic,
                default_queue_count=self._default_queue_count,
            )
        return frames
