"""The format of a controller's files: a line with format, version and checksum, then the body. Pure.

Rule: content that is damaged, or of another version, is refused, and never taken for an older one."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model import typed_json

T = TypeVar("T")


class _Head(msgspec.Struct):
    """The first line. `crc`: of the bytes after it."""

    format: str
    version: int
    crc: int = 0


class HeadedFormat(NamedTuple):
    """One kind of file. `cure`: what to do about a damaged one, as text for the error."""

    name: str
    version: int
    cure: str

    def encode(self, body: bytes) -> bytes:
        """Return the content of a file with this body."""
        return msgspec.json.encode(_Head(self.name, self.version, zlib.crc32(body))) + b"\n" + body

    def decode(self, content: bytes, path: str, decode_body: Callable[[bytes], T]) -> T:
        """Return what `decode_body` makes of a file's body. Raises ConfigError for a damaged or another version."""
        first, _, body = content.partition(b"\n")
        try:
            head = typed_json.decode(first, _Head)
            if head.format == self.name and head.version != self.version:
                raise ConfigError(
                    f"{path} is of version {head.version}, this RocketSpark reads version {self.version}: start the one"
                    " that wrote it"
                )
            if head.format == self.name and head.crc == zlib.crc32(body):
                return decode_body(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        raise ConfigError(f"{path} is damaged: {self.cure}")
