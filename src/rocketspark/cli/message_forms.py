"""How `consume` prints a message: a line of text, a line of JSON, or by a format with %. Rule: in a pipe or a file a
format leaves every byte as it is; on a terminal nothing in a message moves the cursor.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rocketspark.cli.streams import unescaped
from rocketspark.model.text import shown, shown_json

if TYPE_CHECKING:
    from rocketspark.model import ReceivedMessage

Field = Callable[["ReceivedMessage"], str | bytes]
_FIELD = re.compile("%(.?)", re.DOTALL)


def _key(message: ReceivedMessage) -> str:
    return " ".join(message.keys)


def _properties(message: ReceivedMessage) -> str:
    return ",".join(f"{name}={value}" for name, value in own_properties(message).items())


# By the letter behind %: those of kcat, and RocketMQ's tag, id, broker and time of birth.
FIELDS: dict[str, Field] = {
    "%": lambda message: b"%",
    "t": lambda message: message.topic,
    "p": lambda message: str(message.queue_id),
    "o": lambda message: str(message.queue_offset),
    "q": lambda message: str(message.queue_id),
    "k": _key,
    "K": lambda message: str(len(_key(message).encode()) if message.keys else -1),
    "s": lambda message: message.body,
    "S": lambda message: str(len(message.body)),
    "R": lambda message: len(message.body).to_bytes(4, "big"),
    "T": lambda message: str(message.store_time_ms),
    "C": lambda message: str(message.born_time_ms),
    "h": _properties,
    "g": lambda message: message.tag or "",
    "i": lambda message: message.message_id,
    "b": lambda message: message.broker_name,
}


def own_properties(message: ReceivedMessage) -> dict[str, str]:
    """Return the application's properties of a message."""
    from rocketspark.protocol.message.properties import SYSTEM_NAMES

    return {name: value for name, value in message.properties.items() if name not in SYSTEM_NAMES}


class Format:
    """A format such as '%t %o %k %s\\n' (`FIELDS`; escapes: `unescaped`). Raises ValueError for one that is unknown."""

    def __init__(self, text: str, *, terminal: bool) -> None:
        self._terminal = terminal
        self._parts: list[bytes | Field] = []
        at = 0
        for match in _FIELD.finditer(text):
            if match[1] not in FIELDS:
                raise ValueError(f"{match[0]!r} is unknown: there are {' '.join(f'%{letter}' for letter in FIELDS)}")
            self._parts += [unescaped(text[at : match.start()]), FIELDS[match[1]]]
            at = match.end()
        self._parts.append(unescaped(text[at:]))

    def __call__(self, message: ReceivedMessage) -> bytes:
        """Return a message in this form."""
        return b"".join(part if isinstance(part, bytes) else self._bytes(part(message)) for part in self._parts)

    def _bytes(self, value: str | bytes) -> bytes:
        if self._terminal:
            text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
            return _visible(text).encode()
        return value if isinstance(value, bytes) else value.encode("utf-8", "backslashreplace")


def as_text(message: ReceivedMessage) -> str:
    """Return a line for people: when and where it was stored, tag and keys, body."""
    place = f"{shown(message.broker_name)}/{message.queue_id}/{message.queue_offset}"
    marks = " ".join(f"[{shown(mark)}]" for mark in (message.tag, *message.keys) if mark)
    text = _visible(message.body.decode("utf-8", "backslashreplace"))
    return " ".join(part for part in (_clock(message.store_time_ms), place, marks, text) if part)


def _visible(text: str) -> str:
    """Return a text whole, but for what would move the cursor; tabs part columns."""
    return "\t".join(shown(part, characters_max=len(part)) for part in text.split("\t"))


def _clock(ms: int) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(ms / 1000))
    except (ValueError, OverflowError, OSError):
        return "--:--:--"  # No time that a calendar has.


def as_fields(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message as JSON has it; a body that is no UTF-8 stands there as body_base64."""
    fields: dict[str, Any] = {
        name: getattr(message, name)
        for name in (
            *("topic", "broker_name", "queue_id", "queue_offset", "message_id", "offset_message_id", "tag", "keys"),
            *("properties", "born_time_ms", "born_host", "store_time_ms", "store_host", "reconsume_times", "flag"),
        )
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        # msgspec writes bytes as base64.
        fields["body_base64"] = message.body
    return fields


def as_json(message: ReceivedMessage) -> str:
    """Return a line of JSON, which `produce --jsonl` takes."""
    import msgspec

    return shown_json(msgspec.json.encode(as_fields(message)))
