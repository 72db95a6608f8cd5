"""Stores as partitions and rows, without a session: all columns, inner batches cut anywhere, ends, times, bounds."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from tests.support.golden_stores import STORES, unpack

from rocketspark.arrow.message_columns import COLUMNS
from rocketspark.arrow.row_by_row import VALUES
from rocketspark.errors import ConfigError, StoreError
from rocketspark.protocol.message.record import decode_messages
from rocketspark.spark.read.batch_read import BatchReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.store import Store, StoreSettings
from rocketspark.tables.options import parse_read

BATCH_TOPIC = "S_Bcq"


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the official broker after a clean stop."""
    folder = tmp_path_factory.mktemp("official")
    return unpack("store", folder, lambda name: not name.endswith("timerwheel"))


def read(root: Path, schema: StructType = READ_SCHEMA, **options: str) -> list[dict[str, Any]]:
    """The rows of a read, partition by partition, as Spark would ask for them."""
    reader = reader_of(root, schema, **options)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def reader_of(root: Path, schema: StructType = READ_SCHEMA, **options: str) -> BatchReader:
    return BatchReader(schema, parse_read({"store": str(root), **options}, streaming=False))


def test_all_columns_are_those_of_the_row_decoder(official: Path, tmp_path: Path) -> None:
    manifest = json.loads((STORES / "manifest.json").read_text())
    topics = sorted({m["topic"] for m in manifest["messages"] if m["sysFlag"] & 4 == 0})
    rows = read(official, topic=",".join(topics), brokerName="broker-a")
    copy = tmp_path / "copy"
    shutil.copytree(official, copy)
    sizes = {"log_file_bytes": 131072, "queue_file_units": 100, "index_slots": 100, "index_entries": 400}
    store = Store(StoreSettings(root=str(copy), batch_queue_file_units=100, **sizes))
    store.open()
    expected = []
    for topic in topics:
        for queue_id in sorted(store.queues()[topic]):
            offset, end = store.queue_range(topic, queue_id)
            while offset < end:
                found = store.read(topic, queue_id, offset, 1000, 1 << 20)
                for piece in found.records:
                    expected += decoded(bytes(piece))
                offset = found.next_offset
    store.close()
    assert len(rows) == len(expected) > 500
    assert [tuple(map(plain, row.values())) for row in rows] == expected
    assert list(rows[0]) == list(COLUMNS)


def decoded(stored: bytes) -> list[tuple[Any, ...]]:
    return [tuple(plain(VALUES[name](m)) for name in COLUMNS) for m in decode_messages(stored, "broker-a")]


def plain(value: Any) -> Any:
    """Times as us since 1970, maps as pairs."""
    return round(value.timestamp() * 1e6) if hasattr(value, "timestamp") else value


@pytest.mark.parametrize("size", ["1", "3", "7"])
def test_partitions_cut_inner_batches_anywhere(official: Path, size: str) -> None:
    schema = StructType([f for f in READ_SCHEMA.fields if f.name in ("queueId", "queueOffset", "body")])
    whole = read(official, schema, topic=BATCH_TOPIC)
    assert read(official, schema, topic=BATCH_TOPIC, maxRecordsPerPartition=size) == whole
    queue_id = str(whole[0]["queueId"])
    here = [row for row in whole if str(row["queueId"]) == queue_id]
    assert [row["queueOffset"] for row in here] == list(range(len(here)))
    ends = {"startingOffsets": 2, "endingOffsets": len(here) - 1}
    options = {name: json.dumps({BATCH_TOPIC: {"store": {queue_id: at}}}) for name, at in ends.items()}
    assign = json.dumps({BATCH_TOPIC: [int(queue_id)]})
    assert read(official, schema, assign=assign, **options) == here[2:-1]


