"""Where the records of a buffer begin, found by their sizes alone, and the messages within inner batches: records whose
body is messages one after another.

Rule: rows of inner batches equal those of `record.decode_messages`; a batch that is odd in any way is left to it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import RecordError
from rocketspark.model.text import whole_number
from rocketspark.protocol.message import checksums, sysflags
from rocketspark.protocol.message.batch import DECODED_MAX, HEAD_BYTES
from rocketspark.protocol.message.record_layout import (
    CRC_MASK,
    PLACES,
    PROPERTIES_LENGTH_BYTES,
    RECORD_BYTES_MIN,
    SIZE_BYTES,
    Buffer,
    Ints,
)

Span = tuple[int, int]
# The flags of a record whose body is messages.
INNER = sysflags.INNER_BATCH | sysflags.NEED_UNWRAP

_SIZE = struct.Struct(">i").unpack_from
# Fewer records or messages of equal size in a row than this are walked one by one as quickly.
_RUN_LEAST = 16
_WALK = 1024
_FLAG_AT, _BODY_BYTES_AT = 12, 16
_ITEM_BYTES_MIN = HEAD_BYTES + PROPERTIES_LENGTH_BYTES
_OFFSET_MAX = (1 << 63) - 1


def at(data: NDArray[np.uint8], kind: str | np.dtype[Any]) -> Ints:
    """Return an array whose element i is what begins at byte i of `data`, of numpy type `kind`."""
    count = max(0, len(data) - np.dtype(kind).itemsize + 1)
    return np.ndarray((count,), kind, data.data, strides=(1,))


def find_records(buffer: Buffer, span: Span) -> Ints:
    """Return where each record of a span of whole records begins. Raises RecordError for an impossible size."""
    start, end = span
    found: list[Ints] = []
    while start + SIZE_BYTES <= end:
        run = _equal_run(buffer, start, end)
        if len(run) < _RUN_LEAST:
            run = _walk(buffer, start, end, _WALK)
        found.append(run)
        last = int(run[-1])
        start = last + int(_SIZE(buffer, last)[0])
    if start != end:
        raise RecordError(f"the last record, at {found[-1][-1] if found else start}, is cut off at {end}")
    return found[0] if len(found) == 1 else np.concatenate(found or [np.zeros(0, np.int64)])


def _equal_run(buffer: Buffer, start: int, end: int) -> Ints:
    """Return the records from `start` on that all have the first one's size, a frequent case: all found at once."""
    size = _SIZE(buffer, start)[0]
    if size < RECORD_BYTES_MIN or start + size > end:
        return np.zeros(0, np.int64)
    count = (end - start) // size
    sizes = np.ndarray((count,), PLACES["size"].kind, memoryview(buffer)[start:end], strides=(size,))
    unequal = sizes != size
    if unequal.any():
        count = int(np.argmax(unequal))
    run: Ints = start + size * np.arange(count, dtype=np.int64)
    return run


def _walk(buffer: Buffer, start: int, end: int, count_max: int) -> Ints:
    """Return the next records one by one, 60 ns each: quicker than any search for the magic numbers."""
    starts: list[int] = []
    add, size_at = starts.append, _SIZE
    # It ends the walk where no size stands any more.
    whole = memoryview(buffer)[:end]
    at = start
    try:
        for _ in range(count_max):
            size = size_at(whole, at)[0]
            add(at)
            at += size
    except struct.error:
        pass
    found = np.array(starts, np.int64)
    sizes = np.diff(found, append=at)
    wrong = sizes < RECORD_BYTES_MIN
    if wrong.any():
        first = int(np.argmax(wrong))
        raise RecordError(f"record at {starts[first]} states {sizes[first]} bytes, fewer than any record has")
    return found


class Records(NamedTuple):
    """Records as arrays, an element for each: where their parts begin and end in the buffer, and some fields.

    `inner`: whether the record is an inner batch; `bases`: the text that states the queue offset of its first message,
    None for a record without one.
    """

    inner: Ints
    body: Ints
    body_end: Ints
    properties: Ints
    end: Ints
    offsets: Ints
    flags: Ints
    sys_flags: Ints
    crcs: Ints
    bases: list[str | None]


