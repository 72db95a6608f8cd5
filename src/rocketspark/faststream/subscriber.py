"""A subscriber: a push consumer whose listener is FastStream's chain of middlewares and handlers.

Rule: a message is done only if its handler said so (or its policy does for it); while the broker stops, no handler is
begun, those that run may end, and what was not begun is other members'.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.utils import process_msg
from faststream._internal.middlewares import BaseMiddleware
from faststream.message import AckStatus
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from rocketspark.client import AsyncPullConsumer, AsyncPushConsumer
from rocketspark.client.consumer.consumer_options import PullConsumerOptions
from rocketspark.errors import NotSent, RocketSparkError, StateError
from rocketspark.faststream.config import RocketBrokerConfig, SubscriberConfig, SubscriberSpecificationOptions
from rocketspark.faststream.message import Received, RocketParser, is_request
from rocketspark.faststream.publisher import ReplyPublisher
from rocketspark.model import ReceivedMessage

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream._internal.types import BrokerMiddleware
    from faststream.message import StreamMessage

BATCH_MAX = 32


class _Call:
    """One call of the listener: the message that its handler got."""

    message: StreamMessage[Any] | None = None


_call: ContextVar[_Call] = ContextVar("rocketspark_faststream_call")
# The task that stops the broker: FastStream stops each subscriber in a task of its own.
stopping_task: ContextVar[asyncio.Task[Any] | None] = ContextVar("rocketspark_faststream_stopping", default=None)


class _Noting(BaseMiddleware):
    """Notes the message, whoever parsed it, so that its end can be told to the broker."""

    async def consume_scope(self, call_next: Any, msg: StreamMessage[Any]) -> Any:
        """Note the message of this call."""
        if (call := _call.get(None)) is not None:
            call.message = msg
        return await call_next(msg)


class RocketSubscriberSpecification(SubscriberSpecification[RocketBrokerConfig, SubscriberSpecificationOptions]):
    """What an AsyncAPI document says of a subscriber: a channel for each topic."""

    @property
    def topics(self) -> list[str]:
        """The topics, with the prefixes of routers."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self.config.topics]

    @property
    def channel_labels(self) -> list[str]:
        """What channels are named after."""
        return self.topics

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channels by name."""
        payloads, channels = self.get_payloads(), {}
        for topic in self.topics:
            name = self._channel_key(topic, split=len(self.topics) > 1)
            message = Message(title=f"{name}:Message", payload=resolve_payloads(payloads))
            operation = Operation(message=message, bindings=None)
            channels[name] = SubscriberSpec(self.description, operation=operation, bindings=None, address=topic)
        return channels


class RocketSubscriber(SubscriberUsecase[Any]):
    """Consumes topics as a member of a group."""

    _outer_config: RocketBrokerConfig

    def __init__(
        self, config: SubscriberConfig, specification: RocketSubscriberSpecification, calls: CallsCollection[Any]
    ) -> None:
        parser = RocketParser()
        config.parser = parser.parse_batch if config.batch else parser.parse_message
        config.decoder = parser.decode_batch if config.batch else parser.decode_message
        super().__init__(config, cast(Any, specification), calls)
        self._topics = config.topics
        self._group = config.group
        self.tags, self.sql, self.batch = config.tags, config.sql, config.batch
        self.options = config.options
        self.consumer: AsyncPushConsumer | None = None
        self._reader: Any = None
        # The tasks that run handlers now, and a close that one of these began.
        self._calling: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Future[None] | None = None

    @property
    def topics(self) -> list[str]:
        """The topics, with the prefixes of routers."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self._topics]

    @property
    def group(self) -> str:
        """The consumer group: the one given, or one named after the first topic."""
        return self._group or f"{self._outer_config.group_prefix}-{self.topics[0]}"

    @property
    def has_own_group(self) -> bool:
        """Tell whether the application named the group."""
        return self._group is not None

    @property
    def broadcast(self) -> bool:
        """Tell whether every member gets every message."""
        return bool(self.options.get("broadcast"))

    def is_called_by(self, task: asyncio.Task[Any] | None) -> bool:
        """Tell whether a task runs a handler of this subscriber."""
        return task in self._calling

    @property
    def _broker_middlewares(self) -> Sequence[BrokerMiddleware[Any]]:
        return [_Noting, *super()._broker_middlewares]

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group; returns once this member has its share of the queues. Raises NotSent without NameServer."""
        await super().start()
        self._closing = None
        config = self._outer_config
        consumer = self.make_consumer()
        if (inbox := config.producer.inbox()) is not None:
            self._reader = None if self.calls else inbox
            self._post_start()
            return
        try:
            if config.create_topics:
                await self._create_topics()
            if isinstance(consumer, AsyncPushConsumer):
                self.consumer = consumer
            else:
                self._reader = consumer
            # Messages come before `start` returns.
            self._post_start()
            await consumer.start()
        except BaseException as e:
            if isinstance(e, StateError) and self._closing is not None:
                return  # Its first messages had it stopped.
            self.running, self.consumer, self._reader = False, None, None
            if isinstance(e, NotSent):
                self._log(logging.ERROR, f"cannot start: {e}", self.get_log_context(None))
            raise

    def make_consumer(self) -> AsyncPushConsumer | AsyncPullConsumer:
        """Return the consumer, not started. Raises MessageIllegal, FilterIllegal, ConfigError for what cannot be."""
        config = self._outer_config
        options: Any = {"on_error": self._refused}
        if config.graceful_timeout is not None:
            options["close_timeout_ms"] = config.graceful_timeout * 1000
        options |= config.client_options | self.options
        # In memory nobody is asked.
        namesrv = config.namesrv if config.producer.inbox() is None else "127.0.0.1:9876"
        consumer: AsyncPushConsumer | AsyncPullConsumer
        if self.calls:
            consumer = AsyncPushConsumer(namesrv, self.group, **options)
            consumer.listen(self._listen)
        else:
            # Read one by one: `get_one` and iteration.
            options = {n: value for n, value in options.items() if n in PullConsumerOptions.__optional_keys__}
            consumer = AsyncPullConsumer(namesrv, self.group, **options)
        for topic in self.topics:
            consumer.subscribe(topic, self.tags, sql=self.sql)
        return consumer

    async def _refused(self, error: RocketSparkError) -> None:
        self._log(logging.ERROR, f"a broker refuses this subscriber: {error}", self.get_log_context(None))

    async def _create_topics(self) -> None:
        """Make the topics that are missing: one that is made later is found within 30 s only."""
        client = self._outer_config.producer.client
        for topic in self.topics:
            try:
                await client.queues(topic)
            except NotSent:
                raise
            except RocketSparkError:
                try:
                    await client.create_topic(topic)
                except RocketSparkError as e:
                    text = f"topic {topic} is not there and cannot be made ({e}): create it, it is found within 30 s"
                    self._log(logging.WARNING, text, self.get_log_context(None))

    async def stop(self) -> None:
        """Begin no more handlers, and let those that run end, for `graceful_timeout` seconds; leave the group.

        What handlers ended is committed; what was not begun, or did not end, is delivered to other members.
        """
        consumer, self.consumer = self.consumer, None
        reader, self._reader = self._reader, None
        if consumer is not None:
            self._closing = asyncio.ensure_future(consumer.close())
        if reader is not None:
            await reader.close()
        if (stopping_task.get() or asyncio.current_task()) not in self._calling:
            if self._closing is not None:
                await asyncio.shield(self._closing)
            for task in self._calling:
                task.cancel()
            await super().stop()
        # Else a handler stops its subscriber or broker: the close waits until the handler has ended.
        self.running = False

    # -- handlers ------------------------------------------------------------------------------------------------

    async def _listen(self, raw: Received) -> bool:
        """Run the handlers on what was received; return whether it is done, or comes again."""
        consumer, task = self.consumer, asyncio.current_task()
        if consumer is None or not self.running:
            return False
        assert task is not None
        call = _Call()
        token = _call.set(call)
        self._calling.add(task)
        try:
            await self.consume(raw)
        finally:
            self._calling.discard(task)
            _call.reset(token)
        status = self._status(call.message)
        if status is AckStatus.REJECTED:
            for message in raw if isinstance(raw, list) else (raw,):
                consumer.reject(message)
        return status is AckStatus.ACKED

    def _status(self, message: StreamMessage[Any] | None) -> AckStatus:
        """Return how a message ended: what was told, else by the policy if no handler got it."""
        if message is not None:
            return message.committed or AckStatus.NACKED
        if self.ack_policy in (AckPolicy.ACK, AckPolicy.ACK_FIRST):
            return AckStatus.ACKED
        return AckStatus.REJECTED if self.ack_policy is AckPolicy.REJECT_ON_ERROR else AckStatus.NACKED

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        first = message.raw_message[0] if isinstance(message.raw_message, list) else message.raw_message
        request = first if is_request(first) else None
        return (ReplyPublisher(self._outer_config.producer, message.reply_to, request),)

    # -- without handlers ----------------------------------------------------------------------------------------

    async def get_one(self, *, timeout: float = 5) -> StreamMessage[Any] | None:
        """Return the next message or batch, which is done then; None if none comes in `timeout` seconds."""
        assert self._reader is not None, "the subscriber is not started, or has handlers: then it has no get_one"
        found = await self._reader.poll(timeout * 1000, count_max=BATCH_MAX if self.batch else 1)
        return await self._processed(found) if found else None

    async def __aiter__(self) -> AsyncIterator[StreamMessage[Any]]:
        assert self._reader is not None, "the subscriber is not started, or has handlers: then it is not iterated over"
        while (reader := self._reader) is not None:
            if found := await reader.poll(1000, count_max=BATCH_MAX if self.batch else 1):
                message = await self._processed(found)
                if message is not None:
                    yield message

    async def _processed(self, found: list[ReceivedMessage]) -> StreamMessage[Any] | None:
        raw: Any = found if self.batch else found[0]
        context = self._outer_config.fd_config.context
        parser, decoder = self._get_parser_and_decoder()
        middlewares = (m(raw, context=context) for m in self._broker_middlewares)
        return await process_msg(msg=raw, middlewares=middlewares, parser=parser, decoder=decoder)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return what log lines name."""
        return {
            "topic": ",".join(self.topics),
            "group": self.group,
            "message_id": message.message_id if message is not None else "",
        }
