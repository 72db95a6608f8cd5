"""Log records: every field both ways, all golden records, and no input that brings anything but RecordError."""

from __future__ import annotations

import json
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import RecordError
from rocketspark.protocol.message import batch, compression, record, record_layout, sysflags

VECTORS = Path(__file__).resolve().parents[3] / "vectors"
V4 = bytes.fromhex("7f00000100002a9f")
V6 = bytes.fromhex("fe80000000000000000000000000000100002a9f")

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
HOSTS = st.sampled_from([V4, V6])
FIELDS = st.fixed_dictionaries(
    {
        "topic": st.binary(min_size=1, max_size=300),
        "queue_id": I32,
        "queue_offset": I64,
        "position": I64,
        "body": st.binary(max_size=300),
        "properties": st.binary(max_size=300),
        "flag": I32,
        "sys_flag": st.integers(0, 0x7FF),
        "born_time_ms": I64,
        "born_host": HOSTS,
        "store_time_ms": I64,
        "store_host": HOSTS,
        "reconsume_times": I32,
        "prepared_position": I64,
    }
)

# One record taken apart by hand: IPv4, version 1.
PLAIN = {
    "topic": b"Top", "queue_id": 2, "queue_offset": 5, "position": 0x100, "body": b"hi", "properties": b"A\x01b\x02",
    "flag": 9, "sys_flag": 0, "born_time_ms": 0x0102030405060708, "born_host": V4, "store_time_ms": 0x1112131415161718,
    "store_host": V4, "reconsume_times": 3, "prepared_position": 0x2122232425262728,
}  # fmt: skip
PLAIN_HEX = (
    "00000064 daa320a7"
    + f"{zlib.crc32(b'hi') & 0x7FFFFFFF:08x}"
    + "00000002 00000009 0000000000000005 0000000000000100"
    "00000000 0102030405060708 7f00000100002a9f 1112131415161718 7f00000100002a9f 00000003 2122232425262728"
    "00000002 6869 03 546f70 0004 41016202"
)


def test_a_record_byte_by_byte() -> None:
    encoded = bytes.fromhex(PLAIN_HEX)
    assert record.encode(**PLAIN) == encoded
    decoded = record.decode(encoded)
    assert {name: getattr(decoded, name) for name in PLAIN} == PLAIN
    assert (decoded.size, decoded.version, decoded.crc) == (100, 1, zlib.crc32(b"hi") & 0x7FFFFFFF)
    for cut in range(len(encoded)):
        with pytest.raises(RecordError):
            record.decode(encoded[:cut])


@given(fields=FIELDS, before=st.binary(max_size=20), after=st.binary(max_size=20))
def test_every_field_comes_back(fields: dict[str, Any], before: bytes, after: bytes) -> None:
    encoded = record.encode(**fields)
    decoded = record.decode(before + encoded + after, len(before))
    wanted = dict(fields)
    wanted["sys_flag"] &= ~(sysflags.BORN_HOST_V6 | sysflags.STORE_HOST_V6)
    wanted["sys_flag"] |= sysflags.BORN_HOST_V6 if fields["born_host"] is V6 else 0
    wanted["sys_flag"] |= sysflags.STORE_HOST_V6 if fields["store_host"] is V6 else 0
    assert {name: getattr(decoded, name) for name in wanted} == wanted
    assert decoded.size == len(encoded)
    assert decoded.version == (1 if len(fields["topic"]) <= 127 else 2)
    assert decoded.size == record_layout.record_bytes(
        len(fields["body"]), len(fields["topic"]), len(fields["properties"]), decoded.sys_flag
    )


@given(fields=FIELDS, at=st.integers(0, 2000), junk=st.binary(min_size=1, max_size=30))
def test_damage_is_an_error_or_a_record_never_anything_else(fields: dict[str, Any], at: int, junk: bytes) -> None:
    encoded = bytearray(record.encode(**fields))
    at %= len(encoded)
    encoded[at : at + len(junk)] = junk
    try:
        decoded = record.decode(encoded)
    except RecordError:
        return
    assert decoded.size <= len(encoded)
    try:
        record.to_message(decoded, "b")
    except RecordError:
        assert decoded.sys_flag & sysflags.COMPRESSED


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_or_read(junk: bytes) -> None:
    for found in (record.decode_all, record.decode_messages):
        try:
            list(found(junk))
        except RecordError:
            pass
    with pytest.raises(RecordError):
        record.decode(bytes.fromhex("00000058daa320a7") + bytes(80) + junk[:50])


def test_a_wrong_crc_is_told_unless_it_is_not_asked_for() -> None:
    encoded = bytearray.fromhex(PLAIN_HEX)
    encoded[88] ^= 1
    with pytest.raises(RecordError, match="CRC"):
        record.decode(encoded)
    assert record.decode(encoded, check_crc=False).body == b"ii"


@pytest.mark.parametrize("store", ["store", "store_ext"])
def test_golden_logs_are_reproduced_byte_for_byte(store: str) -> None:
    folder = VECTORS / "store"
    manifest = json.loads((folder / f"manifest{'_store_ext' * (store == 'store_ext')}.json").read_text())
    with tarfile.open(folder / f"{store}.tar.gz") as tar:
        names = sorted(n for n in tar.getnames() if "/commitlog/" in n)
        log = b"".join(tar.extractfile(n).read() for n in names)  # type: ignore[union-attr]
    assert len(manifest["messages"]) > 100
    for message in manifest["messages"]:
        at = message["commitLogOffset"]
        found = record.decode(log, at)
        assert (found.size, found.position, found.crc) == (message["size"], at, message["bodyCRC"])
        fields = {f: getattr(found, f) for f in PLAIN}
        assert record.encode(**fields) == log[at : at + found.size]


def inner_batch() -> bytes:
    items = [batch.BatchItem(i, b"m%d" % i, b"UNIQ_KEY\x01U%d\x02TAGS\x01T\x02" % i) for i in range(3)]
    return record.encode(
        **{**PLAIN, "position": 7, "body": batch.encode(items), "sys_flag": 0xC0,
           "properties": b"INNER_NUM\x013\x02INNER_BASE\x0140\x02"}
    )  # fmt: skip


def test_inner_batches_are_unwrapped() -> None:
    messages = record.decode_messages(inner_batch() + bytes.fromhex(PLAIN_HEX), "broker")
    assert [(m.body, m.queue_offset, m.flag, m.message_id, m.tag) for m in messages[:3]] == [
        (b"m%d" % i, 40 + i, i, f"U{i}", "T") for i in range(3)
    ]
    assert messages[3].body == b"hi"
    assert {m.broker_name for m in messages} == {"broker"}


@given(at=st.integers(0, 300), value=st.integers(0, 255))
def test_a_damaged_inner_batch_is_an_error_at_most(at: int, value: int) -> None:
    encoded = bytearray(inner_batch())
    encoded[at % len(encoded)] = value
    try:
        record.decode_messages(encoded)
    except RecordError:
        pass


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_compressed_bodies_are_inflated_or_refused(kind: str) -> None:
    packed, bits = compression.deflate(b"golden " * 300, kind)
    good = record.encode(**{**PLAIN, "body": packed, "sys_flag": bits})
    assert record.decode_messages(good)[0].body == b"golden " * 300
    bad = record.encode(**{**PLAIN, "body": b"\xff" + packed[1:], "sys_flag": bits})
    with pytest.raises(RecordError):
        record.decode_messages(bad)
