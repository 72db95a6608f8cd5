"""Every reader of records finds the same fields: decoder, log, read-only store, unit repair, Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketspark.arrow import records
from rocketspark.protocol.message import record, record_layout, sysflags
from rocketspark.protocol.message.message_ids import unpack_host
from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.store.consume_queue_repair import UnitRepair
from rocketspark.store.consumequeue.consume_queue import UNIT
from rocketspark.store.files.mapped_file_queue import MappedFiles
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.readonly.log_scan import LogScan
from rocketspark.store.readonly.queue_units import LogTail, QueueFiles
from rocketspark.store.readonly.record_reader import RecordReader

pytestmark = pytest.mark.shows(
    "one record: one table of fields from which all readers take their offsets; one function for queue and index"
)

V4 = bytes.fromhex("7f00000100002a9f")
V6 = bytes.fromhex("fe80000000000000000000000000000100002a9f")
I31 = st.integers(0, (1 << 31) - 1)
TEXT = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=12)
HOSTS = st.sampled_from([V4, V6])
PARTS = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=200),
        "properties": st.dictionaries(TEXT.map(lambda name: f"p{name}"), TEXT, max_size=3),
        "flag": st.integers(-(1 << 31), (1 << 31) - 1),
        "sys_flag": st.sampled_from([0, sysflags.TRANSACTION_COMMIT, sysflags.MULTI_TAGS]),
        "born_time_ms": st.integers(0, 1 << 40),
        "born_host": HOSTS,
        "store_time_ms": st.integers(0, 1 << 40),
        "store_host": HOSTS,
        "reconsume_times": I31,
        "prepared_position": st.integers(-(1 << 63), (1 << 63) - 1),
    }
)
READERS: dict[str, Callable[[Path, bytes, str, int, int], Iterator[dict[str, Any]]]] = {}


def reader(read: Callable[[Path, bytes, str, int, int], Iterator[dict[str, Any]]]) -> Any:
    READERS[read.__name__] = read
    return read


def _of_record(found: record.Record) -> dict[str, Any]:
    return {**found._asdict(), "topic": found.topic.decode()}


@reader
def decoder(folder: Path, log: bytes, topic: str, queue_id: int, first: int) -> Iterator[dict[str, Any]]:
    yield from map(_of_record, record.decode_all(log))


@reader
def commit_log(folder: Path, log: bytes, topic: str, queue_id: int, first: int) -> Iterator[dict[str, Any]]:
    target = CommitLog(str(folder), len(log), MappedFiles(OsFiles(), 4))
    target.mapped_files.scan()
    for found in target.scan(0, len(log)):
        at = target.record_at(found.position)
        assert at is not None
        assert len(at) == found.size
        assert target.boundary(found.position) == found.position
        assert found.position == 0 or target.next_mark(found.position - 1) == found.position
        yield {**_of_record(found), "store_time_ms": target.store_time_at(found.position)}
    target.mapped_files.maps.clear()


@reader
def messages(folder: Path, log: bytes, topic: str, queue_id: int, first: int) -> Iterator[dict[str, Any]]:
    for found in record.decode_messages(log):
        yield {
            "topic": found.topic, "body": found.body, "queue_id": found.queue_id, "queue_offset": found.queue_offset,
            "position": found.physical_offset, "size": found.stored_bytes, "flag": found.flag,
            "sys_flag": found.sys_flag, "born_time_ms": found.born_time_ms, "store_time_ms": found.store_time_ms,
            "reconsume_times": found.reconsume_times, "prepared_position": found.prepared_transaction_position,
            "properties": found.properties, "born_host": found.born_host, "store_host": found.store_host,
        }  # fmt: skip


@reader
def arrow(folder: Path, log: bytes, topic: str, queue_id: int, first: int) -> Iterator[dict[str, Any]]:
    starts = records.find_records(log, (0, len(log))).tolist()
    for at, row in zip(starts, records.decode(log).to_pylist(), strict=True):
        yield {
            "topic": row["topic"], "body": row["body"], "queue_id": row["queueId"], "queue_offset": row["queueOffset"],
            "position": row["logPosition"], "flag": row["flag"], "sys_flag": row["sysFlag"],
            "born_time_ms": round(row["bornTime"].timestamp() * 1000),
            "store_time_ms": round(row["storeTime"].timestamp() * 1000),
            "reconsume_times": row["reconsumeTimes"], "properties": dict(row["properties"]),
            "born_host": row["bornHost"], "store_host": row["storeHost"],
        }  # fmt: skip
        assert row["logPosition"] == at


@reader
def log_scan(folder: Path, log: bytes, topic: str, queue_id: int, first: int) -> Iterator[dict[str, Any]]:
    scan = LogScan([str(folder)])
    for found in scan.scan(0, len(log)):
        assert scan.head(found.position) == (found.size, found.store_time_ms)
        assert scan.boundary(found.position) == found.position
        named = found._asdict()
        assert named.pop("messages") == 1
        yield {**named, "topic": found.topic.decode()}
    scan.close()


@reader
def record_reader(folder: Path, log: bytes, topic: str, queue_id: int, first: int) -> Iterator[dict[str, Any]]:
    known = list(record.decode_all(log))
    table = np.array([(r.queue_offset, 1, r.position, r.size) for r in known], np.int64)
    queue = QueueFiles(topic, queue_id, "", False, first, first, first + len(known), LogTail(table))
    scan, lost = LogScan([str(folder)]), []
    for piece in RecordReader(queue, scan, lambda *told: lost.append(told), check_crc=True).pieces():
        for at, size in zip(piece.starts.tolist(), piece.sizes.tolist(), strict=True):
            yield _of_record(record.decode(bytes(piece.buffer[at : at + size])))
    assert lost == []
    scan.close()


@reader
def unit_repair(folder: Path, log: bytes, topic: str, queue_id: int, first: int) -> Iterator[dict[str, Any]]:
    class Queue:
        ext = delay_ms = None
        min = 0

    target = CommitLog(str(folder), len(log), MappedFiles(OsFiles(), 4))
    target.mapped_files.scan()
    target.set_end(len(log))
    queue: Any = Queue()
    queue.topic, queue.queue_id = topic.encode(), queue_id
    queue.suffix = record_layout.topic_field(queue.topic)
    known = list(record.decode_all(log))
    units = memoryview(b"".join(UNIT.pack(r.position, r.size, 0) for r in known))
    queue.place = lambda offset, count: (units, (offset - first) * UNIT.size, count)
    assert UnitRepair(target)._right_until(queue, first, len(known), 1 << 30) == len(known)
    for found in known:
        assert UnitRepair(target).is_right(queue, found.queue_offset, found.position, found.size)
        assert not UnitRepair(target).is_right(queue, found.queue_offset + 1, found.position, found.size)
        yield {"size": found.size, "position": found.position}
    target.mapped_files.maps.clear()


@settings(max_examples=60)
@given(
    parts=st.lists(PARTS, min_size=1, max_size=4),
    topic=st.one_of(TEXT, st.text("ab", min_size=120, max_size=135)).filter(lambda t: "/" not in t and t[0] != "."),
    queue_id=I31,
    first=st.integers(0, 1 << 47),
)
def test_every_reader_finds_the_same_fields(
    tmp_path_factory: pytest.TempPathFactory, parts: list[dict[str, Any]], topic: str, queue_id: int, first: int
) -> None:
    log, wanted = b"", []
    for i, given_parts in enumerate(parts):
        pairs = given_parts["properties"]
        fields = {
            **given_parts, "topic": topic.encode(), "queue_id": queue_id, "queue_offset": first + i,
            "position": len(log), "properties": "".join(f"{n}\1{v}\2" for n, v in pairs.items()).encode(),
        }  # fmt: skip
        encoded = record.encode(**fields)
        fields["sys_flag"] |= record_layout.host_flags(fields["born_host"], fields["store_host"])
        wanted.append({**fields, "topic": topic, "size": len(encoded)})
        log += encoded
    folder = tmp_path_factory.mktemp("log")
    (folder / f"{0:020d}").write_bytes(log)
    for name, read in READERS.items():
        found = list(read(folder, log, topic, queue_id, first))
        assert len(found) == len(wanted), name
        for one, fields in zip(found, wanted, strict=True):
            for field, value in one.items():
                if field not in fields:
                    continue
                expected = fields[field]
                if field.endswith("_host") and isinstance(value, str):
                    expected = unpack_host(expected)
                if field == "properties" and isinstance(value, dict):
                    value = "".join(f"{n}\1{v}\2" for n, v in value.items()).encode()
                assert value == expected, (name, field)
