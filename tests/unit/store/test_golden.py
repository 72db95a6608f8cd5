"""Stores written by the official broker: all read, and the same bytes written from the same messages."""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketspark.protocol.message import properties as props
from rocketspark.protocol.message import record
from rocketspark.store import GetStatus, Store
from rocketspark.store.settings import ManualClock

Golden = Any  # root, manifest, settings: see conftest
BATCH_QUEUE_TOPIC = "S_Bcq"


def opened(golden: Golden) -> Store:
    store = Store(golden.settings)
    store.open()
    return store


def by_queue(messages: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    queues = defaultdict(list)
    for message in messages:
        if message["topic"] != BATCH_QUEUE_TOPIC:
            queues[message["topic"], message["queueId"]].append(message)
    return queues


def read_all(store: Store, topic: str, queue_id: int) -> list[record.Record]:
    found = []
    offset = 0
    while (read := store.read(topic, queue_id, offset, 32, 65536)).status is GetStatus.FOUND:
        here = [r for piece in read.records for r in record.decode_all(piece)]
        assert len(here) == read.count
        found += here
        offset = read.next_offset
    assert read.status in (GetStatus.AT_END, GetStatus.EMPTY)
    return found


def assert_same(found: record.Record, expected: dict[str, Any]) -> None:
    message = record.to_message(found)
    assert {
        "topic": found.topic.decode(),
        "queueId": found.queue_id,
        "queueOffset": found.queue_offset,
        "commitLogOffset": found.position,
        "size": found.size,
        "version": found.version,
        "flag": found.flag,
        "sysFlag": found.sys_flag,
        "reconsumeTimes": found.reconsume_times,
        "preparedTransactionOffset": found.prepared_position,
        "bornTimestamp": found.born_time_ms,
        "storeTimestamp": found.store_time_ms,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "offsetMsgId": message.offset_message_id,
        "bodyCRC": found.crc,
        "storedBodyLength": len(found.body),
        "storedBodySha256": hashlib.sha256(found.body).hexdigest(),
        "bodyLength": len(message.body),
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "properties": message.properties,
        "tags": message.tag,
        "keys": message.properties.get(props.KEYS),
    } == {name: expected.get(name) for name in expected if name != "uniqKey"}


@pytest.mark.shows("the golden store yields every message")
@pytest.mark.parametrize("name", ["store", "store_unclean", "store_ext"])
def test_every_message_is_read(name: str, golden: Callable[[str], Golden]) -> None:
    g = golden(name)
    messages = g.manifest["messages"]
    if name == "store_unclean":
        # Copied while the broker ran: it ends earlier, at what its own log holds.
        end = struct.unpack_from(">q", (g.root / "index" / "20261120224151509").read_bytes(), 24)[0]
        messages = [m for m in messages if m["commitLogOffset"] <= end]
        assert len(messages) > 600
    store = opened(g)
    try:
        assert store.written_position == messages[-1]["commitLogOffset"] + messages[-1]["size"]
        assert store.last_store_time_ms == messages[-1]["storeTimestamp"]
        queues = by_queue(messages)
        assert {(t, q) for t, ids in store.queues().items() for q in ids} >= set(queues)
        for (topic, queue_id), expected in queues.items():
            assert store.queue_range(topic, queue_id) == (0, len(expected))
            found = read_all(store, topic, queue_id)
            assert len(found) == len(expected)
            for a, b in zip(found, expected, strict=True):
                assert_same(a, b)
        # Those of batch consume queues have no queue of ours, but are read by position.
        for message in messages:
            view = store.record_at(message["commitLogOffset"])
            assert view is not None
            assert_same(record.decode(view), message)
    finally:
        store.close()


@pytest.mark.parametrize("name", ["store", "store_unclean", "store_ext"])
def test_every_key_is_found(name: str, golden: Callable[[str], Golden]) -> None:
    g = golden(name)
    store = opened(g)
    end = store.written_position
    messages = [m for m in g.manifest["messages"] if m["commitLogOffset"] < end]
    expected: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for m in messages:
        words = {w for w in (m["keys"] or "").split(" ") if w}
        if m.get("uniqKey") and props.UNIQUE_ID in m["properties"]:
            words.add(m["uniqKey"])
            expected[m["topic"], m["uniqKey"], "U"].append(m["commitLogOffset"])
        for word in words:
            expected[m["topic"], word, "K"].append(m["commitLogOffset"])
        if m["tags"]:
            expected[m["topic"], m["tags"], "T"].append(m["commitLogOffset"])
    assert len(expected) > 300
    for (topic, key, kind), positions in expected.items():
        found = [record.decode(v).position for v in store.query(topic, key, 10_000, 0, 1 << 60, kind)]
        assert found == positions[::-1], (topic, key, kind)
    assert store.query("S_Plain", "no-such-key", 10, 0, 1 << 60) == []
    store.close()


def contents(root: Path, folder: str) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted((root / folder).rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", ["store", "store_ext"])
def test_opening_a_clean_store_changes_no_data(name: str, golden: Callable[[str], Golden]) -> None:
    g = golden(name)
    before = {f: contents(g.root, f) for f in ("commitlog", "index", "batchconsumequeue")}
    if name == "store":
        before["consumequeue"] = contents(g.root, "consumequeue")
    store = opened(g)
    for topic, ids in store.queues().items():
        for queue_id in ids:
            store.queue_range(topic, queue_id)
    store.close()
    for folder, content in before.items():
        assert contents(g.root, folder) == content
    assert not (g.root / "abort").exists()


def test_queues_and_index_are_rebuilt_from_the_log_alone(golden: Callable[[str], Golden]) -> None:
    g = golden("store")
    before = {f: contents(g.root, f) for f in ("commitlog", "consumequeue")}
    entries = [p.read_bytes() for p in sorted((g.root / "index").iterdir())]
    shutil.rmtree(g.root / "consumequeue")
    shutil.rmtree(g.root / "index")
    (g.root / "checkpoint").unlink()
    opened(g).close()
    assert contents(g.root, "commitlog") == before["commitlog"]
    found = contents(g.root, "consumequeue")
    assert {name for name, content in before["consumequeue"].items() if any(content)} <= set(found)
    for name, content in found.items():
        assert content == before["consumequeue"].get(name, bytes(len(content))), name
    assert [p.read_bytes() for p in sorted((g.root / "index").iterdir())] == entries


@pytest.mark.shows("log, consume queue, index in RocketMQ's layout")
def test_appending_the_same_messages_writes_the_same_bytes(golden: Callable[[str], Golden], tmp_path: Path) -> None:
    g = golden("store")
    source = opened(g)
    clock = ManualClock()
    settings = type(g.settings)(
        **{**{f: getattr(g.settings, f) for f in g.settings.__struct_fields__}, "root": str(tmp_path / "copy")}
    )
    target = Store(settings, store_host=bytes.fromhex("7f00000100007ca7"), clock=clock)
    target.open()
    appended = 0
    for r in source.iterate(0):
        if r.sys_flag & 0x80:
            # An inner batch takes as many queue offsets as it has messages; from here on the logs differ.
            break
        clock.at_ms = r.store_time_ms
        tags = props.find(r.properties, b"TAGS")
        assert target.append(
            r.topic, r.queue_id, r.body, r.properties, record_code(tags), props.find(r.properties, b"UNIQ_KEY"),
            props.find(r.properties, b"KEYS"), tags, r.store_time_ms, r.flag, r.sys_flag, r.born_time_ms, r.born_host,
            r.reconsume_times, r.prepared_position,
        ) == (r.position, r.queue_offset, r.position + r.size)  # fmt: skip
        appended += 1
    end = target.written_position
    assert appended > 500
    assert end > 3 * 131072
    target.close()
    source.close()
    ours, theirs = contents(tmp_path / "copy", "commitlog"), contents(g.root, "commitlog")
    assert b"".join(ours.values())[:end] == b"".join(theirs.values())[:end]
    checked = 0
    for name, content in contents(tmp_path / "copy", "consumequeue").items():
        golden_units = struct.iter_unpack(">qiq", (g.root / name).read_bytes())
        for ours_unit, golden_unit in zip(struct.iter_unpack(">qiq", content), golden_units, strict=True):
            if ours_unit[1]:
                assert ours_unit == golden_unit
                checked += 1
    assert checked == appended
    # Full index files are equal to the last byte; their names are times, which the clock gave.
    ours_index = [p.read_bytes() for p in sorted((tmp_path / "copy" / "index").iterdir())]
    theirs_index = [p.read_bytes() for p in sorted((g.root / "index").iterdir())]
    assert len(ours_index) == 4
    assert ours_index[:3] == theirs_index[:3]


def record_code(tags: bytes | None) -> int:
    from rocketspark.model.text import string_hash

    return string_hash(tags.decode()) if tags else 0
