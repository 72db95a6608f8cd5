"""Files of one fixed size in a row, named by the offset of their first byte, mapped when first used.

Rule: only this file makes, maps, cuts and removes such files; a bounded number of them is mapped at a time.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from itertools import pairwise
from typing import NamedTuple

from rocketspark.errors import ConfigError
from rocketspark.store.files.system_calls import OsFiles, failure, remove_file


class MappedFile(NamedTuple):
    """A mapped file and a view of it; slices of the view stay valid after the map is dropped from the cache."""

    map: mmap.mmap
    view: memoryview


class MappedFiles:
    """The maps of one store's files, at most `count_max`: the file that was asked for longest ago is unmapped first.

    That loses nothing: the kernel has the written pages, and a view in use keeps its map alive.
    """

    def __init__(self, files: OsFiles, count_max: int) -> None:
        self.files = files
        self.count_max = count_max
        self._maps: OrderedDict[tuple[MappedFileQueue, int], MappedFile] = OrderedDict()
        self._lock = threading.Lock()
        # On a full disk nothing is read where a file has no blocks; see `OsFiles.data_end`.
        self.disk_is_full = False

    def get(self, mapped_files: MappedFileQueue, start: int) -> MappedFile:
        """Return the file of a row that begins at offset `start`, mapped. Raises StoreUnwritable if it cannot be
        opened.
        """
        key = (mapped_files, start)
        with self._lock:
            found = self._maps.get(key)
            if found is None:
                path = mapped_files.path(start)
                try:
                    mapped = self.files.map(path, scattered=mapped_files.scattered)
                except OSError as e:
                    raise failure(e, "map", path) from e
                found = self._maps[key] = MappedFile(mapped, memoryview(mapped))
                while len(self._maps) > self.count_max:
                    self._let_go(*self._maps.popitem(last=False)[0])
            else:
                self._maps.move_to_end(key)
            mapped_files.recent = (start, found)
            return found

    def advise(self, mapped_files: MappedFileQueue, *, scattered: bool, start: int | None = None) -> None:
        """Set whether the files of a row are read `scattered` (see `OsFiles.map`), also for those that are mapped
        already; `start`: one of these alone.
        """
        with self._lock:
            if start is None:
                mapped_files.scattered = scattered
            for (row, begin), mapped in self._maps.items():
                if row is mapped_files and start in (None, begin):
                    mapped.map.madvise(mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL)

    def drop(self, mapped_files: MappedFileQueue, start: int) -> MappedFile | None:
        """Take one file's map out of the cache and return it, if it was mapped."""
        with self._lock:
            self._let_go(mapped_files, start)
            return self._maps.pop((mapped_files, start), None)

    def clear(self) -> None:
        with self._lock:
            for key in self._maps:
                self._let_go(*key)
            self._maps.clear()

    @staticmethod
    def _let_go(mapped_files: MappedFileQueue, start: int) -> None:
        if mapped_files.recent is not None and mapped_files.recent[0] == start:
            mapped_files.recent = None


class SizeEvidence:
    """Evidence of whether files have the configured size. `found`: a file has it; `against`: the error to raise if none
    has.
    """

    def __init__(self) -> None:
        self.found = False
        self.against: ConfigError | None = None

    def judge(self) -> None:
        """Raise ConfigError if there are files, and none has the configured size."""
        if self.against is not None and not self.found:
            raise self.against


