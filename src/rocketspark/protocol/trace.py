"""Message traces: the records that clients write to the trace topic, one per send, delivery and end of a transaction.

Rule: fields joined by 0x01, records ended by 0x02; layouts of TraceDataEncoder, 5.x, golden `message_trace_send`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from rocketspark.errors import ProtocolError
from rocketspark.model import typed_json

TOPIC = "RMQ_SYS_TRACE_TOPIC"
FIELD_END, RECORD_END = "\x01", "\x02"
NORMAL, HALF, COMMIT, DELAY = 0, 1, 2, 3
_BAD = re.compile("[\x01\x02]")


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The trace of a send. `kind`: NORMAL, HALF, COMMIT or DELAY; `time_ms`: when the send began."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tag: str
    keys: str
    store_host: str
    body_bytes: int
    cost_ms: int
    kind: int
    offset_message_id: str
    success: bool


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """The trace of a message handed to a listener. `request_id` is that of its Consumed."""

    time_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str


class Consumed(msgspec.Struct, frozen=True, kw_only=True):
    """The trace of a message that a listener has finished. `context`: 0 success, 1 time-out, 2 exception, 4 failed."""

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str
    context: int
    time_ms: int
    group: str


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The trace of the end of a transaction. `state`: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW, as RocketMQ spells
    them.
    """

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tag: str
    keys: str
    store_host: str
    kind: int
    transaction_id: str
    state: str
    from_check: bool


Trace = Published | Received | Consumed | Ended
_KINDS: dict[str, type[Trace]] = {
    "Pub": Published,
    "SubBefore": Received,
    "SubAfter": Consumed,
    "EndTransaction": Ended,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode(trace: Trace) -> str:
    """Return a trace as the text of one record, its end mark included."""
    fields = [_NAMES[type(trace)]]
    for name in trace.__struct_fields__:
        value = getattr(trace, name)
        if isinstance(value, bool):
            value = "true" if value else "false"
        fields.append(_BAD.sub("", str(value)))
    return FIELD_END.join(fields) + RECORD_END


class Broken(msgspec.Struct, frozen=True):
    """A trace record that cannot be read, with the reason."""

    why: str


class Unknown(msgspec.Struct, frozen=True):
    """A trace record of an unknown kind, such as Recall."""

    kind: str


def decode(text: str) -> Iterator[Trace]:
    """Yield the traces in a trace message; records of unknown kinds are left out. Raises ProtocolError for a broken
    one.
    """
    for found in decode_each(text):
        if isinstance(found, Broken):
            raise ProtocolError(f"a trace record cannot be read: {found.why}")
        if not isinstance(found, Unknown):
            yield found


def decode_each(text: str) -> Iterator[Trace | Broken | Unknown]:
    """Yield every record of a trace message; a broken one does not affect the others. Never raises."""
    for line in text.split(RECORD_END):
        fields = line.strip("\n").split(FIELD_END)
        kind = _KINDS.get(fields[0])
        if kind is None:
            if fields != [""]:
                yield Unknown(fields[0])
            continue
        names = kind.__struct_fields__
        if kind is Published and len(fields) == len(names):
            fields.insert(-1, "")  # Older clients write no offset message id (rule: TraceDataEncoder, 5.x).
        # Clients of other ages write fewer or more fields at the end.
        values: dict[str, str] = dict(zip(names, fields[1:], strict=False))
        values |= {name: _MISSING[name] for name in names if name not in values and name in _MISSING}
        try:
            yield typed_json.convert(values, kind, strict=False)
        except msgspec.ValidationError as e:
            yield Broken(str(e))


_MISSING = {"offset_message_id": "", "success": "true", "context": "0", "time_ms": "0", "group": "", "keys": ""}
