"""The log: append-only records in files of one size. Rule: only this file moves the write position to another file.

`Store.append` writes within the reserved part of the current file itself and calls `make_room` for all else.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import (
    MessageIllegal,
    NotMaster,
    RecordError,
    ReplicationError,
    StoreFull,
    StoreUnwritable,
)
from rocketspark.protocol.message import record, record_crc, record_layout
from rocketspark.protocol.message.record_layout import (
    BLANK_BYTES_MIN,
    MAGIC_BLANK,
    MAGICS,
    RECORD_BYTES_MIN,
    SIZE_BYTES,
)
from rocketspark.store.files.mapped_file_queue import MappedFileQueue, MappedFiles
from rocketspark.store.files.system_calls import failure

_SIZE_MAGIC = record_layout.only("size", "magic")
_HEAD = record_layout.only("size", "magic", "position")
RESERVE_STEP_BYTES = 32 << 20
POPULATE_BYTES_MIN = 1 << 20
POPULATE_BYTES_MIN_BY_CALLS = 8 << 20
POPULATE_BYTES_MAX = 32 << 20
# So many bytes at once are written by a call: by the map each page of a new part of a file costs a fault, which takes
# five times as long as the write.
WRITE_BYTES_MIN = 64 << 10
# A boundary is looked for over at most the largest record and a little more.
RESYNC_BYTES_MAX = 8 << 20
# The least number of bytes that a disk writes at once.
_SECTOR_BYTES = 512
_ZEROS_BYTES = 1 << 20
# More are too many for a slave to ask for one by one.
DOUBTS_MAX = 1000


class CommitLog:
    """The log's files and its end.

    Fields of the hot path: `map` the current file, `base` its first position, `written` the end of the log,
    `limit` the position up to which records may be written without asking `make_room`, 0 on a replica: it takes none.
    """

    def __init__(self, directory: str, file_bytes: int, maps: MappedFiles) -> None:
        self.mapped_files = MappedFileQueue(directory, file_bytes, maps, "mappedFileSizeCommitLog")
        self.files = maps.files
        self.file_bytes = file_bytes
        self.map = memoryview(bytearray())
        self.base = 0
        self.written = 0
        self.limit = 0
        # Of a replica: the position up to which raw bytes may be written without asking for room.
        self._raw_limit = 0
        self.flushed = 0
        self.failed: StoreUnwritable | None = None
        self.refused: StoreFull | None = None
        # True while bytes come from another broker's log: then no message is appended.
        self.is_replica = False
        # Errors of flushes that may work again, by name: nothing is lost, and appends wait until they work.
        self._paused: dict[str, StoreUnwritable] = {}
        # True if a record's own CRC, where it has one, is compared when the log is scanned.
        self.verifies_record_crc = False
        # (begin, end) of the damage that the last `scan` skipped.
        self.skipped: list[tuple[int, int]] = []
        # The damage that recovery skipped, in order: nothing is read from there.
        self.damaged: tuple[tuple[int, int], ...] = ()
        # By position: the size of records that are not what their queues say, or have no place there. A slave asks its
        # master for them.
        self.doubtful: dict[int, int] = {}
        self._names_new = True
        # True where each message is flushed by itself. Of a file that is read ahead the kernel keeps up to 2 MiB as one
        # page, and writes all of it for one message: 4 ms instead of 0.5.
        self.flushed_by_message = False
        self._in_small_pages: int | None = None
        self._populated = 0
        self._populate_from = 0
        # Bytes that `put` wrote by calls since pages were prepared last.
        self._called_bytes = 0
        self._room_lock = threading.Lock()
        self._flush_lock = threading.Lock()

    @property
    def min_position(self) -> int:
        return self.mapped_files.starts[0] if self.mapped_files.starts else 0

    def take_copies(self, on: bool) -> None:
        """Take bytes of another broker's log alone from now on; or records again."""
        with self._room_lock:
            self.is_replica = on
            # Another thread may add to either where there is one.
            self.limit = self._raw_limit = 0

    def set_end(self, position: int) -> None:
        """Set the end of the log, as recovery found it; everything before counts as flushed."""
        self.written = self.flushed = self._populated = self._populate_from = position
        self.limit = self._raw_limit = 0

    def make_room(self, size: int) -> None:
        """Make sure that a record of `size` bytes fits at `written`, in the next file if need be.

        Raises MessageIllegal if it fits no file, StoreFull or StoreUnwritable if there is no room to be had.
        """
        if size + BLANK_BYTES_MIN > self.file_bytes:
            raise MessageIllegal(
                f"a record of {size} bytes does not fit a log file of {self.file_bytes}: "
                "send less at once or raise mappedFileSizeCommitLog"
            )
        with self._room_lock:
            self._raise_if_closed_to_writes()
            if self.is_replica:
                raise NotMaster("this broker holds a copy: messages are taken by the master alone")
            mapped_files = self.mapped_files
            at = self.written
            start = at - at % self.file_bytes
            if at + size + BLANK_BYTES_MIN > start + self.file_bytes:
                following = start + self.file_bytes
                if following not in mapped_files.starts:
                    self._add(following)
                # The next file exists before this one is closed off: whatever happens now, recovery finds the end.
                left = following - at
                if left >= BLANK_BYTES_MIN:
                    mapped_files.reserve(at, BLANK_BYTES_MIN)
                    record_layout.write_blank(mapped_files.get(start).view, at - start, left)
                self.written = at = start = following
            elif start not in mapped_files.starts:
                self._add(start)
            self.map = mapped_files.get(start).view
            self.base = start
            if self.flushed_by_message and self._in_small_pages != start:
                self._use_small_pages(start)
            need = max(size + BLANK_BYTES_MIN, RESERVE_STEP_BYTES)
            self.limit = mapped_files.reserve(at, need) - BLANK_BYTES_MIN

    def _use_small_pages(self, start: int) -> None:
        mapped_files, before = self.mapped_files, self._in_small_pages
        if before in mapped_files.starts:
            mapped_files.maps.advise(mapped_files, scattered=mapped_files.scattered, start=before)
        mapped_files.maps.advise(mapped_files, scattered=True, start=start)
        self._in_small_pages = start

    def put(self, position: int, records: memoryview) -> None:
        """Write records at a position where there is room. Raises StoreUnwritable; no reader finds them then.

        The size of the first record is written last of all, so that after a kill before that the log ends where it did.
        """
        at = position - self.base
        size = bytes(records[:SIZE_BYTES])
        records[:SIZE_BYTES] = bytes(SIZE_BYTES)
        if len(records) < WRITE_BYTES_MIN or not self._write(position, records):
            self.map[at : at + len(records)] = records
        self.map[at : at + SIZE_BYTES] = size

    def _write(self, position: int, content: memoryview) -> bool:
        """Write by a call; False if the file could not be opened for want of descriptors."""
        try:
            self.mapped_files.write(position, content)
        except (StoreFull, StoreUnwritable) as e:
            if isinstance(e, StoreUnwritable) and e.retriable:
                return False
            # How much of it stands there now is unknown.
            self.stop(
                StoreUnwritable(f"the store is read-only since a write failed ({e}): mend the disk, then start again")
            )
            assert self.failed is not None
            raise self.failed from e
        self._called_bytes += len(content)
        return True

    def _raise_if_closed_to_writes(self) -> None:
        if self.failed is not None:
            raise StoreUnwritable(str(self.failed)) from self.failed
        for paused in self._paused.values():
            raise StoreUnwritable(str(paused), retriable=True) from paused
        if self.refused is not None:
            full = self.refused
            raise StoreFull(str(full), needed_bytes=full.needed_bytes, free_bytes=full.free_bytes)

    def room_for_bytes(self, position: int, count: int) -> memoryview:
        """Make room for raw bytes of a file; returns the view of that file. Raises StoreFull, StoreUnwritable."""
        start = position - position % self.file_bytes
        if self.base == start and self._raw_limit >= position + count and self.refused is None and self.failed is None:
            return self.map
        with self._room_lock:
            self._raise_if_closed_to_writes()
            if start not in self.mapped_files.starts:
                self._add(start)
            reserved = self.mapped_files.reserve(position, max(count, RESERVE_STEP_BYTES))
            self.map, self.base = self.mapped_files.get(start).view, start
            self._raw_limit = reserved
            return self.map

    def begin_at(self, position: int) -> None:
        """Let a log that has no record begin at `position`, the start of a file. Raises ReplicationError if it has
        records.
        """
        if self.written > self.min_position:
            raise ReplicationError(f"the log has records up to {self.written}, so it cannot begin at {position}")
        with self._room_lock:
            for start in self.mapped_files.starts[::-1]:
                self.mapped_files.remove(start)
            self.set_end(position)

    def cut(self, position: int, end: int) -> None:
        """Remove every byte from `position` to the log's `end` while the log is open; no append may be under way.

        The last bytes go first: so a kill leaves no later record that would seem to prove the log before it.
        """
        with self._flush_lock, self._room_lock:
            mapped_files = self.mapped_files
            self.limit = self._raw_limit = 0
            while len(mapped_files.starts) > 1 and mapped_files.starts[-1] >= position:
                mapped_files.remove(mapped_files.starts[-1])
            if mapped_files.starts:
                start = mapped_files.starts[-1]
                view, stop = mapped_files.get(start).view, min(end - start, self.file_bytes)
                # In place: readers may hold slices of the map, which a file cut short would take away under them.
                for at in range(max(position - start, 0), stop, _ZEROS_BYTES):
                    count = min(_ZEROS_BYTES, stop - at)
                    view[at : at + count] = bytes(count)
            self.written = self._populated = self._populate_from = position
            self.flushed = min(self.flushed, position)
            self.damaged = tuple((a, min(b, position)) for a, b in self.damaged if a < position)
            self.doubtful = {at: size for at, size in self.doubtful.items() if at + size <= position}

    def _add(self, start: int) -> None:
        self.mapped_files.add(start, RESERVE_STEP_BYTES)
        self._names_new = True

    def flush(self) -> int:
        """Put everything written so far on the disk; return the position up to which it is.

        Safe beside appends. Raises StoreUnwritable when a flush fails or has failed before: the disk's content is then
        unknown, so nothing is written any more until the store is opened again.
        """
        with self._flush_lock:
            if self.failed is not None:
                raise StoreUnwritable(str(self.failed)) from self.failed
            end = self.written
            at = self.flushed
            path = self.mapped_files.directory
            try:
                while at < end:
                    start = at - at % self.file_bytes
                    stop = min(end, start + self.file_bytes)
                    path = self.mapped_files.path(start)
                    self.files.sync_map(self.mapped_files.get(start).map, at - start, stop - start)
                    at = stop
                if self._names_new and end:
                    path = self.mapped_files.directory
                    self._names_new = False
                    try:
                        self.files.sync_directory(path)
                    except OSError:
                        self._names_new = True
                        raise
            except (OSError, StoreUnwritable) as e:
                raise self.flush_failed("log", e, path) from e
            self.flushed = max(self.flushed, end)
            self.flush_worked("log")
            return self.flushed

    def flush_failed(self, what: str, error: OSError | StoreUnwritable, path: str) -> StoreUnwritable:
        """Stop appends after a failed flush of `what`; reads go on. Returns the error to raise.

        Where a file could not even be opened for want of descriptors, nothing is lost: appends are taken again as
        soon as a flush of `what` works. After any other failure the disk's content is unknown until the next start.
        """
        cause = failure(error, "flush", path) if isinstance(error, OSError) else error
        if isinstance(cause, StoreUnwritable) and cause.retriable:
            with self._room_lock:
                self._paused[what] = cause
                self.limit = self._raw_limit = 0
            return cause
        self.stop(
            StoreUnwritable(f"the store is read-only since a flush failed ({cause}): mend the disk, then start again")
        )
        assert self.failed is not None
        return self.failed

    def flush_worked(self, what: str) -> None:
        """Take appends again that a failed flush of `what` had stopped."""
        if self._paused:
            with self._room_lock:
                self._paused.pop(what, None)

    def release(self) -> None:
        """Unmap the current file. Call only when nothing is appended any more."""
        self.map = memoryview(bytearray())

    def stop(self, reason: StoreUnwritable) -> None:
        """Stop appends: each raises StoreUnwritable from here on."""
        with self._room_lock:
            self.failed = self.failed or reason
            self.limit = self._raw_limit = 0

    def refuse(self, reason: StoreFull | None) -> None:
        """Make each append raise `reason` from now on; None ends that.

        Appends do not look at the reason: they find no room, and get the error when they ask for some.
        """
        with self._room_lock:
            self.refused = reason
            if reason is not None:
                self.limit = self._raw_limit = 0

    def populate_ahead(self) -> None:
        """Prepare the pages and blocks the next appends will touch. For a thread beside the appends.

        At most 32 MiB ahead, less while little is written, so an idle store stays small in memory.
        """
        with self._room_lock:
            start, at, limit = self.base, self.written, self.limit or self._raw_limit
            if limit == 0 or self.failed is not None:
                return
            view_map = self.mapped_files.get(start).map
        written = max(at - self._populate_from, 0)
        by_calls = 2 * self._called_bytes > written
        if written:  # Else a batch may be under way, which is in the end of the log by the next call.
            self._called_bytes, self._populate_from = 0, at
        least = POPULATE_BYTES_MIN_BY_CALLS if by_calls else POPULATE_BYTES_MIN
        ahead = min(max(4 * written, least), POPULATE_BYTES_MAX)
        file_end = start + self.file_bytes
        begin = max(at, self._populated if self._populated <= at + POPULATE_BYTES_MAX else at)
        end = min(at + ahead, file_end)
        if written == 0 or end - begin < ahead // 4:
            end = begin
        if end > begin:
            if end + BLANK_BYTES_MIN > limit:
                reserved = self.mapped_files.reserve(at, ahead + RESERVE_STEP_BYTES) - BLANK_BYTES_MIN
                with self._room_lock:
                    if self.base == start and self.limit:
                        self.limit = max(self.limit, reserved)
                    elif self.base == start and self._raw_limit:
                        self._raw_limit = max(self._raw_limit, reserved)
            self.files.populate(view_map, begin - start, end - start, for_map=not by_calls)
            self._populated = end
        # The next file is made when three quarters of this one are used.
        if at - start > self.file_bytes * 3 // 4 and file_end not in self.mapped_files.starts:
            with self._room_lock:
                if file_end not in self.mapped_files.starts:
                    self._add(file_end)

    def slice(self, position: int, size: int) -> memoryview | None:
        """Return `size` bytes of the log at `position`, without a copy; None if they are removed or not yet written."""
        start = position - position % self.file_bytes
        if position < self.min_position or position + size > self.written:
            return None
        return self.mapped_files.get(start).view[position - start : position - start + size]

    def record_at(self, position: int) -> memoryview | None:
        """Return the whole record at that position; None if no record begins there."""
        head = self.slice(position, RECORD_BYTES_MIN) if position >= 0 else None
        if head is None or len(head) < RECORD_BYTES_MIN:
            return None
        size, magic, stated = _HEAD.unpack_from(head)
        if magic not in MAGICS or size < RECORD_BYTES_MIN or stated != position:
            return None
        if self.damaged and self.is_damaged(position):
            return None
        found = self.slice(position, size)
        return found if found is not None and len(found) == size else None

    def is_damaged(self, position: int) -> bool:
        """Tell whether a position lies in damage that recovery skipped."""
        at = bisect_right(self.damaged, (position, 1 << 62)) - 1
        return at >= 0 and position < self.damaged[at][1]

    def doubt(self, position: int, size: int) -> None:
        """Note that a record of that size should be at a position, and may not be the one that was written there."""
        there = self.min_position <= position and position + size <= self.written
        if there and size >= RECORD_BYTES_MIN and len(self.doubtful) < DOUBTS_MAX:
            self.doubtful[position] = size

    def may_be_mended(self, begin: int, end: int) -> bool:
        """Tell whether these bytes are known to be damaged, or in doubt."""
        return begin >= self.min_position and ((begin, end) in self.damaged or self.doubtful.get(begin) == end - begin)

    def note_mended(self, begin: int, end: int) -> None:
        """Note that these bytes are right now."""
        self.damaged = tuple(found for found in self.damaged if found != (begin, end))
        self.doubtful.pop(begin, None)

    def store_time_at(self, position: int) -> int:
        """Return the store time in ms of the record at a position; -1 if there is none."""
        found = self.record_at(position)
        return -1 if found is None else record_layout.store_time_of(found)

    def first_store_time(self, start: int) -> int:
        """Return the store time in ms of the first record of a file; -1 if there is none."""
        view = self.mapped_files.get(start).view
        magic = _SIZE_MAGIC.unpack_from(view)[1]
        return record_layout.store_time_of(view) if magic in MAGICS else -1

    def boundary(self, position: int) -> int:
        """Return the position of the first record at or after `position`, which its magic and its stated position tell.

        The end of the file if there is none.
        """
        start = position - position % self.file_bytes
        at = position - start
        stop = min(at + RESYNC_BYTES_MAX, self.file_bytes)
        found = record_layout.find_begin(self.mapped_files.get(start).map, at, start, stop)
        return start + (found if found >= 0 else self.file_bytes)

    def proven_end(self) -> int:
        """Return the position up to which the log was certainly written: the start of the last file that begins with a
        record.
        """
        for start in reversed(self.mapped_files.starts):
            if self.mapped_files.readable(start) and self._whole_at(start, 0) is not None:
                return start
        return self.min_position

    def _continues(self, position: int) -> bool:
        """Tell whether a record or a blank begins at the position."""
        start = position - position % self.file_bytes
        if start not in self.mapped_files.starts or position - start > self.file_bytes - BLANK_BYTES_MIN:
            return False
        magic = _SIZE_MAGIC.unpack_from(self.mapped_files.get(start).view, position - start)[1]
        return magic in (*MAGICS, MAGIC_BLANK)

    def scan(self, position: int, covered: int = 0) -> Iterator[record.Record]:
        """Yield every whole record from a boundary on, over file ends, up to the first bytes that are no record.

        Leaves `written` at the end it found. Checks size, magic, CRC and that the record states its own position.
        Damage before `covered`, up to which the log was on the disk, is no end: it is noted in `skipped` and passed
        over where a whole record follows it.
        """
        at = position
        self.written = at
        self.skipped = []
        read_from, readable = -1, 0
        while True:
            start = at - at % self.file_bytes
            if start not in self.mapped_files.starts:
                break
            if start != read_from:
                read_from, readable = start, self.mapped_files.readable(start)
            if at - start >= readable and readable < self.file_bytes:
                break
            found = self._whole_at(at, covered)
            if found is None:
                if self.is_blank(at):
                    self.written = at = start + self.file_bytes
                    continue
                following = self._after_damage(at, covered) if at < covered else -1
                if following < 0:
                    break
                self.skipped.append((at, following))
                self.written = at = following
                continue
            self.written = at = at + found.size
            yield found

    def is_blank(self, at: int) -> bool:
        """Tell whether the rest of the file from `at` on is marked as unused."""
        start = at - at % self.file_bytes
        return record_layout.is_blank(self.mapped_files.get(start).view, at - start, start + self.file_bytes - at)

    def _whole_at(self, at: int, covered: int) -> record.Record | None:
        """Return the record at a position, if it is whole and its fields are plausible."""
        start = at - at % self.file_bytes
        view, offset = self.mapped_files.get(start).view, at - start
        try:
            found = record.decode(view, offset)
        except RecordError:
            return None
        if found.position != at or not plausible(found.queue_id, found.queue_offset, found.store_time_ms, found.topic):
            return None
        if self.verifies_record_crc and not record_crc.is_right(view[offset : offset + found.size]):
            return None
        end = at + found.size
        if self.mapped_files.short and offset + found.size > self.mapped_files.short.get(start, self.file_bytes):
            return None
        if end > covered and _may_lack_a_page(found.properties, offset + found.size) and not self._continues(end):
            return None
        return found

    def _after_damage(self, at: int, covered: int) -> int:
        """Return the position where the log goes on after damage, at most `covered`; -1 if nothing whole follows."""
        start = at - at % self.file_bytes
        size, magic = 0, 0
        if at + RECORD_BYTES_MIN <= start + self.file_bytes:
            size, magic = _SIZE_MAGIC.unpack_from(self.mapped_files.get(start).view, at - start)
        following = at + size
        # By the damaged record's own size, if a record begins there: bytes within a body may look like a record.
        if (
            magic in MAGICS
            and size >= RECORD_BYTES_MIN
            and following <= min(covered, start + self.file_bytes)
            and self._goes_on(following, covered)
        ):
            return following
        following = self.next_mark(at)
        while following <= covered and following < self.mapped_files.end():
            if self._goes_on(following, covered):
                return following
            following = self.next_mark(following)
        return -1

    def _goes_on(self, at: int, covered: int) -> bool:
        if at - at % self.file_bytes not in self.mapped_files.starts:
            return False
        return self.is_blank(at) or self._whole_at(at, covered) is not None

    def next_file(self, position: int) -> int:
        """Return the first position of the file after the one that holds `position`."""
        return position - position % self.file_bytes + self.file_bytes

    def next_mark(self, position: int) -> int:
        """Return the next position after `position` where a record seems to begin; the end of the file if there is
        none.
        """
        start = position - position % self.file_bytes
        found = record_layout.find_begin(self.mapped_files.get(start).map, position + 1 - start, start)
        return start + (found if found >= 0 else self.file_bytes)