class MappedFileQueue:
    """The files of one directory: `starts` are their first bytes' offsets, ascending and without a gap.

    `option`: the broker.conf key that sets the size, for the error when files of another size are found.
    `scattered`: see `OsFiles.map`.
    """

    def __init__(self, directory: str, size: int, maps: MappedFiles, option: str, *, scattered: bool = False) -> None:
        self.directory = directory
        self.size = size
        self.maps = maps
        self.files = maps.files
        self.starts: list[int] = []
        # True once files are known to be of this size: then a shorter one was cut.
        self.certain = False
        # Files that `scan` found shorter, and their lengths: the rest was not written but filled up.
        self.short: dict[int, int] = {}
        # (begin, end) of files that `scan` missed between others: those before them are left as they are.
        self.missing: list[tuple[int, int]] = []
        self.option = option
        self.scattered = scattered
        # The file asked for last: most are asked for many times in a row. Only `maps` sets it, under its lock.
        self.recent: tuple[int, MappedFile] | None = None

    def names(self) -> list[int]:
        """Return the offsets at which the directory's files begin, by their names."""
        try:
            names = os.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        return sorted(int(name) for name in names if len(name) == 20 and name.isascii() and name.isdigit())

    def _length(self, start: int) -> int:
        try:
            return os.path.getsize(self.path(start))
        except OSError as e:
            raise failure(e, "read", self.path(start)) from e

    def look(self, evidence: SizeEvidence) -> None:
        """Gather evidence of the files' size from their names and lengths; changes nothing."""
        starts = self.names()
        # One that cannot be looked at is no evidence.
        lengths = [self._length(start) for start in starts if os.path.exists(self.path(start))]
        spacing = min((b - a for a, b in pairwise(starts)), default=0)
        longest = max(lengths, default=0)
        if self.certain or self.size in (spacing, longest):
            evidence.found = True
        elif longest and evidence.against is None:
            evidence.against = ConfigError(
                f"files in {self.directory} are {spacing or longest} bytes each, not {self.size}: "
                f"set {self.option}={spacing or longest}, or if the last one was cut give it its length again "
                f"(truncate -s {self.size})"
            )

    def scan(self) -> None:
        """Read the directory. A file shorter than it should be is filled up with zeros, once the size is certain.

        Raises ConfigError if the files are of another size than `size`; no file was changed then.
        """
        starts = self.names()
        lengths = {start: self._length(start) for start in starts}
        self._check_names(starts, lengths)
        # Files after a gap belong to no log: only the last unbroken row counts.
        self.missing = [(a + self.size, b) for a, b in pairwise(starts) if b - a != self.size]
        if self.missing:
            starts = [start for start in starts if start >= self.missing[-1][1]]
        self._check_lengths(starts, lengths)
        self.short = {start: lengths[start] for start in starts if lengths[start] < self.size}
        if self.short:
            evidence = SizeEvidence()
            self.look(evidence)
            evidence.judge()
        for start in self.short:
            self.files.create(self.path(start), self.size, keep=True)
        self.starts = starts

    def _check_names(self, starts: list[int], lengths: dict[int, int]) -> None:
        """Raise ConfigError if a file's name, the offset where it begins, is none of files of this size."""
        spacing = min((b - a for a, b in pairwise(starts)), default=self.size)
        stray = [start for start in starts if start % self.size]
        if stray and spacing in lengths.values() and not any(start % spacing for start in starts):
            raise ConfigError(f"files in {self.directory} are not {self.size} bytes each: set {self.option}={spacing}")
        if stray:
            raise ConfigError(
                f"{self.path(stray[0])} does not belong to files of {self.size} bytes each: move it away, or set "
                f"{self.option} to the size of the others"
            )

    def _check_lengths(self, starts: list[int], lengths: dict[int, int]) -> None:
        """Raise ConfigError if a file is longer than files of this size."""
        for start in starts:
            found = lengths[start]
            if found > self.size and self.certain and self.size in lengths.values():
                raise ConfigError(
                    f"{self.path(start)} has {found} bytes, not {self.size} as the others: mend it "
                    f"(truncate -s {self.size}) or move it away"
                )
            if found > self.size:
                raise ConfigError(f"{self.path(start)} has {found} bytes: set {self.option}={found}")

    def path(self, start: int) -> str:
        return f"{self.directory}/{start:020d}"

    def end(self) -> int:
        """Return the offset after the last file; 0 without files."""
        return self.starts[-1] + self.size if self.starts else 0

    def readable(self, start: int) -> int:
        """Return how many bytes from a file's beginning may hold data: on a full disk those with blocks, else all."""
        return self.data_end(start) if self.maps.disk_is_full else self.size

    def data_end(self, start: int) -> int:
        """Return the byte of a file behind which all are zero. Raises StoreUnwritable."""
        try:
            return self.files.data_end(self.path(start))
        except OSError as e:
            raise failure(e, "read", self.path(start)) from e

    def get(self, start: int) -> MappedFile:
        """Return the file starting there, mapped."""
        recent = self.recent
        return recent[1] if recent is not None and recent[0] == start else self.maps.get(self, start)

    def add(self, start: int, reserve_bytes: int) -> None:
        """Make the next file, with blocks for its first bytes. Raises StoreFull or StoreUnwritable."""
        path = self.path(start)
        try:
            if not self.starts:
                self.files.make_directory(self.directory)
            self.files.create(path, self.size)
            self.files.reserve(path, 0, min(reserve_bytes, self.size))
        except OSError as e:
            if not self.starts or start > self.starts[-1]:
                try:
                    os.unlink(path)
                except OSError:
                    pass
            raise failure(e, "create", path, reserve_bytes) from e
        self.starts.append(start)

    def reserve(self, offset: int, count: int) -> int:
        """Reserve blocks for [offset, offset + count) within one file; returns the offset up to which there are.

        Raises StoreFull or StoreUnwritable.
        """
        start = offset - offset % self.size
        end = min(offset + count, start + self.size)
        try:
            self.files.reserve(self.path(start), offset - start, end - offset)
        except OSError as e:
            raise failure(e, "extend", self.path(start), end - offset) from e
        return end

    def write(self, offset: int, content: bytes | bytearray | memoryview) -> None:
        """Write within a file that is there, without mapping it. Raises StoreFull or StoreUnwritable."""
        start = offset - offset % self.size
        try:
            self.files.write_at(self.path(start), offset - start, content)
        except OSError as e:
            raise failure(e, "write", self.path(start), len(content)) from e

    def write_again(self, begin: int, end: int) -> None:
        """Have bytes [begin, end) written once more by the next flush, as an earlier one may have failed. Raises
        StoreUnwritable.
        """
        for start in self.starts:
            # Behind its last record a file has no blocks.
            at, stop = max(begin - start, 0), min(end - start, self.size)
            if at < stop and at < (stop := min(stop, self.data_end(start))):
                self.files.write_again(self.get(start).map, at, stop)

    def cut(self, end: int) -> None:
        """Remove every byte from offset `end` on: later files go, the rest of its own file becomes zero."""
        while self.starts and self.starts[-1] >= end and len(self.starts) > 1:
            self.remove(self.starts[-1])
        if self.starts and end < self.end():
            start = self.starts[-1]
            path = self.path(start)
            at = max(end - start, 0)
            try:
                if self.files.any_data(path, at):
                    self.maps.drop(self, start)
                    self.files.cut(path, at, self.size)
            except OSError as e:
                raise failure(e, "cut", path) from e

    def detach(self, start: int) -> MappedFile | None:
        """Take one file out of the row without deleting it; returns its map, if it has one."""
        self.starts.remove(start)
        return self.maps.drop(self, start)

    def remove(self, start: int) -> None:
        """Delete one file; views of it that are still in use stay readable."""
        path = self.path(start)
        self.detach(start)
        remove_file(path)
