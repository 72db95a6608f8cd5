"""Consume queues of both kinds, read only: the places of records by queue offset. Rule: a unit is a hint, never proof.

A queue has units in files up to an offset, and after them a tail of records known from the log alone.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from rocketspark.protocol.message.record_layout import Ints
from rocketspark.store.consumequeue.batch_consume_queue import BATCH_UNIT_TYPE
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, UNIT_TYPE
from rocketspark.store.readonly.file_places import LOCAL_DISK, Place
from rocketspark.store.readonly.log_scan import LogScan
from rocketspark.store.readonly.read_only_files import ReadOnlyFiles

_CHUNK_UNITS = 1 << 16
_SIZES_SEEN = 64


class QueueUnits(NamedTuple):
    """Records in queue order, as arrays: first queue offset, number of messages, physical offset and size; `codes`:
    tags codes if known.
    """

    offsets: Ints
    counts: Ints
    positions: Ints
    sizes: Ints
    codes: Ints | None

    def only(self, chosen: Ints | slice) -> QueueUnits:
        """Return the chosen units."""
        codes = None if self.codes is None else self.codes[chosen]
        return QueueUnits(self.offsets[chosen], self.counts[chosen], self.positions[chosen], self.sizes[chosen], codes)

    def with_records_once(self) -> QueueUnits:
        """Return one unit for each record, of units a message each."""
        again = (self.positions[1:] == self.positions[:-1]) & (self.sizes[1:] != GAP_SIZE)
        if not again.any():
            return self
        firsts = np.flatnonzero(np.concatenate(([True], ~again)))
        counts = np.diff(firsts, append=len(self.positions))
        return self.only(firsts)._replace(counts=counts)


class LogTail:
    """Records known from the log alone: a table of queue offset, messages, physical offset and size. It is compressed
    when pickled.
    """

    __slots__ = ("table",)

    def __init__(self, table: Ints) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __reduce__(self) -> tuple[Callable[[int, bytes], LogTail], tuple[int, bytes]]:
        steps = np.diff(self.table, axis=0, prepend=np.zeros((1, 4), np.int64))
        return _unpacked, (len(self.table), zlib.compress(np.ascontiguousarray(steps.T).tobytes(), 1))


def _unpacked(rows: int, packed: bytes) -> LogTail:
    steps = np.frombuffer(zlib.decompress(packed), np.int64).reshape(4, rows).T
    return LogTail(np.cumsum(steps, axis=0))


NO_TAIL = LogTail(np.zeros((0, 4), np.int64))


class QueueUnitFiles(ReadOnlyFiles):
    """The files of one consume queue. `is_torn`: `bounds` found units behind some that are missing."""

    def __init__(self, folder: str, batch: bool, place: Place = LOCAL_DISK) -> None:
        super().__init__((folder,), place)
        self.folder = folder
        self.batch = batch
        self.is_torn = False
        self._type = BATCH_UNIT_TYPE if batch else UNIT_TYPE
        self.width = self._type.itemsize

    def units(self, first: int, count: int) -> Ints:
        """Return the units from index `first` on, up to `count` as far as there are so many, even those that are not
        written.
        """
        width = self.width
        raw = self.read(first * width, count * width)
        return np.frombuffer(raw, self._type, len(raw) // width)

    def _first(self) -> int:
        return -(-self.starts[0] // self.width) if self.starts else 0

    def _written(self, units: Ints, below: int) -> Ints:
        good: Ints = (units["size"] > 0) & (units["position"] >= 0) & (units["position"] < below)
        if self.batch:
            good &= (units["base"] >= 0) & (units["count"] > 0)
        return good

    def end_index(self, below: int, *, over_holes: bool = False) -> int:
        """Return the index after the last unit whose record begins before physical offset `below`; `_first` without
        any.

        If units before it in its file are missing, the index of the first missing one is returned, unless `over_holes`.
        """
        width = self.width
        self.is_torn = False
        for i in reversed(range(len(self.starts))):
            first = -(-self.starts[i] // width)
            good = self._written(self.units(first, self.length(i) // width), below)
            if good.any():
                count = len(good) - int(np.argmax(good[::-1]))
                if not good[:count].all():
                    # A page that never reached the disk.
                    self.is_torn = True
                    count = count if over_holes else int(np.argmin(good))
                return first + count
        return self._first()

    def known_from(self, index: int, end: int) -> int:
        """Return the first of the units [index, end) that says where its record is, so is neither a gap nor missing;
        `end` if none does.
        """
        while index < end:
            units = self.units(index, min(_CHUNK_UNITS, end - index))
            known = (units["size"] > 0) & (units["size"] != GAP_SIZE) & (units["position"] >= 0)
            if known.any():
                return index + int(np.argmax(known))
            index = index + len(units) if len(units) else self.next_file(index, end)
        return end

    def _with_missing(self, index: int, end: int) -> int:
        """Return the index of the first of the units before `index` that are missing, as they may be of messages that
        are there; without any, that of the first from `index` on that is no gap.
        """
        at = index
        while at > self._first() and self.known_from(at - 1, at) == at and not self._is_gap(at - 1):
            at -= 1
        while at < end and self._is_gap(at):
            at += 1
        return at

    def _is_gap(self, index: int) -> bool:
        unit = self.units(index, 1)
        return bool(len(unit) and unit["size"][0] == GAP_SIZE)

    def next_file(self, index: int, end: int) -> int:
        """Return the index of the first unit of the file after the one that would hold a unit; `end` if there is none
        before it.
        """
        at = bisect_right(self.starts, index * self.width)
        return min(end, -(-self.starts[at] // self.width)) if at < len(self.starts) else end

    def end_position(self, below: int) -> int:
        """Return the physical offset after the last record before `below` that the queue knows; 0 without any. Looks at
        few units.
        """
        low, high = self._first(), self.end() // self.width
        first = low
        while low < high:
            middle = (low + high) // 2
            unit = self.units(middle, 1)
            if len(unit) and self._written(unit, below)[0]:
                low = middle + 1
            else:
                high = middle
        return self._end_of(low - 1) if low > first else 0

    def _end_of(self, index: int) -> int:
        last = self.units(index, 1)[0]
        return 0 if last["size"] == GAP_SIZE else int(last["position"]) + int(last["size"])

    def bounds(self, below: int, min_position: int, *, over_holes: bool = False) -> tuple[int, int, int]:
        """Return the oldest queue offset whose record is at `min_position` or later, the next offset after the last,
        and where that record ends.

        Only units of records before physical offset `below` count. `over_holes`: see `end_index`.
        """
        last = self.end_index(below, over_holes=over_holes)
        low, high = self._first(), last
        while low < high:
            middle = (low + high) // 2
            # A gap, or a unit that is missing, counts as the unit after it.
            known = self.known_from(middle, high)
            if known == high or self.units(known, 1)["position"][0] >= min_position:
                high = middle
            else:
                low = known + 1
        low = self._with_missing(low, last)
        end_position = self._end_of(last - 1) if last > self._first() else 0
        if not self.batch:
            return low, last, end_position
        if last <= self._first():
            return 0, 0, 0
        unit = self.units(last - 1, 1)[0]
        following = int(unit["base"]) + int(unit["count"])
        return (int(self.units(low, 1)[0]["base"]) if low < last else following), following, end_position

    def begins_late(self, min_position: int) -> bool:
        """Tell whether files may be missing before the first one: it begins with a record behind `min_position`, where
        the log begins, and is not the queue's first.
        """
        end = self.end() // self.width
        known = self.known_from(self._first(), end)
        return bool(self._first() and known < end and self.units(known, 1)["position"][0] > min_position)

    def unit_of(self, offset: int) -> int:
        """Return the index of the unit that holds a message, or of the first after it."""
        if not self.batch:
            return max(offset, self._first())
        low, high = self._first(), self.end() // self.width
        while low < high:
            middle = (low + high) // 2
            unit = self.units(middle, 1)
            if len(unit) and unit["count"][0] > 0 and unit["base"][0] + unit["count"][0] <= offset:
                low = middle + 1
            else:
                high = middle
        return low


class QueueFiles(NamedTuple):
    """The part [first, next) of one queue's messages. Those before `files_end` are found by the files in `folder`, the
    others by `tail`. `is_tiered`: each message has a unit, also those that share a record.
    """

    topic: str
    queue_id: int
    folder: str
    batch: bool
    first: int
    files_end: int
    next: int
    tail: LogTail
    place: Place = LOCAL_DISK
    is_tiered: bool = False

    def part(self, first: int, end: int) -> QueueFiles:
        """Return the files and the part of the log's tail that hold the messages [first, end)."""
        table = self.tail.table
        begin = int(np.searchsorted(table[:, 0] + table[:, 1], first, "right"))
        tail = LogTail(table[begin : int(np.searchsorted(table[:, 0], end))])
        return self._replace(first=first, next=end, files_end=min(self.files_end, end), tail=tail)

    def units(self) -> Iterator[QueueUnits]:
        """Yield the units of the messages, some at a time; gaps, and messages not written, are left out."""
        if self.first < self.files_end and self.folder:
            row = QueueUnitFiles(self.folder, self.batch, self.place)
            try:
                yield from self._file_units(row)
            finally:
                row.close()
        for at in range(0, len(self.tail), _CHUNK_UNITS):
            offsets, counts, positions, sizes = self.tail.table[at : at + _CHUNK_UNITS].T
            yield QueueUnits(offsets, counts, positions, sizes, None)

    def _file_units(self, row: QueueUnitFiles) -> Iterator[QueueUnits]:
        index = row.unit_of(self.first)
        if not self.batch and index >= self.files_end:
            return  # The files that held them are gone.
        while True:
            count = _CHUNK_UNITS if self.batch else min(_CHUNK_UNITS, self.files_end - index)
            units = row.units(index, count)
            if not len(units):
                # A file that is gone or cut short; those after it may be there.
                end = -(-row.end() // row.width) if self.batch else self.files_end
                index = row.next_file(index, end)
                if index >= end:
                    return
                continue
            if self.batch:
                offsets, counts = units["base"].astype(np.int64), units["count"].astype(np.int64)
            else:
                offsets, counts = np.arange(index, index + len(units), dtype=np.int64), np.ones(len(units), np.int64)
            found = QueueUnits(
                offsets, counts, units["position"].astype(np.int64), units["size"].astype(np.int64),
                units["code"].astype(np.int64),
            )  # fmt: skip
            beyond = offsets >= self.files_end
            if self.batch and (beyond.any() or (counts <= 0).any()):
                end = int(np.argmax(beyond | (counts <= 0)))
                yield found.only(slice(0, end))
                return
            yield found.with_records_once() if self.is_tiered else found
            index += len(units)
            if not self.batch and index >= self.files_end:
                return

    def mean_size(self) -> float:
        """Return about how many bytes of the log a message takes, by a sample of them."""
        sizes: list[float] = []
        if self.first < self.files_end:
            row = QueueUnitFiles(self.folder, self.batch, self.place)
            begin, end = row.unit_of(self.first), row.unit_of(self.files_end - 1)
            for index in np.linspace(begin, end, _SIZES_SEEN).astype(np.int64).tolist():
                units = row.units(index, 1)
                if len(units) and 0 < units["size"][0] < GAP_SIZE:
                    sizes.append(units["size"][0] / (max(units["count"][0], 1) if self.batch else 1))
            row.close()
        table = self.tail.table
        sizes += (table[:, 3] / table[:, 1])[:: max(1, len(table) // _SIZES_SEEN)].tolist()
        return sum(sizes) / len(sizes) if sizes else 256.0

    def offset_at_time(self, time_ms: int, log: LogScan) -> int:
        """Return the offset of the first message stored at or after a time; `next` if none is. Store times must ascend
        along the queue; beside messages that are missing it may be an earlier one.
        """
        row = QueueUnitFiles(self.folder, self.batch, self.place) if self.folder else None
        low, high = self.first, self.next
        while low < high:
            middle = (low + high) // 2
            # A message that is a gap, missing or damaged counts as one that comes after it.
            at, step = middle, 1
            while at < high and (head := log.head(self._position(at, row))) is None:
                at, step = at + step, 2 * step
            if at >= high or head is None or head[1] >= time_ms:
                high = middle
            else:
                low = at + 1
        if row is not None:
            row.close()
        return low

    def _position(self, offset: int, row: QueueUnitFiles | None) -> int:
        """Return the physical offset of a message's record; -1 if that is not known."""
        if offset < self.files_end and row is not None:
            unit = row.units(row.unit_of(offset), 1)
            return int(unit["position"][0]) if len(unit) and 0 < unit["size"][0] < GAP_SIZE else -1
        table = self.tail.table
        index = int(np.searchsorted(table[:, 0], offset, "right")) - 1
        return int(table[index, 2]) if index >= 0 else -1