class Items(NamedTuple):
    """Messages as arrays, an element for each, ascending by position: those of inner batches, and records that are one
    message.

    `records`: the index of the message's record among those given; `inner`: whether it is in an inner batch. `body` to
    `end` are positions in the buffer; `properties` to `end` are the message's properties.
    """

    records: Ints
    inner: Ints
    offsets: Ints
    flags: Ints
    sys_flags: Ints
    body: Ints
    body_end: Ints
    properties: Ints
    end: Ints

    def only(self, chosen: Ints | slice) -> Items:
        """Return the messages that a mask or a slice chooses."""
        return Items(*[part[chosen] for part in self])


# What a message has of its own, by the field of a record in whose place it is.
OF_ITEM: dict[str, Callable[[Items], Ints]] = {
    "queue_offset": lambda items: items.offsets,
    "flag": lambda items: items.flags,
    "sys_flag": lambda items: items.sys_flags,
}


def items_of(buffer: Buffer, found: Records) -> Items | None:
    """Return the messages of the records `found`; None if one record has to be decoded by the general decoder.

    The CRC of each inner batch, which covers all its messages, is checked.
    """
    view = memoryview(buffer)
    places = np.flatnonzero(found.inner)
    counts = np.ones(len(found.inner), np.int64)
    firsts: list[int] = []
    starts: list[Ints] = []
    for place, start, end, crc, offset in zip(
        places.tolist(),
        found.body[places].tolist(),
        found.body_end[places].tolist(),
        found.crcs[places].tolist(),
        found.offsets[places].tolist(),
        strict=True,
    ):
        body = view[start:end]
        if crc and checksums.crc32(body) & CRC_MASK != crc:
            return None
        inside = _starts(body)
        stated = found.bases[place]
        base = offset if stated is None else whole_number(stated)
        if inside is None or base is None or base > _OFFSET_MAX - len(inside) or len(inside) > DECODED_MAX:
            return None
        counts[place] = len(inside)
        firsts.append(base)
        starts.append(inside + start)
    return _items(buffer, found, counts, np.array(firsts, np.int64), np.concatenate(starts))


def _items(buffer: Buffer, found: Records, counts: Ints, firsts: Ints, starts: Ints) -> Items | None:
    """Return the messages at `starts` and plain records; `counts`: messages a record, `firsts`: offsets of batches."""
    data = np.frombuffer(buffer, np.uint8)
    records = np.repeat(np.arange(len(counts)), counts)
    inner = found.inner[records]
    of_batch = records[inner]
    # Messages lie side by side, so each ends where the next one begins, or its batch.
    ends = starts + at(data, ">i4")[starts]
    body = starts + HEAD_BYTES
    body_end = body + at(data, ">i4")[starts + _BODY_BYTES_AT]
    if ((body_end < body) | (body_end + PROPERTIES_LENGTH_BYTES > ends)).any():
        return None
    properties = body_end + PROPERTIES_LENGTH_BYTES
    if (properties + at(data, ">u2")[body_end] != ends).any():
        return None
    flags = at(data, ">i4")[starts + _FLAG_AT]
    inner_counts = counts[found.inner]
    offsets = np.arange(len(starts)) + np.repeat(firsts - np.cumsum(inner_counts) + inner_counts, inner_counts)
    sys_flags = found.sys_flags[of_batch] & ~INNER
    parts: list[Ints] = [offsets, flags, sys_flags, body, body_end, properties, ends]
    if len(of_batch) < len(records):
        of_records = [found.offsets, found.flags, found.sys_flags]
        of_records += [found.body, found.body_end, found.properties, found.end]
        parts = [_mixed(whole[records], inner, part) for whole, part in zip(of_records, parts, strict=True)]
    return Items(records, inner, *parts)


def _mixed(whole: Ints, inner: Ints, parts: Ints) -> Ints:
    made = whole.astype(np.int64)
    made[inner] = parts
    return made


def _starts(body: memoryview) -> Ints | None:
    """Return where the messages of a batch begin, by their sizes alone; None if these do not add up."""
    total = len(body)
    if total < _ITEM_BYTES_MIN:
        return None if total else np.zeros(0, np.int64)
    width = _SIZE(body)[0]
    if width >= _ITEM_BYTES_MIN and width * _RUN_LEAST <= total and not total % width:
        sizes = np.ndarray((total // width,), ">i4", body, strides=(width,))
        if (sizes == width).all():
            return np.arange(0, total, width, dtype=np.int64)
    found: list[int] = []
    add, size_at, here = found.append, _SIZE, 0
    try:
        while here < total:
            size = size_at(body, here)[0]
            if size < _ITEM_BYTES_MIN:
                return None
            add(here)
            here += size
    except struct.error:
        return None
    return np.array(found, np.int64) if here == total else None
