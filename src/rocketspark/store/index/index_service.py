"""The index files: hash chains from keys to physical offsets, so that a message is found by key, unique id or tag.

Rule: keys are collected per append and written many at a time; a query sees them all the same.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from rocketspark.errors import ConfigError, StoreError
from rocketspark.store.files.mapped_file_queue import MappedFiles
from rocketspark.store.files.system_calls import failure, remove_file
from rocketspark.store.index.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, PAUSE, IndexFile
from rocketspark.store.index.key_hashes import BatchKeys, Pending, TopicKeys, batch_columns, columns, key_hash
from rocketspark.store.settings import Clock

PENDING_MAX = 512
# Longer ones are written at once: 512 of 32 KiB would hold up everybody for half a second.
KEYS_LONG = 1024
# Keys of batches wait in columns, which cost less.
READY_MAX = 8192
_log = logging.getLogger("rocketspark.store")


class IndexService:
    """All index files of a store, oldest first, and the keys not written yet.

    `pending` is the hot path's list: `Store.append` adds to it and calls `write_pending` when it is long.
    """

    def __init__(self, directory: str, slots: int, entries: int, maps: MappedFiles, clock: Clock) -> None:
        self.directory = directory
        self.slots = slots
        self.entry_count = entries
        self.maps = maps
        self.clock = clock
        self.pending: list[Pending] = []
        # Hashes, positions and times; `ready_count` of them in all.
        self._ready: list[tuple[Any, Any, Any]] = []
        self.ready_count = 0
        # True once files are known to be of this size: then a shorter one was cut.
        self.certain = False
        # True if there were files and all were damaged.
        self.lost = False
        self._paths: list[str] = []
        self._open: dict[str, IndexFile] = {}
        self._lock = threading.RLock()

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + 4 * self.slots + ENTRY_BYTES * self.entry_count

    def scan(self, *, crashed: bool = False) -> None:
        """Read the directory. The first damaged file and all after it are removed: recovery puts their keys again.

        `crashed`: the last two files are checked whole, since the power may have failed. Raises ConfigError if the
        files do not have the configured size.
        """
        try:
            names = sorted(n for n in os.listdir(self.directory) if n.isascii() and n.isdigit())
        except FileNotFoundError:
            names = []
        paths = [f"{self.directory}/{name}" for name in names]
        self._check_sizes(paths)
        self._drop_damaged(paths)
        for path in self._paths[-2:] if crashed else ():
            if path in self._paths and self._file(path).mend_old_sectors():
                _log.warning("%s lacks entries: the keys from there on are read from the log again", path)
                for after in self._paths[self._paths.index(path) + 1 :]:
                    self._remove(after)
        if self._paths:
            self._file(self._paths[-1]).mend_end()
        while len(self._paths) > 1 and self._file(self._paths[-1]).count <= 1:
            self._remove(self._paths[-1])
            self._file(self._paths[-1]).mend_end()

    def _check_sizes(self, paths: list[str]) -> None:
        for path in paths:
            found = os.path.getsize(path)
            if found > self.file_bytes or (0 < found < self.file_bytes and not self.certain):
                raise ConfigError(
                    f"index file {path} has {found} bytes, not {self.file_bytes}: set maxHashSlotNum and maxIndexNum"
                    " as they were, or move the directory away"
                )

    def _drop_damaged(self, paths: list[str]) -> None:
        """Keep the files before the first damaged one, and remove the others."""
        damaged = next((n for n, path in enumerate(paths) if self._is_damaged(path, path == paths[-1])), len(paths))
        self._paths = paths[:damaged]
        self.lost = damaged == 0 and len(paths) > 0
        if damaged < len(paths):
            _log.warning("%s is damaged: the keys from it on are read from the log again", paths[damaged])
        for path in paths[damaged:]:
            os.unlink(path)

    def _is_damaged(self, path: str, is_last: bool) -> bool:
        """Tell whether a file is short or, with others after it, does not end with the entry that its header names."""
        if os.path.getsize(path) < self.file_bytes:
            return True
        if is_last:
            return False  # Recovery looks at its end.
        with open(path, "rb") as file:
            _, _, _, end_position, _, count = HEADER.unpack(file.read(HEADER_BYTES))
            if not 1 < count <= self.entry_count:
                return True
            file.seek(HEADER_BYTES + 4 * self.slots + (count - 1) * ENTRY_BYTES)
            return bool(ENTRY.unpack(file.read(ENTRY_BYTES))[1] != end_position)

    def end_position(self) -> int:
        """Return the physical offset of the newest entry; 0 without files."""
        return int(self._file(self._paths[-1]).end_position) if self._paths else 0

    def has_files(self) -> bool:
        return bool(self._paths)

    def end_time_ms(self) -> int:
        return int(self._file(self._paths[-1]).end_time_ms) if self._paths else 0

    def newer_since(self, time_ms: int) -> tuple[int, int] | None:
        """Return (store time in ms, physical offset) of the first entry of the oldest file that ends after a time or
        still grows.

        None if there is no such file.
        """
        with self._lock:
            found: tuple[int, int] | None = None
            for path in reversed(self._paths):
                file = self._file(path)
                if file.count <= 1:
                    continue
                grows = path == self._paths[-1] and file.room > 0
                if not grows and file.end_time_ms <= time_ms:
                    break
                found = int(file.begin_time_ms), int(file.begin_position)
            return found

    def drop_from(self, position: int) -> None:
        """Remove every entry at or after a physical offset, so that a replay of the log from there adds none twice.

        Keys that wait to be written are of a replay that was broken off, and go too.
        """
        self.pending.clear()
        self._ready.clear()
        self.ready_count = 0
        while self._paths:
            last = self._file(self._paths[-1])
            last.drop_from(position)
            # The last one stays, if empty: it says from where on keys lack, should this start come to nothing.
            if last.count > 1 or len(self._paths) == 1:
                return
            self._remove(self._paths[-1])

    def cut(self, position: int) -> None:
        """Do what `drop_from` does while the index is in use, also to keys that wait to be written. Raises
        StoreFull.
        """
        with self._lock:
            self.write_pending()
            self.drop_from(position)

    def drop_before(self, position: int) -> None:
        """Remove the files all of whose entries point before a physical offset."""
        with self._lock:
            while len(self._paths) > 1 and self._file(self._paths[0]).end_position < position:
                self._remove(self._paths[0])

    def is_due(self) -> bool:
        """Tell whether the collected keys have to be written before those of another run of messages are added."""
        pending = self.pending
        return len(pending) >= PENDING_MAX or any(len(keys or b"") > KEYS_LONG for *_, keys, _ in pending[-64:])

    def write_pending(self) -> None:
        """Write the keys collected so far. Raises StoreFull or StoreUnwritable; the keys are kept then."""
        with self._lock:
            # The list itself is never replaced: an append in another thread may be holding it.
            self._make_ready()
            if len(self._ready) > 1:
                keys, positions, times = (np.concatenate(column) for column in zip(*self._ready, strict=True))
                self._ready = [(keys, positions, times)]
            while self._ready:
                keys, positions, times = self._ready[0]
                while len(keys):
                    file = self._writable()
                    count = min(len(keys), file.room)
                    try:
                        file.reserve(count)
                    except OSError as e:
                        raise failure(e, "extend", file.path, count * ENTRY_BYTES) from e
                    file.write(keys[:count], positions[:count], times[:count])
                    keys, positions, times = keys[count:], positions[count:], times[count:]
                    self._ready[0] = (keys, positions, times)
                    self.ready_count -= count
                self._ready.pop(0)

    def _make_ready(self) -> None:
        items = self.pending[:]
        if items:
            self._add_ready(*columns(items))
            del self.pending[: len(items)]

    def _add_ready(
        self, keys: npt.NDArray[np.int32], positions: npt.NDArray[np.int64], times: npt.NDArray[np.int64]
    ) -> None:
        if len(keys):
            self._ready.append((keys, positions, times))
            self.ready_count += len(keys)

    def add_batch(self, topic: TopicKeys, keys: BatchKeys, positions: npt.NDArray[np.int64], time_ms: int) -> None:
        """Collect the keys of a batch, to be written later. `positions`: of its messages; `time_ms`: when all of them
        were stored.

        Nothing is written here, so that nothing can fail.
        """
        if keys.hashed is not None and keys.hashed[0] == topic.name:
            _, rows, hashed = keys.hashed
        else:
            rows, hashed = batch_columns(topic, keys, len(positions))
        with self._lock:
            self._make_ready()
            self._add_ready(hashed, positions[rows], np.full(len(rows), time_ms, np.int64))

    def populate_ahead(self) -> None:
        """Bring the pages that the next entries will touch into memory. For a thread beside the appends."""
        with self._lock:
            file = self._open.get(self._paths[-1]) if self._paths else None
        if file is not None:
            file.populate_ahead()

    def flush(self) -> None:
        """Write the pending keys and put the index files on the disk. Raises OSError, StoreFull or StoreUnwritable."""
        self.write_pending()
        with self._lock:
            files = list(self._open.values())
        for file in files:
            file.sync()

    def release(self) -> None:
        """Unmap every index file."""
        with self._lock:
            self._open.clear()

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, *, tag: bool = False) -> Iterator[int]:
        """Yield the positions of messages that may have that key, newest first. Hashes collide, so the caller has to
        compare the message's keys.

        PAUSE is yielded now and then while it looks for long, for the caller to let others work.
        """
        wanted = key_hash(f"{topic}#T#{key}" if tag else f"{topic}#{key}")
        try:
            self.write_pending()
        except StoreError:
            # A full disk. Whoever asks whether a message was stored must not hear "no" of one just stored.
            yield from self._unwritten(wanted, begin_ms, end_ms)
        for path in reversed(list(self._paths)):
            if path not in self._paths:
                continue  # Removed in a pause.
            file = self._file(path)
            if file.count <= 1 or file.begin_time_ms > end_ms or file.end_time_ms < begin_ms:
                continue
            for position, about_ms in file.chain(wanted):
                if position == PAUSE or (about_ms <= end_ms and about_ms + 1000 >= begin_ms):
                    yield position

    def _unwritten(self, wanted: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return positions of messages with a key's hash that is not in a file yet, newest first."""
        with self._lock:
            ready = list(self._ready)
        found: list[int] = []
        for keys, positions, times in reversed(ready):
            rows = (keys == wanted) & (times <= end_ms) & (times + 1000 >= begin_ms)
            found += positions[rows][::-1].tolist()
        return found

    def _writable(self) -> IndexFile:
        """Return the last file, or a new one if it is full or there is none."""
        last = self._file(self._paths[-1]) if self._paths else None
        if last is not None and last.room > 0:
            return last
        now = datetime.fromtimestamp(self.clock.now_ms() / 1000)
        name = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}"
        # Names ascend even where local time goes back.
        if self._paths and name <= (newest := os.path.basename(self._paths[-1])):
            name = f"{int(newest) + 1:017d}"
        path = f"{self.directory}/{name}"
        try:
            self.maps.files.make_directory(self.directory)
            self.maps.files.create(path, self.file_bytes)
            self.maps.files.reserve(path, 0, HEADER_BYTES + 4 * self.slots)
            file = IndexFile(path, self.slots, self.entry_count, self.maps)
        except OSError as e:
            try:
                os.unlink(path)
            except OSError:
                pass
            raise failure(e, "create", path, HEADER_BYTES + 4 * self.slots) from e
        file.reserved = HEADER_BYTES + 4 * self.slots
        if last is not None:
            file.begin_time_ms = file.end_time_ms = last.end_time_ms
            file.begin_position = file.end_position = last.end_position
        file.write_header()
        self._open[path] = file
        self._paths.append(path)
        return file

    def _file(self, path: str) -> IndexFile:
        found = self._open.get(path)
        if found is None:
            try:
                found = self._open[path] = IndexFile(path, self.slots, self.entry_count, self.maps)
            except OSError as e:
                raise failure(e, "map", path) from e
        return found

    def _remove(self, path: str) -> None:
        self._paths.remove(path)
        self._open.pop(path, None)
        remove_file(path)
