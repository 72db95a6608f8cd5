"""The extension of a consume queue: units of their own size (tags code, store time, bitmap) that queue units point to.

Rule: an address is a byte offset plus the least long, so no tags code is one (ConsumeQueueExt, 5.x).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rocketspark.store.files.mapped_file_queue import MappedFileQueue

# Size of the unit, tags code, store time in ms, bytes of the bitmap that follows.
_HEAD = struct.Struct(">hqqh")
_SIZE = struct.Struct(">h")
_LEAST = -1 << 63
ADDRESS_MAX = -2147483649
# A file's last bytes stay free for the mark that it is full.
_END_BYTES = 4
_END_MARK = -1
UNIT_BYTES_MIN = _HEAD.size
RESERVE_STEP_BYTES = 16 << 10


def is_address(code: int) -> bool:
    """Tell whether the code in a queue unit is an address of the extension, not a tags code."""
    return code <= ADDRESS_MAX


class ConsumeQueueExtUnit(NamedTuple):
    """One unit. `bitmap`: which consumers' SQL filters matched, as RocketMQ may note it; empty in the units written
    here.
    """

    code: int
    stored_ms: int
    bitmap: bytes


class ConsumeQueueExt:
    """The extension of one queue. `writes`: whether new units are written; units that are there are read in any
    case.
    """

    def __init__(self, mapped_files: MappedFileQueue, *, writes: bool) -> None:
        self.mapped_files = mapped_files
        self.writes = writes
        self.end = 0
        self._reserved = 0
        self._flushed = 0

    def load(self, last_code: int | None) -> None:
        """Find the end of the extension, after the unit that `last_code`, the code in the queue's last unit, is the
        address of.

        With `last_code` None the queue is empty, and nothing is kept. If `last_code` leads to no unit here, everything
        written is kept.
        """
        mapped_files = self.mapped_files
        mapped_files.scan()
        if last_code is None:
            self.end = mapped_files.starts[0] if mapped_files.starts else 0
        else:
            found = self.get(last_code)
            self.end = last_code - _LEAST + UNIT_BYTES_MIN + len(found.bitmap) if found else self._written()
        if mapped_files.starts:
            mapped_files.cut(self.end)
        self._reserved = self._flushed = self.end

    def _written(self) -> int:
        """Return the byte where the units of the last file end."""
        if not self.mapped_files.starts:
            return 0
        start = self.mapped_files.starts[-1]
        view = self.mapped_files.get(start).view
        at, size_max = 0, self.mapped_files.readable(start)
        while at + UNIT_BYTES_MIN <= size_max:
            size = _SIZE.unpack_from(view, at)[0]
            if size < UNIT_BYTES_MIN:
                break
            at += size
        return start + at

    def get(self, address: int) -> ConsumeQueueExtUnit | None:
        """Return the unit at an address; None if there is none."""
        offset = address - _LEAST
        at = offset % self.mapped_files.size
        if not is_address(address) or at + UNIT_BYTES_MIN > self.mapped_files.size:
            return None
        if offset - at not in self.mapped_files.starts:
            return None
        view = self.mapped_files.get(offset - at).view
        size, code, stored_ms, bitmap_bytes = _HEAD.unpack_from(view, at)
        if size != UNIT_BYTES_MIN + bitmap_bytes or bitmap_bytes < 0 or at + size > self.mapped_files.size:
            return None
        return ConsumeQueueExtUnit(code, stored_ms, bytes(view[at + UNIT_BYTES_MIN : at + size]))

    def make_room(self, count: int = 1) -> None:
        """Make room for `count` units, in the next file if need be. Raises StoreFull or StoreUnwritable."""
        mapped_files = self.mapped_files
        if not self.writes:
            return
        at = self.end
        while count:
            start = at - at % mapped_files.size
            if start not in mapped_files.starts:
                mapped_files.add(start, RESERVE_STEP_BYTES)
                self._reserved = start + min(RESERVE_STEP_BYTES, mapped_files.size)
            mapped_files.get(start)  # So that it is mapped before the record is written.
            fit = min((start + mapped_files.size - _END_BYTES - at) // UNIT_BYTES_MIN, count)
            end = at + fit * UNIT_BYTES_MIN + _END_BYTES
            if end > self._reserved:
                self._reserved = mapped_files.reserve(at, max(end - at, RESERVE_STEP_BYTES))
            count -= fit
            at = start + mapped_files.size

    def put(self, code: int, stored_ms: int) -> int:
        """Write the next unit; returns its address."""
        mapped_files = self.mapped_files
        self.make_room()
        start = self.end - self.end % mapped_files.size
        if self.end + UNIT_BYTES_MIN + _END_BYTES > start + mapped_files.size:
            _SIZE.pack_into(mapped_files.get(start).view, self.end - start, _END_MARK)
            self.end = start = start + mapped_files.size
        at = self.end
        _HEAD.pack_into(mapped_files.get(start).view, at - start, UNIT_BYTES_MIN, code, stored_ms, 0)
        self.end = at + UNIT_BYTES_MIN
        return at + _LEAST

    def expire(self, oldest_code: int) -> None:
        """Remove the files before the unit that `oldest_code`, the code in the queue's oldest unit, leads to; never the
        last file.
        """
        if not is_address(oldest_code):
            return
        mapped_files = self.mapped_files
        while len(mapped_files.starts) > 1 and mapped_files.starts[0] + mapped_files.size <= oldest_code - _LEAST:
            mapped_files.remove(mapped_files.starts[0])

    def flush(self) -> None:
        """Put the units written so far on the disk. Safe beside appends. Raises OSError."""
        mapped_files = self.mapped_files
        end = self.end
        for start in list(mapped_files.starts):
            if start + mapped_files.size > self._flushed and start < end:
                try:
                    mapped_files.files.sync_file(mapped_files.path(start))
                except FileNotFoundError:
                    pass  # The topic was deleted meanwhile.
        self._flushed = end
