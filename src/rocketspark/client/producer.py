"""The producer. Rule: what one send does over its attempts is in delivery; here is what the application calls."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import msgspec

from rocketspark.client import requests, validate
from rocketspark.client.autobatch import Batcher
from rocketspark.client.delivery import Delivery, SendRules, Tried, result_of
from rocketspark.client.detector import Detector
from rocketspark.client.faults import Faults, table_of
from rocketspark.client.hooks import LogSends
from rocketspark.client.inquiries import Inquiries
from rocketspark.client.lanes import Lanes
from rocketspark.client.options import ProducerOptions, producer_settings
from rocketspark.client.outgoing import (
    Outgoing,
    Packing,
    make_message,
    pack,
    pack_batch,
    pack_reply,
    queue_of_key,
    request_text,
)
from rocketspark.client.posting import Posted, Posting
from rocketspark.client.results import SendResult
from rocketspark.client.room import Room
from rocketspark.client.selectors import Selector, select
from rocketspark.errors import MessageIllegal, NoReply, ProtocolError, RocketSparkError, UsageError
from rocketspark.model import Message, MessageFields, MessageQueue, ReceivedMessage, namespace
from rocketspark.protocol.timers import decode_handle
from rocketspark.transport.messages import Reply

GROUP = "rocketspark_producer"


class AsyncProducer(Inquiries):
    """Sends messages, on the running asyncio loop.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        group: the producer group.
        options: see ProducerOptions and ClientOptions.

    Use it as a context manager, or `start` and `close` it.
    """

    kind = "producer"

    def __init__(self, namesrv: str | None = None, group: str = GROUP, **options: Unpack[ProducerOptions]) -> None:
        settings, client_options = producer_settings(options)
        super().__init__(
            namesrv,
            client_options,
            default_topic=settings.default_topic,
            default_queue_count=settings.default_queue_count,
        )
        self.group = namespace.wrap(self._namespace, validate.check_group(group))
        self.attempts = settings.retries + 1
        self.future_attempts = settings.future_retries + 1
        self.packing = Packing(
            settings.compress_over_bytes,
            settings.compression,
            settings.compress_level,
            settings.body_bytes_max,
            self._namespace,
        )
        self._routes = self._instance.routes
        faults = Faults(table_of(settings.fault_table)) if settings.fault_tolerance else None
        self._detector = Detector(self._instance, faults) if faults is not None and settings.fault_detector else None
        self._rules = SendRules(
            settings.send_timeout_ms,
            frozenset(settings.retry_codes),
            settings.retry_not_stored,
            settings.default_topic,
            settings.default_queue_count,
            settings.vip_channel,
        )
        self._delivery = Delivery(self._instance, self.group, self._rules, self._hooks, faults)
        self._trace_as(self.group, "PRODUCE")
        if settings.log_sends:
            self._hooks.add(LogSends())
        self._batcher: Batcher | None = None
        if settings.linger_ms is not None:
            self._batcher = Batcher(self._send_gathered, linger_ms=settings.linger_ms, bytes_max=settings.batch_bytes)
        self._lanes = Lanes()
        self._room = Room(settings.in_flight_max, settings.in_flight_bytes_max)
        self._oneway_room = Room(settings.oneway_in_flight_max, settings.in_flight_bytes_max)
        self._idle = asyncio.Event()
        self._retrying: set[asyncio.Task[None]] = set()

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin. Nothing is connected yet; the first send does that. Raises StateError."""
        self._begin()
        await self._instance.start(producer=self.group)
        if self._detector is not None:
            self._detector.start()
        if self._tracer is not None:
            self._tracer.start()

    async def close(self) -> None:
        """Finish what is in flight, leave the group, close the connections. May be called again."""
        if self._state != "started":
            self._state = "closed"
            return
        self._state = "closed"
        if self._batcher is not None:
            await self._batcher.close()
        if self._room.count or self._oneway_room.count:
            self._idle.clear()
            # Every send has its own time-out; this bound is for those that wait for their turn.
            try:
                async with asyncio.timeout(2 * self._rules.timeout_ms / 1000):
                    await self._idle.wait()
            except TimeoutError:
                pass
        if self._detector is not None:
            self._detector.stop()
        if self._tracer is not None:
            await self._tracer.close()
        await self._instance.close(producer=self.group)

    # -- sending -------------------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendResult:
        """Send one message and wait until a broker has stored it.

        Args:
            message: a Message; or a topic, with `body` and `fields`, the other fields of a Message.
            queue: where to; then no other queue is tried. Else the sharding key's, else each in turn.
            selector, argument: or what chooses the queue, by this argument: `selectors.by_hash` and others.
            timeout_ms: the budget over all attempts, if not the producer's.

        Sends of one sharding key keep their order: each waits for the one before.

        Raises:
            MessageIllegal: a rule of RocketMQ's is broken; nothing was sent.
            RouteNotFound: no broker takes the topic.
            NotSent: no NameServer answers, and no route is known from before; or too much is in flight.
            SendFailed: all attempts failed, or the broker's code allows no retry.
            StateError: before start or after close.
        """
        message = make_message(message, body, fields)
        out = pack(message, self.packing)
        if selector is not None:
            queue = await self._select(message, out.topic, queue, selector, argument, timeout_ms)
        if self._batcher is not None and timeout_ms is None and self.may_gather(message, out):
            return await self.gather(out, message.sharding_key, message.wait_store_ok, queue)
        return await self.send_packed(out, message.sharding_key, queue, timeout_ms)

    async def resend(self, message: Message, message_id: str, *, timeout_ms: float | None = None) -> SendResult:
        """Send a message under the unique id of a send before, so that consumers can tell it comes again.

        Raises as `send` does.
        """
        return await self.send_packed(pack(message, self.packing, message_id), message.sharding_key, None, timeout_ms)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request: all are stored, one after another in one queue, or none.

        The result holds all ids, comma separated, and the first queue offset. Raises as `send` does; `split` makes
        batches that are small enough.
        """
        out = pack_batch(messages, self.packing)
        return await self.send_packed(out, messages[0].sharding_key, queue, timeout_ms)

    async def send_oneway(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> None:
        """Send one message without waiting for a reply: it may be lost. Raises what is known before it leaves."""
        message = make_message(message, body, fields)
        out = pack(message, self.packing)
        self._check_started()
        if selector is not None:
            queue = await self._select(message, out.topic, queue, selector, argument, timeout_ms)
        end_s = self._delivery.end_s(timeout_ms)
        size = len(out.body)
        await self._oneway_room.enter(size, end_s)
        try:
            await self._delivery.send_oneway(out, message.sharding_key, queue and self._in_namespace(queue), end_s)
        finally:
            self._oneway_room.leave(size)
            self._note_idle()

    async def request(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> ReceivedMessage:
        """Send a request and wait for the reply that a consumer of it gives with `reply`.

        `timeout_ms` is the budget of both together. Raises as `send` does, and NoReply if none came in time.
        """
        message = make_message(message, body, fields)
        self._check_started()
        end_s = self._delivery.end_s(timeout_ms)
        ttl_ms = (end_s - time.monotonic()) * 1000
        correlation_id = str(uuid.uuid4())
        out = pack(message, self.packing)
        out = msgspec.structs.replace(
            out, properties=out.properties + request_text(correlation_id, self.client_id, ttl_ms)
        )
        if selector is not None:
            queue = await self._select(message, out.topic, queue, selector, argument, timeout_ms)
        # The reply comes through whichever broker it was sent to: each must know this client.
        await self._delivery.queues(out.topic, end_s)
        await self._delivery.within(end_s, self._instance.greet_all(), f"request to topic {message.topic!r}")
        waiting: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._instance.asked.replies[correlation_id] = waiting
        try:
            await self.send_packed(out, message.sharding_key, queue, (end_s - time.monotonic()) * 1000)
            async with asyncio.timeout(max(end_s - time.monotonic(), 0)):
                return await waiting
        except TimeoutError:
            text = f"the request to topic {message.topic!r} was sent, but no reply came within {ttl_ms:.0f} ms"
            raise NoReply(f"{text}: does a consumer reply to it?") from None
        finally:
            del self._instance.asked.replies[correlation_id]

    async def reply(self, request: ReceivedMessage, body: bytes, *, timeout_ms: float | None = None) -> SendResult:
        """Answer a message that was sent with `request`. Raises UsageError if it was not, else as `send` does."""
        return await self.send_packed(pack_reply(request, body, self.packing), None, None, timeout_ms)

    async def recall(self, topic: str, handle: str, *, timeout_ms: float | None = None) -> str:
        """Take back a timer message that is not delivered yet. `handle`: its SendResult's `recall_handle`.

        Returns the message's id. Raises UsageError for a handle that is none, ServerError if it is too late or the
        broker does not allow it (recallMessageEnable).
        """
        self._check_started()
        topic = namespace.wrap(self._namespace, validate.check_target(topic))
        try:
            broker_name = decode_handle(handle).broker_name
        except ProtocolError:
            raise UsageError(f"{handle!r} is no recall handle: take a SendResult's recall_handle") from None
        end_s = self._delivery.end_s(timeout_ms)
        peer = await self._delivery.connect(MessageQueue(topic, broker_name, 0), end_s)
        left_ms = max((end_s - time.monotonic()) * 1000, 1)
        return await requests.recall(peer, topic, handle, group=self.group, timeout_ms=left_ms)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that the topic's messages are sent to, ordered by broker and id. Raises RouteNotFound."""
        self._check_started()
        topic = namespace.wrap(self._namespace, validate.check_topic(topic))
        queues = (await self._routes.get(topic)).write_queues()
        return [self._bare_queue(q) for q in queues]

    # -- one send ------------------------------------------------------------------------------------------------

    async def send_packed(
        self,
        out: Outgoing,
        sharding_key: str | None,
        queue: MessageQueue | None,
        timeout_ms: float | None,
        attempts: int | None = None,
    ) -> SendResult:
        """Send what `pack` made of a message. Raises as `send` does."""
        self._check_started()
        began_s = time.monotonic()
        end_s = self._delivery.end_s(timeout_ms, began_s)
        size = len(out.body)
        if not self._room.try_enter(size):
            await self._room.enter(size, end_s)
        try:
            if self._namespace:
                queue = queue and self._in_namespace(queue)
            if not sharding_key:
                tried: Tried | None = None
                if queue is None:
                    # Nearly all sends end here, without what `deliver` costs.
                    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
                    went_to = self._delivery.post(out, end_s, reply)
                    if went_to is not None:
                        try:
                            result = result_of(out, went_to, *requests.stored(await reply))
                            return self._shown(result) if self._namespace else result
                        except RocketSparkError as e:
                            tried = Tried(went_to, e, began_s)
                attempts = attempts or self.attempts
                result = await self._delivery.deliver(out, None, queue, end_s, attempts, tried=tried)
            else:
                lane = (out.topic, sharding_key)
                await self._delivery.within(end_s, self._lanes.enter(lane), f"turn of sharding key {sharding_key!r}")
                try:
                    result = await self._delivery.deliver(out, sharding_key, queue, end_s, attempts or self.attempts)
                finally:
                    self._lanes.leave(lane)
        finally:
            self._room.leave(size)
            if self._state == "closed":
                self._note_idle()
        return self._shown(result) if self._namespace else result

    def post(self, posting: Posting) -> bool:
        """Send with as little as possible: no task, no wait; the posting is told what comes of it.

        False if `send_packed` is needed: nothing was sent then. Called on the loop.
        """
        if self._state != "started" or self._namespace:
            return False
        out = posting.out
        if posting.gathers:
            assert self._batcher is not None
            self._batcher.add(out, None, posting.wait_store_ok, posting)
            return True
        size = len(out.body)
        if not self._room.try_enter(size):
            return False
        posted = Posted(self, posting)
        try:
            posted.queue = self._delivery.post(out, posting.end_s, posted)
        finally:
            if posted.queue is None:
                self._room.leave(size)
        return posted.queue is not None

    def settle(self, posting: Posting, result: SendResult | None, error: BaseException | None = None) -> None:
        """A posting has ended."""
        posting.finish(result, error)
        self._room.leave(len(posting.out.body))
        if self._state == "closed":
            self._note_idle()

    def post_again(self, posting: Posting, tried: Tried) -> None:
        """The one attempt failed: what is left of its budget is `deliver`'s."""
        if posting.given_up:
            self.settle(posting, None, tried.error)
            return
        posting.task = task = asyncio.ensure_future(self._deliver_again(posting, tried))
        self._retrying.add(task)
        task.add_done_callback(self._retrying.discard)

    async def _deliver_again(self, posting: Posting, tried: Tried) -> None:
        try:
            result = await self._delivery.deliver(posting.out, None, None, posting.end_s, posting.attempts, tried=tried)
        except BaseException as e:
            self.settle(posting, None, e)
            if not isinstance(e, Exception):
                raise
        else:
            self.settle(posting, result)

    def end_s(self, timeout_ms: float | None, began_s: float) -> float:
        """The monotonic time at which a send that began then is over."""
        return self._delivery.end_s(timeout_ms, began_s)

    def may_gather(self, message: Message, out: Outgoing) -> bool:
        """Whether a message may go in one request with others."""
        if self._batcher is None or out.sys_flag or out.topic.startswith(validate.RETRY_PREFIX):
            return False
        return not (message.delay_level or message.delay_ms or message.deliver_at_ms)

    async def gather(
        self, out: Outgoing, sharding_key: str | None, wait_store_ok: bool, queue: MessageQueue | None
    ) -> SendResult:
        """Send what `pack` made of a message with others. Raises as `send` does."""
        self._check_started()
        assert self._batcher is not None
        if queue is None and sharding_key:
            queues = await self._delivery.queues(out.topic, self._delivery.end_s(None))
            queue = queue_of_key(sharding_key, queues)
        result: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self._batcher.add(out, queue and self._in_namespace(queue), wait_store_ok, result)
        return self._shown(await result) if self._namespace else await result

    async def _send_gathered(self, out: Outgoing, queue: MessageQueue | None) -> SendResult:
        end_s = self._delivery.end_s(None)
        size = len(out.body)
        await self._room.enter(size, end_s)
        try:
            return await self._delivery.deliver(out, None, queue, end_s, self.attempts)
        finally:
            self._room.leave(size)
            self._note_idle()

    def _note_idle(self) -> None:
        if not self._room.count and not self._oneway_room.count:
            self._idle.set()

    async def _select(
        self,
        message: Message,
        topic: str,
        queue: MessageQueue | None,
        selector: Selector,
        argument: Any,
        timeout_ms: float | None,
    ) -> MessageQueue:
        self._check_started()
        if queue is not None:
            raise UsageError("give a queue or a selector, not both")
        queues = await self._delivery.queues(topic, self._delivery.end_s(timeout_ms))
        return select(selector, [self._bare_queue(q) for q in queues], message, argument)

    # -- namespace -----------------------------------------------------------------------------------------------

    def _shown(self, result: SendResult) -> SendResult:
        return msgspec.structs.replace(result, queue=self._bare_queue(result.queue))


def split(messages: Iterable[Message], bytes_max: int = 1 << 20) -> Iterator[list[Message]]:
    """Batches of at most `bytes_max` bytes, in order, each for one `send_batch`.

    Raises MessageIllegal for a message that is larger by itself (rule: the batches' size as RocketMQ counts it).
    """
    batch: list[Message] = []
    total = 0
    for message in messages:
        size = len(message.body) + len(pack(message, _PLAIN).properties.encode()) + 20
        if size > bytes_max:
            text = f"a message for topic {message.topic!r} has {size} bytes with its properties, over {bytes_max}"
            raise MessageIllegal(f"{text}: send it alone", topic=message.topic)
        if total + size > bytes_max:
            yield batch
            batch, total = [], 0
        batch.append(message)
        total += size
    if batch:
        yield batch


_PLAIN = Packing(over_bytes=1 << 40)
