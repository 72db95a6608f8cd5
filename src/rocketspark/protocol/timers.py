"""Timer messages in the protocol: the recall of one, the file of their counts.

Rule for the handle: RecallMessageHandle, 5.4+.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

import msgspec
from msgspec import field

from rocketspark.errors import ProtocolError
from rocketspark.protocol.headers import Header
from rocketspark.protocol.json.bodies import Body, DataVersion

_VERSION = "v1"
_TEXT = re.compile(r"[A-Za-z0-9_-]+={0,2}")


class RecallHeader(Header, kw_only=True, gc=False):
    """RECALL_MESSAGE (370): asks to cancel a timer message."""

    group: str | None = field(name="producerGroup", default=None)
    topic: str
    handle: str = field(name="recallHandle")


class RecallReply(Header, kw_only=True, gc=False):
    """Reply to RECALL_MESSAGE (370): the id of the message that was cancelled."""

    message_id: str = field(name="msgId")


class RecallHandle(NamedTuple):
    """What identifies a timer message for its recall. `deliver_ms`: its delivery time on the timer wheel, plus 1."""

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str

    def encode(self) -> str:
        """Return the handle as the text that a sender gets."""
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.deliver_ms} {self.message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """Return the handle that a text is. Raises ProtocolError for any other text.

    A delivery time that is no number is read as -1, one that has passed.
    """
    if not _TEXT.fullmatch(text):
        raise ProtocolError("recall handle is invalid")
    try:
        # Java's decoder takes the text with or without padding.
        words = base64.b64decode(text + "=" * (-len(text) % 4), b"-_").decode().split(" ")
    except (binascii.Error, ValueError):
        raise ProtocolError("recall handle is invalid") from None
    if len(words) < 5 or words[0] != _VERSION or not all(words[1:5]):
        raise ProtocolError("recall handle is invalid")
    _, topic, broker_name, deliver, message_id = words[:5]
    is_number = deliver.isascii() and deliver.isdigit() and len(deliver) < 19
    return RecallHandle(topic, broker_name, int(deliver) if is_number else -1, message_id)


class TimerCount(Body):
    """The number of a topic's waiting timer messages, and the time of its last change."""

    count: int = 0
    changed_ms: int = field(name="timeStamp", default=0)


class TimerCounts(Body):
    """config/timermetrics: the counts of waiting timer messages, by the topic that they are for."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    counts: dict[str, TimerCount] = field(name="timingCount", default={})
