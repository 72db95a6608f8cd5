"""The tier's key index: a file in the store that grows, then a segment in the tier, sorted by key, with the layouts of
RocketMQ's IndexStoreFile (5.5.0).

Rule: an entry is written before its message's unit, so a kill leaves entries without a message, which are passed over,
and no message without its entries.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from rocketspark.errors import StoreUnwritable
from rocketspark.store.files.system_calls import OsFiles, failure, make_folder, remove_file
from rocketspark.store.tiered.flat_file import FlatFile
from rocketspark.store.tiered.layout import NO_TIME

_log = logging.getLogger("rocketspark.store")
# Magic, first and last time, slots in use, entries.
_HEADER = struct.Struct(">iqqii")
# Hash, topic, queue, position, size, seconds since the file's first time; in a growing file also the next entry.
_ENTRY = struct.Struct(">iiiqiii")
SORTED_TYPE = np.dtype(
    [("hash", ">i4"), ("topic", ">i4"), ("queue", ">i4"), ("position", ">i8"), ("size", ">i4"), ("seconds", ">i4")]
)
_GROWING_TYPE = np.dtype([*SORTED_TYPE.descr, ("following", ">i4")])
_SLOT = struct.Struct(">ii")
_FIRST = struct.Struct(">i")
_BEGIN_MAGIC = (0xCCDDEEFF ^ (1880681586 + 4)) - (1 << 32)
_END_MAGIC = (0xCCDDEEFF ^ (1880681586 + 8)) - (1 << 32)
# Entries of one slot that are looked at.
LOOKED_AT_MAX = 1024
_SECONDS_MAX = (1 << 31) - 1
FOLDER = "tiered_index_file"


class KeyEntry(NamedTuple):
    """Where a message with a key's hash lies. `time_ms`: its store time, exact to a second."""

    topic_id: int
    queue_id: int
    position: int
    size: int
    time_ms: int


class NewKey(NamedTuple):
    """An entry to be written: the key's hash (`key_hash` of "topic#key"), and the message's place."""

    hash: int
    topic_id: int
    queue_id: int
    position: int
    size: int
    time_ms: int


