"""Where the files of a store or a second tier lie: a folder, or an object store. Rule: only reading.

No object grows: what is a file in a folder, is a row of objects in an object store (store.tiered.object_segments).
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from rocketspark import machine
from rocketspark.errors import StoreError, StoreUnwritable
from rocketspark.model.text import shown
from rocketspark.store.tiered.object_segments import ObjectSegments, object_segments

_OPEN_MAX = 8
# Long reads are made in parts at once, as one request of an object store brings little: at most so many, none shorter.
_AT_ONCE, _PART_BYTES_MIN = 8, 1 << 20
# Short ones bring what lies around them: searches look there next.
_BLOCK_BYTES, _BLOCKS_MAX = 64 << 10, 16
_SCHEME = "s3://"
_OBJECTS = re.compile("s3[an]?:/", re.IGNORECASE)


class Files(Protocol):
    """The files of some folders, whose names are given with them."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of the files in a folder; none if it is not there. Raises StoreError."""

    def length(self, path: str) -> int:
        """Return the number of bytes of a file; 0 if it is gone. Raises StoreError."""

    def read_into(self, path: str, at: int, target: memoryview) -> int:
        """Fill `target` with a file's bytes from `at` on; return how many there are, 0 if the file is gone. Raises
        StoreError.
        """

    def close(self) -> None:
        """Give back what is open."""


class Place(Protocol):
    """Where folders are; executors get it from the driver."""

    def files(self) -> Files:
        """Return the files of folders as they are from now on."""

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder. Raises StoreError."""

    def is_seen(self, folder: str) -> bool:
        """Tell whether this machine has the folder."""


class LocalDisk(NamedTuple):
    """Folders of this machine."""

    def files(self) -> Files:
        """As Place.files."""
        return LocalFiles()

    def folders(self, folder: str) -> list[str]:
        """As Place.folders."""
        return [name for name in listed(folder) if os.path.isdir(f"{folder}/{name}")]

    def is_seen(self, folder: str) -> bool:
        """As Place.is_seen."""
        return os.path.isdir(folder)


class LocalFiles:
    """Files of this machine. Bytes are copied out: where a broker cuts or removes a file meanwhile they are fewer,
    never a SIGBUS, and the bytes checked are the bytes decoded.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def names(self, folder: str) -> Sequence[str]:
        """As Files.names."""
        return listed(folder)

    def length(self, path: str) -> int:
        """As Files.length."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return 0
        except OSError as e:
            raise unreadable(e, path) from None

    def read_into(self, path: str, at: int, target: memoryview) -> int:
        """As Files.read_into."""
        try:
            return os.preadv(self._descriptor(path), [target], at)
        except FileNotFoundError:
            return 0
        except OSError as e:
            raise unreadable(e, path) from None

    def _descriptor(self, path: str) -> int:
        found = self._open.get(path)
        if found is not None:
            self._open.move_to_end(path)
            return found
        opened = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if len(self._open) > _OPEN_MAX:
            os.close(self._open.popitem(last=False)[1])
        return opened

    def close(self) -> None:
        """Give the descriptors back."""
        while self._open:
            os.close(self._open.popitem()[1])


class ObjectStore(NamedTuple):
    """An object store that speaks S3. `endpoint`: "http://host:port" of another than AWS's; without keys those of the
    environment are used, on each machine.
    """

    endpoint: str = ""
    access_key: str = ""
    secret_key: str = ""

    def __repr__(self) -> str:
        return f"ObjectStore({self.endpoint!r})"

    def files(self) -> Files:
        """As Place.files."""
        return ObjectFiles(self)

    def folders(self, folder: str) -> list[str]:
        """As Place.folders."""
        return self.segments(folder).folders()

    def is_seen(self, folder: str) -> bool:
        """As Place.is_seen: whoever reads is told of one that is not there."""
        return True

    def segments(self, folder: str) -> ObjectSegments:
        """Return the segments below a folder."""
        # A forked process cannot use its parent's connections.
        return ObjectSegments(_file_system(self, machine.getpid()), folder.removeprefix(_SCHEME))


@lru_cache(maxsize=4)
def _file_system(store: ObjectStore, _process: int) -> Any:
    return object_segments(_SCHEME, *store).files


class ObjectFiles:
    """The segments of a tier in an object store, as long as they were when their folder was listed."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._folders: dict[str, tuple[ObjectSegments, dict[str, int]]] = {}
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._threads: ThreadPoolExecutor | None = None

    def names(self, folder: str) -> Sequence[str]:
        """As Files.names."""
        segments = self._store.segments(folder)
        sizes = dict(segments.sizes(""))
        self._folders[folder] = segments, sizes
        return list(sizes)

    def length(self, path: str) -> int:
        """As Files.length."""
        folder, _, name = path.rpartition("/")
        return self._folders[folder][1][name]

    def read_into(self, path: str, at: int, target: memoryview) -> int:
        """As Files.read_into."""
        content = self._near(path, at, len(target)) if len(target) < _BLOCK_BYTES else self._far(path, at, len(target))
        target[: len(content)] = content
        return len(content)

    def _near(self, path: str, at: int, count: int) -> bytes:
        first, found = at - at % _BLOCK_BYTES, b""
        for start in range(first, at + count, _BLOCK_BYTES):
            block = self._blocks.get((path, start))
            if block is None:
                block = self._blocks[path, start] = self._read(path, start, _BLOCK_BYTES)
                if len(self._blocks) > _BLOCKS_MAX:
                    self._blocks.popitem(last=False)
            found += block
            if len(block) < _BLOCK_BYTES:
                break
        return found[at - first : at - first + count]

    def _far(self, path: str, at: int, count: int) -> bytes:
        step = max(_PART_BYTES_MIN, -(-count // _AT_ONCE))
        if count <= step:
            return self._read(path, at, count)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="rocketspark-objects")
        ends = range(at, at + count, step)
        pieces = []
        for start, piece in zip(
            ends, self._threads.map(lambda start: self._read(path, start, min(step, at + count - start)), ends),
            strict=True,
        ):  # fmt: skip
            pieces.append(piece)
            if len(piece) < min(step, at + count - start):
                break  # What comes behind a hole belongs elsewhere.
        return b"".join(pieces)

    def _read(self, path: str, at: int, count: int) -> bytes:
        folder, _, name = path.rpartition("/")
        try:
            return self._folders[folder][0].read(name, at, count)
        except StoreUnwritable as e:
            if isinstance(e.__cause__, FileNotFoundError):
                return b""
            raise

    def close(self) -> None:
        """Give the threads back."""
        self._blocks.clear()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


LOCAL_DISK = LocalDisk()


def unreadable(error: OSError, path: str) -> StoreError:
    """Return the error for a file that is there but cannot be read."""
    return StoreError(f"cannot read {path}: {error.strerror or error}; check its permissions and the disk")


def listed(directory: str) -> list[str]:
    """Return the names in a directory; none if it is not there. Raises StoreError if it cannot be read."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise unreadable(e, directory) from None


def object_folder(url: str) -> str | None:
    """Return the place that an s3:// or s3a:// address names, None for another text. A Path of s3a://b/x is s3a:/b/x.
    Raises StoreError if it names no bucket.
    """
    found = _OBJECTS.match(url)
    if found is None:
        return None
    rest = "/".join(part for part in url[found.end() :].split("/") if part)
    if not rest or "@" in rest.partition("/")[0]:
        raise StoreError(f"{shown(url.rpartition('@')[2])}: s3://BUCKET/FOLDER is needed, without keys in it")
    return f"{_SCHEME}{rest}"
