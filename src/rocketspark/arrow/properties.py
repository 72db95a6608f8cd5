"""Stored properties of many messages, cut into names and values at once. Rule: equal to protocol.properties.decode.

Messages of one producer mostly name the same properties in the same order: then only the ends of values are looked for
(`_Alike`), and 9 properties cost some 0.2 us a row, a third of the general way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.arrow.message_columns import STRING_MAP, STRINGS, gather
from rocketspark.protocol.message.record_layout import Ints
from rocketspark.protocol.message.record_places import at

_NAME_END, _PAIR_END = 1, 2
_NAME_END_BYTE, _PAIR_END_BYTE = bytes([_NAME_END]), bytes([_PAIR_END])
# Rows times distinct names up to which repeated names are looked for by counting, which is quick but takes room.
_COUNT_CELLS_MAX = 1 << 24


class _Alike(NamedTuple):
    """Rows that all have the properties `names`, in this order. The places of marks and ends have a row of each."""

    names: list[bytes]
    marks: Ints
    ends: Ints


class Properties:
    """The properties of n rows, cut into names and values. `stored`: a binary array of the rows' stored properties,
    without nulls.
    """

    def __init__(self, stored: pa.Array) -> None:
        self._rows = len(stored)
        _, offsets, data = stored.buffers()
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        bounds = np.frombuffer(offsets, np.int32)[stored.offset : stored.offset + self._rows + 1].astype(np.int64)
        # No byte of a text is more than 127, so nothing needs a check.
        self._ascii = bool(len(self._data) == 0 or self._data.max() < 0x80)
        self._alike = self._all_alike(bounds)
        if self._alike is None:
            self._cut(bounds)

    def _all_alike(self, bounds: Ints) -> _Alike | None:
        """Return the places of all pairs if each row has the first one's names, else None."""
        if not self._rows:
            return None
        data, row_starts, row_ends = self._data, bounds[:-1], bounds[1:]
        first = bytes(data[row_starts[0] : row_ends[0]])
        marked = first.endswith(_PAIR_END_BYTE)
        pairs = [pair.partition(_NAME_END_BYTE) for pair in first.removesuffix(_PAIR_END_BYTE).split(_PAIR_END_BYTE)]
        if not all(name and value for name, _, value in pairs):
            return None
        names = [name for name, _, _ in pairs]
        found = np.flatnonzero(data[row_starts[0] : row_ends[-1]] == _PAIR_END) + row_starts[0]
        marks_a_row = len(names) - (not marked)
        if len(found) != self._rows * marks_a_row:
            return None
        ends = found.reshape(self._rows, marks_a_row)
        if marked:
            if (ends[:, -1] != row_ends - 1).any():
                return None
        else:
            if marks_a_row and ((ends[:, 0] < row_starts) | (ends[:, -1] >= row_ends)).any():
                return None
            ends = np.column_stack((ends, row_ends))
        starts = np.empty_like(ends)
        starts[:, 0] = row_starts
        np.add(ends[:, :-1], 1, out=starts[:, 1:])
        marks = starts + np.array([len(name) for name in names])
        if (marks + 1 >= ends).any():
            return None
        if not _named(data, marks, names):
            return None
        return _Alike(names, marks, ends)

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
        """Return one property of each row as a string, null where the row lacks it; the last one if it repeats."""
        wanted = name.encode()
        if self._alike is not None:
            return self._find_alike(self._alike, wanted)
        pairs = np.flatnonzero(self._marks - self._starts == len(wanted))
        pairs = pairs[_stands_at(self._data, self._starts[pairs], wanted)]
        rows = np.searchsorted(self._row_pairs, pairs, side="right") - 1
        if len(rows) == self._rows and (rows == np.arange(self._rows)).all():
            return self._strings(self._marks[pairs] + 1, self._ends[pairs])
        found = np.full(self._rows, -1)
        found[rows] = pairs
        missing = found < 0
        if missing.all():
            return pa.nulls(self._rows, pa.string())
        # A missing row is an empty slice where the one before it ended.
        ends = np.maximum.accumulate(np.where(missing, 0, self._ends[found]))
        return self._strings(np.where(missing, ends, self._marks[found] + 1), ends, missing)

    def _find_alike(self, rows: _Alike, name: bytes) -> pa.Array:
        if name not in rows.names:
            return pa.nulls(self._rows, pa.string())
        column = len(rows.names) - 1 - rows.names[::-1].index(name)
        return self._strings(rows.marks[:, column] + 1, rows.ends[:, column])

    def _strings(self, starts: Ints, ends: Ints, missing: Ints | None = None) -> pa.Array:
        return gather(self._data, starts, ends, pa.string(), missing, ascii=self._ascii)

    def maps(self) -> pa.Array | None:
        """Return all properties of each row as map<string, string>; None if some row names a property twice."""
        if self._alike is not None:
            return self._maps_alike(self._alike)
        names = self._strings(self._starts, self._marks)
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
        values = self._strings(self._marks + 1, self._ends)
        return pa.MapArray.from_arrays(pa.array(self._row_pairs, pa.int32()), names, values, type=STRING_MAP)

    def _maps_alike(self, rows: _Alike) -> pa.Array | None:
        count = len(rows.names)
        if len(set(rows.names)) < count:
            return None
        names = pa.array(rows.names, pa.binary()).cast(pa.string()).buffers()
        # The first row's names once for each row.
        bounds = np.frombuffer(names[1], np.int32, count + 1)
        row_numbers = np.arange(self._rows, dtype=np.int32)[:, None]
        offsets = np.append((row_numbers * bounds[-1] + bounds[:-1]).ravel(), np.int32(self._rows * bounds[-1]))
        texts = b"".join(rows.names) * self._rows
        keys = pa.Array.from_buffers(
            pa.string(), self._rows * count, [None, pa.py_buffer(offsets), pa.py_buffer(texts)]
        )
        values = self._strings(rows.marks.ravel() + 1, rows.ends.ravel())
        row_pairs = pa.array(np.arange(0, self._rows * count + 1, count, dtype=np.int32))
        return pa.MapArray.from_arrays(row_pairs, keys, values, type=STRING_MAP)


