"""The records of a whole batch, made at once. Rule: the bytes are those of `record.encode` for each."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.protocol.message import record_layout
from rocketspark.protocol.message.batch import HEAD_BYTES, Layout
from rocketspark.protocol.message.record_layout import CRC_MASK, FIXED_BYTES_V4

# A record's fixed part: 15 fields in 88 bytes, one element a record.
_HEAD = record_layout.head_type(*record_layout.AT)


class Commits(NamedTuple):
    """Of a batch of commits: the physical offsets of their half messages, and the checksums of their bodies."""

    positions: NDArray[np.int64]
    crcs: NDArray[np.uint32]


@lru_cache(maxsize=256)
def _bodies(before: int, body: int, after: int) -> struct.Struct:
    return struct.Struct(f"{before}x{body}s{after}x")


def sizes(layout: Layout, suffix_bytes: int) -> NDArray[np.int64]:
    """Return the size of each record. `suffix_bytes`: of the topic and its length."""
    return layout.sizes + (FIXED_BYTES_V4 - HEAD_BYTES + suffix_bytes)


def records(
    layout: Layout,
    suffix: bytes,
    head: bytes,
    positions: NDArray[np.int64],
    first_offset: int,
    commits: Commits | None = None,
) -> memoryview:
    """Return the records, one after another.

    `suffix`: topic length and topic; `head`: the fixed part of a record, right in what is the same for all of them;
    `commits`: of half messages.
    """
    count, body = layout.message_count, layout.body
    crcs = None if commits is None else commits.crcs
    record_sizes = sizes(layout, len(suffix))
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
            split = _bodies(HEAD_BYTES, body_bytes, width - HEAD_BYTES - body_bytes)
            crcs = np.array([zlib.crc32(one) for (one,) in split.iter_unpack(body)], np.uint32)
        heads = np.ndarray((count,), _HEAD, target, 0, (size,))
        _fill(heads, layout, record_sizes, positions, first_offset, crcs, commits)
        return target.reshape(-1).data
    rows = np.empty((count, FIXED_BYTES_V4), np.uint8)
    rows[:] = np.frombuffer(head, np.uint8)
    starts = layout.starts + HEAD_BYTES
    ends = starts + layout.body_bytes
    stops = layout.starts + layout.sizes
    begins, middles, stop_list = starts.tolist(), ends.tolist(), stops.tolist()
    bodies = [body[a:b] for a, b in zip(begins, middles, strict=True)]
    if crcs is None:
        crcs = np.fromiter(map(zlib.crc32, bodies), np.uint32, count)
    _fill(rows.view(_HEAD).reshape(count), layout, record_sizes, positions, first_offset, crcs, commits)
    fixed = rows.tobytes()
    parts = zip(
        [fixed[a : a + FIXED_BYTES_V4] for a in range(0, len(fixed), FIXED_BYTES_V4)],
        bodies,
        repeat(suffix),
        [body[a:b] for a, b in zip(middles, stop_list, strict=True)],
        strict=False,
    )
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
