"""The producer's public methods. Rule: each send is an InFlightSend, or a message of one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from threading import get_ident
from typing import Any, Unpack

import msgspec

from rocketspark import machine
from rocketspark.client import validators
from rocketspark.client.connection import client_api
from rocketspark.client.hooks import LogSends
from rocketspark.client.options import ProducerOptions, producer_settings
from rocketspark.client.producer.accumulator import Accumulator
from rocketspark.client.producer.gathered_sends import AwaitedPart
from rocketspark.client.producer.given_columns import Given, Rows, check_rows
from rocketspark.client.producer.in_flight_send import AwaitedSend, Choose, InFlightSend
from rocketspark.client.producer.latency_faults import FaultDetector, LatencyFaults, table_of
from rocketspark.client.producer.prepared_message import (
    PackingSettings,
    PreparedMessage,
    key_of,
    make_message,
    pack,
    pack_batch,
    pack_reply,
    request_text,
)
from rocketspark.client.producer.program_end import cancelled_sends
from rocketspark.client.producer.send_attempts import SendAttempts, SendSettings
from rocketspark.client.producer.send_many import RowsInFlight
from rocketspark.client.producer.send_path import SendPath
from rocketspark.client.queries import Queries
from rocketspark.client.results import SendManyResult, SendResult
from rocketspark.client.selectors import Selector, select
from rocketspark.errors import (
    NoReply,
    ProtocolError,
    RequestTimedOut,
    UsageError,
)
from rocketspark.model import Message, MessageFields, MessageQueue, ReceivedMessage, namespace
from rocketspark.protocol.message.message_ids import UniqueIdBlocks
from rocketspark.protocol.timers import decode_handle

GROUP = "rocketspark_producer"


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
        self._rules = SendSettings(
            settings.send_timeout_ms,
            frozenset(settings.retry_codes),
            settings.retry_not_stored,
            settings.default_topic,
            settings.default_queue_count,
            settings.vip_channel,
            settings.attempt_timeout_ms,
        )
        self._send_attempts = SendAttempts(self._instance, self.group, self._rules, self._hooks, faults)
        self._trace_as(self.group, "PRODUCE")
        if settings.log_sends:
            self._hooks.add(LogSends())
        self.send_path: SendPath[InFlightSend] = SendPath(
            self._send_attempts,
            self._check_started,
            namespace=self._namespace,
            in_flight_max=settings.in_flight_max,
            oneway_in_flight_max=settings.oneway_in_flight_max,
            in_flight_bytes_max=settings.in_flight_bytes_max,
        )
        self.accumulator: Accumulator | None = None
        if settings.linger_ms is not None:
            self.accumulator = self.send_path.accumulator = Accumulator(
                self.send_path,
                self.attempts,
                self.packing,
                linger_ms=settings.linger_ms,
                bytes_max=settings.batch_bytes,
            )
        self.in_flight_max = settings.in_flight_max
        self.callback_executor = settings.callback_executor
        self._requests: set[asyncio.Future[ReceivedMessage]] = set()

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the producer. Brokers are told of it in the background, or by its first send. Raises StateError."""
        self._begin()
        await self._start_once(self._start, self._close)

    async def _start(self) -> None:
        # Of the process that starts it, which may be a fork of the one that made it.
        self._id_blocks = UniqueIdBlocks()
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
            await self.send_path.finish()
            if self._tracer is not None:
                await self._tracer.close()
        finally:
            if self._detector is not None:
                self._detector.stop()
            for waiting in self._requests:
                if not waiting.done():
                    waiting.set_exception(NoReply("the producer was closed before the reply to a request came"))
            await self._instance.close(producer=self.group)
            cancelled_sends.forget()

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
            queue: the queue to send to; then no other is tried. Without it the sharding key's queue is taken, and
                without a sharding key each queue in turn.
            selector, argument: or a function that chooses the queue by this argument: `selectors.by_hash` and others.
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
        accumulator = self.accumulator
        if (
            accumulator is not None
            and selector is None
            and timeout_ms is None
            and self._state == "started"
            and get_ident() == self._ident
        ):
            part = AwaitedPart(self._loop)  # type: ignore[arg-type]
            try:
                if queue is None and type(message) is str and accumulator.add_simple(message, body, fields, part):
                    return await part
                message, body, fields = make_message(message, body, fields), None, {}
                encoded = accumulator.encode(message, queue)
                if encoded is not None:
                    accumulator.add_part(encoded, part)
                    return await part
            except RuntimeError:
                # Another loop's task; to ask first whose it is costs a twelfth of such a send.
                self._check_loop()
                raise
        message = make_message(message, body, fields)
        choose = None if selector is None else self._chooser(message, queue, selector, argument)
        out = pack(message, self.packing)
        send = AwaitedSend(self.send_path, out, key_of(message), queue, timeout_ms, self.attempts, message, choose)
        return await send.outcome()

    async def resend(self, message: Message, message_id: str, *, timeout_ms: float | None = None) -> SendResult:
        """Send a message under the unique id of a send before, so that consumers can tell it comes again.

        Raises as `send` does.
        """
        return await self._send(pack(message, self.packing, message_id), key_of(message), None, timeout_ms)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request: all are stored, one after another in one queue, or none.

        The result holds all ids, comma separated, and the first queue offset. Raises as `send` does; `split` makes
        batches that are small enough.
        """
        out = pack_batch(messages, self.packing)
        return await self._send(out, messages[0].sharding_key, queue, timeout_ms)

    async def send_many(
        self,
        topic: str,
        bodies: Iterable[Any],
        *,
        tags: str | Iterable[Any] | None = None,
        keys: str | Iterable[Any] | None = None,
        sharding_keys: str | Iterable[Any] | None = None,
        properties: Mapping[str, str | Iterable[Any]] | Iterable[Any] | None = None,
        delay_ms: int | Iterable[Any] | None = None,
        timeout_ms: float | None = None,
    ) -> SendManyResult:
        """Send many messages of one topic, given as columns, in batches; return what became of each row.

        A column is a list, a numpy array, an Arrow array, or a Series of pandas or Polars; its nulls are left out.

        Args:
            bodies: bytes; or a table, data frame or dict with the column `body` and any of `tag`, `keys`,
                `shardingKey`, `properties` and `delayMs`, as `format("rocketmq")` has them.
            tags, sharding_keys: a text a row, or one for all.
            keys: a text or a list of texts a row, or one text for all.
            properties: a dict a row; or one dict, whose values are a text for all rows or a column.
            delay_ms: rows that have one over 0 are sent one by one; or one number for all.
            timeout_ms: the budget of each batch over all its attempts, if not the producer's.

        All is checked before anything is sent. A batch that fails is tried again as a send is, and no other row with
        it. Rows of one sharding key keep their order: if one fails for good, those behind it to its queue are not sent,
        and have an error too. Rows without one go to each queue in turn.

        Raises:
            MessageIllegal: a rule of RocketMQ's is broken, in the row and column that it names.
            UsageError: what was given is no column.
            RouteNotFound, NotSent, StateError: as `send` does; nothing was sent. What happens later is in the result.
        """
        given = Given(bodies, tags, keys, sharding_keys, properties, delay_ms)
        return await self._send_rows(check_rows(topic, given, self.packing), timeout_ms)

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
        """Send one message without waiting for a reply: it may be lost.

        Raises as `send` does for what is known before the message leaves this process.
        """
        message = make_message(message, body, fields)
        choose = None if selector is None else self._chooser(message, queue, selector, argument)
        out = pack(message, self.packing)
        send = AwaitedSend(
            self.send_path, out, key_of(message), queue, timeout_ms, 1, in_order=False, choose=choose, oneway=True
        )
        await send.outcome()

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
        choose = None if selector is None else self._chooser(message, queue, selector, argument)
        out = pack(message, self.packing)
        send = AwaitedSend(self.send_path, out, key_of(message), queue, timeout_ms, self.attempts, choose=choose)
        send.accumulator = self.send_path.accumulator
        end_s = send.end_s
        ttl_ms = (end_s - send.began_s) * 1000
        correlation_id = str(machine.uuid4())
        send.out = msgspec.structs.replace(
            out, properties=out.properties + request_text(correlation_id, self.client_id, ttl_ms)
        )
        # The reply comes through whichever broker it was sent to: each must know this client.
        await self._send_attempts.queues(out.topic, end_s)
        await self._send_attempts.within(end_s, self._instance.greet_all(), f"request to topic {message.topic!r}")
        waiting: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._instance.asked.replies[correlation_id] = waiting
        self._requests.add(waiting)
        try:
            await send.outcome()
            async with asyncio.timeout(max(end_s - machine.monotonic(), 0)):
                return await waiting
        except TimeoutError:
            text = f"the request to topic {message.topic!r} was sent, but no reply came within {ttl_ms:.0f} ms"
            raise RequestTimedOut(f"{text}: does a consumer reply to it?") from None
        finally:
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # Told, or no longer of use.
            self._requests.discard(waiting)
            del self._instance.asked.replies[correlation_id]

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Answer a message that was sent with `request`. Raises UsageError if it was not, else as `send` does."""
        return await self._send(pack_reply(request, body, self.packing, properties), None, None, timeout_ms)

    async def recall(self, topic: str, handle: str, *, timeout_ms: float | None = None) -> str:
        """Cancel a timer message that is not delivered yet. `handle`: the `recall_handle` of its SendResult.

        Returns the message's id. Raises UsageError for a text that is no handle, ServerError if it is too late or the
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
        left_ms = max((end_s - machine.monotonic()) * 1000, 1)
        return await client_api.recall(peer, topic, handle, group=self.group, timeout_ms=left_ms)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that the topic's messages are sent to, ordered by broker and id. Raises RouteNotFound."""
        self._check_started()
        topic = namespace.wrap(self._namespace, validators.check_topic(topic))
        queues = (await self._routes.get(topic)).producer_queues()
        return [self._bare_queue(q) for q in queues]

    # -- one send ------------------------------------------------------------------------------------------------

    async def _send(
        self, out: PreparedMessage, sharding_key: str | None, queue: MessageQueue | None, timeout_ms: float | None
    ) -> SendResult:
        """Send what is not gathered, in order with what is."""
        send = AwaitedSend(self.send_path, out, sharding_key, queue, timeout_ms, self.attempts)
        send.accumulator = self.send_path.accumulator
        return await send.outcome()

    async def _send_rows(self, rows: Rows, timeout_ms: float | None, *, half: bool = False) -> SendManyResult:
        """Send rows that `check_rows` made, as half messages or others. Returns and raises as `send_many` does."""
        self._check_started()
        ids = self._id_blocks.take(len(rows))
        is_hooked = bool(self._hooks.sends or (half and self._hooks.ends))
        sending = RowsInFlight(
            self.send_path, self.packing, rows, ids, self.attempts, timeout_ms, is_hooked=is_hooked, half=half
        )
        return await sending.run()

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
        """Send a message that `pack` prepared. Raises as `send` does.

        `in_order`: no later message to the same given queue overtakes this one, not even when it is tried again.
        `codes`: the response codes after which it is tried again, if they are not those of the producer.
        """
        send = AwaitedSend(
            self.send_path,
            out,
            sharding_key,
            queue,
            timeout_ms,
            attempts or self.attempts,
            in_order=in_order,
            codes=codes,
        )
        return await send.outcome()

    def _chooser(self, message: Message, queue: MessageQueue | None, selector: Selector, argument: Any) -> Choose:
        """Return the function that chooses the message's queue. Raises UsageError if a queue is given as well."""
        if queue is not None:
            raise UsageError("give a queue or a selector, not both")
        return lambda queues: select(selector, queues, message, argument)
