"""The producer that publishers, replies and `broker.publish` share. Rule: a header is a property of the message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from rocketspark.client import AsyncProducer, SendResult, split
from rocketspark.errors import RequestTimedOut, RocketSparkError
from rocketspark.faststream.message import (
    CONTENT_LENGTH,
    CONTENT_TYPE,
    CORRELATION_ID,
    EMPTY_BODY,
    REPLY_TO,
    RocketParser,
)
from rocketspark.faststream.response import RocketPublishCommand, RocketResponse, at_ms
from rocketspark.model import Message, ReceivedMessage
from rocketspark.model.text import whole_number
from rocketspark.protocol.message import properties

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import AsyncCallable, CustomCallable

log = logging.getLogger("rocketspark.client")


class RocketProducer(ProducerProto[RocketPublishCommand]):
    """Publishes commands by an AsyncProducer, which is there while the broker is connected."""

    _parser: AsyncCallable
    _decoder: AsyncCallable
    codec: CodecProto

    def __init__(self, parser: CustomCallable | None = None, decoder: CustomCallable | None = None) -> None:
        default = RocketParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self._client: AsyncProducer | None = None

    def __bool__(self) -> bool:
        return self._client is not None

    @property
    def client(self) -> AsyncProducer:
        """The producer. Raises IncorrectState if the broker is not connected."""
        if self._client is None:
            raise IncorrectState("the broker is not connected: call broker.connect() or broker.start() first")
        return self._client

    def inbox(self) -> Any:
        """Return what a subscriber without handlers reads from in memory; None: it reads from servers."""
        return None

    def connect(self, client: AsyncProducer, serializer: SerializerProto | None, codec: CodecProto | None) -> None:
        """Take a producer that is started."""
        self._client, self.serializer = client, serializer
        self.codec = codec or DefaultCodec()

    async def disconnect(self) -> None:
        """Close the producer: what is on its way is sent first."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def publish(self, cmd: RocketPublishCommand) -> SendResult | None:
        """Publish one message, or the reply to a request; return where it is stored, None for a late reply."""
        message = await self.message_of(cmd, cmd.body)
        if cmd.request is not None:
            return await self._reply(cmd.request, message)
        return await self.client.send(message, timeout_ms=_ms(cmd.timeout))

    async def _reply(self, request: ReceivedMessage, message: Message) -> SendResult | None:
        ttl_ms = whole_number(request.properties.get(properties.TTL))
        if ttl_ms is not None and request.born_time_ms + ttl_ms < time.time() * 1000:
            log.info("no reply is sent to request %s: nobody waits for it any more", request.message_id)
            return None
        try:
            return await self.client.reply(request, message.body, properties=message.properties)
        except RocketSparkError as e:
            # The request is done all the same, and who asked may be gone.
            log.warning("the reply to request %s is not sent: %s", request.message_id, e)
            return None

    async def request(self, cmd: RocketPublishCommand) -> ReceivedMessage:
        """Publish a request and return the reply. Raises TimeoutError if none comes in time."""
        message = await self.message_of(cmd, cmd.body)
        try:
            async with asyncio.timeout(cmd.timeout):
                return await self.client.request(message, timeout_ms=_ms(cmd.timeout))
        except RequestTimedOut as e:
            raise TimeoutError(str(e)) from e
        except TimeoutError:
            raise late(cmd) from None

    async def publish_batch(self, cmd: RocketPublishCommand) -> list[SendResult]:
        """Publish several messages of one topic, as many in a request as fit; return the result of each request."""
        encoded = await self.encode_batch(cmd)
        messages = [self._made(cmd, *one) for one in encoded]
        timeout_ms = _ms(cmd.timeout)
        parts = self._requests(messages)
        if parts is None:
            return list(await asyncio.gather(*(self.client.send(m, timeout_ms=timeout_ms) for m in messages)))
        return list(await asyncio.gather(*(self.client.send_batch(part, timeout_ms=timeout_ms) for part in parts)))

    @staticmethod
    def _requests(messages: Sequence[Message]) -> list[list[Message]] | None:
        """Return the messages of each request; None: each in one of its own. Raises MessageIllegal."""
        if any(m.delay_ms or m.deliver_at_ms for m in messages):
            # A broker takes no delayed message in a batch.
            return None
        by_key: dict[str | None, list[Message]] = {}
        for message in messages:
            by_key.setdefault(message.sharding_key, []).append(message)
        return [part for group in by_key.values() for part in split(group)]

    async def encode_batch(self, cmd: RocketPublishCommand) -> list[tuple[Any, bytes, str | None]]:
        """Return what was given, the body and the content type of each message of a batch."""
        given = cmd.batch_bodies
        bodies = [one.body if isinstance(one, RocketResponse) else one for one in given]
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(bodies, self.serializer)
        else:
            encoded = [await self.codec.encode(body, self.serializer) for body in bodies]
        return [(one, *pair) for one, pair in zip(given, encoded, strict=True)]

    async def message_of(self, cmd: RocketPublishCommand, given: Any) -> Message:
        """Return the message that a command publishes."""
        return self._made(cmd, given, *await self.codec.encode(given, self.serializer))

    def _made(self, cmd: RocketPublishCommand, given: Any, body: bytes, content_type: str | None) -> Message:
        # The own fields of a message of a batch go before those of all.
        own = given if isinstance(given, RocketResponse) else RocketResponse(None)
        headers = {CONTENT_TYPE: content_type, CORRELATION_ID: own.correlation_id or cmd.correlation_id}
        headers |= {REPLY_TO: cmd.reply_to} | cmd.headers | own.headers
        if not body:
            body, headers[CONTENT_LENGTH] = EMPTY_BODY, "0"
        return Message(
            cmd.destination,
            body,
            tag=own.tag or cmd.tag,
            keys=own.keys or cmd.keys,
            sharding_key=own.sharding_key or cmd.sharding_key,
            delay_ms=own.delay_ms or cmd.delay_ms,
            deliver_at_ms=at_ms(own.deliver_at) or at_ms(cmd.deliver_at),
            properties={name: str(value) for name, value in headers.items() if value not in (None, "")},
        )


def late(cmd: RocketPublishCommand) -> TimeoutError:
    """Return what says that no reply came in time."""
    return TimeoutError(f"no reply to the request to topic {cmd.destination!r} in {cmd.timeout} s")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
