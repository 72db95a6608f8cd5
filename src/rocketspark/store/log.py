"""The log: append-only records in files of one size. Rule: only this file moves the write position to another file.

`Store.append` writes within the reserved part of the current file itself and calls `make_room` for all else.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

from rocketspark.errors import MessageIllegal, RecordError, StoreFull, StoreUnwritable
from rocketspark.protocol import record, record_crc, sysflags
from rocketspark.store.files import failure
from rocketspark.store.segments import Maps, Segments

_BLANK = struct.Struct(">ii")
_I4 = struct.Struct(">i")
_I8 = struct.Struct(">q")
_SIZE_MAGIC = struct.Struct(">ii")
_MAGIC_START = b"\xda\xa3\x20"
RESERVE_STEP_BYTES = 32 << 20
POPULATE_BYTES_MIN = 1 << 20
POPULATE_BYTES_MAX = 32 << 20
# A boundary is looked for over at most the largest record and a little more.
RESYNC_BYTES_MAX = 8 << 20


class Log:
    """The log's files and its end.

    Fields of the hot path: `map` the current file, `base` its first position, `written` the end of the log,
    `limit` the position up to which records may be written without asking `make_room`.
    """

    def __init__(self, directory: str, file_bytes: int, maps: Maps) -> None:
        self.segments = Segments(directory, file_bytes, maps, "mappedFileSizeCommitLog")
        self.files = maps.files
        self.file_bytes = file_bytes
        self.map = memoryview(bytearray())
        self.base = 0
        self.written = 0
        self.limit = 0
        self.flushed = 0
        self.failed: StoreUnwritable | None = None
        self.refused: StoreFull | None = None
        # Whether a record's own CRC, where it has one, is compared when the log is read through.
        self.verifies_record_crc = False
        self._names_new = True
        self._populated = 0
        self._populate_from = 0
        self._room_lock = threading.Lock()
        self._flush_lock = threading.Lock()

    @property
    def min_position(self) -> int:
        return self.segments.starts[0] if self.segments.starts else 0

    def set_end(self, position: int) -> None:
        """Recovery's word on where the log ends; everything before counts as flushed."""
        self.written = self.flushed = self._populated = self._populate_from = position
        self.limit = 0

    def make_room(self, size: int) -> None:
        """Sees to it that a record of `size` bytes fits at `written`, in the next file if need be.

        Raises MessageIllegal if it fits no file, StoreFull or StoreUnwritable if there is no room to be had.
        """
        if size + record.BLANK_BYTES_MIN > self.file_bytes:
            raise MessageIllegal(
                f"a record of {size} bytes does not fit a log file of {self.file_bytes}: "
                "send less at once or raise mappedFileSizeCommitLog"
            )
        with self._room_lock:
            if self.failed is not None:
                raise StoreUnwritable(str(self.failed)) from self.failed
            if self.refused is not None:
                full = self.refused
                raise StoreFull(str(full), needed_bytes=full.needed_bytes, free_bytes=full.free_bytes)
            segments = self.segments
            at = self.written
            start = at - at % self.file_bytes
            if at + size + record.BLANK_BYTES_MIN > start + self.file_bytes:
                following = start + self.file_bytes
                if following not in segments.starts:
                    self._add(following)
                # The next file exists before this one is closed off: whatever happens now, recovery finds the end.
                left = following - at
                if left >= record.BLANK_BYTES_MIN:
                    segments.reserve(at, record.BLANK_BYTES_MIN)
                    _BLANK.pack_into(segments.get(start).view, at - start, left, record.MAGIC_BLANK)
                self.written = at = start = following
            elif start not in segments.starts:
                self._add(start)
            self.map = segments.get(start).view
            self.base = start
            need = max(size + record.BLANK_BYTES_MIN, RESERVE_STEP_BYTES)
            self.limit = segments.reserve(at, need) - record.BLANK_BYTES_MIN

    def _add(self, start: int) -> None:
        self.segments.add(start, RESERVE_STEP_BYTES)
        self._names_new = True

    def flush(self) -> int:
        """Puts everything written so far on the disk; returns the position up to which it is.

        Safe beside appends. Raises StoreUnwritable when a flush fails or has failed before: what the disk holds
        is then unknown, so nothing is written any more until the store is opened again.
        """
        with self._flush_lock:
            if self.failed is not None:
                raise StoreUnwritable(str(self.failed)) from self.failed
            end = self.written
            at = self.flushed
            path = self.segments.directory
            try:
                while at < end:
                    start = at - at % self.file_bytes
                    stop = min(end, start + self.file_bytes)
                    path = self.segments.path(start)
                    self.files.sync_map(self.segments.get(start).map, at - start, stop - start)
                    at = stop
                if self._names_new and end:
                    self._names_new = False
                    self.files.sync_directory(self.segments.directory)
            except OSError as e:
                self.fail(e, path)
                assert self.failed is not None
                raise self.failed from e
            self.flushed = max(self.flushed, end)
            return self.flushed

    def fail(self, error: OSError, path: str) -> None:
        """No write from here on; reads go on."""
        cause = failure(error, "flush", path)
        self.stop(
            StoreUnwritable(f"the store is read-only since a flush failed ({cause}): mend the disk, then start again")
        )

    def release(self) -> None:
        """Lets the current file's map go; only when nothing is appended any more."""
        self.map = memoryview(bytearray())

    def stop(self, reason: StoreUnwritable) -> None:
        """No append from here on: each raises StoreUnwritable."""
        with self._room_lock:
            self.failed = self.failed or reason
            self.limit = 0

    def refuse(self, reason: StoreFull | None) -> None:
        """While there is a reason each append raises it; the appends themselves do not look: they find no room."""
        with self._room_lock:
            self.refused = reason
            if reason is not None:
                self.limit = 0

    def populate_ahead(self) -> None:
        """Prepares the pages and blocks the next appends will touch. For a thread beside the appends.

        At most 32 MiB ahead, less while little is written, so an idle store stays small in memory.
        """
        with self._room_lock:
            start, at = self.base, self.written
            if self.limit == 0 or self.failed is not None:
                return
            view_map = self.segments.get(start).map
        written = at - self._populate_from
        self._populate_from = at
        ahead = min(max(4 * written, POPULATE_BYTES_MIN), POPULATE_BYTES_MAX)
        file_end = start + self.file_bytes
        begin = max(at, self._populated if self._populated <= at + POPULATE_BYTES_MAX else at)
        end = min(at + ahead, file_end)
        if written == 0 or end - begin < ahead // 4:
            end = begin
        if end > begin:
            if end + record.BLANK_BYTES_MIN > self.limit:
                reserved = self.segments.reserve(at, ahead + RESERVE_STEP_BYTES)
                with self._room_lock:
                    if self.base == start and self.limit:
                        self.limit = max(self.limit, reserved - record.BLANK_BYTES_MIN)
            self.files.populate(view_map, begin - start, end - start)
            self._populated = end
        # The next file is made when three quarters of this one are used.
        if at - start > self.file_bytes * 3 // 4 and file_end not in self.segments.starts:
            with self._room_lock:
                if file_end not in self.segments.starts:
                    self._add(file_end)

    def slice(self, position: int, size: int) -> memoryview | None:
        """`size` bytes of the log at `position`, without a copy; None if they are no longer or not yet there."""
        start = position - position % self.file_bytes
        if position < self.min_position or position + size > self.written:
            return None
        return self.segments.get(start).view[position - start : position - start + size]

    def record_at(self, position: int) -> memoryview | None:
        """The whole record at that position; None if no record begins there."""
        head = self.slice(position, record.RECORD_BYTES_MIN) if position >= 0 else None
        if head is None or len(head) < record.RECORD_BYTES_MIN:
            return None
        size, magic = _SIZE_MAGIC.unpack_from(head)
        if magic not in (record.MAGIC_V1, record.MAGIC_V2) or size < record.RECORD_BYTES_MIN:
            return None
        if _I8.unpack_from(head, record.AT_POSITION)[0] != position:
            return None
        found = self.slice(position, size)
        return found if found is not None and len(found) == size else None

    def store_time_at(self, position: int) -> int:
        """The store time in ms of the record there; -1 if there is none."""
        found = self.record_at(position)
        return -1 if found is None else store_time_of(found)

    def first_store_time(self, start: int) -> int:
        """Store time in ms of the first record of a file; -1 if there is none."""
        view = self.segments.get(start).view
        magic = _SIZE_MAGIC.unpack_from(view)[1]
        return store_time_of(view) if magic in (record.MAGIC_V1, record.MAGIC_V2) else -1

    def boundary(self, position: int) -> int:
        """The first record at or after `position`, told by its magic and its own position; else the file's end."""
        start = position - position % self.file_bytes
        mapped = self.segments.get(start).map
        at = position - start
        stop = min(at + RESYNC_BYTES_MAX, self.file_bytes)
        while True:
            found = mapped.find(_MAGIC_START, at + 4 if at < 4 else at, stop)
            if found < 4:
                return start + self.file_bytes
            begin = found - 4
            if (
                begin >= position - start
                and begin + record.RECORD_BYTES_MIN <= self.file_bytes
                and _I8.unpack_from(mapped, begin + record.AT_POSITION)[0] == start + begin
            ):
                return start + begin
            at = found + 1

    def _continues(self, position: int) -> bool:
        """Whether a record or blank begins there."""
        start = position - position % self.file_bytes
        if start not in self.segments.starts or position - start > self.file_bytes - record.BLANK_BYTES_MIN:
            return False
        magic = _SIZE_MAGIC.unpack_from(self.segments.get(start).view, position - start)[1]
        return magic in (record.MAGIC_V1, record.MAGIC_V2, record.MAGIC_BLANK)

    def scan(self, position: int) -> Iterator[record.Record]:
        """Every whole record from a boundary on, over file ends, up to the first bytes that are none.

        Leaves `written` at the end it found. Checks size, magic, CRC and that the record states its own place.
        """
        at = position
        self.written = at
        while True:
            start = at - at % self.file_bytes
            if start not in self.segments.starts:
                break
            view = self.segments.get(start).view
            offset = at - start
            if self.file_bytes - offset >= record.BLANK_BYTES_MIN:
                left, magic = _BLANK.unpack_from(view, offset)
                if magic == record.MAGIC_BLANK and left == self.file_bytes - offset:
                    self.written = at = start + self.file_bytes
                    continue
            try:
                found = record.decode(view, offset)
            except RecordError:
                break
            if found.position != at or not plausible(
                found.queue_id, found.queue_offset, found.store_time_ms, found.topic
            ):
                break
            if self.verifies_record_crc and not record_crc.is_right(view[offset : offset + found.size]):
                break
            # No CRC covers the properties: zeros at their end are a lost page, if this is the last record.
            if found.properties.endswith(b"\0") and not self._continues(at + found.size):
                break
            self.written = at = at + found.size
            yield found


def plausible(queue_id: int, queue_offset: int, store_time_ms: int, topic: bytes) -> bool:
    """Whether fields that no CRC covers can be what some broker wrote."""
    return (
        queue_id >= 0
        and 0 <= queue_offset < 1 << 48
        and 0 <= store_time_ms < 1 << 53
        and len(topic) > 0
        and b"/" not in topic
        and b"\0" not in topic
        and topic not in (b".", b"..")
        and (topic.isascii() or _is_text(topic))
    )


def _is_text(topic: bytes) -> bool:
    try:
        topic.decode()
    except UnicodeDecodeError:
        return False
    return True


def store_time_of(found: memoryview) -> int:
    """The store time in ms of a whole record."""
    sys_flag = _I4.unpack_from(found, record.AT_SYS_FLAG)[0]
    at = record.AT_BORN_TIME + 8 + (20 if sys_flag & sysflags.BORN_HOST_V6 else 8)
    return int(_I8.unpack_from(found, at)[0])
