"""A log that another process may be writing: its whole records, checked one by one. Rule: nothing unproven is a record.

A record is whole if its size, magic and parts fit, it states its own place and its body has its CRC.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rocketspark.errors import RecordError, StoreError
from rocketspark.protocol.message import checksums, record, record_layout, sysflags
from rocketspark.protocol.message.record_layout import CRC_MASK, FIXED_BYTES_V4, MAGIC_V1, RECORD_BYTES_MIN
from rocketspark.store.commitlog.commit_log import plausible
from rocketspark.store.consumequeue.batch_consume_queue import inner_count
from rocketspark.store.readonly.file_places import LOCAL_DISK, Place
from rocketspark.store.readonly.read_only_files import ReadOnlyFiles

CHUNK_BYTES = 4 << 20
RECORD_BYTES_MAX = 1 << 28
# Bytes that are searched for a record after damage; then the next file's start is tried.
RESYNC_BYTES_MAX = 8 << 20
_NOT_PLAIN = record_layout.HOST_FLAGS | sysflags.INNER_BATCH
_PLAIN = record_layout.only(
    "size", "magic", "crc", "queue_id", "queue_offset", "sys_flag", "store_time_ms", "body_bytes"
).unpack_from
_SIZE = record_layout.only("size").unpack_from


class WholeRecord(NamedTuple):
    """Where a whole record is, the queue that it says it belongs to, and how many `messages` it holds."""

    position: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    messages: int
    store_time_ms: int


class LogScan(ReadOnlyFiles):
    """The files of a log, opened for reading only. `scan` finds the records."""

    def __init__(self, directories: Sequence[str], place: Place = LOCAL_DISK) -> None:
        super().__init__(directories, place)
        # Of the last scan: where it ended, and byte ranges between whole records that are none.
        self.end_found = self._stopped = 0
        self.damages: list[tuple[int, int]] = []

    def check_there(self) -> None:
        """Raise StoreError if none of the log's directories exists."""
        if not any(map(self.place.is_seen, self.directories)):
            raise StoreError(
                f"there is no directory {' nor '.join(self.directories)} on {platform.node()}: the driver and every"
                " executor must see the store at the same path"
            )

    @property
    def min_position(self) -> int:
        """The first position that is still there."""
        return self.starts[0] if self.starts else 0

    def head(self, position: int) -> tuple[int, int] | None:
        """Return (size, store time in ms) of the record at a position, by its head alone; None if none begins there."""
        raw = self.read(position, RECORD_BYTES_MIN) if position >= 0 else b""
        if not record_layout.begins(raw, 0, position):
            return None
        return _SIZE(raw)[0], record_layout.store_time_of(raw)

    def scan(self, position: int, sure_before: int = 0) -> Iterator[WholeRecord]:
        """Yield every whole record from a boundary on; sets `end_found` and `damages`.

        Bytes that are no record end the log, as they do for a broker that starts, unless a whole record that is
        no older comes after them: then the bytes between are damaged. The last record is left out while it may not be
        written to its end; records that end by `sure_before` were on the disk before.
        """
        self.damages = []
        at, last_time_ms = position, 0
        while True:
            for found in self._run(at, sure_before):
                last_time_ms = found.store_time_ms
                yield found
            stopped = self.end_found
            following = self._after_damage(stopped, last_time_ms, sure_before)
            if following is None:
                return
            self.damages.append((stopped, following))
            at = following

    def _after_damage(self, position: int, time_ms: int, sure_before: int) -> int | None:
        """Return the position where whole records go on after damage; None if the log ends there."""
        found = self._next_whole(position, sure_before)
        # A broker may have written on meanwhile: then the record is whole by now.
        grown = next(self._run(position, position), None)
        self.end_found = position
        # Older records are left over by a broker that cut its log.
        return None if found is None or grown is not None or found.store_time_ms < time_ms else found.position

    def _next_whole(self, position: int, sure_before: int) -> WholeRecord | None:
        index = self.index_of(position)
        if index < 0:
            return None
        at = self.boundary(position + 1)
        while at is not None:
            if (found := next(self._run(at, sure_before), None)) is not None:
                return found
            at = self.boundary(at + 1)
        for start in self.starts[index + 1 :]:
            if (found := next(self._run(start, sure_before), None)) is not None:
                return found
        return None

    def boundary(self, position: int) -> int | None:
        """Return the position of the first record at or after `position`, by its magic and stated position; None if
        none is near.
        """
        index = self.index_of(position)
        if index < 0:
            return None
        file_end = self.starts[index] + self.length(index)
        count = min(RESYNC_BYTES_MAX, file_end - position)
        raw = self.read(position, count) if count > 0 else b""
        at = record_layout.find_begin(raw, 0, position)
        return position + at if at >= 0 else None

    def _run(self, position: int, sure_before: int) -> Iterator[WholeRecord]:
        """Yield the whole records that follow one another from `position` without a gap.

        `end_found` is then the end of the last one; a last record that may not be written to its end is left out.
        """
        self.end_found = at = position
        # Given out once another record follows, or it is known to be written to its end.
        held: WholeRecord | None = None
        held_at: tuple[bytes, int] = (b"", 0)
        for found, chunk, here in self._heads(position):
            if held is not None:
                self.end_found = held.position + held.size
                yield held
            held, held_at = found, (chunk, here)
        at = self._stopped
        if held is not None:
            end = held.position + held.size
            if end <= sure_before or end != at or not _in_doubt(*held_at, held.size):
                self.end_found = at
                yield held
        else:
            self.end_found = at

    def _heads(self, position: int) -> Iterator[tuple[WholeRecord, bytes, int]]:
        """Whole records in a row, each with the bytes it stands in and where; leaves `_stopped` after the last."""
        self._stopped = at = position
        while (index := self.index_of(at)) >= 0:
            start = self.starts[index]
            file_end = start + self.length(index)
            chunk, begin = self.read(at, max(0, min(CHUNK_BYTES, file_end - at))), at
            while True:
                here = at - begin
                left = len(chunk) - here
                if left < RECORD_BYTES_MIN and begin + len(chunk) < file_end:
                    break
                if not record_layout.begins(chunk, here, at):
                    if record_layout.is_blank(chunk, here, file_end - at) and file_end in self.starts[index + 1 :]:
                        self._stopped = at = file_end
                        break
                    return
                (size,) = _SIZE(chunk, here)
                if not RECORD_BYTES_MIN <= size <= min(file_end - at, RECORD_BYTES_MAX):
                    return
                if size > left:
                    if here:
                        break
                    chunk = self.read(at, size)
                    if len(chunk) < size:
                        return
                found = _whole(chunk, here, at)
                if found is None:
                    return
                yield found, chunk, here
                self._stopped = at = at + size


