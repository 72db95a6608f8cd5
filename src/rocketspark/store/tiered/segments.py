"""Where segments lie: what the tier asks of a store of files or objects, and the folder.

Rule: `append` returns once the bytes are durable; whatever a failure left behind the end is written over later. A file
can be cut and written over by who lost the tier, so in a folder it is locked from the look at the owner's sign to the
end of the write: who stands still in between keeps the next owner waiting.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rocketspark import machine
from rocketspark.errors import StoreFull, StoreUnwritable
from rocketspark.store.files.system_calls import NO_LOCKS, OsFiles, failure, make_folder, remove_file

_log = logging.getLogger("rocketspark.store")
# What a disk writes whole, or not at all.
SECTOR_BYTES = 512
# In a broker's folder: who has it locked writes there.
LOCK_FILE = "owner.lock"
# After so many calls that failed the rest waits for the next round: each may take seconds.
FAILURES_MAX = 3
# Who finds it locked tries again so often, so many times: others have it for a moment when they look at who signs.
_TRY_S, _TRIES = 0.05, 20


class TierTaken(StoreUnwritable):
    """The tier is another store's now."""


class SegmentStore(Protocol):
    """A store of segments, by name. Every call may take seconds, and is made in a thread beside the event loop."""

    def taken(self, number: int) -> None:
        """Write as an owner of the tier from now on. `number`: of the owner, higher than those of all before."""

    def alone(self, key: str, *, is_first: bool = False) -> AbstractContextManager[bool]:
        """Keep others from writing to a broker's folder meanwhile; whether that is needed, and can be done. `key`: of
        anything in the folder; `is_first`: it may have to be made. Raises TierTaken while another one writes,
        StoreFull, StoreUnwritable.
        """

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of every segment below a prefix. Raises StoreUnwritable."""

    def probe(self, key: str, size: int) -> int:
        """Return the size of a segment of which `size` bytes were found, where a listing may be behind. Raises
        StoreUnwritable.
        """

    def append(self, key: str, at: int, content: bytes) -> None:
        """Make a segment end with `content`, from byte `at` on. Raises StoreFull, StoreUnwritable."""

    def read(self, key: str, at: int, count: int) -> bytes:
        """Return up to `count` bytes of a segment; fewer only at its end. Raises StoreUnwritable."""

    def remove(self, key: str) -> None:
        """Remove a segment; nothing happens if it is not there. Raises StoreUnwritable."""

    def whole(self, key: str) -> bytes | None:
        """Return the content of a small file that `put` wrote; None if it is not there. Raises StoreUnwritable."""

    def put(self, key: str, content: bytes) -> None:
        """Make a small file, or replace it at once. Raises StoreFull, StoreUnwritable."""


class ReadOnlySegments:
    """Another broker's segments, while it writes them: nothing is changed, whatever is asked."""

    def __init__(self, segments: SegmentStore) -> None:
        self.sizes, self.probe, self.read, self.whole = segments.sizes, segments.probe, segments.read, segments.whole

    def taken(self, number: int) -> None:
        """Never called."""
        raise AssertionError(number)

    def alone(self, key: str, *, is_first: bool = False) -> AbstractContextManager[bool]:
        """Never called."""
        raise AssertionError(key)

    def append(self, key: str, at: int, content: bytes) -> None:
        """Never called."""
        raise AssertionError(key)

    def remove(self, key: str) -> None:
        """Leave it where it is."""

    def put(self, key: str, content: bytes) -> None:
        """Never called."""
        raise AssertionError(key)


class HeldSegments(ReadOnlySegments):
    """Segments that are written, and removed, only while they are held. `hold`: raises TierTaken else; it is told
    whether nobody else can write meanwhile.
    """

    def __init__(self, segments: SegmentStore, hold: Callable[[bool], None]) -> None:
        super().__init__(segments)
        self._segments, self._hold = segments, hold

    def append(self, key: str, at: int, content: bytes) -> None:
        """As SegmentStore.append. Raises TierTaken too."""
        with self._segments.alone(key) as is_alone:
            self._hold(is_alone)
            self._segments.append(key, at, content)

    def remove(self, key: str) -> None:
        """As SegmentStore.remove. Raises TierTaken too."""
        with self._segments.alone(key) as is_alone:
            self._hold(is_alone)
            self._segments.remove(key)


