"""What a broker passes over while it removes old files, and bodies that cannot be had: told, never an answer."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.spark.fake_broker import FakeBroker, make_records, running

from rocketspark.errors import RecordError
from rocketspark.model import MessageQueue
from rocketspark.protocol.message import batch, record_layout, sysflags
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.options import parse_read
from rocketspark.tables.read import pull_records as fetching
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.tables.read.partition_planning import QueuePartition, read_partition
from rocketspark.tables.read.read_filter import ReadFilter
from rocketspark.tables.read_columns import ReadColumns

pytestmark = pytest.mark.shows(
    "mended: silent loss despite failOnDataLoss=true while a broker removes old files (the reader's half: "
    "offsets that came are compared with those asked for, filtered pieces are proved by their first message)"
)

QUEUE = MessageQueue("T", "broker-a", 0)
GONE = "messages %d to %d of queue 0 of topic 'T' on broker 'broker-a' are gone"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "RETRIES", fetching.RETRIES._replace(budget_s=0, pauses_s=(0.01,)))
    monkeypatch.setattr(fetching, "UNSEEN_WAIT_S", 0.01)


def rows(broker: FakeBroker, first: int, end: int, *columns: str, **options: Any) -> list[dict[str, Any]]:
    given = {"namesrv": "127.0.0.1:1", "topic": "T", **{k: str(v) for k, v in options.items()}}
    parsed = parse_read(given, streaming=False)
    partition = QueuePartition(OffsetRange(QUEUE, first, end), (broker.address,))
    found = read_partition(partition, ReadColumns(columns or ("queueOffset",)), parsed, ReadFilter.of(parsed))
    return [row for batch in found for row in batch.to_pylist()]


def offsets(broker: FakeBroker, first: int, end: int, **options: Any) -> list[int]:
    return [row["queueOffset"] for row in rows(broker, first, end, **options)]


@pytest.mark.parametrize("count_max", [1000, 32])
@pytest.mark.parametrize("gone", [range(100), range(40, 55), range(270, 300)], ids=str)
def test_what_a_broker_passes_over_is_data_loss(gone: range, count_max: int) -> None:
    with running(FakeBroker(make_records(300), removed=gone, count_max=count_max)) as broker:
        with pytest.raises(DataLost, match=GONE % (gone[0], gone[-1])):
            offsets(broker, 0, 300, maxMessagesPerPull=64)
        kept = [i for i in range(300) if i not in gone]
        assert offsets(broker, 0, 300, maxMessagesPerPull=64, failOnDataLoss="false") == kept


def test_what_a_compaction_left_out_is_no_loss() -> None:
    with running(FakeBroker(make_records(300), removed=range(10, 290), compacted=True)) as broker:
        assert offsets(broker, 0, 300) == [*range(10), *range(290, 300)]
        assert offsets(broker, 20, 300, tags="A") == [i for i in range(290, 300) if i % 3 == 0]
    # RocketMQ's broker moves a reader on whose place lies before all that is left.
    with running(FakeBroker(make_records(300), oldest=290, compacted=True)) as broker:
        assert offsets(broker, 0, 300) == list(range(290, 300))
        assert offsets(broker, 20, 200, tags="A") == []


def test_a_filtered_read_tells_what_went_meanwhile() -> None:
    broker = FakeBroker(make_records(300), removed=range(120), removed_after=1)
    with running(broker):
        # The first of the pulls came before the removal.
        with pytest.raises(DataLost, match=GONE % (0, 119)):
            offsets(broker, 0, 300, tags="A", maxMessagesPerPull=30)
        assert offsets(broker, 130, 300, tags="A") == list(range(132, 300, 3))
        broker.pulls.clear()
        assert offsets(broker, 0, 300, tags="A", maxMessagesPerPull=30, failOnDataLoss="false")[-1] == 297


def test_a_filtered_read_asks_once_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "ROWS_PER_PIECE", 100)
    with running(FakeBroker(make_records(1000), shuffle=True)) as broker:
        assert offsets(broker, 0, 1000, tags="A", maxMessagesPerPull=50) == list(range(0, 1000, 3))
        assert sorted(p.queue_offset for p in broker.pulls if p.count_max == 1) == list(range(0, 1000, 100))


def test_inner_batches_that_are_missing_are_told() -> None:
    items = batch.encode([batch.BatchItem(0, b"inner", b"") for _ in range(10)])
    made = []
    for i in range(100):
        [stored] = make_records(
            1,
            queue_offset=i // 10 * 10,
            body=items,
            sys_flag=sysflags.INNER_BATCH | sysflags.NEED_UNWRAP,
            properties=b"INNER_NUM\x0110\x02INNER_BASE\x01%d\x02" % (i // 10 * 10),
        )
        made.append(stored)
    with running(FakeBroker(made)) as broker:
        assert offsets(broker, 5, 97) == list(range(5, 97))
    with running(FakeBroker(made, removed=range(30, 50))) as broker, pytest.raises(DataLost, match=GONE % (30, 49)):
        offsets(broker, 5, 97)


def with_bad_bodies(count: int, bad: set[int], **fields: Any) -> list[bytes]:
    made = make_records(count, **fields)
    for i in bad:
        [made[i]] = make_records(1, queue_offset=i, position=i * 200, body=b"no zlib", sys_flag=0x101, **fields)
    return made


@pytest.mark.shows("mended: one body that does not inflate blocks a stream for good")
@pytest.mark.parametrize("fields", [{}, {"properties": b"a\x011\x02a\x012\x02"}], ids=["quick", "slow"])
def test_a_body_that_does_not_inflate(fields: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    columns = ("queueOffset", "body", "properties", "sysFlag")
    with running(FakeBroker(with_bad_bodies(30, {7, 20}, **fields))) as broker:
        with pytest.raises(RecordError, match=r"message 7 of queue 0 of topic 'T' on broker 'broker-a'.*badBodies"):
            rows(broker, 0, 30, *columns)
        for options, body in (
            ({"badBodies": "null"}, None),
            ({"badBodies": "stored"}, b"no zlib"),
            ({"failOnDataLoss": "false"}, None),
        ):
            caplog.clear()
            with caplog.at_level(logging.WARNING, "rocketspark.spark"):
                found = rows(broker, 0, 30, *columns, **options)
            assert [row["queueOffset"] for row in found] == list(range(30))
            assert {i: row["body"] for i, row in enumerate(found) if i in (7, 20)} == {7: body, 20: body}
            assert found[8]["body"] == b"body 8"
            assert found[7]["sysFlag"] == 0x101
            assert [record.message.split(" of queue")[0] for record in caplog.records] == ["message 7", "message 20"]
        # Who reads no bodies is not kept by them.
        assert offsets(broker, 0, 30) == list(range(30))


def test_a_wrong_crc_is_a_bad_body_too() -> None:
    made = make_records(10)
    broken = bytearray(made[4])
    at = bytes(broken).index(b"body 4")
    broken[at] ^= 1
    made[4] = bytes(broken)
    with running(FakeBroker(made)) as broker:
        with pytest.raises(RecordError, match=r"message 4 .* CRC"):
            rows(broker, 0, 10, "body", checkCrc="true")
        found = rows(broker, 0, 10, "body", checkCrc="true", badBodies="null")
        assert [row["body"] for row in found] == [None if i == 4 else b"body %d" % i for i in range(10)]


def test_a_record_that_is_none_names_its_queue() -> None:
    made = make_records(10)
    made[3] = made[3][: record_layout.AT["magic"]] + bytes(4) + made[3][record_layout.AT["magic"] + 4 :]
    with (
        running(FakeBroker(made)) as broker,
        pytest.raises(RecordError, match="messages 0 to 9 of queue 0 of topic 'T' on broker 'broker-a' cannot be read"),
    ):
        rows(broker, 0, 10)
