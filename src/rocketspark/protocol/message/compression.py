"""Compressed message bodies: RocketMQ's three kinds, told apart by the record's sysFlag."""

from __future__ import annotations

import logging
import os
import zlib
from typing import Literal

import lz4.frame
import zstandard

from rocketspark.errors import RecordError
from rocketspark.model.text import INT_MAX, shown, whole_number
from rocketspark.protocol.message import sysflags

log = logging.getLogger("rocketspark")

Kind = Literal["zlib", "lz4", "zstd"]
KINDS: dict[str, int] = {
    "zlib": sysflags.COMPRESSION_ZLIB,
    "lz4": sysflags.COMPRESSION_LZ4,
    "zstd": sysflags.COMPRESSION_ZSTD,
}
# The environment sets what one body may inflate to, for this process: also for Spark's (spark.executorEnv).
LIMIT_NAME = "ROCKETMQ_INFLATED_BYTES_MAX"


def limit_of(text: str | None) -> int:
    """Return the limit that the environment sets, 64 MiB by default; a text that is no number from 1 on is passed over,
    with a warning.
    """
    number = whole_number(text, low=1, high=INT_MAX) if text else None
    if text and number is None:
        log.warning("%s=%s is no number of bytes: 64 MiB stay the limit", LIMIT_NAME, shown(text))
    return number or 64 << 20


INFLATED_BYTES_MAX = limit_of(os.environ.get(LIMIT_NAME))
# Beyond it the window alone would be larger than the limit is by default.
_ZSTD_WINDOW_BYTES_MAX = 64 << 20
_ZSTD_SLICE_BYTES = 1024


def deflate(body: bytes, kind: str = "zlib", level: int = 5) -> tuple[bytes, int]:
    """Return (compressed body, sysFlag bits to set). `kind`: zlib, lz4 or zstd."""
    if kind == "zlib":
        packed = zlib.compress(body, level)
    elif kind == "lz4":
        # Java's LZ4 reader takes independent blocks only; it drops a message whose blocks are linked.
        packed = lz4.frame.compress(body, block_linked=False)
    elif kind == "zstd":
        packed = zstandard.ZstdCompressor(level=level).compress(body)
    else:
        raise ValueError(f"compression {kind!r} is not one of {', '.join(KINDS)}")
    return packed, sysflags.COMPRESSED | KINDS[kind]


def inflate(body: bytes, sys_flag: int, bytes_max: int | None = None) -> bytes:
    """Return the body as sent. Raises RecordError if it does not inflate, is cut off, or is over the limit, which is
    lower with `bytes_max`.
    """
    kind = sys_flag & sysflags.COMPRESSION_MASK
    most = INFLATED_BYTES_MAX if bytes_max is None else min(bytes_max, INFLATED_BYTES_MAX)
    try:
        if kind == sysflags.COMPRESSION_LZ4:
            lz4_inflater = lz4.frame.LZ4FrameDecompressor()
            inflated = bytes(lz4_inflater.decompress(body, most + 1))
            whole = lz4_inflater.eof
        elif kind == sysflags.COMPRESSION_ZSTD:
            inflated, whole = _inflate_zstd(body, most)
        else:
            # Of either form: clients of the gRPC protocol compress with gzip and set the same flag.
            inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
            inflated = inflater.decompress(body, most + 1)
            whole = inflater.eof
    except (zlib.error, RuntimeError, EOFError, zstandard.ZstdError) as e:
        raise RecordError(f"compressed body (sysFlag {sys_flag:#x}) does not inflate: {e}") from e
    if len(inflated) > most:
        raise RecordError(
            f"compressed body (sysFlag {sys_flag:#x}) inflates to more than {most} bytes ({LIMIT_NAME} sets the limit)"
        )
    if not whole:
        raise RecordError(f"compressed body (sysFlag {sys_flag:#x}) does not inflate: it is cut off")
    return inflated


def _inflate_zstd(body: bytes, most: int) -> tuple[bytes, bool]:
    """Return (the inflated body, whether the frame is complete), stopping soon after the limit."""
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).decompressobj()
    # The decompressor takes no bound for its output, so the input is fed in small slices.
    parts: list[bytes] = []
    size = at = 0
    while at < len(body) and size <= most and not inflater.eof:
        parts.append(inflater.decompress(body[at : at + _ZSTD_SLICE_BYTES]))
        size += len(parts[-1])
        at += _ZSTD_SLICE_BYTES
    return (parts[0] if len(parts) == 1 else b"".join(parts)), inflater.eof
