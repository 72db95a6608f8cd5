"""A broker in memory for tests, as FastStream's others have one: handlers run at once, nothing is sent.

Rule: what is published reaches the subscribers whose topic and filter fit, once a group, and every broadcast one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from rocketspark import machine
from rocketspark.client import SendResult, SendStatus, validators
from rocketspark.client.producer.prepared_message import PackingSettings, pack
from rocketspark.faststream.broker import RocketBroker
from rocketspark.faststream.message import RocketParser
from rocketspark.faststream.producer import RocketProducer, late
from rocketspark.faststream.publisher import RocketPublisher
from rocketspark.faststream.response import RocketPublishCommand
from rocketspark.faststream.subscriber import RocketSubscriber
from rocketspark.filters import sql92
from rocketspark.model import Message, MessageQueue, ReceivedMessage
from rocketspark.model.subscription import subscribe
from rocketspark.protocol.message import properties
from rocketspark.protocol.message.message_ids import unique_ids

__all__ = ["TestRocketBroker"]

ADDRESS = "127.0.0.1:0"


class TestRocketBroker(TestBroker[RocketBroker, EnterType], broker=RocketBroker):
    """Runs a broker's handlers in memory: `async with TestRocketBroker(broker) as broker: await broker.publish(…)`.

    `with_real=True` uses the real servers, and mocks alone. Delays are passed over; what a handler raises is raised by
    `publish`, and comes again nowhere.
    """

    __test__ = False

    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: RocketPublisher
    ) -> tuple[RocketSubscriber, bool]:
        """Return the subscriber that gets what a publisher publishes, and whether it is a real one."""
        for subscriber in _subscribers(self.brokers):
            if publisher.topic in subscriber.topics:
                return subscriber, True
        # The prefix of the broker itself goes before it anew.
        topic = publisher.topic.removeprefix(broker.config.prefix)
        return broker.subscriber(topic, group=f"fake-{id(publisher)}", batch=publisher.batch, persistent=False), False

    def _fake_start(self, broker: RocketBroker, *args: Any, **kwargs: Any) -> None:
        # A test is to fail where the start on servers would.
        broker.check_groups()
        for subscriber in _subscribers([broker]):
            subscriber.make_consumer()
        super()._fake_start(broker, *args, **kwargs)

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Iterator[None]:
        with change_producer(broker.config.broker_config, _MemoryProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: RocketBroker, *args: Any, **kwargs: Any) -> None:
        return None


class _Inbox:
    """What a subscriber without handlers reads from."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    def put(self, message: ReceivedMessage) -> None:
        """Add a message."""
        self._messages.put_nowait(message)

    async def poll(self, timeout_ms: float, *, count_max: int) -> list[ReceivedMessage]:
        """Return the next message, none if none comes in time."""
        try:
            return [await asyncio.wait_for(self._messages.get(), timeout_ms / 1000)]
        except TimeoutError:
            return []

    async def close(self) -> None:
        """End nothing: nothing was begun."""