def test_times_find_the_first_message_at_or_after(official: Path) -> None:
    rows = read(official, topic="S_Plain")
    for at in sorted({plain(row["storeTime"]) // 1000 for row in rows})[::7]:
        found = read(official, topic="S_Plain", startingTimestamp=str(at))
        assert found == [row for row in rows if plain(row["storeTime"]) // 1000 >= at]
        found = read(official, topic="S_Plain", endingTimestamp=str(at))
        assert found == [row for row in rows if plain(row["storeTime"]) // 1000 < at]


def test_what_a_partition_holds_goes_through_a_pickle(official: Path) -> None:
    copy = official.parent / "copy"
    shutil.copytree(official, copy)
    shutil.rmtree(copy / "consumequeue")
    for root in (official, copy):
        reader = reader_of(root, topic="S_Plain", maxRecordsPerPartition="5")
        parts = reader.partitions()
        sent = pickle.loads(pickle.dumps(parts))
        rows = [[batch.to_pylist() for batch in reader.read(part)] for part in parts]
        assert [[batch.to_pylist() for batch in reader.read(part)] for part in sent] == rows
        assert sum(len(batch) for part in rows for batch in part) == len(read(official, topic="S_Plain"))


def test_a_partition_reads_no_more_than_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(StoreSettings(root=str(tmp_path / "s"), log_file_bytes=1 << 20, index_enabled=False))
    store.open()
    for i in range(2000):
        store.append(b"t", 0, b"x" * 100, b"", 0, None, None, None, i, 0, 0, i, bytes(8), 0, 0)
    store.close()
    size = 88 + 100 + 2 + 2
    monkeypatch.setattr("rocketspark.tables.read.store_read.PARTITION_BYTES_MAX", 100 * size + 50)
    parts = reader_of(tmp_path / "s", topic="t").partitions()
    assert [part.value.queue.next - part.value.queue.first for part in parts] == [100] * 20
    assert len(reader_of(tmp_path / "s", topic="t", maxRecordsPerPartition="1000").partitions()) == 2
    assert len(read(tmp_path / "s", topic="t")) == 2000


def test_topics_that_have_no_message_or_are_not_there(tmp_path: Path) -> None:
    store = Store(StoreSettings(root=str(tmp_path / "s"), log_file_bytes=1 << 20))
    store.open()
    store.close()
    (tmp_path / "s" / "config" / "topics.json").write_text('{"topicConfigTable": {"made": {"readQueueNums": 2}}}')
    assert read(tmp_path / "s", topic="made") == []
    assert read(tmp_path / "s", topicPattern="no.*") == []
    with pytest.raises(ConfigError, match="no topic 'other' in "):
        read(tmp_path / "s", topic="made, other")


def test_damage_that_only_the_log_tells_is_an_error_unless_it_may_be(tmp_path: Path) -> None:
    store = Store(StoreSettings(root=str(tmp_path / "s"), log_file_bytes=1 << 20))
    store.open()
    for i in range(20):
        store.append(b"t", 0, b"body %02d" % i, b"", 0, None, None, None, i, 0, 0, i, bytes(8), 0, 0)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    store.close()
    log = tmp_path / "copy" / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes().replace(b"body 07", b"body 70"))
    with pytest.raises(StoreError, match="is damaged from position 693 to 792, with whole messages after it; set fail"):
        read(tmp_path / "copy", topic="t")
    rows = read(tmp_path / "copy", topic="t", failOnDataLoss="false")
    assert [row["queueOffset"] for row in rows] == [i for i in range(20) if i != 7]


OPTION_ERRORS = [
    ({"store": "/a,/b/a"}, r"two stores go by one broker name \(a, a\): give option brokerName"),
    ({"store": "/a,/b", "brokerName": "x"}, "has 1 names for 2 stores"),
    ({"store": "/a,/b", "storePathCommitLog": "/c"}, "storePathCommitLog is for one store"),
    ({"store": "/a", "namesrv": "h:1"}, "leave one out"),
    ({"namesrv": "h:1", "brokerName": "x"}, "option brokerName goes with option store, which is missing"),
]


def test_a_store_may_be_named_as_a_file_s_address() -> None:
    for form in ("/a/b", "/a/b/", "file:///a/b", "file:/a/b"):
        parsed = parse_read({"topic": "t", "store": form}, streaming=False).store
        assert parsed is not None
        assert (parsed.roots, parsed.broker_names) == (("/a/b",), ("b",))


@pytest.mark.parametrize(("options", "says"), OPTION_ERRORS)
def test_options_that_do_not_go_together(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_read({"topic": "t", **options}, streaming=False)
    if "store" in options:
        with pytest.raises(ConfigError, match="option store is for batch reads"):
            parse_read({"topic": "t", "store": "/a"}, streaming=True)