def another_size(what: str) -> ReplicationError:
    """Return the error for a log whose files are not as large as its master's."""
    advice = "set mappedFileSizeCommitLog as the master has it, and begin with an empty store"
    return ReplicationError(f"{what}: {advice}", reason="file-size")


def _may_lack_a_page(properties: bytes, end: int) -> bool:
    """Tell whether zeros at the end of a record's properties, which no CRC covers, may be a page that was not written.

    Such a page begins within them; zeros that a sender put there need not. `end`: of the record in its file.
    """
    zeros = len(properties) - len(properties.rstrip(b"\0"))
    return zeros > 0 and end - zeros <= (end - 1) // _SECTOR_BYTES * _SECTOR_BYTES


def plausible(queue_id: int, queue_offset: int, store_time_ms: int, topic: bytes) -> bool:
    """Tell whether the fields that no CRC covers have values that a broker could have written."""
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


def stretches(units: NDArray[Any]) -> list[tuple[int, int]]:
    """Return (start, end) of the stretches of the log that the records of these units of a consume queue fill.

    4,096 records in 500 stretches: 0.1 ms.
    """
    positions = units["position"].astype(np.int64)
    ends = positions + units["size"]
    breaks = (positions[1:] != ends[:-1]).nonzero()[0]
    starts = positions[np.concatenate(([0], breaks + 1))]
    return list(zip(starts.tolist(), ends[np.append(breaks, len(ends) - 1)].tolist(), strict=True))
