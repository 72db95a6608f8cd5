"""spark.readStream: micro-batches that add up to every message once, over restarts, limits and queues that appear."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.available_now import run_to_end
from tests.spark.conftest import Place
from tests.support.ports import server_ports

from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ADMISSION_CONTROL, ReadAllAvailable, ReadMaxRows, reported_offset
from rocketspark.tables.offset_ranges import from_json
from rocketspark.tables.options import parse_read
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.tables.read.partition_planning import QueuePartition
from rocketspark.testing import Cluster
from rocketspark.testing.process import run_server_process

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.shows(
        "`failOnDataLoss`; topics, queues, brokers and NameServers that come and go under a stream",
    ),
]

Load = Callable[..., dict[Place, Message]]


class Stream:
    """A query that appends the places of what it reads to a folder of Parquet, one sub-folder per micro-batch."""

    def __init__(self, spark: SparkSession, cluster: Cluster, topic: str, folder: Path) -> None:
        self._spark, self._cluster, self._topic = spark, cluster, topic
        self.out, self.checkpoint = folder / "out", folder / "checkpoint"

    def frame(self, **options: Any) -> DataFrame:
        return (
            self._spark.readStream.format("rocketmq")
            .option("namesrv", self._cluster.namesrv)
            .option("topic", self._topic)
            .option("startingOffsets", "earliest")
            .options(**options)
            .schema("broker string, queueId int, queueOffset long, body binary")
            .load()
        )

    def run(self, **options: Any) -> list[int]:
        """Read all there is; the rows of each micro-batch."""
        return run_to_end(
            self.frame(**options)
            .writeStream.format("parquet")
            .option("path", str(self.out))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start
        )

    def places(self) -> list[Place]:
        rows = self._spark.read.parquet(str(self.out)).collect()
        return sorted((r.broker, r.queueId, r.queueOffset) for r in rows)


@pytest.fixture
def stream(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, cluster, topic, tmp_path)


def test_the_physical_offset_is_a_column_of_streams(
    spark: SparkSession, cluster: Cluster, load: Load, topic: str, tmp_path: Path
) -> None:
    load(topic, 100)
    reader = spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic)
    reader = reader.option("startingOffsets", "earliest").schema("physicalOffset long, offsetMessageId string")
    writer = reader.load().writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(600)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert len(rows) == 100
    assert [r.physicalOffset for r in rows] == [int(r.offsetMessageId[-16:], 16) for r in rows]


@pytest.mark.shows("Spark: stream read")
def test_available_now_and_restart_go_on_exactly(
    stream: Stream, load: Load, topic: str, make_topic: Callable[..., str]
) -> None:
    placed = load(topic, 5000)
    assert stream.run() == [5000]
    assert stream.places() == sorted(placed)
    # A restart reads what came since, and queues that appeared since from their beginning.
    make_topic(queues=3, name=topic)
    placed |= load(topic, 2000, first=5000)
    placed |= load(topic, 1000, first=7000, queue=MessageQueue(topic, "broker-b", 2))
    assert stream.run() == [3000]
    assert stream.places() == sorted(placed)
    assert stream.run() == []
    assert stream.places() == sorted(placed)


def test_messages_per_trigger(stream: Stream, load: Load, topic: str) -> None:
    placed = load(topic, 2000)
    rows = stream.run(maxMessagesPerTrigger="700")
    assert rows == [700, 700, 600]
    assert stream.places() == sorted(placed)


def test_progress_names_offsets(spark: SparkSession, stream: Stream, load: Load, topic: str, tmp_path: Path) -> None:
    placed = load(topic, 1000)
    query = (
        stream.frame()
        .writeStream.format("noop")
        .option("checkpointLocation", str(stream.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    progress = next(p for p in query.recentProgress if p["numInputRows"])
    ends: dict[str, dict[str, int]] = {}
    for broker, queue_id, _ in placed:
        at = ends.setdefault(broker, {"0": 0, "1": 0})
        at[str(queue_id)] += 1
    source = progress["sources"][0]
    assert reported_offset(source["endOffset"])[topic] == ends
    if ADMISSION_CONTROL:
        assert reported_offset(source["latestOffset"]) == {topic: ends}


def test_stream_begins_at_the_end_by_default(
    spark: SparkSession, cluster: Cluster, load: Load, topic: str, tmp_path: Path
) -> None:
    load(topic, 400)
    seen: list[int] = []
    schema = "properties map<string, string>"
    reader = spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic)
    query = (
        reader.schema(schema)
        .load()
        .writeStream.foreachBatch(
            lambda batch, _: seen.extend(int(r.properties["number"]) for r in batch.collect()),
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        # Nothing tells when the query took its first offsets: send until it sees some.
        sent = 400
        while not seen and query.isActive:
            load(topic, 10, first=sent)
            sent += 10
            query.awaitTermination(0.1)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert sorted(seen) == list(range(min(seen), sent))
    assert min(seen) >= 400


def test_a_query_outlives_its_servers(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[bytes] = []
    sent = [b"%d" % i for i in range(41)]
    with (
        run_server_process(tmp_path / "store", **server_ports()) as server,
        Producer(server.namesrv, send_timeout_ms=60_000) as producer,
    ):
        producer.create_topic("t", queue_count=2)
        reader = spark.readStream.format("rocketmq").option("namesrv", server.namesrv).option("topic", "t")
        query = (
            reader.option("startingOffsets", "earliest")
            .schema("body binary")
            .load()
            .writeStream.foreachBatch(lambda batch, _: seen.extend(bytes(r.body) for r in batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            for body in sent[:20]:
                producer.send("t", body)
            query.processAllAvailable()
            for body in sent[20:40]:
                producer.send("t", body)
            # It looks for more all the time, so a look, a plan or a read finds nobody there.
            server.kill()
            query.awaitTermination(0.5)
            server.start()
            producer.send("t", sent[40])
            while sent[40] not in seen:
                assert query.isActive, query.exception()
                query.processAllAvailable()
        finally:
            query.stop()
    assert query.exception() is None
    assert sorted(seen) == sorted(sent)


def test_unknown_topic_ends_the_query_with_one_clear_line(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    frame = spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", "absent").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="no topic 'absent'") as caught:
        query.awaitTermination(600)
    assert 'File "' not in str(caught.value)


# -- the reader without Spark around it ----------------------------------------------------------------------------


@pytest.fixture
def reader(cluster: Cluster, topic: str) -> Any:
    made = make_reader(cluster, topic)
    yield made
    made.stop()


def make_reader(cluster: Cluster, topic: str, **options: str) -> StreamReader:
    given = {"namesrv": cluster.namesrv, "topic": topic, "startingOffsets": "earliest", **options}
    return StreamReader(READ_SCHEMA, parse_read(given, streaming=True))


def count(offset: dict[str, Any]) -> int:
    return sum(from_json(offset).values())


def test_same_offset_when_nothing_came(reader: StreamReader, load: Load, topic: str) -> None:
    load(topic, 100)
    start = reader.initialOffset()
    assert count(start) == 0
    end = reader.latestOffset(start, ReadAllAvailable())
    assert count(end) == 100
    assert json.dumps(reader.latestOffset(end, ReadMaxRows(10))) == json.dumps(end)
    assert reader.partitions(end, end) == []
    assert from_json(reader.reportLatestOffset() or {}) == from_json(end)


def test_first_micro_batch_run_again_is_the_same(cluster: Cluster, load: Load, topic: str) -> None:
    load(topic, 100)
    first, again = (make_reader(cluster, topic, startingOffsets="latest") for _ in range(2))
    try:
        start = first.initialOffset()
        placed = load(topic, 50, first=100)
        assert first.initialOffset() == start
        end = first.latestOffset(start, ReadAllAvailable())
        load(topic, 30, first=150)
        # Spark stopped before that micro-batch was done; its log holds just the end.
        parts = again.partitions(again.initialOffset(), json.loads(json.dumps(end)))
        rows = [row for part in parts for batch in again.read(part) for row in batch.to_pylist()]
        assert {(r["broker"], r["queueId"], r["queueOffset"]) for r in rows} == set(placed)
        assert len(rows) == 50
        after = again.latestOffset(end, ReadAllAvailable())
        assert sum(p.value.end - p.value.first for p in again.partitions(end, after)) == 30
        assert again.partitions(end, end) == []
    finally:
        first.stop()
        again.stop()


def test_first_micro_batch_run_again_when_nothing_came_since(cluster: Cluster, load: Load, topic: str) -> None:
    load(topic, 100)
    first, again = (make_reader(cluster, topic, startingOffsets="latest") for _ in range(2))
    try:
        start = first.initialOffset()
        placed = load(topic, 50, first=100)
        end = json.loads(json.dumps(first.latestOffset(start, ReadAllAvailable())))
        # What `latest` is now, is where that micro-batch ended.
        parts = again.partitions(again.initialOffset(), end)
        rows = [row for part in parts for batch in again.read(part) for row in batch.to_pylist()]
        assert {(r["broker"], r["queueId"], r["queueOffset"]) for r in rows} == set(placed)
        assert len(rows) == 50
    finally:
        first.stop()
        again.stop()


def test_first_micro_batch_without_messages_run_again(cluster: Cluster, load: Load, topic: str) -> None:
    load(topic, 100)
    first, again = (make_reader(cluster, topic, startingOffsets="latest") for _ in range(2))
    try:
        start = first.initialOffset()
        end = json.loads(json.dumps(first.latestOffset(start, ReadAllAvailable())))
        assert end == start
        # Spark stopped before that micro-batch was done, and `latest` is another place when it is planned again.
        load(topic, 30, first=100)
        assert again.partitions(again.initialOffset(), end) == []
        after = again.latestOffset(end, ReadAllAvailable())
        assert sum(p.value.end - p.value.first for p in again.partitions(end, after)) == 30
    finally:
        first.stop()
        again.stop()


def test_a_reader_that_is_open_goes_to_executors(reader: StreamReader, load: Load, topic: str) -> None:
    load(topic, 100)
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    there, parts = pickle.loads(pickle.dumps((reader, parts)))
    assert sum(batch.num_rows for part in parts for batch in there.read(part)) == 100
    there.stop()


def test_available_now_does_not_read_what_comes_later(reader: StreamReader, load: Load, topic: str) -> None:
    load(topic, 100)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    load(topic, 50, first=100)
    end = reader.latestOffset(start, ReadMaxRows(60))
    assert count(end) == 60
    end = reader.latestOffset(end, ReadAllAvailable())
    assert count(end) == 100
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_available_now_from_the_end_where_something_came_in_between(cluster: Cluster, load: Load, topic: str) -> None:
    reader = make_reader(cluster, topic, startingOffsets="latest")
    try:
        load(topic, 100)
        reader.prepareForTriggerAvailableNow()
        load(topic, 50, first=100)
        start = reader.initialOffset()
        assert count(start) == 150
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    finally:
        reader.stop()


def test_queue_whose_broker_is_away_keeps_its_place(reader: StreamReader, load: Load, topic: str) -> None:
    load(topic, 100)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    start[topic]["broker-z"] = {"0": 77}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end[topic]["broker-z"] == {"0": 77}
    assert reader.partitions(start, end) == []


def test_queue_made_anew_is_data_loss(cluster: Cluster, load: Load, topic: str) -> None:
    load(topic, 100)
    for fail in ("true", "false"):
        reader = make_reader(cluster, topic, failOnDataLoss=fail)
        try:
            start = {topic: {"broker-a": {"0": 1000, "1": 0}, "broker-b": {"0": 0, "1": 0}}}
            if fail == "true":
                with pytest.raises(DataLost, match="made anew"):
                    reader.latestOffset(start, ReadMaxRows(1000))
                continue
            # Within the limits, too: the topic may have grown to millions.
            for rows_max, rows in ((1000, 100), (30, 30)):
                parts = reader.partitions(start, reader.latestOffset(start, ReadMaxRows(rows_max)))
                assert all(isinstance(p.value, QueuePartition) for p in parts)
                assert sum(b.num_rows for p in parts for b in reader.read(p)) == rows
        finally:
            reader.stop()
