"""The producer's public methods. Rule: the attempts of one send are in send_attempts."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Unpack

import msgspec

from rocketspark.client import validators
from rocketspark.client.connection import client_api
from rocketspark.client.hooks import LogSends
from rocketspark.client.options import ProducerOptions, producer_settings
from rocketspark.client.producer.accumulator import Accumulator, GatheredMessage, SendBudget
from rocketspark.client.producer.fault_detector import FaultDetector
from rocketspark.client.producer.in_flight_limit import InFlightLimit
from rocketspark.client.producer.key_gate import KeyGate
from rocketspark.client.producer.latency_faults import LatencyFaults, table_of
from rocketspark.client.producer.pending_send import PendingSend, PendingSendReply
from rocketspark.client.producer.prepared_message import (
    PackingSettings,
    PreparedMessage,
    make_message,
    pack,
    pack_batch,
    pack_reply,
    request_text,
)
from rocketspark.client.producer.send_attempts import FailedAttempt, SendAttempts, SendRules, result_of
from rocketspark.client.queries import Queries
from rocketspark.client.results import SendResult
from rocketspark.client.selectors import Selector, select
from rocketspark.errors import (
    MessageIllegal,
    NoReply,
    ProtocolError,
    RequestTimedOut,
    RocketSparkError,
    SendFailed,
    UsageError,
)
from rocketspark.model import Message, MessageFields, MessageQueue, ReceivedMessage, namespace
from rocketspark.protocol.timers import decode_handle
from rocketspark.transport.request_frames import Reply

GROUP = "rocketspark_producer"

# Finds the queue of one message among its topic's.
Choose = Callable[[Sequence[MessageQueue]], MessageQueue]


class AsyncProducer(Queries):
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
        self.group = namespace.wrap(self._namespace, validators.check_group(group))
        self.attempts = settings.retries + 1
        self.future_attempts = settings.future_retries + 1
        codes = settings.future_retry_codes
        self.future_codes = None if codes is None else frozenset(codes)
        self.packing = PackingSettings(
            settings.compress_over_bytes,
            settings.compression,
            settings.compress_level,
            settings.body_bytes_max,
            self._namespace,
        )
        self._routes = self._instance.routes
        topics = [validators.check_topic(topic) for topic in settings.topics]
        self._topics = [settings.default_topic, *(namespace.wrap(self._namespace, topic) for topic in topics)]
        faults = LatencyFaults(table_of(settings.fault_table)) if settings.fault_tolerance else None
        self._detector = (
            FaultDetector(self._instance, faults) if faults is not None and settings.fault_detector else None
        )
        self._rules = SendRules(
            settings.send_timeout_ms,
            frozenset(settings.retry_codes),
            settings.retry_not_stored,
            settings.default_topic,
            settings.default_queue_count,
            settings.vip_channel,
        )
        self._send_attempts = SendAttempts(self._instance, self.group, self._rules, self._hooks, faults)
        self._trace_as(self.group, "PRODUCE")
        if settings.log_sends:
            self._hooks.add(LogSends())
        self._batcher: Accumulator | None = None
        if settings.linger_ms is not None:
            self._batcher = Accumulator(
                self._send_gathered,
                self._send_attempts,
                lambda: SendBudget(self._send_attempts.end_s(None), self.attempts),
                linger_ms=settings.linger_ms,
                bytes_max=settings.batch_bytes,
            )
        self._key_gate = KeyGate()
        # The last send to each queue that was chosen, while its reply is awaited.
        self._newest: dict[MessageQueue, PreparedMessage] = {}
        self._in_flight_limit = InFlightLimit(settings.in_flight_max, settings.in_flight_bytes_max)
        self._oneway_limit = InFlightLimit(settings.oneway_in_flight_max, settings.in_flight_bytes_max)
        self.in_flight_max = settings.in_flight_max
        self.callback_executor = settings.callback_executor
        self._idle = asyncio.Event()
        self._requests: set[asyncio.Future[ReceivedMessage]] = set()
        self._retrying: set[asyncio.Task[None]] = set()

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin. Brokers are told of this producer in the background, or by its first send. Raises StateError."""
        self._begin()
        await self._start_once(self._start, self._close)

    async def _start(self) -> None:
        await self._instance.start(producer=self.group)
        self._instance.introduce(self._topics)
        if self._detector is not None:
            self._detector.start()
        if self._tracer is not None:
            self._tracer.start()

    async def close(self) -> None:
        """Finish what is in flight, leave the group, close the connections. May be called again.

        If the caller is cancelled, the closing goes on.
        """
        await self._close_once(self._close)

    async def _close(self) -> None:
        try:
            await self._finish_sends()
            if self._tracer is not None:
                await self._tracer.close()
        finally:
            if self._detector is not None:
                self._detector.stop()
            for waiting in self._requests:
                if not waiting.done():
                    waiting.set_exception(NoReply("the producer was closed before the reply to a request came"))
            await self._instance.close(producer=self.group)

    async def _finish_sends(self) -> None:
        if self._batcher is not None:
            await self._batcher.close()
        if self._is_busy:
            self._idle.clear()
            # Every send has its own time-out; this bound is for those that wait for their turn.
            try:
                async with asyncio.timeout(2 * self._rules.timeout_ms / 1000):
                    await self._idle.wait()
            except TimeoutError:
                pass

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

        Sends of one sharding key keep their order: each waits for the one before. So do those to one chosen queue, but
        they wait only for one that is tried again; what fails when others followed it is not tried again.

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
            queue, timeout_ms = await self._select(message, out.topic, queue, selector, argument, timeout_ms)
        gathers = timeout_ms is None and self.may_gather(message, out)
        return await self._send(out, message.sharding_key, queue, timeout_ms, gathers, message.wait_store_ok)

    async def resend(self, message: Message, message_id: str, *, timeout_ms: float | None = None) -> SendResult:
        """Send a message under the unique id of a send before, so that consumers can tell it comes again.

        Raises as `send` does.
        """
        return await self._send(pack(message, self.packing, message_id), message.sharding_key, None, timeout_ms)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request: all are stored, one after another in one queue, or none.

        The result holds all ids, comma separated, and the first queue offset. Raises as `send` does; `split` makes
        batches that are small enough.
        """
        out = pack_batch(messages, self.packing)
        return await self._send(out, messages[0].sharding_key, queue, timeout_ms)

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
            queue, timeout_ms = await self._select(message, out.topic, queue, selector, argument, timeout_ms)
        if queue is not None:
            queue = self._full_queue(out.topic, queue)
        end_s = self._send_attempts.end_s(timeout_ms)
        size = len(out.body)
        await self._oneway_limit.enter(size, end_s)
        try:
            await self._send_attempts.send_oneway(out, message.sharding_key, queue, end_s)
        finally:
            self._oneway_limit.leave(size)
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
        end_s = self._send_attempts.end_s(timeout_ms)
        ttl_ms = (end_s - time.monotonic()) * 1000
        correlation_id = str(uuid.uuid4())
        out = pack(message, self.packing)
        out = msgspec.structs.replace(
            out, properties=out.properties + request_text(correlation_id, self.client_id, ttl_ms)
        )
        if selector is not None:
            queue, _ = await self._select(message, out.topic, queue, selector, argument, ttl_ms)
        elif queue is not None:
            queue = self._full_queue(out.topic, queue)
        # The reply comes through whichever broker it was sent to: each must know this client.
        await self._send_attempts.queues(out.topic, end_s)
        await self._send_attempts.within(end_s, self._instance.greet_all(), f"request to topic {message.topic!r}")
        waiting: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._instance.asked.replies[correlation_id] = waiting
        self._requests.add(waiting)
        try:
            await self._send(out, message.sharding_key, queue, (end_s - time.monotonic()) * 1000)
            async with asyncio.timeout(max(end_s - time.monotonic(), 0)):
                return await waiting
        except TimeoutError:
            text = f"the request to topic {message.topic!r} was sent, but no reply came within {ttl_ms:.0f} ms"
            raise RequestTimedOut(f"{text}: does a consumer reply to it?") from None
        finally:
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # Told, or no longer of use.
            self._requests.discard(waiting)
            del self._instance.asked.replies[correlation_id]

    async def reply(self, request: ReceivedMessage, body: bytes, *, timeout_ms: float | None = None) -> SendResult:
        """Answer a message that was sent with `request`. Raises UsageError if it was not, else as `send` does."""
        return await self._send(pack_reply(request, body, self.packing), None, None, timeout_ms)

    async def recall(self, topic: str, handle: str, *, timeout_ms: float | None = None) -> str:
        """Take back a timer message that is not delivered yet. `handle`: its SendResult's `recall_handle`.

        Returns the message's id. Raises UsageError for a handle that is none, ServerError if it is too late or the
        broker does not allow it (recallMessageEnable).
        """
        self._check_started()
        topic = namespace.wrap(self._namespace, validators.check_target(topic))
        try:
            broker_name = decode_handle(handle).broker_name
        except ProtocolError:
            raise UsageError(f"{handle!r} is no recall handle: take a SendResult's recall_handle") from None
        end_s = self._send_attempts.end_s(timeout_ms)
        peer = await self._send_attempts.connect(MessageQueue(topic, broker_name, 0), end_s)
        left_ms = max((end_s - time.monotonic()) * 1000, 1)
        return await client_api.recall(peer, topic, handle, group=self.group, timeout_ms=left_ms)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that the topic's messages are sent to, ordered by broker and id. Raises RouteNotFound."""
        self._check_started()
        topic = namespace.wrap(self._namespace, validators.check_topic(topic))
        queues = (await self._routes.get(topic)).producer_queues()
        return [self._bare_queue(q) for q in queues]

    # -- one send ------------------------------------------------------------------------------------------------

    async def _send(
        self,
        out: PreparedMessage,
        sharding_key: str | None,
        queue: MessageQueue | None,
        timeout_ms: float | None,
        gathers: bool = False,
        wait_store_ok: bool = True,
    ) -> SendResult:
        if self._batcher is None or not (gathers or sharding_key or queue is not None):
            return await self.send_packed(out, sharding_key, queue, timeout_ms, in_order=True)
        self._check_started()
        if queue is not None:
            queue = self._full_queue(out.topic, queue)
        result: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        own = None if gathers else SendBudget(self._send_attempts.end_s(timeout_ms), self.attempts)
        self._batcher.add(GatheredMessage(out, wait_store_ok, result, own), queue, sharding_key)
        return self._shown(await result)

    async def send_packed(
        self,
        out: PreparedMessage,
        sharding_key: str | None,
        queue: MessageQueue | None,
        timeout_ms: float | None,
        attempts: int | None = None,
        *,
        in_order: bool = False,
        codes: Collection[int] | None = None,
    ) -> SendResult:
        """Send a message that `pack` prepared. Raises as `send` does. `codes`: when it is tried again, if given.

        `in_order`: what goes to a queue given is not overtaken there, also by being tried again.
        """
        self._check_started()
        began_s = time.monotonic()
        end_s = self._send_attempts.end_s(timeout_ms, began_s)
        attempts = attempts or self.attempts
        if queue is not None:
            queue = self._full_queue(out.topic, queue)
        if sharding_key:
            return await self._send_in_turn(out, sharding_key, queue, end_s, attempts, codes)
        if queue is not None and in_order and attempts > 1:
            return await self._send_in_line(out, queue, end_s, attempts, codes)
        size = len(out.body)
        if not self._in_flight_limit.try_enter(size):
            await self._in_flight_limit.enter(size, end_s)
        try:
            tried: FailedAttempt | None = None
            if queue is None:
                # Nearly all sends end here, without what `deliver` costs.
                reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
                went_to = self._send_attempts.post(out, end_s, reply)
                if went_to is not None:
                    try:
                        result = result_of(out, went_to, *client_api.stored(await reply))
                        return self._shown(result) if self._namespace else result
                    except RocketSparkError as e:
                        tried = FailedAttempt(went_to, e, began_s)
            result = await self._send_attempts.deliver(out, None, queue, end_s, attempts, tried=tried, codes=codes)
        finally:
            self._in_flight_limit.leave(size)
            if self._state == "closed":
                self._note_idle()
        return self._shown(result) if self._namespace else result

    async def _send_in_turn(
        self,
        out: PreparedMessage,
        sharding_key: str,
        queue: MessageQueue | None,
        end_s: float,
        attempts: int,
        codes: Collection[int] | None,
    ) -> SendResult:
        """Send after all earlier sends of the key.

        The in-flight limit is entered behind the key gate: a send that held its place before would be overtaken.
        """
        size = len(out.body)
        key = (out.topic, sharding_key)
        try:
            await self._send_attempts.within(end_s, self._key_gate.enter(key), f"turn of sharding key {sharding_key!r}")
            try:
                await self._in_flight_limit.enter(size, end_s)
                try:
                    result = await self._send_attempts.deliver(out, sharding_key, queue, end_s, attempts, codes=codes)
                finally:
                    self._in_flight_limit.leave(size)
            finally:
                self._key_gate.leave(key)
        finally:
            if self._state == "closed":
                self._note_idle()
        return self._shown(result)

    async def _send_in_line(
        self, out: PreparedMessage, queue: MessageQueue, end_s: float, attempts: int, codes: Collection[int] | None
    ) -> SendResult:
        """Send to a queue behind all earlier sends, as a rule without waiting for their replies.

        What fails is tried again only while nothing went behind it, and what comes then waits: no retry is overtaken.
        """
        size, began_s = len(out.body), time.monotonic()
        tried: FailedAttempt | None = None
        holds = has_room = False
        try:
            if queue not in self._key_gate:
                await self._key_gate.enter(queue)  # Nobody is there: it does not wait.
            else:
                await self._send_attempts.within(end_s, self._key_gate.enter(queue), f"turn of {queue}")
            holds = True
            if not self._in_flight_limit.try_enter(size):
                await self._in_flight_limit.enter(size, end_s)
            has_room = True
            if await self._send_attempts.is_ready(queue, end_s):
                # It is written before anything else runs: the next send need not wait any longer.
                self._newest[queue] = out
                self._key_gate.leave(queue)
                holds = False
                try:
                    return self._shown(await self._send_attempts.deliver(out, None, queue, end_s, 1, codes=codes))
                except SendFailed as e:
                    cause = e.__cause__
                    followed = self._newest.get(queue) is not out or queue in self._key_gate
                    if followed or not isinstance(cause, RocketSparkError):
                        raise
                    tried = FailedAttempt(queue, cause, began_s)
                    await self._key_gate.enter(queue)
                    holds = True
                finally:
                    if self._newest.get(queue) is out:
                        del self._newest[queue]
            result = await self._send_attempts.deliver(out, None, queue, end_s, attempts, tried=tried, codes=codes)
        finally:
            if holds:
                self._key_gate.leave(queue)
            if has_room:
                self._in_flight_limit.leave(size)
            if self._state == "closed":
                self._note_idle()
        return self._shown(result)

    def post(self, pending_send: PendingSend) -> bool:
        """Send without a task and without waiting; the pending send gets the outcome.

        False if `send_packed` is needed: nothing was sent then. Called on the loop.
        """
        if self._batcher is not None and self.gather(pending_send):
            return True
        if self._state != "started" or self._namespace or pending_send.sharding_key or pending_send.queue is not None:
            return False
        out = pending_send.out
        size = len(out.body)
        if not self._in_flight_limit.try_enter(size):
            return False
        reply_waiter = PendingSendReply(self, pending_send)
        try:
            reply_waiter.queue = self._send_attempts.post(out, pending_send.end_s, reply_waiter)
        finally:
            if reply_waiter.queue is None:
                self._in_flight_limit.leave(size)
        return reply_waiter.queue is not None

    def gather(self, pending_send: PendingSend) -> bool:
        """Send together with others, or in order with them; the pending send gets the outcome. False if it may not."""
        if self._batcher is None or not (
            pending_send.gathers or pending_send.sharding_key or pending_send.queue is not None
        ):
            return False
        self._check_started()
        own = (
            None if pending_send.gathers else SendBudget(pending_send.end_s, pending_send.attempts, pending_send.codes)
        )
        self._batcher.add(
            GatheredMessage(pending_send.out, pending_send.wait_store_ok, pending_send, own),
            pending_send.queue,
            pending_send.sharding_key,
        )
        return True

    def settle(self, pending_send: PendingSend, result: SendResult | None, error: BaseException | None = None) -> None:
        """End a pending send with its outcome."""
        try:
            pending_send.finish(result, error)
        finally:
            self._in_flight_limit.leave(len(pending_send.out.body))
            if self._state == "closed":
                self._note_idle()

    def post_again(self, pending_send: PendingSend, tried: FailedAttempt) -> None:
        """Send again after the one attempt failed: `deliver` gets what is left of the budget."""
        if pending_send.given_up:
            self.settle(pending_send, None, tried.error)
            return
        pending_send.task = task = asyncio.ensure_future(self._deliver_again(pending_send, tried))
        self._retrying.add(task)
        task.add_done_callback(self._retrying.discard)

    async def _deliver_again(self, pending_send: PendingSend, tried: FailedAttempt) -> None:
        try:
            result = await self._send_attempts.deliver(
                pending_send.out,
                None,
                None,
                pending_send.end_s,
                pending_send.attempts,
                tried=tried,
                codes=pending_send.codes,
            )
        except asyncio.CancelledError:
            # Its caller was interrupted, or the client's thread ends: only the failure of the first attempt is known.
            self.settle(pending_send, None, tried.error)
            raise
        except BaseException as e:
            self.settle(pending_send, None, e)
            if not isinstance(e, Exception):
                raise
        else:
            self.settle(pending_send, result)

    def end_s(self, timeout_ms: float | None, began_s: float) -> float:
        """Return the monotonic time at which the budget of a send that began at `began_s` ends."""
        return self._send_attempts.end_s(timeout_ms, began_s)

    def may_gather(self, message: Message, out: PreparedMessage) -> bool:
        """Tell whether a message may go in one request with others."""
        if self._batcher is None or out.sys_flag or out.topic.startswith(validators.RETRY_PREFIX):
            return False
        return not (message.delay_level or message.delay_ms or message.deliver_at_ms)

    async def _send_gathered(self, out: PreparedMessage, queue: MessageQueue | None, own: SendBudget) -> SendResult:
        size = len(out.body)
        await self._in_flight_limit.enter(size, own.end_s)
        try:
            return await self._send_attempts.deliver(out, None, queue, own.end_s, own.attempts, codes=own.codes)
        finally:
            self._in_flight_limit.leave(size)
            self._note_idle()

    @property
    def _is_busy(self) -> bool:
        return bool(self._in_flight_limit.count or self._oneway_limit.count or len(self._key_gate))

    def _note_idle(self) -> None:
        if not self._is_busy:
            self._idle.set()

    def _chooser(self, message: Message, queue: MessageQueue | None, selector: Selector, argument: Any) -> Choose:
        """Return the function that chooses the message's queue. Raises UsageError if a queue is given as well."""
        if queue is not None:
            raise UsageError("give a queue or a selector, not both")
        return lambda queues: select(selector, queues, message, argument)

    async def _choose(self, topic: str, choose: Choose, end_s: float) -> MessageQueue:
        """Return the queue that is chosen for a message, with its namespace."""
        self._check_started()
        queues = await self._send_attempts.queues(topic, end_s)
        return self._full_queue(topic, choose([self._bare_queue(q) for q in queues]))

    async def _select(
        self,
        message: Message,
        topic: str,
        queue: MessageQueue | None,
        selector: Selector,
        argument: Any,
        timeout_ms: float | None,
    ) -> tuple[MessageQueue, float | None]:
        end_s = self._send_attempts.end_s(timeout_ms)
        chosen = await self._choose(topic, self._chooser(message, queue, selector, argument), end_s)
        return chosen, None if timeout_ms is None else (end_s - time.monotonic()) * 1000

    # -- namespace -----------------------------------------------------------------------------------------------

    def _full_queue(self, topic: str, queue: MessageQueue) -> MessageQueue:
        """Return a queue with its namespace. Raises MessageIllegal if it is not of this topic."""
        full = self._in_namespace(queue) if self._namespace else queue
        if full.topic != topic:
            shown = namespace.unwrap(self._namespace, topic) if self._namespace else topic
            text = f"a message of topic {shown!r} cannot go to {queue.broker_name} queue {queue.queue_id} of topic"
            raise MessageIllegal(f"{text} {queue.topic!r}: give a queue of its own topic", topic=shown)
        return full

    def _shown(self, result: SendResult) -> SendResult:
        """Return a result as the application sees it: without the namespace."""
        if not self._namespace:
            return result
        return msgspec.structs.replace(result, queue=self._bare_queue(result.queue))


def split(messages: Iterable[Message], bytes_max: int = 1 << 20) -> Iterator[list[Message]]:
    """Split messages into batches of at most `bytes_max` bytes, in order, each for one `send_batch`.

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


_PLAIN = PackingSettings(over_bytes=1 << 40)
