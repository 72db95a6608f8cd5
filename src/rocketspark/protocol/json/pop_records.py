"""What is noted of popped messages in the revive topic: check points and acknowledgements, as JSON.

Rule (PopCheckPoint, AckMsg, BatchAckMsg, 5.5.0): keys in alphabetical order, those without a value left out. A check
point stands for the messages of one pop from one queue; an acknowledgement finds it by its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from rocketspark.errors import ProtocolError
from rocketspark.model import typed_json
from rocketspark.model.text import INT_MAX, LONG_MAX, whole_number

CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG = b"ck", b"ack", b"bAck"
# The bits of the map of what is acknowledged.
MESSAGES_MAX = 32
# The count of a check point whose number of re-puts is no number (rule: 5.5.0).
RE_PUTS_MAX = 127

_Int = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
_Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
_encode = msgspec.json.encode


class CheckPointKey(NamedTuple):
    """What a check point and its acknowledgements have in common."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    broker_name: str


class CheckPointRecord(NamedTuple):
    """The content of a check point's record. `offsets`: of its messages; `acked`: bit i for the i-th of them.

    `re_puts`: how often it was written again; `suspended`: the next delivery counts as no other attempt.
    """

    key: CheckPointKey
    invisible_time_ms: int
    offsets: tuple[int, ...]
    acked: int = 0
    re_puts: int = 0
    suspended: bool = False

    @property
    def next_visible_ms(self) -> int:
        """The time from which on what was not acknowledged is delivered again."""
        return self.key.pop_time_ms + self.invisible_time_ms

    def encode(self) -> bytes:
        """Return the JSON."""
        topic, group, queue_id, start, pop_time_ms, broker_name = self.key
        acked = self.acked - (1 << 32) if self.acked >> 31 & 1 else self.acked
        re_puts = b'"rp":"%d",' % self.re_puts if self.re_puts else b""
        return (
            b'{"bm":%d,"bn":%b,"c":%b,"d":[%b],"it":%d,"n":%d,"pt":%d,"q":%d,"reviveTime":%d,"ro":0,%b"so":%d,"sp":%b,'
            b'"t":%b}'
            % (
                acked,
                _encode(broker_name),
                _encode(group),
                b",".join([b"%d" % (offset - start) for offset in self.offsets]),
                self.invisible_time_ms,
                len(self.offsets),
                pop_time_ms,
                queue_id,
                pop_time_ms + self.invisible_time_ms,
                re_puts,
                start,
                b"true" if self.suspended else b"false",
                _encode(topic),
            )
        )

    def unique_key(self) -> bytes:
        """Return the unique id of the record."""
        topic, group, queue_id, start, pop_time_ms, broker_name = self.key
        return f"{topic}@{queue_id}@{start}@{group}@{pop_time_ms}@{broker_name}@ck".encode()


class AckRecord(NamedTuple):
    """The content of an acknowledgement's record: of one message, or a batch's, of several of one check point."""

    key: CheckPointKey
    offsets: tuple[int, ...]
    is_batch: bool = False

    def encode(self) -> bytes:
        """Return the JSON."""
        topic, group, queue_id, start, pop_time_ms, broker_name = self.key
        offsets = b""
        if self.is_batch:
            offsets = b'"aol":[%b],' % b",".join([b"%d" % offset for offset in self.offsets])
        return b'{"ao":%d,%b"bn":%b,"c":%b,"pt":%d,"q":%d,"so":%d,"t":%b}' % (
            -1 if self.is_batch else self.offsets[0],
            offsets,
            _encode(broker_name),
            _encode(group),
            pop_time_ms,
            queue_id,
            start,
            _encode(topic),
        )

    def unique_key(self) -> bytes:
        """Return the unique id of the record: all batches of a check point have the same (rule: 5.5.0)."""
        topic, group, queue_id, _, pop_time_ms, broker_name = self.key
        offset = -1 if self.is_batch else self.offsets[0]
        return f"{topic}@{queue_id}@{offset}@{group}@{pop_time_ms}@{broker_name}@ack".encode()


class _CheckPoint(msgspec.Struct, gc=False):
    """A check point as it is read; what is null or missing counts as 0."""

    bm: _Int | None = 0
    bn: str | None = None
    c: str | None = None
    d: list[_Int] | None = None
    it: _Long | None = 0
    n: _Int | None = 0
    pt: _Long | None = 0
    q: _Int | None = 0
    rp: str | int | None = None
    so: _Long | None = 0
    sp: bool | None = False
    t: str | None = None


class _Ack(msgspec.Struct, gc=False):
    ao: _Long | None = 0
    aol: list[_Long] | None = None
    bn: str | None = None
    c: str | None = None
    pt: _Long | None = 0
    q: _Int | None = 0
    so: _Long | None = 0
    t: str | None = None


def decode_check_point(body: bytes, broker_name: str) -> CheckPointRecord:
    """Return a check point; `broker_name`: of one that names none. Raises ProtocolError."""
    try:
        found = typed_json.decode(body, _CheckPoint, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ProtocolError(f"the record is no check point of a pop: {e}") from e
    if found.t is None or found.c is None:
        raise ProtocolError("the check point of a pop has no topic or no group")
    start = found.so or 0
    count = (found.n or 0) & 0xFF
    if count > 127:
        count = 0
    differences = (found.d or range(count))[:count]
    if len(differences) > MESSAGES_MAX:
        raise ProtocolError(f"the check point of a pop stands for {len(differences)} messages, {MESSAGES_MAX} may be")
    re_puts = 0
    if found.rp is not None:
        number = whole_number(str(found.rp), high=INT_MAX)
        re_puts = RE_PUTS_MAX if number is None else number
    return CheckPointRecord(
        CheckPointKey(found.t, found.c, found.q or 0, start, found.pt or 0, found.bn or broker_name),
        found.it or 0,
        tuple([start + difference for difference in differences]),
        (found.bm or 0) & 0xFFFF_FFFF,
        re_puts,
        bool(found.sp),
    )


def decode_ack(body: bytes, broker_name: str, *, is_batch: bool) -> AckRecord:
    """Return an acknowledgement; `broker_name`: of one that names none. Raises ProtocolError."""
    try:
        found = typed_json.decode(body, _Ack, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ProtocolError(f"the record is no acknowledgement of a popped message: {e}") from e
    if found.t is None or found.c is None:
        raise ProtocolError("the acknowledgement of a popped message has no topic or no group")
    key = CheckPointKey(found.t, found.c, found.q or 0, found.so or 0, found.pt or 0, found.bn or broker_name)
    offsets: Sequence[int] = (found.aol or ()) if is_batch else (found.ao or 0,)
    return AckRecord(key, tuple(offsets), is_batch)
