"""The extension of a consume queue: units of their own size (tags code, store time, bitmap) that queue units point to.

Rule: an address is a byte offset plus the least long, so no tags code is one (wire.md 5, ConsumeQueueExt 5.x).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rocketspark.store.segments import Segments

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
    """Whether what stands in a queue unit is no tags code but an address."""
    return code <= ADDRESS_MAX


class ExtUnit(NamedTuple):
    """One unit. `bitmap`: which SQL filters of consumers matched, as RocketMQ may note it; empty as written here."""

    code: int
    stored_ms: int
    bitmap: bytes


class QueueExt:
    """The extension of one queue. `writes`: whether new units go here; those that are here are read anyway."""

    def __init__(self, segments: Segments, *, writes: bool) -> None:
        self.segments = segments
        self.writes = writes
        self.end = 0
        self._reserved = 0
        self._flushed = 0

    def load(self, last_code: int | None) -> None:
        """Finds the end: after the unit that `last_code`, the code in the queue's last unit, points to.

        None: the queue is empty, so nothing is kept. Where that unit has none here, all that is written is kept.
        """
        segments = self.segments
        segments.scan()
        if last_code is None:
            self.end = segments.starts[0] if segments.starts else 0
        else:
            found = self.get(last_code)
            self.end = last_code - _LEAST + UNIT_BYTES_MIN + len(found.bitmap) if found else self._written()
        if segments.starts:
            segments.cut(self.end)
        self._reserved = self._flushed = self.end

    def _written(self) -> int:
        """Where the units of the last file end."""
        if not self.segments.starts:
            return 0
        start = self.segments.starts[-1]
        view = self.segments.get(start).view
        at = 0
        while at + UNIT_BYTES_MIN <= self.segments.size:
            size = _SIZE.unpack_from(view, at)[0]
            if size < UNIT_BYTES_MIN:
                break
            at += size
        return start + at

    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address; None if there is none."""
        offset = address - _LEAST
        at = offset % self.segments.size
        if not is_address(address) or at + UNIT_BYTES_MIN > self.segments.size:
            return None
        if offset - at not in self.segments.starts:
            return None
        view = self.segments.get(offset - at).view
        size, code, stored_ms, bitmap_bytes = _HEAD.unpack_from(view, at)
        if size != UNIT_BYTES_MIN + bitmap_bytes or bitmap_bytes < 0 or at + size > self.segments.size:
            return None
        return ExtUnit(code, stored_ms, bytes(view[at + UNIT_BYTES_MIN : at + size]))

    def make_room(self, count: int = 1) -> None:
        """Blocks for `count` units, in the next file if need be. Raises StoreFull or StoreUnwritable."""
        segments = self.segments
        if not self.writes:
            return
        at = self.end
        while count:
            start = at - at % segments.size
            if start not in segments.starts:
                segments.add(start, RESERVE_STEP_BYTES)
                self._reserved = start + min(RESERVE_STEP_BYTES, segments.size)
            fit = min((start + segments.size - _END_BYTES - at) // UNIT_BYTES_MIN, count)
            end = at + fit * UNIT_BYTES_MIN + _END_BYTES
            if end > self._reserved:
                self._reserved = segments.reserve(at, max(end - at, RESERVE_STEP_BYTES))
            count -= fit
            at = start + segments.size

    def put(self, code: int, stored_ms: int) -> int:
        """Writes the next unit; returns its address."""
        segments = self.segments
        self.make_room()
        start = self.end - self.end % segments.size
        if self.end + UNIT_BYTES_MIN + _END_BYTES > start + segments.size:
            _SIZE.pack_into(segments.get(start).view, self.end - start, _END_MARK)
            self.end = start = start + segments.size
        at = self.end
        _HEAD.pack_into(segments.get(start).view, at - start, UNIT_BYTES_MIN, code, stored_ms, 0)
        self.end = at + UNIT_BYTES_MIN
        return at + _LEAST

    def expire(self, oldest_code: int) -> None:
        """Removes the files before the unit that the queue's oldest unit points to, but never the last."""
        if not is_address(oldest_code):
            return
        segments = self.segments
        while len(segments.starts) > 1 and segments.starts[0] + segments.size <= oldest_code - _LEAST:
            segments.remove(segments.starts[0])

    def flush(self) -> None:
        """Puts what was written so far on the disk. Safe beside appends. Raises OSError."""
        segments = self.segments
        end = self.end
        for start in list(segments.starts):
            if start + segments.size > self._flushed and start < end:
                try:
                    segments.files.sync_file(segments.path(start))
                except FileNotFoundError:
                    pass  # The topic was deleted meanwhile.
        self._flushed = end
