"""Stored properties of many messages, cut into names and values at once. Rule: equal to protocol.properties.decode."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.arrow.columns import STRING_MAP, STRINGS, Ints, at, gather

_NAME_END, _PAIR_END = 1, 2
# Rows times distinct names up to which repeated names are looked for by counting, which is quick but takes room.
_COUNT_CELLS_MAX = 1 << 24


class Properties:
    """The pairs of n rows. `stored` is a binary array without nulls of their stored texts."""

    def __init__(self, stored: pa.Array) -> None:
        self._rows = len(stored)
        _, offsets, data = stored.buffers()
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        bounds = np.frombuffer(offsets, np.int32)[stored.offset : stored.offset + self._rows + 1].astype(np.int64)
        self._cut(bounds)

    def _cut(self, bounds: Ints) -> None:
        first, last = int(bounds[0]), int(bounds[-1])
        data = self._data[first:last]
        # The end of a pair is a mark at p, as 2p + 1, or the end of its row where the last mark was left out, as
        # 2 * end: so all ends sort, and an end comes before a mark that opens the next row.
        ends = (np.flatnonzero(data == _PAIR_END) + first) * 2 + 1
        row_ends = bounds[1:]
        filled = row_ends > bounds[:-1]
        unmarked = filled & (self._data[np.maximum(row_ends, 1) - 1] != _PAIR_END) if last > first else filled
        if unmarked.any():
            ends = np.sort(np.concatenate((ends, row_ends[unmarked] * 2)), kind="stable")
        row_of_end = np.searchsorted(ends, bounds * 2, side="right")
        pair_ends = ends >> 1
        starts = np.empty_like(pair_ends)
        if len(starts):
            starts[0] = first
            starts[1:] = (ends[:-1] + 1) >> 1
        marks = np.flatnonzero(data == _NAME_END) + first
        if not (len(marks) == len(starts) and (marks > starts).all() and (marks < pair_ends - 1).all()):
            # Some pair has no name end or an empty part and does not count, or a value holds a mark.
            marks = np.append(marks, last)[np.searchsorted(marks, starts)]
            good = (marks > starts) & (marks < pair_ends - 1)
            row_of_end = np.concatenate(([0], np.cumsum(good)))[row_of_end]
            starts, marks, pair_ends = starts[good], marks[good], pair_ends[good]
        self._row_pairs, self._starts, self._marks, self._ends = row_of_end, starts, marks, pair_ends

    def find(self, name: str) -> pa.Array:
        """The value of one property in each row as a string, null where it is absent; the last one if it repeats."""
        wanted = name.encode()
        pairs = np.flatnonzero(self._marks - self._starts == len(wanted))
        # Eight bytes at a time, the last eight overlapping those before.
        width = 8 if len(wanted) >= 8 else 4 if len(wanted) >= 4 else 1
        view = at(self._data, f"<u{width}")
        for part in {*range(0, len(wanted) - width + 1, width), len(wanted) - width}:
            value = int.from_bytes(wanted[part : part + width], "little")
            pairs = pairs[view[self._starts[pairs] + part] == value]
        rows = np.searchsorted(self._row_pairs, pairs, side="right") - 1
        if len(rows) == self._rows and (rows == np.arange(self._rows)).all():
            return gather(self._data, self._marks[pairs] + 1, self._ends[pairs], pa.string())
        found = np.full(self._rows, -1)
        found[rows] = pairs
        missing = found < 0
        if missing.all():
            return pa.nulls(self._rows, pa.string())
        # A missing row is an empty slice where the one before it ended.
        ends = np.maximum.accumulate(np.where(missing, 0, self._ends[found]))
        return gather(self._data, np.where(missing, ends, self._marks[found] + 1), ends, pa.string(), missing)

    def maps(self) -> pa.Array | None:
        """Return all pairs as map<string, string>, or None if some row names a property twice."""
        names = gather(self._data, self._starts, self._marks, pa.string())
        counts = np.diff(self._row_pairs)
        coded = names.dictionary_encode()
        rows = np.repeat(np.arange(self._rows, dtype=np.int64), counts)
        kinds = max(1, len(coded.dictionary))
        cells = rows * kinds + np.asarray(coded.indices)
        if len(cells):
            few = self._rows * kinds <= _COUNT_CELLS_MAX
            repeats = np.bincount(cells).max() > 1 if few else len(np.unique(cells)) < len(cells)
            if repeats:
                return None
        values = gather(self._data, self._marks + 1, self._ends, pa.string())
        return pa.MapArray.from_arrays(pa.array(self._row_pairs, pa.int32()), names, values, type=STRING_MAP)


def split_keys(keys: pa.Array) -> pa.Array:
    """KEYS texts to lists, cut at blanks; an absent one makes an empty list."""
    n = len(keys)
    keys = keys.fill_null("")
    data = keys.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    if ((raw <= 0x20) | (raw >= 0x7F)).any():
        if ((raw < 0x20) | (raw >= 0x7F)).any():
            # Other whitespace may stand there: Python's rule, one by one.
            return pa.array([text.split() for text in keys.to_pylist()], STRINGS)
        # Blanks at the ends or in a row would make empty keys.
        tidy = pc.utf8_trim(pc.replace_substring_regex(keys, " +", " "), " ")
        parts = pc.split_pattern(tidy, " ")
        empty = np.asarray(pc.equal(tidy, ""))
        if empty.any():
            parts = pc.if_else(pa.array(empty), pa.scalar([], pa.list_(pa.string())), parts)
        return parts.cast(STRINGS)
    lengths = np.asarray(pc.binary_length(keys))
    bounds = np.concatenate(([0], np.cumsum(lengths > 0)))
    return pa.ListArray.from_arrays(
        pa.array(bounds, pa.int32()), keys.filter(pa.array(lengths > 0)) if n else keys, type=STRINGS
    )
