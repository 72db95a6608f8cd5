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

from rocketspark.protocol.message import record
from rocketspark.protocol.message.batch import HEAD_BYTES, Layout

_FIXED_BYTES = record.FIXED_V4.size
_HEAD = np.dtype(
    [
        *(("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue_id", ">i4"), ("flag", ">i4")),
        *(("queue_offset", ">i8"), ("position", ">i8"), ("sys_flag", ">i4"), ("born_time", ">i8"), ("born_host", "V8")),
        *(
            ("store_time", ">i8"),
            ("store_host", "V8"),
            ("reconsume_times", ">i4"),
            ("prepared", ">i8"),
            ("body", ">i4"),
        ),
    ]
)
assert _HEAD.itemsize == _FIXED_BYTES


@lru_cache(maxsize=256)
def _bodies(before: int, body: int, after: int) -> struct.Struct:
    return struct.Struct(f"{before}x{body}s{after}x")


def sizes(layout: Layout, suffix_bytes: int) -> NDArray[np.int64]:
    """Return the size of each record. `suffix_bytes`: of the topic and its length."""
    return layout.sizes + (_FIXED_BYTES - HEAD_BYTES + suffix_bytes)


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
    rows = np.empty((count, _FIXED_BYTES), np.uint8)
    rows[:] = np.frombuffer(head, np.uint8)
    heads = rows.view(_HEAD).reshape(count)
    heads["size"] = 0
    heads["flag"] = layout.flags
    heads["queue_offset"] = np.arange(first_offset, first_offset + count)
    heads["position"] = positions
    heads["body"] = layout.body_bytes
    if layout.width:
        body_bytes, width = int(layout.body_bytes[0]), layout.width
        split = _bodies(HEAD_BYTES, body_bytes, width - HEAD_BYTES - body_bytes)
        heads["crc"] = np.array([zlib.crc32(one) for (one,) in split.iter_unpack(body)], np.int64) & record.CRC_MASK
        source = np.ndarray((count, width), np.uint8, body)
        target = np.ndarray((count, int(record_sizes[0])), np.uint8, view, at)
        end = _FIXED_BYTES + body_bytes
        target[:, _FIXED_BYTES:end] = source[:, HEAD_BYTES : HEAD_BYTES + body_bytes]
        target[:, end : end + len(suffix)] = np.frombuffer(suffix, np.uint8)
        target[:, end + len(suffix) :] = source[:, HEAD_BYTES + body_bytes :]
        target[:, 4:_FIXED_BYTES] = rows[:, 4:]
        target[:, :4] = record_sizes.astype(">i4").view(np.uint8).reshape(count, 4)
        return
    starts = layout.starts + HEAD_BYTES
    ends = starts + layout.body_bytes
    stops = layout.starts + layout.sizes
    begins, middles, stop_list = starts.tolist(), ends.tolist(), stops.tolist()
    bodies = [body[a:b] for a, b in zip(begins, middles, strict=True)]
    heads["crc"] = np.fromiter(map(zlib.crc32, bodies), np.int64, count) & record.CRC_MASK
    fixed = rows.tobytes()
    parts = zip(
        [fixed[a : a + _FIXED_BYTES] for a in range(0, len(fixed), _FIXED_BYTES)],
        bodies,
        repeat(suffix),
        [body[a:b] for a, b in zip(middles, stop_list, strict=True)],
        strict=False,
    )
    joined = b"".join(chain.from_iterable(parts))
    view[at : at + len(joined)] = joined
    target = np.frombuffer(view, np.uint8)
    places = positions - positions[0] + at
    digits = record_sizes.astype(">i4").view(np.uint8).reshape(count, 4)
    for byte in range(4):
        target[places + byte] = digits[:, byte]
