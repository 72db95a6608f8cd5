"""Spark on a static topic: a stream and batches by logical offsets, while its queues are moved to another broker."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.live.support import connected
from tests.live.test_static_topics import TOPIC, item, mapping, put_mapping
from tests.spark.conftest import Place
from tests.spark.test_stream_read import Stream

from rocketspark.admin import Admin
from rocketspark.client import Producer
from rocketspark.client.connection import client_api
from rocketspark.model import MessageQueue
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ReadAllAvailable
from rocketspark.tables.options import parse_read
from rocketspark.testing import Cluster, run_cluster

NAME = "__syslo__global__"
QUEUES = 2


def move_to_b(cluster: Cluster, at: int) -> None:
    """Move logical queue 0 from the first broker to the second, where it goes on at `at`, and wait for the route."""

    async def move() -> None:
        parts = [item(0, 0, "broker-a", 0), item(1, 1, "broker-b", -1)]
        own = {1: [item(0, 0, "broker-b", 0)]}
        epoch = 1 << 50
        async with connected(cluster.master("broker-a")) as to_a, connected(cluster.master("broker-b")) as to_b:
            await put_mapping(to_b, mapping("broker-b", epoch, {0: parts} | own), 2)
            await put_mapping(to_a, mapping("broker-a", epoch, {0: parts}), 1)
            parts[1]["logicOffset"] = at
            await put_mapping(to_b, mapping("broker-b", epoch, {0: parts} | own), 2)
        async with connected(cluster.namesrv) as names:

            async def moved() -> bool:
                route = await client_api.fetch_route(names, TOPIC)
                return route.leaders.get(MessageQueue(TOPIC, NAME, 0)) == "broker-b"

            while not await moved():
                await asyncio.sleep(0.05)

    asyncio.run(move())


def send(cluster: Cluster, first: int, count: int) -> None:
    with Producer(cluster.namesrv, "PG") as producer:
        for n in range(first, first + count):
            producer.send(TOPIC, b"%d" % n, queue=MessageQueue(TOPIC, NAME, n % QUEUES))


@pytest.mark.shows("a stream and batches of Spark on a static topic whose queue is moved, over a restart")
def test_spark_reads_a_static_topic_over_a_move(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    with Admin(cluster.namesrv) as admin:
        made = admin.create_static_topic(TOPIC, QUEUES)
        assert made.leaders == {0: "broker-a", 1: "broker-b"}
        stream = Stream(spark, cluster, TOPIC, tmp_path)
        send(cluster, 0, 20)
        assert sum(stream.run()) == 20
        move_to_b(cluster, 10_000)
        send(cluster, 20, 20)
        assert stream.run(maxMessagesPerTrigger=8) == [8, 8, 4]
        places: list[Place] = [(NAME, 0, n) for n in (*range(10), *range(10_000, 10_010))]
        places += [(NAME, 1, n) for n in range(20)]
        assert stream.places() == places
        frame = spark.read.format("rocketmq").options(namesrv=cluster.namesrv, topic=TOPIC, minPartitions=6)
        rows = frame.load().select("queueId", "queueOffset", "body").collect()
        bodies = {(r.queueId, r.queueOffset): bytes(r.body) for r in rows}
        assert sorted(bodies) == [place[1:] for place in places]
        assert bodies[0, 10_003] == b"26"
        between = json.dumps({TOPIC: {NAME: {"0": 12, "1": -1}}})
        assert frame.option("startingOffsets", between).load().count() == 10
        admin.delete_topic(TOPIC)


@pytest.mark.shows("mended: a stream that reads a static topic shows its progress on one of the topic's brokers alone")
def test_progress_is_shown_on_each_broker_that_leads_a_queue(caplog: pytest.LogCaptureFixture) -> None:
    with run_cluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
        assert admin.create_static_topic(TOPIC, QUEUES).leaders == {0: "broker-a", 1: "broker-b"}
        send(cluster, 0, 6)
        given = {"namesrv": cluster.namesrv, "topic": TOPIC, "startingOffsets": "earliest", "consumerGroup": "shown"}
        reader = StreamReader(READ_SCHEMA, parse_read(given, streaming=True))
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        with caplog.at_level(logging.WARNING, "rocketspark.spark"):
            reader.commit(end)
        reader.stop()
        assert not caplog.records
        again = StreamReader(READ_SCHEMA, parse_read(given | {"startingOffsets": "committed"}, streaming=True))
        assert again.initialOffset()[TOPIC] == {NAME: {"0": 3, "1": 3}}
        again.stop()
