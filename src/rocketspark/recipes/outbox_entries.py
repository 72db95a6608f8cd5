"""The rows of an outbox: messages and their states. Pure. Rule: a message has the same id in all its sends."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from rocketspark.client.producer.prepared_message import PackingSettings, pack
from rocketspark.errors import MessageIllegal, ProtocolError, RocketSparkError, SendFailed, ServerError, StateError
from rocketspark.model import Message, typed_json
from rocketspark.protocol.codes import ResponseCode
from rocketspark.recipes.database import KEY_CHARACTERS_MAX

# The property in which a key of the application's travels.
KEY_PROPERTY = "outbox_key"
# Codes that only mean "not now", although another broker would not help at once.
_NOT_NOW = frozenset({int(ResponseCode.FLOW_CONTROL)})


class State(StrEnum):
    """The state of a message in an outbox. WAITING: to be sent; PARKED: refused for good, until an operator resends or
    drops it; SENT: sent, and kept so that its key is not sent again.
    """

    WAITING = "waiting"
    PARKED = "parked"
    SENT = "sent"


class Kept(msgspec.Struct, frozen=True):
    """What came of a message that was put into an outbox.

    `is_new` is false if its key was there before: then nothing was changed. `error`: why it was not sent at once.
    """

    key: str
    is_new: bool
    error: RocketSparkError | None = None


class Entry(msgspec.Struct, frozen=True):
    """A row of an outbox. Times are in ms since 1970; `due_ms` 0: it is due at once; `owner`: the relay that has
    claimed it.
    """

    number: int
    key: str
    message_id: str
    message: Message
    state: State
    attempts: int
    error: str | None
    added_ms: int
    due_ms: int
    sent_ms: int | None
    lane: str | None
    owner: str | None


class PreparedEntry(NamedTuple):
    """A message that is ready to be put into an outbox: checked, copied, with its id and key."""

    key: str
    message_id: str
    message: Message
    lane: str | None


class _Fields(msgspec.Struct, omit_defaults=True):
    """A message's fields besides topic and body, as JSON in one column."""

    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    sharding_key: str | None = None
    delay_level: int = 0
    deliver_at_ms: int = 0
    flag: int = 0
    wait_store_ok: bool = True


def prepare(message: Message, key: str | None, packing: PackingSettings) -> PreparedEntry:
    """Check and copy a message. `key`: None makes its unique id the key. Raises MessageIllegal."""
    # As an error now, not once it is stored; the id is of this packing.
    out = pack(message, packing._replace(over_bytes=1 << 62))
    changes: dict[str, Any] = {"properties": dict(message.properties), "keys": _words(message.keys)}
    if key is not None:
        if not isinstance(key, str) or not 0 < len(key) <= KEY_CHARACTERS_MAX or "\0" in key:
            text = f"outbox key {str(key)[:40]!r}: 1 to {KEY_CHARACTERS_MAX} characters are needed, none of them 0x00"
            raise MessageIllegal(text, topic=message.topic)
        changes["properties"][KEY_PROPERTY] = key
    if message.delay_ms:
        # From now on, not from when it can be sent at last.
        changes |= {"delay_ms": 0, "deliver_at_ms": time.time_ns() // 1_000_000 + message.delay_ms}
    copy = msgspec.structs.replace(message, **changes)
    if key is not None:
        pack(copy, packing._replace(over_bytes=1 << 62))
    return PreparedEntry(key or out.message_id, out.message_id, copy, lane_of(copy))


def lane_of(message: Message) -> str | None:
    """Return the lane of a message, in which messages keep their order: topic and sharding key; None without a sharding
    key.
    """
    if not message.sharding_key:
        return None
    text = msgspec.json.encode([message.topic, message.sharding_key]).decode()
    return text if len(text) <= KEY_CHARACTERS_MAX else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def fields_text(message: Message) -> str:
    """Return a message's fields other than topic and body as text, for the table's column `fields`."""
    values = {name: getattr(message, name) for name in _Fields.__struct_fields__}
    return msgspec.json.encode(_Fields(**values)).decode()


def entry_of(row: Sequence[Any]) -> Entry:
    """Return the entry of a row that was read, whose columns are COLUMNS of the store, in order. Raises ProtocolError
    if it cannot be read.
    """
    topic, body, fields, state = row[3], row[5], row[6], row[7]
    try:
        message = Message(topic=topic, body=bytes(body), **msgspec.structs.asdict(typed_json.decode(fields, _Fields)))
        return _entry(row, message, State(state), row[9])
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as e:
        raise ProtocolError(f"{type(e).__name__}: {e}") from e


def shown_entry_of(row: Sequence[Any]) -> Entry:
    """Return the entry of a row for display. If the row cannot be read, its readable part is returned, with the reason
    as its error.
    """
    try:
        return entry_of(row)
    except ProtocolError as e:
        body = row[5] if isinstance(row[5], bytes | memoryview) else str(row[5]).encode(errors="replace")
        state = State(row[7]) if row[7] in list(State) else State.PARKED
        return _entry(row, Message(topic=str(row[3]), body=bytes(body)), state, f"cannot be read: {e}")


def _entry(row: Sequence[Any], message: Message, state: State, error: str | None) -> Entry:
    number, key, message_id, _, lane, _, _, _, attempts, _, added_ms, due_ms, sent_ms, owner = row
    return Entry(
        number=number,
        key=key,
        message_id=message_id,
        message=message,
        state=state,
        attempts=attempts,
        error=error,
        added_ms=added_ms,
        due_ms=due_ms,
        sent_ms=sent_ms,
        lane=lane,
        owner=owner,
    )


def is_refused_for_good(error: BaseException) -> bool:
    """Tell whether an error of a send means that sending the message again cannot help: it is illegal, or the broker's
    code says so.
    """
    if isinstance(error, SendFailed | ServerError):
        return not error.retriable and error.code is not None and error.code not in _NOT_NOW
    return isinstance(error, MessageIllegal)


def is_our_own(error: BaseException) -> bool:
    """Tell whether an error of a send is not about the message: the producer was not started, or is closed."""
    return isinstance(error, StateError)


def _words(keys: Sequence[str]) -> list[str]:
    return keys.split() if isinstance(keys, str) else list(keys)
