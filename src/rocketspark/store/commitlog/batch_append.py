"""The records of a whole batch, written into the log at once. Rule: the bytes are those of `record.encode` for each.

Sizes go in last of all: a kill before leaves no record that looks whole.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from rocketspark.protocol.message import record_layout
from rocketspark.protocol.message.batch import HEAD_BYTES, Layout
from rocketspark.protocol.message.record_layout import CRC_MASK, FIXED_BYTES_V4, SIZE_BYTES

# A record's fixed part: 15 fields in 88 bytes, one element a record.
_HEAD = record_layout.head_type(*record_layout.AT)


@lru_cache(maxsize=256)
def _bodies(before: int, body: int, after: int) -> struct.Struct:
    return struct.Struct(f"{before}x{body}s{after}x")


def sizes(layout: Layout, suffix_bytes: int) -> NDArray[np.int64]:
    """Return the size of each record. `suffix_bytes`: of the topic and its length."""
    return layout.sizes + (FIXED_BYTES_V4 - HEAD_BYTES + suffix_bytes)


def write(
    view: memoryview,
    at: int,
    layout: Layout,
    suffix: bytes,
    head: bytes,
    positions: NDArray[np.int64],
    first_offset: int,
) -> None:
    """Write the records from byte `at` of the view on.

    `suffix`: topic length and topic; `head`: the fixed part of a record, right in what is the same for all of them.
    """
    count, body = layout.message_count, layout.body
    record_sizes = sizes(layout, len(suffix))
    digits = record_sizes.astype(">i4").view(np.uint8).reshape(count, SIZE_BYTES)
    rows = np.empty((count, FIXED_BYTES_V4), np.uint8)
    rows[:] = np.frombuffer(head, np.uint8)
    heads = rows.view(_HEAD).reshape(count)
    heads["size"] = 0
    heads["flag"] = layout.flags
    heads["queue_offset"] = np.arange(first_offset, first_offset + count)
    heads["position"] = positions
    heads["body_bytes"] = layout.body_bytes
    if layout.width:
        body_bytes, width = int(layout.body_bytes[0]), layout.width
        split = _bodies(HEAD_BYTES, body_bytes, width - HEAD_BYTES - body_bytes)
        heads["crc"] = np.array([zlib.crc32(one) for (one,) in split.iter_unpack(body)], np.int64) & CRC_MASK
        source = np.ndarray((count, width), np.uint8, body)
        target = np.ndarray((count, int(record_sizes[0])), np.uint8, view, at)
        end = FIXED_BYTES_V4 + body_bytes
        target[:, FIXED_BYTES_V4:end] = source[:, HEAD_BYTES : HEAD_BYTES + body_bytes]
        target[:, end : end + len(suffix)] = np.frombuffer(suffix, np.uint8)
        target[:, end + len(suffix) :] = source[:, HEAD_BYTES + body_bytes :]
        target[:, SIZE_BYTES:FIXED_BYTES_V4] = rows[:, SIZE_BYTES:]
        target[:, :SIZE_BYTES] = digits
        return
    starts = layout.starts + HEAD_BYTES
    ends = starts + layout.body_bytes
    stops = layout.starts + layout.sizes
    begins, middles, stop_list = starts.tolist(), ends.tolist(), stops.tolist()
    bodies = [body[a:b] for a, b in zip(begins, middles, strict=True)]
    heads["crc"] = np.fromiter(map(zlib.crc32, bodies), np.int64, count) & CRC_MASK
    fixed = rows.tobytes()
    parts = zip(
        [fixed[a : a + FIXED_BYTES_V4] for a in range(0, len(fixed), FIXED_BYTES_V4)],
        bodies,
        repeat(suffix),
        [body[a:b] for a, b in zip(middles, stop_list, strict=True)],
        strict=False,
    )
    joined = b"".join(chain.from_iterable(parts))
    view[at : at + len(joined)] = joined
    target = np.frombuffer(view, np.uint8)
    places = positions - positions[0] + at
    for byte in range(SIZE_BYTES):
        target[places + byte] = digits[:, byte]
