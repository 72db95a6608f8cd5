"""A segment of a compaction log: a file of records and the file of their units, both named by the first one's offset.

Layout (CompactionLog, SparseConsumeQueue, 5.x): records as in the commit log, but with their position in this log;
units as in a batch consume queue, one for each record. A full segment ends with a mark in each file. Rule: units say
what is there; what a kill left of them is made anew from the records.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rocketspark.errors import RecordError, StoreUnwritable
from rocketspark.protocol.message import record, record_layout
from rocketspark.store.commitlog.dispatch import dispatch_request
from rocketspark.store.consumequeue.batch_consume_queue import BATCH_UNIT, BATCH_UNIT_BYTES
from rocketspark.store.files.system_calls import NO_DESCRIPTOR, OsFiles, failure, make_folder, remove_file

_POSITION = struct.Struct(">q")
_POSITION_AT = record_layout.AT["position"]
_QUEUE_OFFSET = record_layout.only("queue_offset").unpack_from
_SIZE = record_layout.only("size").unpack_from
_NO_UNIT = bytes(BATCH_UNIT_BYTES)
_END_UNIT = BATCH_UNIT.pack(-1, 0, 0, 0, 0, 0, -1, 0)


class Places(NamedTuple):
    """Where the files of one queue are, and how large: `log` and `units`, two folders."""

    log: str
    units: str
    log_bytes: int
    units_bytes: int

    def below(self, name: str) -> Places:
        """Return the places in a folder below these two."""
        return self._replace(log=f"{self.log}/{name}", units=f"{self.units}/{name}")


class Unit(NamedTuple):
    """Where a record is: its place in the segment, its bytes, tags code, store time in ms, and queue offset."""

    at: int
    size: int
    code: int
    time_ms: int
    offset: int


class Segment:
    """One segment, mapped. `count`: of its units; `end`: bytes of its records. One thread writes, others may read."""

    __slots__ = ("_failed", "_files", "_flushed", "_maps", "_places", "_units", "base", "count", "end", "view")

    def __init__(self, places: Places, base: int, files: OsFiles) -> None:
        """Open the files of a segment, which must be there. Raises OSError."""
        self._places = places
        self._files = files
        self.base = base
        self._maps = files.map(self.log_path), files.map(self.units_path)
        self.view, self._units = memoryview(self._maps[0]), memoryview(self._maps[1])
        # Units that are on the disk; -1: what is there was changed.
        self.count = self.end = self._flushed = 0
        self._failed: OSError | None = None

    @classmethod
    def make(cls, places: Places, base: int, files: OsFiles) -> Segment:
        """Make the files of a new segment. Raises StoreFull, StoreUnwritable."""
        made = []
        try:
            for folder, size in ((places.log, places.log_bytes), (places.units, places.units_bytes)):
                if not os.path.isdir(folder):
                    make_folder(files, folder)
                made.append(f"{folder}/{base:020d}")
                files.create(made[-1], size)
            return cls(places, base, files)
        except OSError as e:
            for path in made:
                remove_file(path)
            raise failure(e, "create", made[-1] if made else places.log) from e

    @property
    def log_path(self) -> str:
        return f"{self._places.log}/{self.base:020d}"

    @property
    def units_path(self) -> str:
        return f"{self._places.units}/{self.base:020d}"

    @property
    def units_bytes(self) -> int:
        """Bytes of the file of units."""
        return len(self._units)

    def load(self, *, check: bool, closed: bool) -> bool:
        """Find the units that are there; False if some were damaged, and are made anew from the records, or are lost.

        `check`: compare each record, as a kill may have left some unwritten. `closed`: another segment follows. Raises
        StoreFull, StoreUnwritable.
        """
        slots = len(self._units) // BATCH_UNIT_BYTES
        while self.count < slots and self._is_unit(self.count):
            self.count += 1
        if self.count:
            self.end = self.unit(self.count - 1).at + self.unit(self.count - 1).size
        behind = self._units[self.count * BATCH_UNIT_BYTES : (self.count + 1) * BATCH_UNIT_BYTES]
        # Neither the mark, nor unused: a unit that was damaged on the disk.
        check = check or (len(behind) == BATCH_UNIT_BYTES and bytes(behind) not in (_END_UNIT, _NO_UNIT))
        whole = not check or all(self._is_right(self.unit(index)) for index in range(self.count))
        if whole and not (check or self.count == 0):
            self._flushed = self.count
            return True
        right = [self._packed(unit) for unit in self._found()]
        if whole and len(right) == self.count:
            # The last flush may have failed: the kernel takes all of it for written then.
            for mapped, end in zip(self._maps, (self.end, self.count * BATCH_UNIT_BYTES), strict=True):
                self._files.write_again(mapped, 0, end)
            # Whatever a power cut took from the end of one that was closed, it took the mark, too.
            return not closed or bytes(behind) in (_END_UNIT, b"")
        try:
            self._files.cut(self.units_path, 0, len(self._units))
        except OSError as e:
            raise failure(e, "mend", self.units_path) from e
        self._write(self.units_path, 0, b"".join(right))
        self.count = len(right)
        self.cut(self.count)
        return False

    def _packed(self, unit: Unit) -> bytes:
        return BATCH_UNIT.pack(self.base + unit.at, unit.size, unit.code, unit.time_ms, unit.offset, 1, -1, 0)

    def _is_unit(self, index: int) -> bool:
        position, size, _, _, offset, count, _, _ = BATCH_UNIT.unpack_from(self._units, index * BATCH_UNIT_BYTES)
        at = position - self.base
        return bool(at >= 0 and 0 < size <= len(self.view) - at and offset >= 0 and count == 1)

    def has(self, unit: Unit) -> bool:
        """Tell whether the record of a unit is where the unit says, and whole by its CRC."""
        stored = self.view[unit.at : unit.at + unit.size]
        return (
            len(stored) == unit.size >= record_layout.RECORD_BYTES_MIN
            and _SIZE(stored)[0] == unit.size
            and _QUEUE_OFFSET(stored)[0] == unit.offset
            and self._is_right(unit)
        )

    def _is_right(self, unit: Unit) -> bool:
        try:
            found = record.decode(self.view[unit.at : unit.at + unit.size])
        except RecordError:
            return False
        return found.queue_offset == unit.offset

    def _found(self) -> Iterator[Unit]:
        """Yield the units of the whole records from the begin on, as their own bytes tell them."""
        at, before = 0, -1
        while at + record_layout.BLANK_BYTES_MIN <= len(self.view) and record_layout.begins(
            self.view, at, self.base + at
        ):
            (size,) = _SIZE(self.view, at)
            if not 0 < size <= len(self.view) - at:
                return
            stored = self.view[at : at + size]
            try:
                record.decode(stored)
            except RecordError:
                return
            unit = unit_of(stored, at)
            if unit.offset <= before:
                return
            before = unit.offset
            yield unit
            at += size

    def unit(self, index: int) -> Unit:
        """Return a unit by its index."""
        position, size, code, time_ms, offset, *_ = BATCH_UNIT.unpack_from(self._units, index * BATCH_UNIT_BYTES)
        return Unit(position - self.base, size, code, time_ms, offset)

    def record(self, unit: Unit) -> memoryview:
        """Return a record."""
        return self.view[unit.at : unit.at + unit.size]

    def index_of(self, offset: int) -> int:
        """Return the index of the first unit whose queue offset is this one or a later one; `count` if none is."""
        return bisect_left(range(self.count), offset, key=lambda index: self.unit(index).offset)

    def index_at(self, time_ms: int) -> int:
        """Return the index of the first unit that was stored at a time in ms or later; `count` if none was."""
        return bisect_left(range(self.count), time_ms, key=lambda index: self.unit(index).time_ms)

    @property
    def last_offset(self) -> int:
        """The queue offset of the last record; -1 without one."""
        return self.unit(self.count - 1).offset if self.count else -1

    @property
    def unflushed(self) -> int | None:
        """The queue offset of the first record that may not be on the disk; None if all are."""
        return None if self._flushed == self.count or not self.count else self.unit(max(self._flushed, 0)).offset

    def room(self) -> tuple[int, int]:
        """Return (records, their bytes) that there is room for: each file keeps some for its mark."""
        slots = len(self._units) // BATCH_UNIT_BYTES - 1 - self.count
        return max(slots, 0), len(self.view) - record_layout.BLANK_BYTES_MIN - self.end

    def append(self, records: Sequence[memoryview]) -> None:
        """Write records that `room` has place for, in the order of their queue offsets. Raises StoreFull,
        StoreUnwritable; nothing is there then.
        """
        content, units, at = bytearray(), bytearray(), self.end
        for stored in records:
            unit = unit_of(stored, at)
            units += self._packed(unit)
            placed = bytearray(stored)
            _POSITION.pack_into(placed, _POSITION_AT, self.base + at)
            content += placed
            at += unit.size
        self._write(self.log_path, self.end, content)
        self._write(self.units_path, self.count * BATCH_UNIT_BYTES, units)
        self.end = at
        self.count += len(records)  # Last, as others read meanwhile.

    def close(self) -> None:
        """Write the marks that say that the rest is unused. Raises StoreFull, StoreUnwritable."""
        left = len(self.view) - self.end
        if left >= record_layout.BLANK_BYTES_MIN:
            blank = bytearray(record_layout.BLANK_BYTES_MIN)
            record_layout.write_blank(memoryview(blank), 0, left)
            self._write(self.log_path, self.end, blank)
        if len(self._units) - self.count * BATCH_UNIT_BYTES >= BATCH_UNIT_BYTES:
            self._write(self.units_path, self.count * BATCH_UNIT_BYTES, _END_UNIT)

    def cut(self, count: int) -> None:
        """Keep the first `count` records alone. Raises StoreFull, StoreUnwritable."""
        self._flushed = -1
        before, self.count = self.count, count
        self.end = self.unit(count - 1).at + self.unit(count - 1).size if count else 0
        # By writes: others may read the maps of these files.
        self._write(self.units_path, count * BATCH_UNIT_BYTES, bytes((before - count) * BATCH_UNIT_BYTES))
        self._write(self.log_path, self.end, bytes(min(record_layout.BLANK_BYTES_MIN, len(self.view) - self.end)))

    def _write(self, path: str, at: int, content: bytes | bytearray) -> None:
        try:
            self._files.write_at(path, at, content)
        except OSError as e:
            raise failure(e, "write", path, len(content)) from e

    def flush(self) -> None:
        """Put both files on the disk, if they have something new. May run beside `append`. Raises OSError, and
        StoreUnwritable after a flush that failed: what the disk has is not known then, even if a later one works.
        """
        if self._failed is not None:
            raise StoreUnwritable(
                f"cannot flush {self.log_path}, as that failed before ({self._failed.strerror}): mend the disk, then"
                " start again"
            ) from self._failed
        count = self.count
        if self._flushed == count:
            return
        try:
            for path, folder in ((self.log_path, self._places.log), (self.units_path, self._places.units)):
                self._files.sync_file(path)
                self._files.sync_directory(folder)
        except FileNotFoundError:
            raise  # The topic was deleted, or it is compacted, meanwhile.
        except OSError as e:
            # Without a descriptor no file was opened, and nothing is lost.
            if e.errno not in NO_DESCRIPTOR:
                self._failed = e
            raise
        self._flushed = count

    def moved(self, places: Places) -> None:
        """Note that the files have other folders now."""
        self._places = places

    def remove(self) -> None:
        """Delete both files; views of them stay readable. Raises StoreUnwritable."""
        remove_file(self.units_path)
        remove_file(self.log_path)


def unit_of(stored: memoryview, at: int) -> Unit:
    """Return the unit of a whole record at a place of its segment."""
    request = dispatch_request(record_layout.sys_flag_of(stored), record_layout.properties_of(stored))
    offset = _QUEUE_OFFSET(stored)[0]
    return Unit(at, len(stored), request.tags_code, record_layout.store_time_of(stored), offset)
