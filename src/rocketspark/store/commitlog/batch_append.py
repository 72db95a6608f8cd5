"""The records of a whole batch, made at once. Rule: the bytes are those of `record.encode` for each."""

from __future__ import annotations

import struct
from collections.abc import Generator
from functools import lru_cache
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.model.steps import finished
from rocketspark.protocol.message import checksums, record_layout
from rocketspark.protocol.message.batch import HEAD_BYTES, Layout
from rocketspark.protocol.message.record_layout import CRC_MASK, FIXED_BYTES_V4, PROPERTIES_LENGTH_BYTES

# A record's fixed part: 15 fields in 88 bytes, one element a record.
_HEAD = record_layout.head_type(*record_layout.AT)
# Records of one shape are put together in pieces of this size, which the processor's cache holds.
PIECE_BYTES = 128 << 10
# Messages of different sizes that are cut in a step: some ms.
_CUT_IN_STEP = 8192
Bytes = NDArray[np.uint8]


class Commits(NamedTuple):
    """For a batch that commits half messages: the physical offset of each half message, and the checksum of each
    body.
    """

    positions: NDArray[np.int64]
    crcs: NDArray[np.uint32]


class AlikeMessages(NamedTuple):
    """Messages that are alike in the lengths of their parts; each part is an array with a row for each message, or with
    one row for all.

    `crcs`: of the bodies; `prepared`: for commits, the physical offsets of their half messages.
    """

    flags: NDArray[np.int32]
    bodies: Bytes
    properties: tuple[Bytes, ...]
    crcs: NDArray[np.uint32]
    prepared: NDArray[np.int64] | None = None

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return len(self.bodies)

    @property
    def body_bytes(self) -> NDArray[np.int64]:
        """Return the length of the bodies, in an array of one."""
        return np.array([self.bodies.shape[1]])

    @property
    def properties_bytes(self) -> NDArray[np.int64]:
        """Return the length of the properties, in an array of one."""
        return np.array([sum(part.shape[1] for part in self.properties)])


class CutBatch(NamedTuple):
    """A batch of messages of different sizes, whose parts were cut out before it is stored.

    `tails`: what follows the topic in each record, which is the length of the properties and the properties; `crcs`: of
    the bodies.
    """

    layout: Layout
    bodies: list[bytes]
    tails: list[bytes]
    crcs: NDArray[np.uint32]

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return self.layout.message_count

    @property
    def body_bytes(self) -> NDArray[np.int64]:
        """Return the length of each body."""
        return self.layout.body_bytes

    @property
    def properties_bytes(self) -> NDArray[np.int64]:
        """Return the length of the properties of each message."""
        return self.layout.properties_bytes


Batch = Layout | AlikeMessages | CutBatch


def cut_steps(layout: Layout, crcs: NDArray[np.uint32] | None = None) -> Generator[None, None, CutBatch]:
    """Cut the parts out of a batch of messages of different sizes, in steps of some ms. `crcs`: of the bodies, if they
    are known.
    """
    body, bodies, tails = layout.body, list[bytes](), list[bytes]()
    for first in range(0, layout.message_count, _CUT_IN_STEP):
        if first:
            yield
        rows = slice(first, first + _CUT_IN_STEP)
        starts = layout.starts[rows] + HEAD_BYTES
        ends = starts + layout.body_bytes[rows]
        middles = ends.tolist()
        bodies += [body[a:b] for a, b in zip(starts.tolist(), middles, strict=True)]
        stops = (layout.starts[rows] + layout.sizes[rows]).tolist()
        tails += [body[a:b] for a, b in zip(middles, stops, strict=True)]
    if crcs is None:
        yield
        crcs = np.fromiter(map(checksums.crc32, bodies), np.uint32, len(bodies))
    return CutBatch(layout, bodies, tails, crcs)


