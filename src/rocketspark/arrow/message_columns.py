"""The columns of a message as a table row, and small helpers that build Arrow arrays from numpy without copies.

Rule: names and types of columns stand here and nowhere else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rocketspark.protocol.message.record_layout import Ints

TIME = pa.timestamp("us", "UTC")
# Spark names the parts of lists and maps so.
STRINGS = pa.list_(pa.field("element", pa.string()))
STRING_MAP = pa.map_(pa.string(), pa.string())

COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "messageId": pa.string(),
    "tag": pa.string(),
    "keys": STRINGS,
    "body": pa.binary(),
    "properties": STRING_MAP,
    "bornTime": TIME,
    "storeTime": TIME,
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "offsetMessageId": pa.string(),
    "logPosition": pa.int64(),
}


def schema_of(names: list[str] | tuple[str, ...] = tuple(COLUMNS)) -> pa.Schema:
    """Return the Arrow schema of some columns, all by default. Raises KeyError for an unknown one."""
    return pa.schema([(name, COLUMNS[name]) for name in names])


def gather(
    data: Any, starts: Ints, ends: Ints, kind: pa.DataType, missing: Ints | None = None, *, ascii: bool = False
) -> pa.Array:
    """Return a binary or string array of the slices [start, end) of `data`, null where `missing`.

    Slices ascend and don't overlap; `data` is at most 2 GiB. Strings are checked, unless `data` is known to be all
    `ascii`: ArrowInvalid if one is no UTF-8.
    """
    # Slices and the gaps between them make one array over the buffer as it is; taking every other one copies the
    # slices in C++: 15-25 M rows/s.
    n = len(starts)
    offsets = np.empty(2 * n + 1, np.int32)
    offsets[: 2 * n : 2] = starts
    offsets[1::2] = ends
    offsets[2 * n] = ends[-1] if n else 0
    taken_as = kind if ascii else pa.binary()
    pairs = pa.Array.from_buffers(taken_as, 2 * n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    every_other = pa.py_buffer(np.arange(0, 2 * n, 2, dtype=np.int32))
    taken = pairs.take(pa.Array.from_buffers(pa.int32(), n, [valid, every_other]))
    return taken if kind == taken_as else taken.cast(kind)


def numbers(values: Ints, kind: pa.DataType) -> pa.Array:
    """Return a fixed-width array without nulls over a numpy array of the same width, not copied."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


# The times that Python, and so a driver's `collect`, can show in every zone: years 1 to 9999. Producers state what they
# like as a message's time; one beyond is shown as the nearest of these.
TIME_MS_MIN = -62_135_337_600_000
TIME_MS_MAX = 253_402_127_999_999


def times(values_ms: Ints) -> pa.Array:
    """Return a timestamp array of times in ms since 1970."""
    return numbers(times_us(values_ms), TIME)


def times_us(values_ms: Ints) -> Ints:
    """Turn times in ms since 1970 into us; a time beyond the range of timestamps becomes the end of that range."""
    found: Ints = np.clip(values_ms.astype(np.int64), TIME_MS_MIN, TIME_MS_MAX) * 1000
    return found


def time_us(time_ms: int) -> int:
    """Turn one time in ms since 1970 into us, as `times_us` does for an array."""
    return min(max(time_ms, TIME_MS_MIN), TIME_MS_MAX) * 1000


def constant(text: str, n: int) -> pa.Array:
    """Return an array of n times the same text."""
    # pyarrow's own way, by a scalar, imports pandas.
    data = text.encode()
    bounds = np.arange(n + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(bounds), pa.py_buffer(data * n)])
