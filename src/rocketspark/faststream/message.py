"""Messages as handlers get them, and how what was received becomes one.

Rule: whether a message is done is read off `committed` once its handler has ended; the subscriber tells the broker.
"""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage, decode_message

from rocketspark.model import ReceivedMessage
from rocketspark.protocol.message import properties

# Beside what applications set: as headers these have the names that FastStream's other brokers use.
CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"
# RocketMQ takes no empty body: one is sent as a byte, and says so.
CONTENT_LENGTH = "content-length"
EMPTY_BODY = b"\0"

Received = ReceivedMessage | list[ReceivedMessage]


class RocketMessage(StreamMessage[Any]):
    """One message, or several of a batch: `raw_message` is a ReceivedMessage, or a list of them.

    `ack`: it is done. `nack`: it is delivered again later, until it is a dead letter of the group. `reject`: it becomes
    a dead letter at once. What was neither, by the end of its handler, is delivered again.
    """


def body_of(raw: ReceivedMessage) -> bytes:
    """Return the body as the sender gave it."""
    if raw.body == EMPTY_BODY and raw.properties.get(CONTENT_LENGTH) == "0":
        return b""
    return raw.body


def headers_of(raw: ReceivedMessage) -> dict[str, str]:
    """Return the properties that are not RocketMQ's own."""
    return {name: value for name, value in raw.properties.items() if name not in properties.SYSTEM_NAMES}


def is_request(raw: ReceivedMessage) -> bool:
    """Tell whether its sender waits for a reply."""
    return properties.REPLY_TO_CLIENT in raw.properties and raw.properties.get(properties.MESSAGE_TYPE) != "reply"


class RocketParser:
    """Makes a handler's message of what was received, and a handler's value of its body."""

    async def parse_message(self, message: ReceivedMessage) -> RocketMessage:
        """Make the message of one that was received."""
        headers = headers_of(message)
        reply_to = headers.get(REPLY_TO, "")
        if is_request(message):
            reply_to = message.properties[properties.REPLY_TO_CLIENT]
        return RocketMessage(
            raw_message=message,
            body=body_of(message),
            headers=headers,
            reply_to=reply_to,
            content_type=headers.get(CONTENT_TYPE),
            message_id=message.message_id,
            correlation_id=headers.get(CORRELATION_ID) or message.message_id,
        )

    async def parse_batch(self, message: list[ReceivedMessage]) -> RocketMessage:
        """Make the message of several that were received together."""
        first = await self.parse_message(message[0])
        return RocketMessage(
            raw_message=message,
            body=[body_of(one) for one in message],
            headers=first.headers,
            batch_headers=[headers_of(one) for one in message],
            reply_to=first.reply_to,
            content_type=first.content_type,
            message_id=first.message_id,
            correlation_id=first.correlation_id,
        )

    async def decode_message(self, msg: StreamMessage[Any]) -> Any:
        """Return the body by its content type: a text, the value of a JSON, else the bytes."""
        return decode_message(msg)

    # FastStream knows the decoder of a batch by this name.
    async def decode_batch(self, msg: StreamMessage[Any]) -> list[Any]:
        """Return the bodies of a batch, each by its own content type."""
        return [decode_message(await self.parse_message(one)) for one in msg.raw_message]
