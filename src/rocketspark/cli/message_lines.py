"""How `produce` reads a message: what stands on a line, behind a key or not, or a line of JSON as `consume --json`
prints it. Rule: pure; what is wrong with a line is raised as MessageIllegal.
"""

from __future__ import annotations

import codecs
from typing import Any

import msgspec

from rocketspark.errors import MessageIllegal
from rocketspark.model import Message, typed_json
from rocketspark.model.text import shown
from rocketspark.protocol.message.properties import LITE_TOPIC, PRIORITY, SHARDING_KEY, SYSTEM_NAMES


class _Sent(msgspec.Struct, forbid_unknown_fields=True):
    """A line of JSON: what can be sent."""

    body: str | None = None
    body_base64: bytes | None = None
    tag: str | None = None
    keys: list[str] | str = []
    properties: dict[str, str] = {}
    sharding_key: str | None = None
    delay_level: int = 0
    delay_ms: int = 0
    deliver_at_ms: int = 0
    flag: int = 0
    priority: int | None = None
    lite_topic: str | None = None


class _Line(_Sent, forbid_unknown_fields=True):
    """A line of JSON with what `consume` prints beside that, of which nothing is sent."""

    topic: Any = None
    broker_name: Any = None
    queue_id: Any = None
    queue_offset: Any = None
    message_id: Any = None
    offset_message_id: Any = None
    born_time_ms: Any = None
    born_host: Any = None
    store_time_ms: Any = None
    store_host: Any = None
    reconsume_times: Any = None


FIELDS = _Sent.__struct_fields__


class Lines:
    """Makes messages for one topic; `fields`: of each, as Message takes them, where a line does not name its own."""

    def __init__(self, topic: str, fields: dict[str, Any], *, jsonl: bool, key_delimiter: bytes | None) -> None:
        self._topic = topic
        self._fields = fields
        self._jsonl = jsonl
        self._key_delimiter = key_delimiter

    def message(self, line: bytes) -> Message:
        """Return the message that a line holds. Raises MessageIllegal."""
        return self._of_json(line) if self._jsonl else self._of_text(line)

    def _of_text(self, line: bytes) -> Message:
        fields = self._fields
        if self._key_delimiter is not None:
            key, found, body = line.partition(self._key_delimiter)
            if found:
                line = body
                if key:
                    fields = fields | {"keys": [*fields.get("keys", ()), _text(key)]}
        return Message(self._topic, line, **fields)

    def _of_json(self, line: bytes) -> Message:
        try:
            # A file may begin with a byte order mark.
            found = typed_json.decode(line.removeprefix(codecs.BOM_UTF8), _Line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise MessageIllegal(f"{shown(e)}; a JSON object with {', '.join(FIELDS)} is needed") from None
        properties = found.properties
        sharding_key = found.sharding_key
        if found.queue_offset is not None:
            # Printed by `consume`: RocketMQ's own properties are those of the message that was read.
            sharding_key = sharding_key or properties.get(SHARDING_KEY)
            properties = {name: value for name, value in properties.items() if name not in SYSTEM_NAMES}
        if found.lite_topic or "lite_topic" in self._fields:
            properties = {name: value for name, value in properties.items() if name != LITE_TOPIC}
        if found.priority is not None or "priority" in self._fields:
            properties = {name: value for name, value in properties.items() if name != PRIORITY}
        own: dict[str, Any] = {
            "tag": found.tag,
            "keys": [found.keys] if isinstance(found.keys, str) else found.keys,
            "properties": {**self._fields.get("properties", {}), **properties},
            "sharding_key": sharding_key,
            "flag": found.flag,
            "delay_level": found.delay_level,
            "delay_ms": found.delay_ms,
            "deliver_at_ms": found.deliver_at_ms,
            "lite_topic": found.lite_topic,
        }
        fields = self._fields | {name: value for name, value in own.items() if value}
        if found.priority is not None:
            fields["priority"] = found.priority
        return Message(self._topic, _body(found), **fields)


def _body(line: _Sent) -> bytes:
    if (line.body is None) == (line.body_base64 is None):
        raise MessageIllegal("one of body, a text, and body_base64 is needed")
    if line.body_base64 is not None:
        return line.body_base64
    assert line.body is not None
    return line.body.encode()


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise MessageIllegal(f"key {shown(repr(key), characters_max=60)} is no UTF-8 text; keys are texts") from None
