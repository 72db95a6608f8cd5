"""The timer log: units of timer messages, one after another in files of one size (RocketMQ: TimerLog, 5.x).

Rule: a unit's size is written last, so that one that is torn by a kill is not taken for one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.protocol.message.record_layout import MAGIC_BLANK
from rocketspark.store.files.mapped_file_queue import MappedFileQueue, MappedFiles
from rocketspark.store.files.system_calls import OsFiles, failure

NORMAL, ROLL, DELETE = 1, 2, 4
MAGIC_MAX = 15
UNIT_BYTES = 52
_UNIT = struct.Struct(">iqiqiqiiq")
_UNIT_TYPE = np.dtype(
    [("size", ">i4"), ("previous", ">i8"), ("magic", ">i4"), ("write", ">i8"), ("delay", ">i4"), ("physical", ">i8"),
     ("bytes", ">i4"), ("hash", ">i4"), ("grid", ">i8")]
)  # fmt: skip
_UNIT_HEAD = struct.Struct(">iqi")
_BLANK = struct.Struct(">iqi")
_RESERVE_STEP_BYTES = 1 << 20


class TimerLogUnit(NamedTuple):
    """One entry of the timer log; times in ms.

    `previous`: position of the unit before it in its slot, -1 for the first; `physical_offset`, `record_bytes`: the
    message's record in the commit log; `topic_hash`: of the name of the topic that the message is for; `grid_ms`: the
    grid of the message's time if it is not the wheel's, else 0 as RocketMQ writes it.
    """

    position: int
    previous: int
    magic: int
    write_time_ms: int
    delay_ms: int
    physical_offset: int
    record_bytes: int
    topic_hash: int
    grid_ms: int = 0

    @property
    def time_ms(self) -> int:
        """The time of its slot."""
        return self.write_time_ms + self.delay_ms


class TimerLog:
    """The timer log's units, in files of one size."""

    def __init__(self, directory: str, file_bytes: int, files: OsFiles) -> None:
        self._mapped_files = MappedFileQueue(directory, file_bytes, MappedFiles(files, 16), "mappedFileSizeTimerLog")
        self._mapped_files.certain = True
        self._files = files
        self._size = file_bytes
        self.end = 0
        self._reserved = 0
        self._flushed = 0

    @property
    def start(self) -> int:
        """The first position that is still there."""
        return self._mapped_files.starts[0] if self._mapped_files.starts else 0

    def open(self, known_end: int, record_end: int | None = None) -> int:
        """Find the log's end, from position `known_end` on, up to which it is known to be written; what follows the
        last whole unit is cut.

        `record_end`: where the commit log ends. Units at the end whose records lie behind it are cut too: a power cut
        may leave them without their records, and other messages will be stored there. Returns where the search began:
        `known_end`, or the start if no unit ends there.
        """
        mapped_files = self._mapped_files
        mapped_files.scan()
        if not mapped_files.starts:
            return 0
        at = min(known_end, mapped_files.end())
        at -= (at % self._size) % UNIT_BYTES
        self.end = at
        if at < self.start or (at % self._size and self.unit_at(at - UNIT_BYTES) is None):
            at = self.start
        self.end = self._find_end(at)
        if record_end is not None:
            self.end = self._end_before(at, record_end)
        self._reserved = self.end
        # No checkpoint counts on what follows `at`, and a flush of it may have failed.
        self._flushed = min(at, self.end)
        mapped_files.write_again(at, self.end)
        if self._anything_after(self.end):
            mapped_files.cut(self.end)
        return at

    def _end_before(self, at: int, record_end: int) -> int:
        """Return the end without the units there whose records lie behind the commit log's."""
        end: int | None = None
        for unit in self.units(at):
            if unit.physical_offset < record_end:
                end = None
            elif end is None:
                end = unit.position
        return self.end if end is None else end

    def _find_end(self, at: int) -> int:
        while at < self._mapped_files.end():
            start = at - at % self._size
            view = self._mapped_files.get(start).view
            place = at - start
            while place + _BLANK.size <= self._size:
                size, _, magic = _UNIT_HEAD.unpack_from(view, place)
                if magic == MAGIC_BLANK:
                    break
                if size != UNIT_BYTES or not _is_magic(magic) or place + UNIT_BYTES > self._size:
                    return start + place
                place += UNIT_BYTES
            at = start + self._size
        return at

    def _anything_after(self, end: int) -> bool:
        """True if the rest of the end's file is not zero, or files follow."""
        start = end - end % self._size
        if start not in self._mapped_files.starts:
            return False
        if self._mapped_files.starts[-1] != start:
            return True
        view, place = self._mapped_files.get(start).view, end - start
        return any(view[place : place + UNIT_BYTES])

    def append(self, previous: int, magic: int, write_time_ms: int, delay_ms: int, physical_offset: int,
               record_bytes: int, topic_hash: int, grid_ms: int = 0) -> int:  # fmt: skip
        """Write one unit; returns its position. Raises StoreFull or StoreUnwritable, nothing is written then."""
        position = self.end
        left = self._size - position % self._size
        if not self._mapped_files.starts or position == self._mapped_files.end():
            self._next_file(position)
        elif left < UNIT_BYTES + _BLANK.size:
            view = self._mapped_files.get(position - position % self._size).view
            if left >= _BLANK.size:
                self._mapped_files.reserve(position, left)
                _BLANK.pack_into(view, self._size - left, left, 0, MAGIC_BLANK)
            position += left
            self._next_file(position)
        start = position - position % self._size
        if position + UNIT_BYTES > self._reserved:
            self._reserved = self._mapped_files.reserve(position, _RESERVE_STEP_BYTES)
        unit = _UNIT.pack(
            UNIT_BYTES, previous, magic, write_time_ms, delay_ms, physical_offset, record_bytes, topic_hash, grid_ms
        )
        view, place = self._mapped_files.get(start).view, position - start
        # Size last.
        view[place + 4 : place + UNIT_BYTES] = unit[4:]
        view[place : place + 4] = unit[:4]
        self.end = position + UNIT_BYTES
        return position

    def _next_file(self, start: int) -> None:
        if start not in self._mapped_files.starts:
            self._mapped_files.add(start, _RESERVE_STEP_BYTES)
        self._reserved = start + min(_RESERVE_STEP_BYTES, self._size)

    def unit_at(self, position: int) -> TimerLogUnit | None:
        """Return the unit at a position; None if none is there (any more).

        One with a damaged size or magic is a unit as well: before the end there is nothing else.
        """
        start = position - position % self._size
        place = position - start
        if not 0 <= position < self.end or place % UNIT_BYTES or place + UNIT_BYTES + _BLANK.size > self._size:
            return None
        if start not in self._mapped_files.starts:
            return None
        size, previous, magic, *rest = _UNIT.unpack_from(self._mapped_files.get(start).view, place)
        if not _is_magic(magic):
            magic &= NORMAL | ROLL | DELETE
            if size != UNIT_BYTES:
                return None
        elif size != UNIT_BYTES and not magic & NORMAL:
            return None
        return TimerLogUnit(position, previous, magic, *rest)

    def units(self, position: int) -> Iterator[TimerLogUnit]:
        """Yield every unit from one's position on."""
        position = max(position, self.start)
        while position < self.end:
            found = self.unit_at(position)
            if found is not None:
                yield found
            elif position % self._size + 2 * UNIT_BYTES + _BLANK.size > self._size:
                position += self._size - position % self._size
                continue
            position += UNIT_BYTES

    def tables(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (position of the first, fields of all) for the units of each file, as they stand there."""
        for start in list(self._mapped_files.starts):
            count = (min(self.end - start, self._size - _BLANK.size)) // UNIT_BYTES
            if count > 0:
                yield start, np.frombuffer(self._mapped_files.get(start).view, _UNIT_TYPE, count)

    def in_slot(self, number: int, grid_ms: int) -> list[int]:
        """Return the positions of all units that were written for a slot since it was last empty, oldest first, by the
        log alone.
        """
        found: list[int] = []
        for start, table in self.tables():
            rows = np.flatnonzero((table["write"].astype(np.int64) + table["delay"]) // grid_ms == number)
            first = np.flatnonzero(table["previous"][rows] == -1)
            if len(first):
                found, rows = [], rows[first[-1] :]
            found += [at for at in (start + rows * UNIT_BYTES).tolist() if self.unit_at(at) is not None]
        return found

    def link(self, positions: list[int]) -> None:
        """Make a slot's chain of these units anew, as it was lost; a damaged size or magic of theirs is mended too."""
        previous = -1
        for position in positions:
            unit = self.unit_at(position)
            assert unit is not None
            start = position - position % self._size
            _UNIT_HEAD.pack_into(
                self._mapped_files.get(start).view, position - start, UNIT_BYTES, previous, unit.magic | NORMAL
            )
            previous = position
        if positions:
            self._flushed = min(self._flushed, positions[0])

    def flush(self) -> None:
        """Put what was written on the disk. May run beside appends."""
        at, end = self._flushed, self.end
        while at < end:
            start = at - at % self._size
            stop = min(end, start + self._size)
            path = self._mapped_files.path(start)
            try:
                self._files.sync_map(self._mapped_files.get(start).map, at - start, stop - start)
            except OSError as e:
                raise failure(e, "flush", path) from e
            at = stop
        self._flushed = max(self._flushed, end)

    def clean(self, min_physical_offset: int) -> int:
        """Remove files whose units all stand for records below a physical offset; returns how many.

        The last file stays: it tells where the log ends.
        """
        removed = 0
        while len(self._mapped_files.starts) > 1:
            tables = self.tables()
            (start, table), (_, following) = next(tables), next(tables, (0, None))
            if following is None:
                break
            # One of them may be damaged; they ascend, so that none here is beyond all that follow.
            here, after = _readable(table)[-3:], _readable(following)[:3]
            plain = here[here <= after.max()] if len(after) else here
            here = plain if len(plain) else here
            if not len(here) or here.max() >= min_physical_offset:
                break
            self._mapped_files.remove(start)
            removed += 1
        return removed

    def close(self) -> None:
        """Unmap the files."""
        self._mapped_files.maps.clear()


def _readable(table: NDArray[Any]) -> NDArray[np.int64]:
    """Return the physical offsets of the units that have a size and a magic."""
    right = (table["size"] == UNIT_BYTES) & (table["magic"] >= 0) & (table["magic"] <= MAGIC_MAX)
    offsets: NDArray[np.int64] = table["physical"][right].astype(np.int64)
    return offsets


def _is_magic(magic: int) -> bool:
    return 0 <= magic <= MAGIC_MAX