class GrowingKeyFile:
    """The file that entries are written to. `begin_ms`: its name, from which the entries' times count."""

    def __init__(self, folder: str, begin_ms: int, slots: int, entries: int, files: OsFiles) -> None:
        self.path = f"{folder}/{begin_ms}"
        self.begin_ms = begin_ms
        self._slots, self._entries_max = slots, entries
        self._files = files
        try:
            make_folder(files, folder)
            # One without a byte was left by a kill, or by a failure to make it as long as it has to be.
            is_new = not os.path.exists(self.path) or not os.path.getsize(self.path)
            if is_new:
                files.create(self.path, self._entry_at(entries))
            elif os.path.getsize(self.path) != self._entry_at(entries):
                raise StoreUnwritable(
                    f"{self.path} was made with other sizes: set tieredStoreIndexFileMaxHashSlotNum and"
                    " tieredStoreIndexFileMaxIndexNum as they were, or move the file away"
                )
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            _, _, self.end_ms, self._used, count = _HEADER.unpack(os.pread(self._fd, _HEADER.size, 0))
            # Bits have flipped in a count that it has no room for: it is full then, and no entry is written over.
            self.count = count if 0 <= count < entries else entries - 1
        except OSError as e:
            raise failure(e, "open", self.path) from e
        self.end_ms = max(self.end_ms, begin_ms if is_new else 0)

    def _entry_at(self, number: int) -> int:
        return _HEADER.size + self._slots * _SLOT.size + number * _ENTRY.size

    def has_room(self, count: int) -> bool:
        """Tell whether so many entries fit in."""
        return bool(self.count + count < self._entries_max)

    def put(self, keys: Sequence[NewKey]) -> None:
        """Write entries. Raises StoreFull, StoreUnwritable; those written before count no more then."""
        slots: dict[int, int] = {}
        rows, number, used, end_ms = [], self.count, self._used, self.end_ms
        try:
            for key in keys:
                at = _HEADER.size + key.hash % self._slots * _SLOT.size
                following = slots.get(at)
                if following is None:
                    (following,) = _FIRST.unpack(os.pread(self._fd, _FIRST.size, at))
                    # One that a failed write left.
                    following = following if 0 < following <= self.count else 0
                    used += not following
                seconds = max(-_SECONDS_MAX, min(int((key.time_ms - self.begin_ms) / 1000), _SECONDS_MAX))
                rows.append(
                    _ENTRY.pack(key.hash, key.topic_id, key.queue_id, key.position, key.size, seconds, following)
                )
                number += 1
                slots[at] = number
                end_ms = max(end_ms, key.time_ms)
            pieces = [(self._entry_at(self.count + 1), b"".join(rows))]
            pieces += [(at, _FIRST.pack(first)) for at, first in slots.items()]
            # Last: entries count from here on.
            pieces.append((0, _HEADER.pack(_BEGIN_MAGIC, self.begin_ms, end_ms, used, number)))
            self._files.write_pieces(self.path, pieces)
        except OSError as e:
            raise failure(e, "write", self.path) from e
        self.count, self._used, self.end_ms = number, used, end_ms

    def find(self, hashed: int) -> Iterator[KeyEntry]:
        """Yield the entries of a hash, newest first."""
        at = _HEADER.size + hashed % self._slots * _SLOT.size
        (number,) = _FIRST.unpack(os.pread(self._fd, _FIRST.size, at))
        for _ in range(LOOKED_AT_MAX):
            if not 0 < number <= self.count:
                return
            row = os.pread(self._fd, _ENTRY.size, self._entry_at(number))
            found, topic_id, queue_id, position, size, seconds, following = _ENTRY.unpack(row)
            if found == hashed:
                yield KeyEntry(topic_id, queue_id, position, size, self.begin_ms + seconds * 1000)
            number = following if following < number else 0

    def sorted(self) -> bytes:
        """Return the file's content as a segment: the entries of each slot side by side, newest first."""
        try:
            rows = np.frombuffer(
                os.pread(self._fd, self.count * _ENTRY.size, self._entry_at(1)), _GROWING_TYPE, self.count
            )
        except OSError as e:
            raise failure(e, "read", self.path) from e
        slots = rows["hash"].astype(np.int64) % self._slots
        order = np.lexsort((-np.arange(self.count), slots))
        entries = np.empty(self.count, SORTED_TYPE)
        for name in SORTED_TYPE.names or ():
            entries[name] = rows[name][order]
        counts = np.bincount(slots, minlength=self._slots)
        sizes = counts * SORTED_TYPE.itemsize
        table = np.empty((self._slots, 2), ">i4")
        table[:, 1] = sizes
        table[:, 0] = _HEADER.size + self._slots * _SLOT.size + np.concatenate(([0], np.cumsum(sizes)[:-1]))
        header = _HEADER.pack(_END_MAGIC, self.begin_ms, self.end_ms, self._used, self.count)
        return b"".join((header, table.tobytes(), entries.tobytes()))

    def sync(self) -> None:
        """Put it on the disk. Raises StoreUnwritable."""
        try:
            self._files.sync_file(self.path)
        except OSError as e:
            raise failure(e, "flush", self.path) from e

    def close(self) -> None:
        """Give back its descriptor."""
        os.close(self._fd)

    def remove(self) -> None:
        """Close and remove the file."""
        self.close()
        remove_file(self.path)


