"""Segments in an object store. An object cannot grow, so a segment is a folder of parts, each what one upload brought:
`segment/position.number.before`. Needs pyarrow (extra `arrow`), whose S3 client it is.

Rule: a part is there whole or not at all, and no name is written twice. Numbers grow with each upload, and with each
owner of the tier, and a part names the one before it: the segment is the part of the highest number and those that it
leads to. So a request that was given up may be carried out at any time, also one of a broker that lost the tier. Parts
before that, named by their position alone, are read too.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from rocketspark.errors import ConfigError, StoreUnwritable
from rocketspark.model.text import shown

T = TypeVar("T")
# A request that hangs ends after so long, and is made once more.
CONNECT_S, REQUEST_S, ATTEMPTS = 5.0, 10.0, 2
_NAME = re.compile(r"([0-9]{20})(?:\.([0-9]{20})\.([0-9]{20}))?", re.ASCII)
# Uploads of one owner.
_UPLOADS = 1 << 32


class _Part(NamedTuple):
    """What one upload brought. `number`: 0 for one that is named by its position alone; `before`: the number of the
    part that it follows, 0 if there is none.
    """

    start: int
    size: int
    number: int = 0
    before: int = 0

    @property
    def name(self) -> str:
        numbered = f".{self.number:020d}.{self.before:020d}" if self.number else ""
        return f"{self.start:020d}{numbered}"

    @property
    def end(self) -> int:
        return self.start + self.size


_start = attrgetter("start")


class ObjectSegments:
    """Segments below a path of a pyarrow FileSystem."""

    def __init__(self, files: Any, root: str) -> None:
        self.files = self._files = files
        self.root = root.rstrip("/")
        # Of each segment the parts that it is, in order: each ends where the next one begins.
        self._parts: dict[str, Sequence[_Part]] = {}
        # The highest number that was written or found; whether an owner of the tier began with a number of its own.
        self._number = 0
        self._is_owned = False
        self._lock = threading.Lock()

    def taken(self, number: int) -> None:
        """Write as an owner of the tier from now on. `number`: of the owner, higher than those of all before."""
        self._number = max(self._number, number * _UPLOADS)
        self._is_owned = True

    def alone(self, key: str, *, is_first: bool = False) -> AbstractContextManager[bool]:
        """Nothing: names by owner keep what others write apart."""
        return nullcontext(False)

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of every segment below a prefix. Raises StoreUnwritable."""
        found: dict[str, list[_Part]] = {}
        for path, size in self._listed(f"{self.root}/{prefix}"):
            key, _, name = path.removeprefix(f"{self.root}/").rpartition("/")
            if (part := _part_of(name, size)) is not None:
                found.setdefault(key, []).append(part)
                self._number = max(self._number, part.number)
        for key, parts in found.items():
            yield key, self._take(key, parts)

    def _take(self, key: str, found: list[_Part]) -> int:
        """Note of which parts a segment is; return where it ends."""
        parts = _row_of(found)
        with self._lock:
            self._parts[key] = parts
        return parts[-1].end if parts else 0

    def _found(self, key: str) -> list[_Part]:
        """List all parts in a segment's folder, also those that are of it no more."""
        listed = [(path.rpartition("/")[2], size) for path, size in self._listed(f"{self.root}/{key}")]
        return [part for name, size in listed if (part := _part_of(name, size)) is not None]

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
        """Return the size of a segment of which `size` bytes were found, asking again, as a listing may be behind.

        Raises StoreUnwritable.
        """
        return max(self._take(key, self._found(key)), size)

    def append(self, key: str, at: int, content: bytes) -> None:
        """Make a segment end with `content`, at least a byte, from byte `at` on. Raises StoreUnwritable."""
        parts = self._parts.get(key, ())
        kept = parts[: bisect_left(parts, at, key=_start)]
        if (kept[-1].end if kept else 0) < at:
            raise StoreUnwritable(f"{self.root}/{key} is shorter than the {at} bytes that were written")
        self._number += 1
        part = _Part(at, len(content), self._number, kept[-1].number if kept else 0)
        path = self._path(key, part)
        self._told("write", path, partial(self._write, path, content))
        with self._lock:
            self._parts[key] = [*kept, part]

    def read(self, key: str, at: int, count: int) -> bytes:
        """Return up to `count` bytes of a segment; fewer only at its end. Raises StoreUnwritable."""
        parts = self._parts.get(key)
        if parts is None:
            self._take(key, self._found(key))
            parts = self._parts[key]
        found: list[bytes] = []
        number = bisect_right(parts, at, key=_start) - 1
        while count > 0 and 0 <= number < len(parts):
            part = parts[number]
            end = parts[number + 1].start if number + 1 < len(parts) else part.end
            here = min(count, end - at)
            if here <= 0:
                break
            path = self._path(key, part)
            found.append(self._told("read", path, partial(self._read, path, at - part.start, here)))
            at, count, number = at + here, count - here, number + 1
        return b"".join(found)

    def _read(self, path: str, at: int, count: int) -> bytes:
        with self._files.open_input_file(path) as file:
            found: bytes = file.read_at(count, at)
            return found

    def remove(self, key: str) -> None:
        """Remove a segment; nothing happens if it is not there. Raises StoreUnwritable."""
        # From the end: whoever finds what is left sees a shorter segment.
        for part in sorted(self._found(key), reverse=True):
            # A later owner of the tier has begun the segment anew, or went on with it: that is not this one's.
            if part.number <= self._number or not self._is_owned:
                self._delete(self._path(key, part))
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

    def _path(self, key: str, part: _Part) -> str:
        return f"{self.root}/{key}/{part.name}"

    def _told(self, doing: str, path: str, call: Callable[[], T]) -> T:
        """Make a call to the object store. Raises StoreUnwritable that says what failed."""
        try:
            return call()
        except Exception as e:
            # pyarrow raises OSErrors, and errors of its own.
            why = shown(str(e).splitlines()[0] if str(e) else type(e).__name__)
            raise StoreUnwritable(f"cannot {doing} {shown(path)}: {why}", retriable=True) from e


def _part_of(name: str, size: int) -> _Part | None:
    """Return the part that an object's name tells; None if it is another object."""
    found = _NAME.fullmatch(name)
    return None if found is None else _Part(int(found[1]), size, int(found[2] or 0), int(found[3] or 0))


def _row_of(found: Iterable[_Part]) -> list[_Part]:
    """Return the parts that a segment is, of all that lie in its folder: those that the one of the highest number leads
    to, or the next one if any of these is missing.
    """
    numbered = {part.number: part for part in found if part.number}
    old = [part for part in found if not part.number]
    for number in sorted(numbered, reverse=True):
        row = [numbered[number]]
        while (before := numbered.get(row[-1].before)) is not None and before.start < row[-1].start <= before.end:
            row.append(before)
        first = row[-1]
        old_row = _old_row_of(part for part in old if part.start < first.start)
        if not first.before and (old_row[-1].end if old_row else 0) >= first.start:
            return old_row + row[::-1]
    return _old_row_of(old)


def _old_row_of(found: Iterable[_Part]) -> list[_Part]:
    """Return the parts named by their positions that follow each other from 0 on."""
    row: list[_Part] = []
    for part in sorted(found):
        if part.start > (row[-1].end if row else 0):
            break
        row.append(part)
    return row


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
