"""The CRC of a whole record as its last property."""

from __future__ import annotations

import zlib

import pytest

from rocketspark.protocol.message import record, record_crc


def encoded(properties: bytes) -> bytes:
    return record.encode(
        topic=b"t",
        queue_id=1,
        queue_offset=2,
        position=3,
        body=b"body",
        properties=properties,
        flag=0,
        sys_flag=0,
        born_time_ms=4,
        born_host=bytes(8),
        store_time_ms=5,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_position=0,
    )


@pytest.mark.parametrize(
    ("stored", "left"),
    [
        (b"", b""),
        (b"a\x01b\x02", b"a\x01b\x02"),
        (b"a\x01b", b"a\x01b"),
        (b"a\x01b\x02__CRC32#\x010123456789\x02", b"a\x01b\x02"),
        (b"__CRC32#\x010123456789\x02a\x01b\x02", b"a\x01b\x02"),
        (b"__CRC32#\x011\x02a\x01b\x02__CRC32#\x012", b"a\x01b\x02"),
        (b"my__CRC32#\x01stays\x02", b"my__CRC32#\x01stays\x02"),
    ],
)
def test_one_that_is_there_is_taken_away(stored: bytes, left: bytes) -> None:
    assert record_crc.without(stored) == left


@pytest.mark.parametrize("stored", [b"", b"a\x01b", b"a\x01b\x02"])
def test_a_sealed_record_is_right_until_a_byte_changes(stored: bytes) -> None:
    sealed = record_crc.sealed(encoded(record_crc.with_room(stored)))
    assert record_crc.is_right(sealed)
    decoded = record.decode(sealed)
    assert decoded.properties[: -record_crc.BYTES] == (b"a\x01b\x02" if stored else b"")
    for at in range(len(sealed)):
        if len(sealed) - record_crc.BYTES <= at < len(sealed) - 11 or at == len(sealed) - 1:
            continue  # Its name and end: without them there is none.
        torn = bytearray(sealed)
        torn[at] ^= 1
        assert not record_crc.is_right(torn), at


def test_the_digits_are_written_backwards() -> None:
    sealed = record_crc.sealed(b"x" * 40 + record_crc.with_room(b""))
    assert int(sealed[-11:-1][::-1]) == zlib.crc32(b"x" * 40) & 0x7FFFFFFF


def test_a_record_without_one_passes() -> None:
    assert record_crc.is_right(encoded(b"a\x01b\x02"))