class FolderSegments:
    """Segments as files of a folder."""

    def __init__(self, root: str, files: OsFiles | None = None) -> None:
        self.root = root
        self._files = files or OsFiles()
        self._made: set[str] = set()
        # By name, how long segments were when they were listed or written last.
        self._known: dict[str, int] = {}
        self._is_alone = False
        self._can_lock = True

    def taken(self, number: int) -> None:
        """Nothing: what another owner writes shows by the sizes of files."""

    @contextmanager
    def alone(self, key: str, *, is_first: bool = False) -> Iterator[bool]:
        """Keep others from writing to a broker's folder meanwhile; False if it cannot be locked. For one thread.

        Raises TierTaken while another one writes, StoreFull, StoreUnwritable.
        """
        if self._is_alone:
            yield True
            return
        descriptor = self._locked(key, is_first)
        self._is_alone = descriptor is not None
        try:
            yield self._is_alone
        finally:
            self._is_alone = False
            if descriptor is not None:
                self._files.unlock(descriptor)

    def _locked(self, key: str, is_first: bool) -> int | None:
        top = self._top(key)
        path = f"{top}/{LOCK_FILE}"
        if is_first:
            make_folder(self._files, top)
        else:
            self._look_for_top(key)
        for tries in range(_TRIES):
            try:
                return self._files.lock(path)
            except BlockingIOError:
                if tries + 1 < _TRIES:
                    machine.sleep(_TRY_S)
            except OSError as e:
                if e.errno not in NO_LOCKS:
                    raise failure(e, "lock", path) from e
                if self._can_lock:
                    _log.warning("the second tier: %s cannot be locked (%s)", path, e.strerror)
                self._can_lock = False
                return None
        raise TierTaken(
            f"{path} is locked: another store is in the midst of a write there; if its broker stands still, let it go"
            " on, or end it",
            retriable=True,
        )

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of every segment below a prefix. Raises StoreUnwritable."""
        top = f"{self.root}/{prefix}"
        if not os.path.isdir(top):
            return
        for folder, _, names in os.walk(top, onerror=_unreadable):
            for name in names:
                path = f"{folder}/{name}"
                try:
                    size = os.stat(path).st_size
                except OSError as e:
                    raise failure(e, "read", path) from e
                key = os.path.relpath(path, self.root)
                self._known[key] = size
                yield key, size

    def probe(self, key: str, size: int) -> int:
        """Return the size that was found: a folder's listing is never behind."""
        return size

    def append(self, key: str, at: int, content: bytes) -> None:
        """Make a segment end with `content`, from byte `at` on. Raises StoreFull, StoreUnwritable."""
        path = f"{self.root}/{key}"
        folder = os.path.dirname(path)
        try:
            is_new = folder not in self._made or at == 0
            if is_new:
                self._look_for_top(key)
                make_folder(self._files, folder)
                self._made.add(folder)
            found = os.stat(path).st_size if at or os.path.exists(path) else 0
            if found < at:
                raise StoreUnwritable(f"{path} is shorter than the {at} bytes that were written: check the disk")
            if self._is_of_others(key, found):
                raise TierTaken(f"{path} has grown: another store has written there since", retriable=True)
            # Cut first: what lies behind is of an upload that was not finished.
            self._files.create(path, at, keep=True)
            self._files.write_at(path, at, content)
            self._files.sync_file(path)
            self._known[key] = at + len(content)
            if is_new:
                self._files.sync_directory(folder)
        except OSError as e:
            self._made.discard(folder)
            self._known[key] = max(self._known.get(key, 0), at + len(content))
            raise failure(e, "write", path, len(content)) from e

    def _is_of_others(self, key: str, size: int) -> bool:
        """Tell whether another store has written to a segment: it took the tier over while this process was halted."""
        return size > self._known.get(key, 0)

    def _look_for_top(self, key: str) -> None:
        """Make no folder where the tier's disk is not mounted: its owner's file brings the broker's folder."""
        if not os.path.isdir(self._top(key)):
            raise StoreUnwritable(f"{self._top(key)} is not there: is the tier mounted?", retriable=True)

    def _top(self, key: str) -> str:
        return f"{self.root}/{'/'.join(key.split('/')[:2])}"

    def read(self, key: str, at: int, count: int) -> bytes:
        """Return up to `count` bytes of a segment; fewer only at its end. Raises StoreUnwritable."""
        path = f"{self.root}/{key}"
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(at)
                found = bytearray()
                while len(found) < count and (part := file.read(count - len(found))):
                    found += part
                return bytes(found)
        except OSError as e:
            raise failure(e, "read", path) from e

    def remove(self, key: str) -> None:
        """Remove a segment; nothing happens if it is not there, or has grown. Raises StoreUnwritable."""
        path = f"{self.root}/{key}"
        if os.path.exists(path) and self._is_of_others(key, os.path.getsize(path)):
            return
        remove_file(path)
        self._known.pop(key, None)

    def whole(self, key: str) -> bytes | None:
        """Return the content of a small file that `put` wrote; None if it is not there. Raises StoreUnwritable."""
        path = f"{self.root}/{key}"
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as e:
            raise failure(e, "read", path) from e

    def put(self, key: str, content: bytes) -> None:
        """Make a small file, or replace it at once. Raises StoreFull, StoreUnwritable."""
        path = f"{self.root}/{key}"
        folder = os.path.dirname(path)
        try:
            make_folder(self._files, folder)
            self._files.write_file(f"{path}.new", content)
            self._files.replace(f"{path}.new", path)
            self._files.sync_directory(folder)
        except OSError as e:
            error = failure(e, "write", path, len(content))
            if not isinstance(error, StoreFull) or not self._put_over(path, content):
                raise error from e

    def _put_over(self, path: str, content: bytes) -> bool:
        """Write over what a file has, within one sector, so that it is never half written; return whether that did it.
        A full disk has room for that, and a tier whose owner cannot sign removes nothing.
        """
        try:
            # One of an earlier version is shorter, and has a block of the disk all the same.
            if not os.stat(path).st_size <= len(content) <= SECTOR_BYTES:
                return False
            self._files.write_at(path, 0, content)
            self._files.sync_file(path)
        except OSError:
            return False
        return True


def _unreadable(error: OSError) -> None:
    raise StoreUnwritable(f"the tier's folder cannot be read: {error}; check its permissions")
