"""Spark on pairs, ours and official, whose master is killed: a stream and batch reads have every row, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.java.apache_pair import JavaPair, Mode, until
from tests.spark.one_pair import OnePair

from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ReadAllAvailable
from rocketspark.tables.options import parse_read
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.testing import run_cluster
from rocketspark.testing.replicas import Replicas

pytestmark = pytest.mark.shows(
    "Spark across a failover of a Java pair, classic and under Apache's controller: a stream and batch reads "
    "give every row once",
    "Spark across a failover of our pair: a stream and batch reads give every row once; only a master's word "
    "counts as loss; what an unclean election cut is told, or fails the query",
)

TOPIC = "spark-failover"
QUEUES = 2


def send(pair: JavaPair, begin: int, end: int) -> None:
    with Producer(pair.namesrv, "pg", retries=20, send_timeout_ms=60_000) as producer:
        for queue_id in range(QUEUES):
            messages = [Message(topic=TOPIC, body=b"%d" % n) for n in range(begin, end) if n % QUEUES == queue_id]
            producer.send_batch(messages, queue=MessageQueue(TOPIC, "broker-a", queue_id))


def test_a_stream_and_batch_reads_go_on_at_the_new_master(spark: SparkSession, tmp_path: Path) -> None:
    """Each micro-batch but the last sees a master die, or one that is swapped for the other."""
    with run_cluster(replicas=2) as cluster, Producer(cluster.namesrv, "P", retries=20) as producer:
        producer.send_batch([Message(topic="T", body=b"%d" % n) for n in range(600)])
        rows: Counter[int] = Counter()

        def take(frame: DataFrame, number: int) -> None:
            cached = frame.select("body").collect()
            if number == 0:
                cluster.kill_master()
            rows.update(int(row.body) for row in cached)

        reading = {"namesrv": cluster.namesrv, "topic": "T", "maxMessagesPerPull": "50"}
        stream = (
            spark.readStream.format("rocketmq")
            .options(**reading, startingOffsets="earliest", maxMessagesPerTrigger="200")
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        try:
            until(lambda: rows.total() >= 600 or stream.exception())
            producer.send_batch([Message(topic="T", body=b"%d" % n) for n in range(600, 700)])
            until(lambda: rows.total() >= 700 or stream.exception())
            assert stream.exception() is None
        finally:
            stream.stop()
        assert rows == Counter(range(700))
        found = spark.read.format("rocketmq").options(**reading).load().select("body").collect()
        assert Counter(int(row.body) for row in found) == Counter(range(700))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_an_unclean_election_cut_is_told(tmp_path: Path, fail: str, caplog: pytest.LogCaptureFixture) -> None:
    """The stream has read what the master of the moment never had."""
    with OnePair(tmp_path, "broker-a", unclean=True) as pair:
        queue = MessageQueue("T", "broker-a", 0)

        def send_to(begin: int, end: int) -> None:
            with Producer(pair.namesrv, "P", retries=20, send_timeout_ms=60_000) as producer:
                producer.send_batch([Message(topic="T", body=b"%d" % n) for n in range(begin, end)], queue=queue)

        with Producer(pair.namesrv, "P") as producer:
            producer.send(Message(topic="T", body=b"makes the topic"))
        with Producer(pair.namesrv, "P") as producer:
            base = producer.max_offset(queue)
        send_to(0, 10)
        pair.do(pair.replicas.wait_in_sync(2))
        behind = pair.do(kill_slave(pair.replicas))
        send_to(10, 30)
        given = {"namesrv": pair.namesrv, "topic": "T", "startingOffsets": "earliest", "failOnDataLoss": fail}
        reader = StreamReader(READ_SCHEMA, parse_read(given, streaming=True))
        try:
            start = reader.initialOffset()
            read_to = reader.latestOffset(start, ReadAllAvailable())
            assert read_to["T"]["broker-a"]["0"] == base + 30
            pair.do(elect_unclean(pair.replicas, behind))
            # Without a master in the route the queue keeps its place.
            until(lambda: reader.latestOffset(read_to, ReadAllAvailable()) != read_to)
            end = reader.latestOffset(read_to, ReadAllAvailable())
            assert end["T"]["broker-a"]["0"] == base + 10
            lost = f"messages {base + 10} to {base + 29} of queue 0 of topic 'T' on broker 'broker-a' are gone"
            if fail == "true":
                with pytest.raises(DataLost, match=lost):
                    reader.partitions(read_to, end)
                return
            assert reader.partitions(read_to, end) == []
            assert any(line.startswith(lost) for line in caplog.messages)
            send_to(30, 35)
            last = reader.latestOffset(end, ReadAllAvailable())
            parts = reader.partitions(end, last)
            rows = [row["body"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
            assert rows == [b"%d" % n for n in range(30, 35)]
        finally:
            reader.stop()


async def kill_slave(replicas: Replicas) -> int:
    number = next(n for n, one in replicas._running.items() if not one.role.is_master)
    await replicas._running.pop(number).kill()
    return number


async def elect_unclean(replicas: Replicas, number: int) -> None:
    """Kill the master, and start the one that was behind alone."""
    await replicas.kill_master()
    await replicas._start(number)
    await replicas.wait_in_sync(1)


@pytest.mark.java
@pytest.mark.xdist_group("jvm")
@pytest.mark.parametrize("mode", [pytest.param("classic", marks=pytest.mark.soak), "controller"])
def test_every_row_once_across_the_death_of_a_master(spark: SparkSession, tmp_path: Path, mode: Mode) -> None:
    first: dict[str, Any] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2} if mode == "classic" else {}
    pair = JavaPair(tmp_path / "pair", mode, first=first)
    try:
        pair.make_topic(TOPIC, QUEUES)
        pair.wait_in_sync()
        send(pair, 0, 2000)
        reading = {"namesrv": pair.namesrv, "topic": TOPIC, "maxMessagesPerPull": "100"}
        rows: Counter[int] = Counter()

        def read_all() -> Counter[int]:
            found = spark.read.format("rocketmq").options(**reading).load().select("body").collect()
            return Counter(int(row.body) for row in found)

        def take(frame: DataFrame, number: int) -> None:
            rows.update(int(row.body) for row in frame.select("body").collect())
            if number == 1:
                pair.first.kill()

        stream = (
            spark.readStream.format("rocketmq")
            .options(**reading, startingOffsets="earliest", maxMessagesPerTrigger="300")
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            until(lambda: len(rows) >= 2000 or stream.exception())
            assert stream.exception() is None
            assert read_all() == Counter(range(2000))
            if mode == "classic":
                pair.first.start()
                pair.wait_in_sync()
            else:
                until(lambda: pair.master() is pair.second)
            send(pair, 2000, 2400)
            until(lambda: len(rows) >= 2400 or stream.exception())
            assert stream.exception() is None
        finally:
            stream.stop()
        assert rows == Counter(range(2400))
        assert read_all() == Counter(range(2400))
    finally:
        pair.close()
