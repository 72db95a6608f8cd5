"""Segments in an object store. An object cannot grow, so a segment is a folder of parts: `segment/position`, each what
one upload brought. Needs pyarrow (extra `arrow`), whose S3 client it is.

Rule: a part is there whole or not at all. Parts that an upload leaves behind its end are removed before it. A request
that failed may still be carried out at any time, so it is made again as it was before more is written.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from rocketspark.errors import ConfigError, StoreUnwritable
from rocketspark.model.text import shown

T = TypeVar("T")
# A request that hangs ends after so long, and is made once more.
CONNECT_S, REQUEST_S, ATTEMPTS = 5.0, 10.0, 2


class ObjectSegments:
    """Segments below a path of a pyarrow FileSystem."""

    def __init__(self, files: Any, root: str) -> None:
        self.files = self._files = files
        self.root = root.rstrip("/")
        # Of each segment the positions of its parts, in order, and their sizes.
        self._parts: dict[str, dict[int, int]] = {}
        # Of each segment the parts whose upload failed: by position the size, and a digest of the content.
        self._failed: dict[str, dict[int, tuple[int, bytes]]] = {}
        self._lock = threading.Lock()

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of every segment below a prefix. Raises StoreUnwritable."""
        found: dict[str, dict[int, int]] = {}
        for path, size in self._listed(f"{self.root}/{prefix}"):
            key, _, name = path.removeprefix(f"{self.root}/").rpartition("/")
            if len(name) == 20 and name.isascii() and name.isdigit():
                found.setdefault(key, {})[int(name)] = size
        for key, parts in found.items():
            with self._lock:
                self._parts[key] = dict(sorted(parts.items()))
            yield key, _end(self._parts[key])

    def _listed(self, folder: str) -> list[tuple[str, int]]:
        from pyarrow import fs

        selector = fs.FileSelector(folder.rstrip("/"), recursive=True, allow_not_found=True)
        listed = self._told("list", folder, lambda: self._files.get_file_info(selector))
        return [(info.path, info.size) for info in listed if info.type == fs.FileType.File]

    def folders(self) -> list[str]:
        """Return the names of the folders at the top. Raises StoreUnwritable."""
        from pyarrow import fs

        selector = fs.FileSelector(self.root, allow_not_found=True)
        found = self._told("list", self.root, lambda: self._files.get_file_info(selector))
        return [info.base_name for info in found if info.type == fs.FileType.Directory]

    def probe(self, key: str, size: int) -> int:
        """Return the size of a segment of which `size` bytes were found, asking for parts that a listing may lack.

        Raises StoreUnwritable.
        """
        from pyarrow import fs

        while True:
            path = self._path(key, size)
            info = self._told("look at", path, partial(self._files.get_file_info, path))
            if info.type != fs.FileType.File or not info.size:
                return size
            with self._lock:
                self._parts[key] = dict(sorted({**self._parts.get(key, {}), size: info.size}.items()))
            size += info.size

    def append(self, key: str, at: int, content: bytes) -> None:
        """Make a segment end with `content`, at least a byte, from byte `at` on. Raises StoreUnwritable."""
        parts = self._parts.get(key, {})
        if _end(parts) < at:
            raise StoreUnwritable(f"{self.root}/{key} is shorter than the {at} bytes that were written")
        end = at + len(content)
        for stale in [start for start in parts if start >= end]:
            self._delete(self._path(key, stale))
            with self._lock:
                parts = self._parts[key] = {start: size for start, size in parts.items() if start != stale}
        # A request that was given up may come late, and take the place of what is written there: as a part of its own
        # it changes nothing then. Nor is a part removed that is written again.
        failed = {start: of for start, of in self._failed.pop(key, {}).items() if start + of[0] > at}
        if failed:
            self._failed[key] = failed
        cuts = {start for start in parts if start > at}
        for start, (size, digest) in failed.items():
            if at <= start and start + size < end and _digest(content[start - at :][:size]) == digest:
                cuts |= {start, start + size}
        for start, until in pairwise(sorted({at, *cuts, end})):
            self._put_part(key, start, content[start - at : until - at])

    def _put_part(self, key: str, at: int, content: bytes) -> None:
        path = self._path(key, at)
        try:
            self._told("write", path, partial(self._write, path, content))
        except StoreUnwritable:
            self._failed.setdefault(key, {})[at] = len(content), _digest(content)
            raise
        with self._lock:
            self._parts[key] = dict(sorted({**self._parts.get(key, {}), at: len(content)}.items()))

    def read(self, key: str, at: int, count: int) -> bytes:
        """Return up to `count` bytes of a segment; fewer only at its end. Raises StoreUnwritable."""
        parts = self._parts.get(key)
        if parts is None:
            list(self.sizes(key))
            parts = self._parts.get(key, {})
        starts, found = list(parts), []
        number = bisect_right(starts, at) - 1
        while count > 0 and 0 <= number < len(starts):
            start = starts[number]
            following = starts[number + 1] if number + 1 < len(starts) else start + parts[start]
            here = min(count, min(following, start + parts[start]) - at)
            if here <= 0:
                break
            path = self._path(key, start)
            found.append(self._told("read", path, partial(self._read, path, at - start, here)))
            at, count, number = at + here, count - here, number + 1
        return b"".join(found)

    def _read(self, path: str, at: int, count: int) -> bytes:
        with self._files.open_input_file(path) as file:
            found: bytes = file.read_at(count, at)
            return found

    def remove(self, key: str) -> None:
        """Remove a segment; nothing happens if it is not there. Raises StoreUnwritable."""
        parts = [start for path, _ in self._listed(f"{self.root}/{key}") for start in [int(path.rpartition("/")[2])]]
        # From the end: whoever finds what is left sees a shorter segment.
        for start in sorted(parts, reverse=True):
            self._delete(self._path(key, start))
        with self._lock:
            self._parts.pop(key, None)

    def whole(self, key: str) -> bytes | None:
        """Return the content of a small file that `put` wrote; None if it is not there. Raises StoreUnwritable."""
        from pyarrow import fs

        path = f"{self.root}/{key}"
        info = self._told("look at", path, partial(self._files.get_file_info, path))
        if info.type != fs.FileType.File:
            return None
        return self._told("read", path, partial(self._read, path, 0, info.size))

    def put(self, key: str, content: bytes) -> None:
        """Make a small object, or replace it. Raises StoreUnwritable."""
        path = f"{self.root}/{key}"
        self._told("write", path, partial(self._write, path, content))

    def _write(self, path: str, content: bytes) -> None:
        with self._files.open_output_stream(path) as stream:
            stream.write(content)

    def _delete(self, path: str) -> None:
        """Remove an object; a request whose answer was lost may have done so before."""

        def delete() -> None:
            with suppress(FileNotFoundError):
                self._files.delete_file(path)

        self._told("remove", path, delete)

    def _path(self, key: str, at: int) -> str:
        return f"{self.root}/{key}/{at:020d}"

    def _told(self, doing: str, path: str, call: Callable[[], T]) -> T:
        """Make a call to the object store. Raises StoreUnwritable that says what failed."""
        try:
            return call()
        except Exception as e:
            # pyarrow raises OSErrors, and errors of its own.
            why = shown(str(e).splitlines()[0] if str(e) else type(e).__name__)
            raise StoreUnwritable(f"cannot {doing} {shown(path)}: {why}", retriable=True) from e


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _end(parts: dict[int, int]) -> int:
    """Return where the parts end that follow each other from 0 on; a part ends where the next begins."""
    end = 0
    for start, size in parts.items():
        if start > end:
            break
        end = start + size
    return end


def object_segments(url: str, endpoint: str, access_key: str, secret_key: str) -> ObjectSegments:
    """Open a place `s3://bucket/folder`. `endpoint`: "http://host:port" of a store other than AWS's; without keys those
    of the environment are used. Raises ConfigError.
    """
    try:
        from pyarrow import fs
    except ImportError as e:
        raise ConfigError("a tier in an object store needs pyarrow: pip install 'rocketspark[arrow]'") from e
    scheme, _, address = endpoint.rpartition("://")
    options: dict[str, Any] = {
        "connect_timeout": CONNECT_S,
        "request_timeout": REQUEST_S,
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    }
    if address:
        options |= {"endpoint_override": address, "scheme": scheme or "https", "region": "us-east-1"}
    if access_key:
        options |= {"access_key": access_key, "secret_key": secret_key}
    try:
        try:
            # A small object takes one request then, not three; pyarrow 18 and 19 do not know this.
            files = fs.S3FileSystem(allow_delayed_open=True, **options)
        except TypeError:
            files = fs.S3FileSystem(**options)
    except Exception as e:
        raise ConfigError(f"the tier in {shown(url)} cannot be opened: {shown(str(e))}") from e
    return ObjectSegments(files, url.partition("://")[2])