class KeyFiles:
    """The growing file in the store's folder, those before it that are not in the tier yet, and the tier's segments."""

    def __init__(self, root: str, segments: FlatFile, slots: int, entries: int, files: OsFiles | None = None) -> None:
        self._folder = f"{root}/{FOLDER}"
        self._files = files or OsFiles()
        self._slots, self._entries_max = slots, entries
        self.segments = segments
        self._growing: list[GrowingKeyFile] = []

    def open(self) -> None:
        """Open the files in the store. Raises StoreUnwritable."""
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        uploaded = {entry.begin_ms for entry in self.segments.entries}
        for name in sorted((n for n in names if n.isascii() and n.isdigit()), key=int):
            file = GrowingKeyFile(self._folder, int(name), self._slots, self._entries_max, self._files)
            if file.begin_ms in uploaded or not file.count:
                file.remove()
            else:
                self._growing.append(file)

    def check_segments(self, *, is_read_only: bool = False) -> None:
        """Leave out the last segment if its upload was not finished, so that the store still has it as a file, and read
        from the others the times that the table lacked. Raises StoreUnwritable.

        Bits may have flipped in the head of another one. `is_read_only`: another broker may be writing to the last.
        """
        found = []
        for entry in self.segments.entries:
            size = begin_ms = end_ms = 0
            if entry.size > _HEADER.size + _SLOT.size:
                head = self.segments.read(entry.base_offset, _HEADER.size + _FIRST.size)
                _, begin_ms, end_ms, _, count = _HEADER.unpack_from(head)
                size = _FIRST.unpack_from(head, _HEADER.size)[0] + count * SORTED_TYPE.itemsize
            is_doubtful = size != entry.size and entry is self.segments.entries[-1]
            if is_doubtful and (is_read_only or not size or os.path.exists(f"{self._folder}/{begin_ms}")):
                self.segments.cut(entry.base_offset)
                break
            if entry.begin_ms == NO_TIME:
                entry = msgspec.structs.replace(entry, begin_ms=begin_ms, end_ms=end_ms)
            found.append(entry)
        self.segments.entries = tuple(found)

    def put(self, keys: Sequence[NewKey]) -> None:
        """Write entries. Raises StoreFull, StoreUnwritable."""
        per_file = max(self._entries_max - 1, 1)
        for at in range(0, len(keys), per_file):
            some = keys[at : at + per_file]
            if not self._growing or not self._growing[-1].has_room(len(some)):
                # RocketMQ looks only into files that begin before the time up to which it searches.
                ends = [file.begin_ms for file in self._growing]
                ends += [e.begin_ms for e in self.segments.entries if e.begin_ms != NO_TIME]
                begin_ms = max([min(key.time_ms for key in some), *(end + 1 for end in ends)])
                self._growing.append(
                    GrowingKeyFile(self._folder, begin_ms, self._slots, self._entries_max, self._files)
                )
            self._growing[-1].put(some)

    def upload(self, now_ms: int) -> bool:
        """Put the full files into the tier; tell whether there was one. Raises StoreUnwritable."""
        full = self._growing[:-1]
        for file in full:
            content = file.sorted()
            base = self.segments.end
            if not self.segments.entries:
                self.segments.begin_at(base, now_ms)
            self.segments.roll(now_ms)
            self.segments.append([(content, file.begin_ms)], now_ms)
            last = msgspec.structs.replace(self.segments.entries[-1], end_ms=file.end_ms)
            self.segments.entries = (*self.segments.entries[:-1], last)
            self._growing = self._growing[1:]
            file.remove()
        return bool(full)

    def sync(self) -> None:
        """Put the growing file on the disk. Raises StoreUnwritable."""
        if self._growing:
            self._growing[-1].sync()

    def find(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[KeyEntry]:
        """Yield the entries of a hash whose messages may have been stored in [begin_ms, end_ms], newest file first.

        Raises StoreUnwritable.
        """
        for file in reversed(self._growing):
            if file.end_ms >= begin_ms:
                yield from file.find(hashed)
        for entry in reversed(self.segments.entries):
            if entry.end_ms >= begin_ms and entry.size > _HEADER.size + _SLOT.size:
                yield from self._find_in(entry.base_offset, entry.begin_ms, entry.size, hashed)

    def _slots_of(self, base: int, size: int) -> int:
        """Return how many slots a segment has: its entries begin at the first slot's place, and end with it; 0 if bits
        have flipped in both that place and their number.
        """
        head = self.segments.read(base, _HEADER.size + _FIRST.size)
        count = _HEADER.unpack_from(head)[-1]
        for first in (_FIRST.unpack_from(head, _HEADER.size)[0], size - count * SORTED_TYPE.itemsize):
            slots, over = divmod(first - _HEADER.size, _SLOT.size)
            if slots > 0 and first <= size and not over and not (size - first) % SORTED_TYPE.itemsize:
                return int(slots)
        return 0

    def _find_in(self, base: int, begin_ms: int, size: int, hashed: int) -> Iterator[KeyEntry]:
        slots = self._slots_of(base, size)
        if not slots:
            key = self.segments.key(base)
            _log.error("tier: %s is no key index, as bits have flipped: its keys are not found", key)
            return
        at, length = _SLOT.unpack(self.segments.read(base + _HEADER.size + hashed % slots * _SLOT.size, _SLOT.size))
        length = min(length - length % SORTED_TYPE.itemsize, LOOKED_AT_MAX * SORTED_TYPE.itemsize)
        if at <= 0 or length <= 0 or at + length > size:
            return
        for row in np.frombuffer(self.segments.read(base + at, length), SORTED_TYPE).tolist():
            if row[0] == hashed:
                yield KeyEntry(row[1], row[2], row[3], row[4], begin_ms + row[5] * 1000)

    def close(self) -> None:
        """Give back the descriptors."""
        for file in self._growing:
            file.close()