def rows_at_once(size: int) -> int:
    """Return how many rows of `size` bytes are worked on together."""
    return max(1, PIECE_BYTES // size)


def crcs_of(rows: bytes | memoryview, count: int, at: int, size: int) -> NDArray[np.uint32]:
    """Return the checksum of `size` bytes, from byte `at` on, of each of `count` rows of one length."""
    split = _bodies(at, size, len(rows) // count - at - size)
    return np.fromiter(map(checksums.crc32, map(itemgetter(0), split.iter_unpack(rows))), np.uint32, count)


@lru_cache(maxsize=256)
def _bodies(before: int, body: int, after: int) -> struct.Struct:
    return struct.Struct(f"{before}x{body}s{after}x")


def sizes(layout: Batch, suffix_bytes: int) -> NDArray[np.int64]:
    """Return the size of each message's record. `suffix_bytes`: the bytes of the topic and its length."""
    if isinstance(layout, AlikeMessages):
        variable = int(layout.body_bytes[0] + layout.properties_bytes[0])
        return np.full(layout.message_count, FIXED_BYTES_V4 + suffix_bytes + PROPERTIES_LENGTH_BYTES + variable)
    whole = layout.layout if isinstance(layout, CutBatch) else layout
    return whole.sizes + (FIXED_BYTES_V4 - HEAD_BYTES + suffix_bytes)


def records(
    layout: Batch,
    suffix: bytes,
    head: bytes,
    positions: NDArray[np.int64],
    first_offset: int,
    commits: Commits | None = None,
) -> memoryview:
    """Return the records of a batch, one after another.

    `suffix`: the topic's length and the topic. `head`: the fixed part of a record, with the values that are the same
    for all. `commits`: for a batch of commits whose layout does not name their half messages.
    """
    if isinstance(layout, AlikeMessages):
        return _alike_records(layout, suffix, head, positions, first_offset)
    record_sizes = sizes(layout, len(suffix))
    crcs = None if commits is None else commits.crcs
    cut: CutBatch | None = None
    if isinstance(layout, CutBatch):
        cut, layout = layout, layout.layout
    count, body = layout.message_count, layout.body
    if layout.width:
        body_bytes, width, size = int(layout.body_bytes[0]), layout.width, int(record_sizes[0])
        target = np.empty((count, size), np.uint8)
        source = np.ndarray((count, width), np.uint8, body)
        end = FIXED_BYTES_V4 + body_bytes
        target[:, :FIXED_BYTES_V4] = np.frombuffer(head, np.uint8)
        target[:, FIXED_BYTES_V4:end] = source[:, HEAD_BYTES : HEAD_BYTES + body_bytes]
        target[:, end : end + len(suffix)] = np.frombuffer(suffix, np.uint8)
        target[:, end + len(suffix) :] = source[:, HEAD_BYTES + body_bytes :]
        if crcs is None:
            crcs = crcs_of(body, count, HEAD_BYTES, body_bytes)
        heads = np.ndarray((count,), _HEAD, target, 0, (size,))
        _fill(heads, layout, record_sizes, positions, first_offset, crcs, commits)
        return target.reshape(-1).data
    if cut is None:
        cut = finished(cut_steps(layout, crcs))
    rows = np.empty((count, FIXED_BYTES_V4), np.uint8)
    rows[:] = np.frombuffer(head, np.uint8)
    _fill(rows.view(_HEAD).reshape(count), layout, record_sizes, positions, first_offset, cut.crcs, commits)
    fixed = rows.tobytes()
    fixed_parts = [fixed[a : a + FIXED_BYTES_V4] for a in range(0, len(fixed), FIXED_BYTES_V4)]
    parts = zip(fixed_parts, cut.bodies, repeat(suffix), cut.tails, strict=False)
    return memoryview(bytearray().join(chain.from_iterable(parts)))


def _fill(
    heads: NDArray[np.void],
    layout: Layout,
    record_sizes: NDArray[np.int64],
    positions: NDArray[np.int64],
    first_offset: int,
    crcs: NDArray[np.uint32],
    commits: Commits | None,
) -> None:
    """Write the fields in which records differ."""
    heads["size"] = record_sizes
    heads["crc"] = crcs & CRC_MASK
    heads["flag"] = layout.flags
    heads["queue_offset"] = np.arange(first_offset, first_offset + layout.message_count)
    heads["position"] = positions
    heads["body_bytes"] = layout.body_bytes
    if commits is not None:
        heads["prepared_position"] = commits.positions


def _alike_records(
    messages: AlikeMessages, suffix: bytes, head: bytes, positions: NDArray[np.int64], first_offset: int
) -> memoryview:
    """Return records of one shape."""
    count, body_bytes = messages.bodies.shape
    properties_bytes = int(messages.properties_bytes[0])
    parts = [
        np.frombuffer(head, np.uint8)[None, :],
        messages.bodies,
        np.frombuffer(suffix + properties_bytes.to_bytes(PROPERTIES_LENGTH_BYTES, "big"), np.uint8)[None, :],
        *messages.properties,
    ]
    size = sum(part.shape[1] for part in parts)
    columns: list[tuple[str, int | NDArray[Any]]] = [("size", size), ("body_bytes", body_bytes)]
    columns += [("crc", messages.crcs & CRC_MASK), ("position", positions)]
    columns.append(("queue_offset", np.arange(first_offset, first_offset + count)))
    if messages.flags.any():
        columns.append(("flag", messages.flags))
    if messages.prepared is not None:
        columns.append(("prepared_position", messages.prepared))
    target = np.empty((count, size), np.uint8)
    heads = np.ndarray((count,), _HEAD, target, 0, (size,))
    step = rows_at_once(size)
    for row in range(0, count, step):
        rows = slice(row, row + step)
        end = 0
        for part in parts:
            begin, end = end, end + part.shape[1]
            target[rows, begin:end] = part[rows] if len(part) == count else part
        for name, column in columns:
            heads[name][rows] = column[rows] if isinstance(column, np.ndarray) else column
    return target.reshape(-1).data
