"""The files of timer messages: the wheel of slots by delivery time, the log of units in them, the checkpoint.

Rule: a unit is written before its slot, both reach the disk before the checkpoint counts them; layouts: wire.md 9.9.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rocketspark.errors import ConfigError
from rocketspark.store.files import PAGE, OsFiles, failure
from rocketspark.store.segments import Maps, Segments

# Seven days at the default precision, twice: the slots of two weeks, whatever the precision.
SLOT_COUNT = 7 * 86_400 * 2
NORMAL, ROLL, DELETE = 1, 2, 4
UNIT_BYTES = 52
CHECKPOINT_BYTES = 4096
_SLOT = struct.Struct(">qqqii")
_UNIT = struct.Struct(">iqiqiqiiq")
_UNIT_HEAD = struct.Struct(">iqi")
_BLANK = struct.Struct(">iqi")
_BLANK_MAGIC = -875286124
_CHECKPOINT = struct.Struct(">qqqqqqq")
_RESERVE_STEP_BYTES = 1 << 20
_READ_BYTES = 1 << 20


class Unit(NamedTuple):
    """One entry of the timer log. `previous`: the unit before it in its slot, -1 for the first; times in ms.

    `log_position`, `record_bytes`: the record in the commit log; `topic_hash`: of the real topic's name.
    """

    position: int
    previous: int
    magic: int
    write_time_ms: int
    delay_ms: int
    log_position: int
    record_bytes: int
    topic_hash: int

    @property
    def time_ms(self) -> int:
        """The time of its slot."""
        return self.write_time_ms + self.delay_ms


class Slot(NamedTuple):
    """One slot of the wheel: its units' first and last position in the timer log, and how many it counts."""

    first: int
    last: int
    counted: int
    magic: int = 0


class Checkpoint(NamedTuple):
    """config/timercheck: slots before `read_time_ms` are done, messages before `queue_offset` are in the wheel."""

    read_time_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_time_ms: int = 0
    version_counter: int = 0


def read_checkpoint(path: str) -> Checkpoint:
    """The checkpoint; all zero if there is none."""
    try:
        with open(path, "rb") as file:
            content = file.read(_CHECKPOINT.size)
    except FileNotFoundError:
        return Checkpoint()
    except OSError as e:
        raise failure(e, "read", path) from e
    if len(content) < _CHECKPOINT.size:
        return Checkpoint()
    return Checkpoint(*_CHECKPOINT.unpack(content))


