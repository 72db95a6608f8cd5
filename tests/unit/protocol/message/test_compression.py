"""Compressed bodies: RocketMQ's own inflate to the source, ours too, and what does not inflate is a RecordError."""

from __future__ import annotations

import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.protocol.golden import hashes

from rocketspark.errors import RecordError
from rocketspark.protocol.message import compression, sysflags
from rocketspark.protocol.message.compression import deflate, inflate

SOURCE = (b"golden " * 300)[:2000]
KINDS = {"LZ4": "lz4", "ZSTD": "zstd", "ZLIB": "zlib"}


@pytest.mark.parametrize("row", hashes()["compression"], ids=lambda row: row["type"])
def test_bodies_that_rocketmq_compressed(row: dict[str, object]) -> None:
    bits = int(str(row["sys_flag_bits"]))
    assert inflate(bytes.fromhex(str(row["hex"])), bits | sysflags.COMPRESSED) == SOURCE
    packed, flag = deflate(SOURCE, KINDS[str(row["type"])])
    assert flag == bits | sysflags.COMPRESSED
    assert inflate(packed, flag) == SOURCE
    assert len(packed) < 100


def test_no_kind_is_zlib_as_old_clients_send_it() -> None:
    assert inflate(zlib.compress(SOURCE), sysflags.COMPRESSED) == SOURCE


@given(st.binary(max_size=300), st.sampled_from(sorted(compression.KINDS)))
def test_any_body_comes_back(body: bytes, kind: str) -> None:
    packed, flag = deflate(body, kind)
    assert inflate(packed, flag) == body


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="'snappy' is not one of zlib, lz4, zstd"):
        deflate(b"x", "snappy")


@settings(max_examples=200)
@given(st.binary(max_size=60), st.sampled_from([0, 0x100, 0x200, 0x300, 0x400]))
def test_any_bytes_inflate_or_are_a_record_error(body: bytes, kind: int) -> None:
    try:
        inflate(body, kind | sysflags.COMPRESSED)
    except RecordError:
        pass


@pytest.mark.parametrize("kind", sorted(compression.KINDS))
def test_a_body_that_is_cut_off_is_a_record_error(kind: str) -> None:
    packed, flag = deflate(bytes(range(256)) * 20, kind)
    with pytest.raises(RecordError):
        inflate(packed[:-8], flag)


ZEROS = bytes(compression.INFLATED_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("pack", "flag"),
    [(zlib.compress, 0x301), (lz4.frame.compress, 0x101), (zstandard.ZstdCompressor().compress, 0x201)],
    ids=["zlib", "lz4", "zstd"],
)
def test_a_body_that_would_fill_the_memory_is_a_record_error(pack: object, flag: int) -> None:
    packed = pack(ZEROS)  # type: ignore[operator]
    assert len(packed) < 1 << 20
    with pytest.raises(RecordError, match="inflate"):
        inflate(packed, flag)