def _named(data: Ints, marks: Ints, names: list[bytes]) -> bool:
    """Tell whether before the marks of each row stand these names, one in each column."""
    if marks[0, 0] < 7:
        # The first name has no eight bytes up to its mark.
        starts = marks - np.array([len(name) for name in names])
        return all(
            _stands_at(data, starts[:, column], name + _NAME_END_BYTE).all() for column, name in enumerate(names)
        )
    # The last eight bytes of each name and its mark in one pass, what stands before a shorter one masked.
    masks = np.array([(1 << 64) - (1 << 8 * max(0, 7 - len(name))) for name in names], np.uint64)
    lasts = [(bytes(8) + name + _NAME_END_BYTE)[-8:] for name in names]
    found = at(data, "<u8")[marks - 7]
    found ^= np.frombuffer(b"".join(lasts), "<u8")
    found &= masks
    return not found.any() and all(
        _stands_at(data, marks[:, column] - len(name), name).all() for column, name in enumerate(names) if len(name) > 7
    )


def _stands_at(data: Ints, starts: Ints, wanted: bytes) -> Ints:
    """Return, for each of these positions, whether the wanted bytes begin there; all positions must leave room for
    them.
    """
    # Eight bytes at a time, the last eight overlapping those before.
    width = 8 if len(wanted) >= 8 else 4 if len(wanted) >= 4 else 2 if len(wanted) >= 2 else 1
    view = at(data, f"<u{width}")
    equal: Ints | None = None
    for part in sorted({*range(0, len(wanted) - width + 1, width), len(wanted) - width}):
        here = view[starts + part] == int.from_bytes(wanted[part : part + width], "little")
        equal = here if equal is None else equal & here
    assert equal is not None
    return equal


def split_keys(keys: pa.Array) -> pa.Array:
    """Return a list of keys for each row, cut from the text of its KEYS at blanks; an empty list where it is null."""
    n = len(keys)
    keys = keys.fill_null("")
    data = keys.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    if ((raw < 0x20) | (raw >= 0x7F)).any():
        # Other whitespace may stand there: Python's rule, one by one.
        return pa.array([text.split() for text in keys.to_pylist()], STRINGS)
    if (raw == 0x20).any():
        return _cut_at_blanks(raw, np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + n + 1])
    lengths = np.asarray(pc.binary_length(keys))
    bounds = np.concatenate(([0], np.cumsum(lengths > 0)))
    return pa.ListArray.from_arrays(
        pa.array(bounds, pa.int32()), keys.filter(pa.array(lengths > 0)) if n else keys, type=STRINGS
    )


def _cut_at_blanks(raw: Ints, bounds: Ints) -> pa.Array:
    """Return the words of texts of ASCII; text i is raw[bounds[i]:bounds[i + 1]]."""
    first, last = int(bounds[0]), int(bounds[-1])
    word = raw[first:last] != 0x20
    begins = np.zeros(last - first + 1, bool)
    begins[bounds - first] = True
    ends = begins[1:].copy()
    # A word begins and ends at a text's bounds, or beside a blank.
    begins[1:-1] |= ~word[:-1]
    ends[:-1] |= ~word[1:]
    begins[:-1] &= word
    ends &= word
    begins[-1] = False
    words = gather(raw, np.flatnonzero(begins) + first, np.flatnonzero(ends) + first + 1, pa.string(), ascii=True)
    before = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(begins, dtype=np.int32, out=before[1:])
    return pa.ListArray.from_arrays(pa.array(before[bounds - first]), words, type=STRINGS)
