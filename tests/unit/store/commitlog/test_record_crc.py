"""Records with a CRC of their own: written with each append, compared by a start that is to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketspark.errors import MessageIllegal
from rocketspark.protocol.message import properties as props
from rocketspark.protocol.message import record, record_crc
from rocketspark.store import Store
from rocketspark.store.commitlog.append_message import BatchMessage

pytestmark = pytest.mark.shows("a CRC of the whole record (`__CRC32#`)")

NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")
ON = {"append_record_crc": True, "verify_record_crc": True}


def test_official_ones_are_right(golden: Callable[[str], Any]) -> None:
    g = golden("store_ext")
    g.settings.verify_record_crc = True
    store = Store(g.settings)
    store.open()
    records = list(store.iterate(0))
    assert len(records) == len(g.manifest["messages"]) > 100
    for r in records:
        stored = store.record_at(r.position)
        assert stored is not None
        assert r.properties[-20:].startswith(b"__CRC32#\x01")
        assert record_crc.is_right(stored)
        torn = bytearray(stored)
        torn[-25] ^= 1  # A property's byte, which no other CRC covers.
        assert not record_crc.is_right(torn)
    store.close()


def test_every_way_to_append_writes_it(make_store: Any, send: Any) -> None:
    store = make_store(**ON)
    send(store, "t", 0, b"plain", tag="A", keys="k")
    send(store, "t" * 200, 0, b"long topic")
    send(store, "t", 0, b"half", sys_flag=4)
    send(store, "t", 0, b"from IPv6", born_host=bytes(20))
    stale = b"__CRC32#\x010000000000\x02TAGS\x01A"
    store.append(b"t", 0, b"again", stale, 65, None, None, b"A", NOW_MS, 0, 0, NOW_MS, BORN)
    batch = [BatchMessage(b"b%d" % n, b"K\x01v\x02") for n in range(3)]
    store.append_batch(b"t", 1, batch, NOW_MS, 0, NOW_MS, BORN)
    found = list(store.iterate(0))
    assert len(found) == 8
    for r in found:
        stored = store.record_at(r.position)
        assert stored is not None
        assert record_crc.is_right(stored)
        assert r.properties.count(b"__CRC32#") == 1
        assert r.properties[-20:-11] == b"__CRC32#\x01"
    assert found[4].properties[:-20] == b"TAGS\x01A\x02"
    assert record.to_message(found[0]).tag == "A"
    with pytest.raises(MessageIllegal, match="32767"):
        store.append(b"t", 0, b"", b"p\x01" + b"x" * 32750, 0, None, None, None, NOW_MS, 0, 0, NOW_MS, BORN)
    with pytest.raises(MessageIllegal, match="32767"):
        store.append_batch(b"t", 1, [BatchMessage(b"", b"p\x01" + b"x" * 32750)], NOW_MS, 0, NOW_MS, BORN)
    assert len(list(store.iterate(0))) == 8


@pytest.mark.parametrize(("verify", "left"), [(True, 3), (False, 5)])
def test_a_start_ends_the_log_at_a_record_that_is_not_right(
    verify: bool, left: int, make_store: Any, send: Any
) -> None:
    store = make_store(append_record_crc=True)
    places = [send(store, "t", 0, b"body", tag="A", keys=f"key{n}") for n in range(5)]
    store._closed = True
    store._give_back()
    root = Path(store.settings.root)
    path = root / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    at = content.index(b"key3", places[3][0])
    content[at + 3] = ord("9")
    path.write_bytes(content)
    again = make_store(root, append_record_crc=True, verify_record_crc=verify)
    assert again.written_position == places[left - 1][2]
    assert again.queue_range("t", 0) == (0, left)


def test_records_without_one_stay(make_store: Any, send: Any) -> None:
    store = make_store()
    places = [send(store, "t", 0, b"body", tag="A") for _ in range(5)]
    store._closed = True
    store._give_back()
    again = make_store(Path(store.settings.root), **ON)
    assert again.queue_range("t", 0) == (0, 5)
    send(again, "t", 0, b"with")
    assert [props.find(r.properties, b"__CRC32#") is not None for r in again.iterate(0)] == [False] * 5 + [True]
    assert places[-1][2] < again.written_position