class TimerLog:
    """The units, one after another in files of one size."""

    def __init__(self, directory: str, file_bytes: int, files: OsFiles) -> None:
        self._segments = Segments(directory, file_bytes, Maps(files, 16), "mappedFileSizeTimerLog")
        self._files = files
        self._size = file_bytes
        self.end = 0
        self._reserved = 0
        self._flushed = 0

    @property
    def start(self) -> int:
        """The first position that is still there."""
        return self._segments.starts[0] if self._segments.starts else 0

    def open(self, known_end: int) -> int:
        """Find the end, from a position on that is known to be written; what follows the last whole unit is cut.

        Returns from where it was looked for: `known_end`, or the start if no unit ends there.
        """
        segments = self._segments
        segments.scan()
        if not segments.starts:
            return 0
        at = min(known_end, segments.end())
        at -= (at % self._size) % UNIT_BYTES
        if at < self.start or (at % self._size and self.unit_at(at - UNIT_BYTES) is None):
            at = self.start
        self.end = self._reserved = self._flushed = self._find_end(at)
        if self._anything_after(self.end):
            segments.cut(self.end)
        return at

    def _find_end(self, at: int) -> int:
        while at < self._segments.end():
            start = at - at % self._size
            view = self._segments.get(start).view
            place = at - start
            while place + _BLANK.size <= self._size:
                size, _, magic = _UNIT_HEAD.unpack_from(view, place)
                if magic == _BLANK_MAGIC:
                    break
                if size != UNIT_BYTES or not _is_magic(magic) or place + UNIT_BYTES > self._size:
                    return start + place
                place += UNIT_BYTES
            at = start + self._size
        return at

    def _anything_after(self, end: int) -> bool:
        """True if the rest of the end's file is not zero, or files follow."""
        start = end - end % self._size
        if start not in self._segments.starts:
            return False
        if self._segments.starts[-1] != start:
            return True
        view, place = self._segments.get(start).view, end - start
        return any(view[place : place + UNIT_BYTES])

    def append(self, previous: int, magic: int, write_time_ms: int, delay_ms: int, log_position: int,
               record_bytes: int, topic_hash: int) -> int:  # fmt: skip
        """Write one unit; returns its position. Raises StoreFull or StoreUnwritable, nothing is written then."""
        position = self.end
        left = self._size - position % self._size
        if not self._segments.starts or position == self._segments.end():
            self._next_file(position)
        elif left < UNIT_BYTES + _BLANK.size:
            view = self._segments.get(position - position % self._size).view
            if left >= _BLANK.size:
                _BLANK.pack_into(view, self._size - left, left, 0, _BLANK_MAGIC)
            position += left
            self._next_file(position)
        start = position - position % self._size
        if position + UNIT_BYTES > self._reserved:
            self._reserved = self._segments.reserve(position, _RESERVE_STEP_BYTES)
        unit = _UNIT.pack(
            UNIT_BYTES, previous, magic, write_time_ms, delay_ms, log_position, record_bytes, topic_hash, 0
        )
        view, place = self._segments.get(start).view, position - start
        # Size last: a unit that is torn by a kill is not taken for one.
        view[place + 4 : place + UNIT_BYTES] = unit[4:]
        view[place : place + 4] = unit[:4]
        self.end = position + UNIT_BYTES
        return position

    def _next_file(self, start: int) -> None:
        if start not in self._segments.starts:
            self._segments.add(start, _RESERVE_STEP_BYTES)
        self._reserved = start + min(_RESERVE_STEP_BYTES, self._size)

    def unit_at(self, position: int) -> Unit | None:
        """The unit at a position; None if none is there (any more)."""
        start = position - position % self._size
        place = position - start
        if position < 0 or place + UNIT_BYTES > self._size or start not in self._segments.starts:
            return None
        size, previous, magic, *rest, _ = _UNIT.unpack_from(self._segments.get(start).view, place)
        if size != UNIT_BYTES or not _is_magic(magic):
            return None
        return Unit(position, previous, magic, *rest)

    def units(self, position: int) -> Iterator[Unit]:
        """Every unit from one's position on."""
        position = max(position, self.start)
        while position < self.end:
            found = self.unit_at(position)
            if found is None:
                position += self._size - position % self._size
                continue
            yield found
            position += UNIT_BYTES

    def flush(self) -> None:
        """Put what was written on the disk. May run beside appends."""
        at, end = self._flushed, self.end
        while at < end:
            start = at - at % self._size
            stop = min(end, start + self._size)
            path = self._segments.path(start)
            try:
                self._files.sync_map(self._segments.get(start).map, at - start, stop - start)
            except OSError as e:
                raise failure(e, "flush", path) from e
            at = stop
        self._flushed = max(self._flushed, end)

    def clean(self, min_log_position: int) -> int:
        """Remove files whose units all stand for records below a log position; returns how many.

        The last file stays: it tells where the log ends.
        """
        removed = 0
        while len(self._segments.starts) > 1:
            start = self._segments.starts[0]
            last = start + (self._size - _BLANK.size) // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES
            found = self.unit_at(last)
            if found is None or found.log_position >= min_log_position:
                break
            self._segments.remove(start)
            removed += 1
        return removed

    def close(self) -> None:
        """Give the maps back."""
        self._segments.maps.clear()


def _is_magic(magic: int) -> bool:
    return 0 <= magic <= 15