def _in_doubt(chunk: bytes, at: int, size: int) -> bool:
    """Tell whether a last record may lack its end: no CRC covers its properties, and bytes not written yet are zero."""
    return b"\0" in record_layout.properties_of(memoryview(chunk)[at : at + size])


def _whole(chunk: bytes, at: int, position: int) -> WholeRecord | None:
    """Return the record at a byte if every check holds. Plain ones: 1 us each; the rest goes to `record.decode`."""
    size, magic, crc, queue_id, offset, sys_flag, time_ms, body_length = _PLAIN(chunk, at)
    body = at + FIXED_BYTES_V4
    topic_at = body + body_length + 1
    end = at + size
    if magic == MAGIC_V1 and not sys_flag & _NOT_PLAIN and body_length >= 0 and topic_at + 2 <= end:
        topic_end = topic_at + chunk[topic_at - 1]
        properties_at = topic_end + 2
        if (
            properties_at <= end
            and properties_at + (chunk[topic_end] << 8 | chunk[topic_end + 1]) == end
            and (not crc or checksums.crc32(chunk[body : topic_at - 1]) & CRC_MASK == crc)
        ):
            topic = chunk[topic_at:topic_end]
            if plausible(queue_id, offset, time_ms, topic):
                return WholeRecord(position, size, topic, queue_id, offset, sys_flag, 1, time_ms)
        return None
    try:
        found = record.decode(memoryview(chunk)[at : at + size])
    except RecordError:
        return None
    if not plausible(found.queue_id, found.queue_offset, found.store_time_ms, found.topic):
        return None
    count = inner_count(found.sys_flag, found.properties)
    return WholeRecord(
        position, size, found.topic, found.queue_id, found.queue_offset, found.sys_flag, count, found.store_time_ms
    )
