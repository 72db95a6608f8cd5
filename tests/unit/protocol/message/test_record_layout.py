"""The table of a record's fields agrees with the published one and with the official broker's records."""

from __future__ import annotations

import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.protocol.message import record, record_layout, sysflags
from rocketspark.protocol.message.message_ids import unpack_host
from rocketspark.protocol.message.record_layout import AT, FIELDS, FIXED, PLACES

pytestmark = pytest.mark.shows(
    "one record: one table of fields from which all readers take their offsets; one function for queue and index"
)

VECTORS = Path(__file__).resolve().parents[3] / "vectors" / "store"

# Name, first byte and width of each field where both hosts are IPv4.
PUBLISHED = [
    ("size", 0, 4), ("magic", 4, 4), ("crc", 8, 4), ("queue_id", 12, 4), ("flag", 16, 4), ("queue_offset", 20, 8),
    ("position", 28, 8), ("sys_flag", 36, 4), ("born_time_ms", 40, 8), ("born_host", 48, 8), ("store_time_ms", 56, 8),
    ("store_host", 64, 8), ("reconsume_times", 72, 4), ("prepared_position", 76, 8), ("body_bytes", 84, 4),
]  # fmt: skip


def test_the_table_is_the_published_layout() -> None:
    assert [(name, p.at, np.dtype(p.kind).itemsize) for name, p in PLACES.items()] == PUBLISHED
    # What `decode` makes: the fixed part but for the magic, which gives the version, then what has a length.
    assert record.Record._fields == ("size", "version", *list(AT)[2:-1], "body", "topic", "properties")
    v6 = sysflags.BORN_HOST_V6 | sysflags.STORE_HOST_V6
    assert {hosts: fixed.size for hosts, fixed in FIXED.items()} == {0: 88, 0x10: 100, 0x20: 100, v6: 112}
    assert [place.hosts for place in PLACES.values()] == [0] * 10 + [0x10] * 2 + [v6] * 3
    assert all(field.meaning for field in FIELDS)


@pytest.mark.parametrize("store", ["store", "store_ext"])
def test_each_field_stands_where_the_official_broker_put_it(store: str) -> None:
    manifest = json.loads((VECTORS / f"manifest{'_store_ext' * (store == 'store_ext')}.json").read_text())
    with tarfile.open(VECTORS / f"{store}.tar.gz") as tar:
        names = sorted(n for n in tar.getnames() if "/commitlog/" in n)
        log = b"".join(tar.extractfile(n).read() for n in names)  # type: ignore[union-attr]
    named = {
        "size": "size", "crc": "bodyCRC", "queue_id": "queueId", "flag": "flag", "queue_offset": "queueOffset",
        "position": "commitLogOffset", "sys_flag": "sysFlag", "born_time_ms": "bornTimestamp",
        "store_time_ms": "storeTimestamp", "reconsume_times": "reconsumeTimes",
        "prepared_position": "preparedTransactionOffset", "body_bytes": "storedBodyLength",
    }  # fmt: skip
    for message in manifest["messages"]:
        stored = log[message["commitLogOffset"] :][: message["size"]]
        hosts = message["sysFlag"] & record_layout.HOST_FLAGS
        for field, key in named.items():
            (found,) = record_layout.only(field, hosts=hosts).unpack_from(stored)
            assert found == message[key], field
            place = PLACES[field]
            at = place.at + int(record_layout.v6_bytes(np.array([message["sysFlag"]]), place.hosts))
            assert int.from_bytes(stored[at : at + np.dtype(place.kind).itemsize], "big", signed=True) == found
        for field, key in (("born_host", "bornHost"), ("store_host", "storeHost")):
            assert unpack_host(record_layout.only(field, hosts=hosts).unpack_from(stored)[0]) == message[key]
        assert record_layout.store_time_of(stored) == message["storeTimestamp"]
        assert record_layout.sys_flag_of(stored) == message["sysFlag"]
        topic = record_layout.topic_field(message["topic"].encode())
        at = record_layout.topic_at(stored)
        assert stored[at : at + len(topic)] == topic
        assert record_layout.begins(log, message["commitLogOffset"], message["commitLogOffset"])


def test_fields_are_unpacked_in_the_tables_order_alone() -> None:
    with pytest.raises(AssertionError):
        record_layout.only("magic", "size")
    assert record_layout.only("size", "magic").format == ">ii"
    assert record_layout.head_type(*AT).itemsize == 88


def test_a_blank_is_told_from_a_record() -> None:
    view = memoryview(bytearray(40))
    record_layout.write_blank(view, 8, 32)
    assert bytes(view[8:16]) == struct.pack(">ii", 32, -875286124)
    assert record_layout.is_blank(view, 8, 32)
    assert not record_layout.is_blank(view, 8, 31)
    assert not record_layout.is_blank(view, 0, 40)
    assert not record_layout.is_blank(view, 36, 4)


@given(before=st.binary(max_size=40), junk=st.binary(max_size=40))
def test_a_record_is_found_by_its_magic_and_its_own_place(before: bytes, junk: bytes) -> None:
    base = 7000
    plain = {"topic": b"t", "queue_id": 0, "queue_offset": 0, "properties": b""}
    elsewhere = record.encode(**plain, position=3, body=junk)  # type: ignore[arg-type]
    at = len(before) + len(elsewhere)
    data = before + elsewhere + record.encode(**plain, position=base + at, body=b"x") + b"\xda\xa3"  # type: ignore[arg-type]
    assert record_layout.find_begin(data, 0, base) == at
    assert record_layout.find_begin(data, at, base) == at
    assert record_layout.find_begin(data, at + 1, base) == -1
    assert record_layout.find_begin(data, 0, base, at) == -1