class _MemoryProducer(RocketProducer):
    """Hands what is published to the handlers."""

    def __init__(self, broker: RocketBroker, brokers: Sequence[RocketBroker]) -> None:
        super().__init__()
        default = RocketParser()
        self._parser = ParserComposition(broker._parser, default.parse_message)
        self._decoder = ParserComposition(broker._decoder, default.decode_message)
        self.codec = broker.config.broker_codec or DefaultCodec()
        self.serializer = broker.config.fd_config._serializer
        self._brokers = brokers
        given = broker._producer_arguments[1]
        self._packing = PackingSettings(
            over_bytes=sys.maxsize, body_bytes_max=given.get("body_bytes_max", validators.BODY_BYTES_MAX)
        )

    def _made(self, *given: Any) -> Message:
        message = super()._made(*given)
        # A test is to fail where the servers' producer would refuse the message.
        pack(message, self._packing)
        return message

    def inbox(self) -> _Inbox:
        """Return an empty inbox."""
        return _Inbox()

    async def publish(self, cmd: RocketPublishCommand) -> SendResult:
        """Run the handlers on one message."""
        raw = received(await self.message_of(cmd, cmd.body))
        for subscriber in self._takers(raw):
            await _hand_over(subscriber, [raw])
        return _result(raw)

    async def publish_batch(self, cmd: RocketPublishCommand) -> list[SendResult]:
        """Run the handlers on several messages: those of batches on all at once."""
        messages = [self._made(cmd, *one) for one in await self.encode_batch(cmd)]
        self._requests(messages)
        raws = [received(message) for message in messages]
        by_taker: dict[RocketSubscriber, list[ReceivedMessage]] = {}
        for raw in raws:
            for subscriber in self._takers(raw):
                by_taker.setdefault(subscriber, []).append(raw)
        for subscriber, taken in by_taker.items():
            await _hand_over(subscriber, taken)
        return [_result(raw) for raw in raws]

    async def request(self, cmd: RocketPublishCommand) -> ReceivedMessage:
        """Run the first handler, and return its result as the reply."""
        raw = received(await self.message_of(cmd, cmd.body))
        for subscriber in self._takers(raw):
            try:
                async with asyncio.timeout(cmd.timeout) as limit:
                    response = await subscriber.process_message([raw] if subscriber.batch else raw)
            except TimeoutError as e:
                raise late(cmd) if limit.expired() else e from None
            reply = RocketPublishCommand.from_cmd(response.as_publish_command())
            reply.destination = cmd.destination
            return received(await self.message_of(reply, reply.body))
        raise SubscriberNotFound(f"no subscriber takes topic {cmd.destination!r} with tag {cmd.tag!r}")

    def _takers(self, raw: ReceivedMessage) -> Iterator[RocketSubscriber]:
        groups = set()
        for subscriber in list(_subscribers(self._brokers)):
            if _takes(subscriber, raw) and (subscriber.broadcast or subscriber.group not in groups):
                groups.add(subscriber.group)
                yield subscriber


async def _hand_over(subscriber: RocketSubscriber, raws: list[ReceivedMessage]) -> None:
    if isinstance(subscriber._reader, _Inbox):
        for raw in raws:
            subscriber._reader.put(raw)
    elif subscriber.batch:
        await subscriber.process_message(raws)
    else:
        for raw in raws:
            await subscriber.process_message(raw)


def _subscribers(brokers: Sequence[RocketBroker]) -> Iterator[RocketSubscriber]:
    for broker in brokers:
        for subscriber in broker.subscribers:
            assert isinstance(subscriber, RocketSubscriber)
            yield subscriber


def _takes(subscriber: RocketSubscriber, raw: ReceivedMessage) -> bool:
    if raw.topic not in subscriber.topics:
        return False
    if subscriber.sql is not None:
        return sql92.compile(subscriber.sql).accepts(raw.properties)
    wanted = subscribe(raw.topic, subscriber.tags)
    return wanted.is_all or raw.tag in wanted.tags


def received(message: Message) -> ReceivedMessage:
    """Return a message as a consumer would receive it."""
    pairs = dict(message.properties) | {properties.UNIQUE_ID: unique_ids.next()}
    keys = message.keys.split() if isinstance(message.keys, str) else message.keys
    own = {properties.TAGS: message.tag, properties.KEYS: " ".join(keys), properties.SHARDING_KEY: message.sharding_key}
    pairs |= {name: value for name, value in own.items() if value}
    now_ms = int(machine.time() * 1000)
    return ReceivedMessage(
        topic=message.topic,
        body=message.body,
        tag=message.tag,
        keys=tuple(keys),
        properties=pairs,
        broker_name="memory",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        stored_bytes=len(message.body),
        message_id=pairs[properties.UNIQUE_ID],
        offset_message_id="",
        born_time_ms=now_ms,
        born_host=ADDRESS,
        store_time_ms=now_ms,
        store_host=ADDRESS,
    )


def _result(raw: ReceivedMessage) -> SendResult:
    return SendResult(SendStatus.SEND_OK, raw.message_id, "", MessageQueue(raw.topic, "memory", 0), 0)
