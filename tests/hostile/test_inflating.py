"""Bodies that inflate to more than memory holds, or whose headers lie about it: an error, and little memory."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import lz4.frame
import msgspec
import pytest
import zstandard

from rocketspark.errors import RecordError, RocketSparkError
from rocketspark.protocol.message import compression, sysflags
from rocketspark.spark.exactly_once import commit_records

pytestmark = pytest.mark.shows("what a body may inflate to")

SMALL = 1 << 20
BOMB = bytes(64 << 20)


def flags(kind: str) -> int:
    return sysflags.COMPRESSED | compression.KINDS[kind]


def lying_lz4() -> bytes:
    """A frame whose header states 2^60 bytes of content."""
    packed = bytearray(lz4.frame.compress(b"x" * 1000, store_size=True, block_linked=False))
    packed[6:14] = struct.pack("<Q", 1 << 60)
    return bytes(packed)


def lying_zstd(size: int) -> bytes:
    """A frame of one segment whose header states so many bytes, so that its window is as large."""
    return b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", size) + b"\x09\x00\x00x"


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_bomb_is_an_error_that_names_the_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, flag = compression.deflate(BOMB, kind)
    monkeypatch.setattr(compression, "INFLATED_BYTES_MAX", SMALL)
    with pytest.raises(RecordError, match=f"inflates to more than {SMALL} bytes .ROCKETMQ_INFLATED_BYTES_MAX"):
        compression.inflate(packed, flag)


@pytest.mark.parametrize("kind", ["zlib", "lz4"])
def test_a_bomb_takes_little_more_memory_than_the_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, flag = compression.deflate(BOMB, kind)
    monkeypatch.setattr(compression, "INFLATED_BYTES_MAX", SMALL)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError):
            compression.inflate(packed, flag)
        assert tracemalloc.get_traced_memory()[1] < 6 * SMALL
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "packed"),
    [
        ("lz4", lying_lz4()),
        ("zstd", lying_zstd(1 << 60)),
        ("zstd", lying_zstd(65 << 20)),
        ("zstd", zstandard.ZstdCompressor().compress(b"x" * 1000)[:-3]),
        ("zlib", zlib.compress(b"x" * 1000)[:-3]),
        ("zlib", b"\x78\x9c" + b"\xff" * 100),
    ],
    ids=["lz4 size", "zstd size", "zstd window", "zstd cut", "zlib cut", "zlib nonsense"],
)
def test_headers_that_lie_and_streams_that_end_early(kind: str, packed: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match="does not inflate"):
            compression.inflate(packed, flags(kind))
        # What lz4 states is reserved, up to the limit.
        allowed = compression.INFLATED_BYTES_MAX if kind == "lz4" else 0
        assert tracemalloc.get_traced_memory()[1] < allowed + 2 * SMALL
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("text", "limit"), [("1000", 1000), (None, 64 << 20), ("", 64 << 20)])
def test_the_environment_sets_the_limit(text: str | None, limit: int, caplog: pytest.LogCaptureFixture) -> None:
    assert compression.limit_of(text) == limit
    assert not caplog.records


@pytest.mark.parametrize("text", ["0", "-1", "64M", "²", "9" * 5000])
def test_a_limit_that_is_no_number_is_said(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert compression.limit_of(text) == 64 << 20
    assert len(caplog.records) == 1


def test_a_manifest_of_the_commit_topic() -> None:
    head = commit_records.HandleHead("a", 0, 3, "q", 0, False, ())
    packed = msgspec.json.encode(head)
    body = len(packed).to_bytes(4, "big") + packed + zlib.compress(BOMB)
    tracemalloc.start()
    try:
        with pytest.raises(RocketSparkError, match="no manifest of ours: 61 bytes for 3 rows"):
            commit_records.decode_manifest(body)
        assert tracemalloc.get_traced_memory()[1] < SMALL
    finally:
        tracemalloc.stop()
