"""Body of BATCH_ACK_MESSAGE (200151): messages of several pops acknowledged at once."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from rocketspark.errors import ProtocolError, ServerError
from rocketspark.model.text import INT_MAX, LONG_MAX
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import Body

# Of one request.
BATCHES_MAX = 4096

_Int = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
_Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]


class AckedBatch(
    Body,
    rename={
        "group": "c",
        "topic": "t",
        "retry_flag": "r",
        "start_offset": "so",
        "queue_id": "q",
        "revive_queue_id": "rq",
        "pop_time_ms": "pt",
        "invisible_time_ms": "it",
        "bits": "b",
    },
):
    """What is acknowledged of one queue of one pop. `topic`: never a retry topic, that is what `retry_flag` says.

    `bits`: base64; bit i of its bytes, lowest first, is the message at `start_offset` + i.
    """

    group: str
    topic: str
    retry_flag: str = "0"
    start_offset: _Long = 0
    queue_id: _Int = 0
    revive_queue_id: _Int = 0
    pop_time_ms: _Long = 0
    invisible_time_ms: _Long = 0
    bits: str | None = None

    def offsets(self, low: int, high: int) -> Iterator[int]:
        """Give the acknowledged offsets from `low` to `high`, both included. Raises ProtocolError for other text."""
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
    """The whole body."""

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


def decode(body: bytes) -> BatchAck:
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


def encode(body: BatchAck) -> bytes:
    """Return the JSON of a request's body."""
    return msgspec.json.encode(body)


def bits_of(start_offset: int, offsets: list[int]) -> str:
    """Return the `bits` of a batch. `offsets`: none below `start_offset`."""
    held = bytearray()
    for offset in offsets:
        at = offset - start_offset
        if at // 8 >= len(held):
            held.extend(bytes(at // 8 + 1 - len(held)))
        held[at // 8] |= 1 << at % 8
    return base64.b64encode(held).decode()
