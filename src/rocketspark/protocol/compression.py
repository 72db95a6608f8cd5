"""Compressed message bodies: RocketMQ's three kinds, told apart by the record's sysFlag."""

from __future__ import annotations

import zlib

import lz4.frame
import zstandard

from rocketspark.errors import RecordError
from rocketspark.protocol import sysflags

KINDS = {
    "zlib": sysflags.COMPRESSION_ZLIB,
    "lz4": sysflags.COMPRESSION_LZ4,
    "zstd": sysflags.COMPRESSION_ZSTD,
}
INFLATED_BYTES_MAX = 64 << 20


def deflate(body: bytes, kind: str = "zlib", level: int = 5) -> tuple[bytes, int]:
    """(compressed body, sysFlag bits to set). `kind`: zlib, lz4 or zstd."""
    if kind == "zlib":
        packed = zlib.compress(body, level)
    elif kind == "lz4":
        packed = lz4.frame.compress(body)
    elif kind == "zstd":
        packed = zstandard.ZstdCompressor(level=level).compress(body)
    else:
        raise ValueError(f"compression {kind!r} is not one of {', '.join(KINDS)}")
    return packed, sysflags.COMPRESSED | KINDS[kind]


def inflate(body: bytes, sys_flag: int) -> bytes:
    """The body as sent. Raises RecordError if it does not inflate or is over 64 MiB."""
    kind = sys_flag & sysflags.COMPRESSION_MASK
    try:
        if kind == sysflags.COMPRESSION_LZ4:
            return bytes(lz4.frame.decompress(body))
        if kind == sysflags.COMPRESSION_ZSTD:
            return zstandard.ZstdDecompressor().decompressobj().decompress(body)
        inflater = zlib.decompressobj()
        inflated = inflater.decompress(body, INFLATED_BYTES_MAX)
        if inflater.unconsumed_tail:
            raise RecordError(f"body inflates to more than {INFLATED_BYTES_MAX} bytes")
        return inflated
    except (zlib.error, RuntimeError, zstandard.ZstdError) as e:
        raise RecordError(f"compressed body (sysFlag {sys_flag:#x}) does not inflate: {e}") from e
