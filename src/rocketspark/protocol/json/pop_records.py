"""JSON of pops: which queues a member pops (QUERY_ASSIGNMENT), messages of several pops acknowledged at once
(BATCH_ACK_MESSAGE), and what is noted of popped messages in the revive topic.

Rule of the notes (PopCheckPoint, AckMsg, BatchAckMsg, 5.5.0): keys in alphabetical order, those without a value left
out. A check point stands for the messages of one pop from one queue; an acknowledgement finds it by its key.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import field

from rocketspark.errors import ProtocolError, ServerError
from rocketspark.model import typed_json
from rocketspark.model.text import INT_MAX, LONG_MAX, whole_number
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import Body, QueueBody

CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG = b"ck", b"ack", b"bAck"
# The bits of the map of what is acknowledged.
MESSAGES_MAX = 32
# The count of a check point whose number of re-puts is no number (rule: 5.5.0).
RE_PUTS_MAX = 127

_Int = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
_Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
_encode = msgspec.json.encode


class CheckPointKey(NamedTuple):
    """What identifies a check point; its acknowledgements name it too."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    broker_name: str


class CheckPointRecord(NamedTuple):
    """The content of a check point's record in the revive topic. `offsets`: of its messages; `acked`: bit i is set if
    the i-th of them is acknowledged.

    `re_puts`: how often the check point was written again; `suspended`: the next delivery does not count as another
    attempt.
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
        """Return the record's body, as JSON."""
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
    """The content of an acknowledgement's record in the revive topic: for one message, or for several of one check
    point (`is_batch`).
    """

    key: CheckPointKey
    offsets: tuple[int, ...]
    is_batch: bool = False

    def encode(self) -> bytes:
        """Return the record's body, as JSON."""
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
    """Return the check point in a record's body; `broker_name`: used where the body names none. Raises
    ProtocolError.
    """
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
    """Return the acknowledgement in a record's body; `broker_name`: used where the body names none. Raises
    ProtocolError.
    """
    try:
        found = typed_json.decode(body, _Ack, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ProtocolError(f"the record is no acknowledgement of a popped message: {e}") from e
    if found.t is None or found.c is None:
        raise ProtocolError("the acknowledgement of a popped message has no topic or no group")
    key = CheckPointKey(found.t, found.c, found.q or 0, found.so or 0, found.pt or 0, found.bn or broker_name)
    offsets: Sequence[int] = (found.aol or ()) if is_batch else (found.ao or 0,)
    return AckRecord(key, tuple(offsets), is_batch)


class AssignmentQuery(Body):
    """Body of QUERY_ASSIGNMENT (400): a member asks which queues of a topic it reads."""

    topic: str
    consumer_group: str
    client_id: str = ""
    strategy_name: str = ""
    message_model: str = "CLUSTERING"


class Assigned(Body):
    """One queue of a member. `mode`: PULL or POP; queue -1 is all queues of its broker."""

    message_queue: QueueBody
    mode: str = "PULL"


class Assignment(Body, omit_defaults=True):
    """Reply to QUERY_ASSIGNMENT; without a list the member keeps what it has."""

    message_queue_assignments: list[Assigned] | None = None


# Of one request.
BATCHES_MAX = 4096


class AckedBatch(Body):
    """The acknowledged messages of one queue and one pop. `topic`: never the retry topic; `retry_flag` says that it is
    meant.

    `bits`: bytes as base64; bit i of them, the lowest first, is the message at `start_offset` + i.
    """

    group: str = field(name="c")
    topic: str = field(name="t")
    retry_flag: str = field(name="r", default="0")
    start_offset: _Long = field(name="so", default=0)
    queue_id: _Int = field(name="q", default=0)
    revive_queue_id: _Int = field(name="rq", default=0)
    pop_time_ms: _Long = field(name="pt", default=0)
    invisible_time_ms: _Long = field(name="it", default=0)
    bits: str | None = field(name="b", default=None)

    def offsets(self, low: int, high: int) -> Iterator[int]:
        """Yield the acknowledged offsets from `low` to `high`, both included. Raises ProtocolError if `bits` is not
        base64.
        """
        held = self._bytes()
        first = max(low - self.start_offset, 0) // 8
        last = (high - self.start_offset) // 8
        for number in range(first, min(last + 1, len(held))):
            if byte := held[number]:
                for bit in range(8):
                    offset = self.start_offset + number * 8 + bit
                    if byte >> bit & 1 and low <= offset <= high:
                        yield offset

    def among(self, offsets: Iterable[int]) -> list[int]:
        """Return those of some offsets that are acknowledged. Raises ProtocolError as `offsets` does."""
        held = self._bytes()
        numbers = ((offset, offset - self.start_offset) for offset in offsets)
        return [offset for offset, at in numbers if 0 <= at < len(held) * 8 and held[at // 8] >> at % 8 & 1]

    def _bytes(self) -> bytes:
        try:
            return base64.b64decode(self.bits or "", validate=True)
        except (binascii.Error, ValueError) as e:
            raise ProtocolError(f"the bits of a batch acknowledgement are no base64: {e}") from e


class BatchAck(Body):
    """Body of BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[AckedBatch] | None = None


class _EitherName(msgspec.Struct, kw_only=True, rename="camel"):
    """A batch with its fields under their short names or their long ones."""

    consumer_group: str | None = None
    topic: str | None = None
    retry: str | None = None
    start_offset: _Long | None = None
    queue_id: _Int | None = None
    revive_queue_id: _Int | None = None
    pop_time: _Long | None = None
    invisible_time: _Long | None = None
    bit_set: str | None = None
    c: str | None = None
    t: str | None = None
    r: str | None = None
    so: _Long | None = None
    q: _Int | None = None
    rq: _Int | None = None
    pt: _Long | None = None
    it: _Long | None = None
    b: str | None = None

    def batch(self) -> AckedBatch:
        def either(short: int | None, long: int | None) -> int:
            return short if short is not None else long or 0

        return AckedBatch(
            group=self.c or self.consumer_group or "",
            topic=self.t or self.topic or "",
            retry_flag=self.r or self.retry or "0",
            start_offset=either(self.so, self.start_offset),
            queue_id=either(self.q, self.queue_id),
            revive_queue_id=either(self.rq, self.revive_queue_id),
            pop_time_ms=either(self.pt, self.pop_time),
            invisible_time_ms=either(self.it, self.invisible_time),
            bits=self.b or self.bit_set,
        )


class _EitherBody(Body):
    broker_name: str | None = None
    acks: list[_EitherName | None] | None = None


def decode_batch_ack(body: bytes) -> BatchAck:
    """Return the body of a request, its fields named in short or at length.

    Raises ProtocolError, and ServerError 29 for more batches than one request acknowledges.
    """
    if (count := body.count(b"{") - 1) > BATCHES_MAX:
        raise ServerError(
            ResponseCode.INVALID_PARAMETER, f"{count} batches are acknowledged at once, the limit is {BATCHES_MAX}"
        )
    found = java_json.decode_request(body, _EitherBody)
    acks = None if found.acks is None else [a.batch() for a in found.acks if a is not None]
    return BatchAck(broker_name=found.broker_name, acks=acks)


def encode_batch_ack(body: BatchAck) -> bytes:
    """Return the JSON of a request's body."""
    return msgspec.json.encode(body)


def bits_of(start_offset: int, offsets: list[int]) -> str:
    """Return the `bits` of an AckedBatch for these offsets, none of which is below `start_offset`."""
    held = bytearray()
    for offset in offsets:
        at = offset - start_offset
        if at // 8 >= len(held):
            held.extend(bytes(at // 8 + 1 - len(held)))
        held[at // 8] |= 1 << at % 8
    return base64.b64encode(held).decode()