class Wheel:
    """The slots: one per unit of precision, over two weeks, written in place."""

    def __init__(self, path: str, precision_ms: int, files: OsFiles) -> None:
        self._path = path
        self._precision_ms = precision_ms
        self._files = files
        self._view: memoryview | None = None
        # Pages that have blocks: one byte per page, so that a full disk is an error and no SIGBUS.
        self._reserved = bytearray(-(-SLOT_COUNT * _SLOT.size // PAGE))
        self._dirty = False

    def open(self) -> bool:
        """Map the file if there is one. Raises ConfigError if its size is another."""
        try:
            size = os.path.getsize(self._path)
        except FileNotFoundError:
            return False
        if size != SLOT_COUNT * _SLOT.size:
            raise ConfigError(
                f"{self._path} has {size} bytes, a timer wheel has {SLOT_COUNT * _SLOT.size}: move it away,"
                " the pending timer messages are then found again in their queue"
            )
        self._map()
        return True

    def _map(self) -> None:
        try:
            self._mapped = self._files.map(self._path)
        except OSError as e:
            raise failure(e, "map", self._path) from e
        self._view = memoryview(self._mapped)

    def make(self) -> None:
        """Make the file, without blocks."""
        try:
            self._files.create(self._path, SLOT_COUNT * _SLOT.size)
        except OSError as e:
            raise failure(e, "create", self._path) from e
        self._map()

    def get(self, time_ms: int) -> Slot | None:
        """The slot of a time; None if it has none yet."""
        assert self._view is not None
        number = time_ms // self._precision_ms
        time, *rest = _SLOT.unpack_from(self._view, number % SLOT_COUNT * _SLOT.size)
        return Slot(*rest) if time == number else None

    def put(self, time_ms: int, slot: Slot) -> None:
        """Write the slot of a time. Raises StoreFull or StoreUnwritable."""
        assert self._view is not None
        number = time_ms // self._precision_ms
        at = number % SLOT_COUNT * _SLOT.size
        page = at // PAGE
        if not self._reserved[page]:
            try:
                self._files.reserve(self._path, page * PAGE, PAGE)
            except OSError as e:
                raise failure(e, "extend", self._path, PAGE) from e
            self._reserved[page] = 1
        # One copy of 32 bytes: a kill leaves the slot before or this one.
        self._view[at : at + _SLOT.size] = _SLOT.pack(number, *slot)
        self._dirty = True

    def slots(self, from_ms: int) -> tuple[list[int], list[int]]:
        """(times in ms, last positions) of all slots from a time on, in order of time. Holes are not read."""
        numbers, lasts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise failure(e, "read", self._path) from e
        try:
            for at, end in _extents(fd, SLOT_COUNT * _SLOT.size):
                while at < end:
                    content = os.pread(fd, min(_READ_BYTES, end - at), at)
                    if not content:
                        break
                    table = np.frombuffer(content, ">i8").reshape(-1, _SLOT.size // 8)
                    number = table[:, 0]
                    place = at // _SLOT.size + np.arange(len(number))
                    wanted = (number > 0) & (number >= from_ms // self._precision_ms) & (number % SLOT_COUNT == place)
                    numbers.append(number[wanted].astype(np.int64))
                    lasts.append(table[wanted, 2].astype(np.int64))
                    at += len(content)
        except OSError as e:
            raise failure(e, "read", self._path) from e
        finally:
            os.close(fd)
        times = np.concatenate(numbers)
        order = np.argsort(times)
        return (times[order] * self._precision_ms).tolist(), np.concatenate(lasts)[order].tolist()

    def flush(self) -> None:
        """Put the slots on the disk. May run beside `put`."""
        if not self._dirty:
            return
        # First: what is written meanwhile is for the next flush. The kernel finds the changed pages by itself.
        self._dirty = False
        try:
            self._files.sync_map(self._mapped, 0, SLOT_COUNT * _SLOT.size)
        except OSError as e:
            self._dirty = True
            raise failure(e, "flush", self._path) from e

    def close(self) -> None:
        """Give the map back."""
        self._view = None
        self.__dict__.pop("_mapped", None)


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a sparse file that hold anything, whole pages."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError:
            # No data behind `at`, or a file system that cannot tell.
            if at == 0 and not _can_tell_holes(fd):
                yield 0, size
            return
        start -= start % _SLOT.size
        end = min(size, -(-end // _SLOT.size) * _SLOT.size)
        yield start, end
        at = end


def _can_tell_holes(fd: int) -> bool:
    try:
        return os.lseek(fd, 0, os.SEEK_HOLE) >= 0
    except OSError:
        return False


class TimerFiles:
    """Wheel, log and checkpoint of one store; the files are made with the first timer message.

    `roll_slots`: messages due later than so many slots from now get a slot before, and are rolled on from there.
    """

    def __init__(
        self,
        root: str,
        *,
        precision_ms: int = 1000,
        log_file_bytes: int = 100 << 20,
        roll_slots: int = 172_800,
        files: OsFiles | None = None,
    ) -> None:
        self._files = files or OsFiles()
        self._root = root
        self.precision_ms = precision_ms
        # Rule: TimerMessageStore, 5.x: a window that is too wide or too small is the widest.
        widest = SLOT_COUNT // 2 - 60
        self._roll_slots = roll_slots if 2 <= roll_slots <= widest else widest
        self.wheel = Wheel(f"{root}/timerwheel", precision_ms, self._files)
        self.log = TimerLog(f"{root}/timerlog", log_file_bytes, self._files)
        self._checkpoint_path = f"{root}/config/timercheck"
        self.used = False
        self.checkpoint = Checkpoint()

    def open(self) -> None:
        """Read what is there: after a kill the slots are made to fit the log again.

        Raises ConfigError for files of other sizes than the settings say, StoreError if they cannot be read.
        """
        self.checkpoint = read_checkpoint(self._checkpoint_path)
        try:
            known = self.log.open(self.checkpoint.log_position)
        except OSError as e:
            raise failure(e, "open", f"{self._root}/timerlog") from e
        self.used = self.wheel.open()
        if self.log.end < self.checkpoint.log_position or not self.log.end:
            # Units are lost: whatever is pending is found again in the queue.
            self.checkpoint = self.checkpoint._replace(read_time_ms=0, log_position=0, queue_offset=0)
        if not self.log.end:
            if self.used:
                for time_ms in self.wheel.slots(0)[0]:
                    self.wheel.put(time_ms, Slot(-1, -1, 0))
            return
        if not self.used:
            self.wheel.make()
            self.used = True
            known = self.log.start
        self._mend({unit.time_ms: unit.position for unit in self.log.units(known)})

    def _mend(self, newest: dict[int, int]) -> None:
        """Make each slot's end its newest unit; a slot that points behind the log's end is found again."""
        for time_ms, position in newest.items():
            slot = self.wheel.get(time_ms)
            if slot is None or slot.last != position:
                self._relink(time_ms, position)
        times, lasts = self.wheel.slots(self.checkpoint.read_time_ms)
        lost = {time_ms: -1 for time_ms, last in zip(times, lasts, strict=True) if last >= self.log.end}
        if lost:
            for unit in self.log.units(self.log.start):
                if unit.time_ms in lost:
                    lost[unit.time_ms] = unit.position
            for time_ms, position in lost.items():
                self._relink(time_ms, position)

    def _relink(self, time_ms: int, position: int) -> None:
        first, count, at = -1, 0, position
        while (unit := self.log.unit_at(at)) is not None:
            first = at
            count += -1 if unit.magic & DELETE else 1
            at = unit.previous
        self.wheel.put(time_ms, Slot(first, position, count))

    def add(
        self,
        write_time_ms: int,
        out_time_ms: int,
        log_position: int,
        record_bytes: int,
        topic_hash: int,
        *,
        delete: bool = False,
    ) -> int:
        """Put a message on the wheel; returns its slot's time, before `out_time_ms` if it is to be rolled.

        `write_time_ms`: now, on the precision's grid. Raises StoreFull or StoreUnwritable.
        """
        if not self.used:
            self.wheel.make()
            self.used = True
        magic = NORMAL | (DELETE if delete else 0)
        time_ms = out_time_ms
        window_ms = self._roll_slots * self.precision_ms
        beyond_ms = out_time_ms - write_time_ms - window_ms
        if beyond_ms >= 0:
            magic |= ROLL
            # Little beyond the window: roll at its middle, so that there is time left for the next step.
            near = beyond_ms < self._roll_slots // 3 * self.precision_ms
            time_ms = write_time_ms + (self._roll_slots // 2 * self.precision_ms if near else window_ms)
        slot = self.wheel.get(time_ms) or Slot(-1, -1, 0)
        position = self.log.append(
            slot.last, magic, write_time_ms, time_ms - write_time_ms, log_position, record_bytes, topic_hash
        )
        first = position if slot.first == -1 else slot.first
        self.wheel.put(time_ms, Slot(first, position, slot.counted + (-1 if delete else 1), slot.magic))
        return time_ms

    def chain(self, time_ms: int) -> Iterator[Unit]:
        """The units of a slot, newest first."""
        slot = self.wheel.get(time_ms)
        at = -1 if slot is None else slot.last
        while (unit := self.log.unit_at(at)) is not None:
            yield unit
            # Always backwards: a damaged unit must not make a ring.
            at = unit.previous if unit.previous < at else -1

    def positions(self, time_ms: int) -> array[int]:
        """Where the units of a slot are, oldest first: 8 bytes each, however many there are."""
        found = array("q", (unit.position for unit in self.chain(time_ms)))
        found.reverse()
        return found

    def pending(self) -> list[int]:
        """Times of the slots that are not done yet, ascending."""
        return self.wheel.slots(self.checkpoint.read_time_ms)[0] if self.used else []

    def flush(self, checkpoint: Checkpoint) -> None:
        """Put everything on the disk and then the checkpoint. May run beside `add`. Raises StoreError."""
        if not self.used:
            return
        self.log.flush()
        self.wheel.flush()
        try:
            self._files.overwrite(self._checkpoint_path, _CHECKPOINT.pack(*checkpoint), CHECKPOINT_BYTES)
        except OSError as e:
            raise failure(e, "write", self._checkpoint_path, CHECKPOINT_BYTES) from e
        self.checkpoint = checkpoint

    def close(self) -> None:
        """Give the files back."""
        self.wheel.close()
        self.log.close()
