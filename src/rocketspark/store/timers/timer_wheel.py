"""The wheel of timer messages: one slot per step of the grid that timerPrecisionMs sets, over two weeks.

Rule: a slot names its time as a number of steps, so a wheel can be read on the grid alone on which it was written.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import ConfigError
from rocketspark.store.files.system_calls import PAGE, OsFiles, failure

# Seven days at the default precision, twice: the slots of two weeks, whatever the precision.
SLOT_COUNT = 7 * 86_400 * 2
# The valid values of timerPrecisionMs.
GRIDS_MS = (1000, 500, 200, 100)
_SLOT = struct.Struct(">qqqii")
_READ_BYTES = 1 << 20


def grid_of(number: int, time_ms: int) -> int | None:
    """Return the grid (its step in ms) on which `time_ms` has the slot with this number; None if there is none."""
    return next((grid_ms for grid_ms in GRIDS_MS if time_ms // grid_ms == number), None)


def moved(time_ms: int, from_grid_ms: int, to_grid_ms: int) -> int:
    """Return the time of the first slot on another grid that is not earlier than a slot on the present one."""
    return -(-(time_ms + from_grid_ms) // to_grid_ms) * to_grid_ms - to_grid_ms


class TimerWheelSlot(NamedTuple):
    """One slot of the wheel: the positions of its first and last unit in the timer log, and how many units it
    counts.
    """

    first: int
    last: int
    counted: int
    magic: int = 0


class TimerWheel:
    """The wheel's slots, one for each step of its grid over two weeks, written in place."""

    def __init__(self, path: str, precision_ms: int, files: OsFiles) -> None:
        self._path = path
        self.precision_ms = precision_ms
        self._files = files
        self._view: memoryview | None = None
        # Pages that have blocks: one byte per page, so that a full disk is an error and no SIGBUS.
        self._reserved = bytearray(-(-SLOT_COUNT * _SLOT.size // PAGE))
        # Pages that may hold a slot: no other is read, as on a full tmpfs even that takes a block.
        self._present = bytearray(len(self._reserved))
        self._dirty = False
        self.was_short = False

    def open(self) -> bool:
        """Map the file if there is one; one cut short is filled up with zeros. Raises ConfigError if it is longer."""
        try:
            size = os.path.getsize(self._path)
        except FileNotFoundError:
            return False
        self.was_short = size < SLOT_COUNT * _SLOT.size
        if self.was_short:
            try:
                self._files.cut(self._path, size - size % _SLOT.size, SLOT_COUNT * _SLOT.size)
            except OSError as e:
                raise failure(e, "extend", self._path) from e
        elif size != SLOT_COUNT * _SLOT.size:
            raise ConfigError(
                f"{self._path} has {size} bytes, a timer wheel has {SLOT_COUNT * _SLOT.size}: move it away,"
                " the pending timer messages are then found again in their queue"
            )
        self._map()
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise failure(e, "read", self._path) from e
        try:
            for at, end in _extents(fd, SLOT_COUNT * _SLOT.size):
                first, last = at // PAGE, -(-end // PAGE)
                self._present[first:last] = b"\1" * (last - first)
        finally:
            os.close(fd)
        return True

    def _map(self) -> None:
        try:
            self._mapped = self._files.map(self._path)
        except OSError as e:
            raise failure(e, "map", self._path) from e
        self._view = memoryview(self._mapped)

    def make(self) -> None:
        """Make the file, of zeros and without disk blocks."""
        try:
            self._files.create(self._path, SLOT_COUNT * _SLOT.size)
        except OSError as e:
            raise failure(e, "create", self._path) from e
        self._map()

    def get(self, time_ms: int) -> TimerWheelSlot | None:
        """Return the slot of a time; None if it was never written."""
        return self.at(time_ms // self.precision_ms)

    def at(self, number: int) -> TimerWheelSlot | None:
        """Return the slot with a number; None if it was never written."""
        assert self._view is not None
        at = number % SLOT_COUNT * _SLOT.size
        if not self._present[at // PAGE]:
            return None
        there, *rest = _SLOT.unpack_from(self._view, at)
        return TimerWheelSlot(*rest) if there == number else None

    def put(self, time_ms: int, slot: TimerWheelSlot) -> None:
        """Write the slot of a time. Raises StoreFull or StoreUnwritable."""
        assert self._view is not None
        number = time_ms // self.precision_ms
        at = number % SLOT_COUNT * _SLOT.size
        page = at // PAGE
        if not self._reserved[page]:
            try:
                self._files.reserve(self._path, page * PAGE, PAGE)
            except OSError as e:
                raise failure(e, "extend", self._path, PAGE) from e
            self._reserved[page] = self._present[page] = 1
        # One copy of 32 bytes: a kill leaves the slot before or this one.
        self._view[at : at + _SLOT.size] = _SLOT.pack(number, *slot)
        self._dirty = True

    def write_again(self, time_ms: int) -> None:
        """Have a slot that was written be written once more by the next flush, as an earlier one may have failed."""
        at = time_ms // self.precision_ms % SLOT_COUNT * _SLOT.size
        self._files.write_again(self._mapped, at, at + _SLOT.size)
        self._dirty = True

    def slots(self, from_ms: int) -> tuple[list[int], list[int]]:
        """Return the times in ms of all slots that are not before `from_ms`, ascending, and the position of each one's
        last unit in the timer log. Holes in the file are not read.
        """
        numbers, lasts = self.numbered(from_ms // self.precision_ms)
        return (numbers * self.precision_ms).tolist(), lasts.tolist()

    def numbered(self, from_number: int = 1, *, emptied: bool = False) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of all slots that are not below `from_number`, ascending, and the position of each one's
        last unit in the timer log. The number of a slot is its time divided by the precision it was written with.

        `emptied`: also slots that held units once and are empty now.
        """
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
                    wanted = (number > 0) & (number >= from_number) & (number % SLOT_COUNT == place)
                    # One of both may be damaged.
                    wanted &= emptied | (table[:, 1] >= 0) | (table[:, 2] >= 0)
                    numbers.append(number[wanted].astype(np.int64))
                    lasts.append(table[wanted, 2].astype(np.int64))
                    at += len(content)
        except OSError as e:
            raise failure(e, "read", self._path) from e
        finally:
            os.close(fd)
        found = np.concatenate(numbers)
        order = np.argsort(found)
        return found[order], np.concatenate(lasts)[order]

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
        """Unmap the file."""
        self._view = None
        self.__dict__.pop("_mapped", None)


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a sparse file that hold anything, whole pages."""
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
