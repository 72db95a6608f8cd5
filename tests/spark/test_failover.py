"""Spark on official pairs whose master is killed: a stream and batch reads have every row, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.java.apache_pair import JavaPair, Mode, until

from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("jvm")]
TOPIC = "spark-failover"
QUEUES = 2


def send(pair: JavaPair, begin: int, end: int) -> None:
    with Producer(pair.namesrv, "pg", retries=20, send_timeout_ms=60_000) as producer:
        for queue_id in range(QUEUES):
            messages = [Message(topic=TOPIC, body=b"%d" % n) for n in range(begin, end) if n % QUEUES == queue_id]
            producer.send_batch(messages, queue=MessageQueue(TOPIC, "broker-a", queue_id))


@pytest.mark.parametrize("mode", ["classic", "controller"])
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
