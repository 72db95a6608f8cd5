"""Committed offsets of groups, on both kinds of brokers: where a read begins, and how far a stream has come."""

from __future__ import annotations

import asyncio
import logging
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from tests.java.apache import await_queues, committed_offset, max_offset
from tests.java.mqadmin import MqAdmin
from tests.spark.available_now import run_to_end
from tests.spark.conftest import read_rows
from tests.support.patience import LIMIT_MS

from rocketspark.client import Producer
from rocketspark.client.connection import admin_api, client_api
from rocketspark.errors import ConfigError
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ReadAllAvailable
from rocketspark.tables.cluster_queries import ClusterQueries as Asked
from rocketspark.tables.offset_ranges import from_json
from rocketspark.tables.options import parse_read
from rocketspark.testing import Cluster
from rocketspark.transport.connections import dial

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.shows(
        "offsets: earliest, latest, committed of a group, JSON by queue; times, exact at every edge",
        "lag in the progress; progress as a consumer group's offsets",
    ),
]


class Place(NamedTuple):
    """A topic of two queues on one broker, one with 100 messages, one with 20."""

    namesrv: str
    broker: str
    topic: str

    @property
    def queues(self) -> list[MessageQueue]:
        return [MessageQueue(self.topic, "broker-a", i) for i in (0, 1)]

    def add(self, *counts: int) -> None:
        """Send, and wait until the queues show it: the official broker answers before they do."""
        ends = [max_offset(self.broker, self.topic, i) + count for i, count in enumerate(counts)]
        with Producer(self.namesrv, "progress") as producer:
            for queue, count in zip(self.queues, counts, strict=True):
                if count:
                    producer.send_batch([Message(topic=self.topic, body=b"x") for _ in range(count)], queue=queue)
        await_queues(self.broker, self.topic, *ends)

    def committed(self, group: str) -> list[int | None]:
        return [committed_offset(self.broker, group, self.topic, i) for i in (0, 1)]


@pytest.fixture(params=["ours", "Apache's"])
def place(request: pytest.FixtureRequest) -> Place:
    cluster: Any = request.getfixturevalue("cluster" if request.param == "ours" else "apache")
    broker = cluster.brokers[0] if isinstance(cluster, Cluster) else cluster.broker
    made = Place(cluster.namesrv, broker, f"t-{uuid.uuid4().hex[:12]}")
    asyncio.run(create(made))
    made.add(100, 20)
    return made


async def create(place: Place) -> None:
    peer, server = await dial(place.broker), await dial(place.namesrv)
    await admin_api.create_topic(
        peer, TopicConfig(topic_name=place.topic, read_queue_nums=2, write_queue_nums=2), timeout_ms=LIMIT_MS
    )
    while True:
        try:
            await client_api.fetch_route(server, place.topic)
            break
        except client_api.RouteNotFound:
            await asyncio.sleep(0.01)
    peer.close()
    server.close()


def commit(place: Place, group: str, offsets: dict[MessageQueue, int]) -> None:
    cluster = Asked(place.namesrv)
    cluster.queues([place.topic])
    cluster.register_group(place.queues, group)
    cluster.commit(offsets, group)
    cluster.close()


def test_from_and_to_where_a_group_is(place: Place) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    commit(place, group, {place.queues[0]: 90})
    assert place.committed(group) == [90, None]

    def read(**options: str) -> list[tuple[int, int]]:
        rows = read_rows("queueId queueOffset", namesrv=place.namesrv, topic=place.topic, **options)
        return sorted((row["queueId"], row["queueOffset"]) for row in rows)

    first, second = [(0, i) for i in range(100)], [(1, i) for i in range(20)]
    assert read(startingOffsets="committed", committedGroup=group) == first[90:] + second
    assert read(startingOffsets="Committed", consumerGroup=group, committedFallback="latest") == first[90:]
    assert read(endingOffsets="committed", committedGroup=group) == first[:90]
    assert read(endingOffsets="committed", committedGroup=group, committedFallback="latest") == first[:90] + second
    with pytest.raises(ConfigError, match="has committed no offset of queue 1 of topic"):
        read(startingOffsets="committed", committedGroup=group, committedFallback="error")
    commit(place, group, {place.queues[1]: 21})
    with pytest.raises(ConfigError, match=r"offset 21 of queue 1 .* which ends at 20: it was made anew"):
        read(startingOffsets="committed", committedGroup=group)
    found = read(startingOffsets="committed", committedGroup=group, failOnDataLoss="false")
    assert found == first[90:] + second
    # Nobody's group: from the fallback on.
    assert read(startingOffsets="committed", committedGroup=f"{group}-other") == first + second


def test_a_stream_from_where_a_group_is(place: Place) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    commit(place, group, dict(zip(place.queues, (99, 7), strict=True)))
    options = {"namesrv": place.namesrv, "topic": place.topic, "startingOffsets": "committed", "committedGroup": group}
    reader = StreamReader(READ_SCHEMA, parse_read(options, streaming=True))
    assert from_json(reader.initialOffset()) == dict(zip(place.queues, (99, 7), strict=True))
    reader.stop()


def test_progress_is_committed_to_the_group_as_each_micro_batch_ends(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    seen: list[tuple[int, list[int | None]]] = []

    def look(batch: Any, number: int) -> None:
        seen.append((batch.count(), place.committed(group)))

    source = spark.readStream.format("rocketmq").option("namesrv", place.namesrv).option("topic", place.topic)
    stream = source.options(startingOffsets="earliest", consumerGroup=group, maxMessagesPerTrigger="60").load()

    writer = stream.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    run_to_end(writer.start)
    assert seen == [(60, [None, None]), (60, [50, 10])]
    assert place.committed(group) == [100, 20]
    place.add(5, 0)
    run_to_end(writer.start)
    assert place.committed(group) == [105, 20]


@pytest.mark.java
def test_the_official_tool_shows_the_progress_and_what_is_left(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    source = spark.readStream.format("rocketmq").option("namesrv", place.namesrv).option("topic", place.topic)
    stream = source.options(startingOffsets="earliest", consumerGroup=group).schema("queueId int").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(600)
    assert place.committed(group) == [100, 20]
    place.add(40, 3)
    admin = MqAdmin(tmp_path / "admin", place.namesrv, place.broker)
    try:
        lines = admin("consumerProgress", "-g", group)
    finally:
        admin.close()
    rows = [line.split()[:6] for line in lines if line.startswith(place.topic)]
    assert sorted(rows) == [
        [place.topic, "broker-a", "0", "140", "100", "40"],
        [place.topic, "broker-a", "1", "23", "20", "3"],
    ]
    assert "Consume Diff Total: 43" in lines


def test_a_running_query_shows_its_last_micro_batch_without_waiting_for_the_next(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    source = spark.readStream.format("rocketmq").option("namesrv", place.namesrv).option("topic", place.topic)
    stream = source.options(startingOffsets="earliest", consumerGroup=group).schema("queueId int").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        while place.committed(group) != [100, 20]:
            assert query.isActive
            query.awaitTermination(0.05)
        place.add(1, 1)
        query.processAllAvailable()
        while place.committed(group) != [101, 21]:
            assert query.isActive
            query.awaitTermination(0.05)
    finally:
        query.stop()


def test_what_cannot_be_shown_is_a_warning_and_no_more(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    options = {"namesrv": place.namesrv, "topic": place.topic, "startingOffsets": "earliest"}
    reader = StreamReader(READ_SCHEMA, parse_read({**options, "consumerGroup": "shown"}, streaming=True))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    strange = {place.topic: {"broker-z": {"0": 5}}, **end, "no-such-topic": {"broker-a": {"0": 1}}}
    with caplog.at_level(logging.WARNING, "rocketspark.spark"):
        for _ in range(3):
            reader.commit(strange)
    reader.stop()
    assert [r.getMessage().startswith("progress is not shown as group 'shown'") for r in caplog.records] == [True]


def test_without_the_option_no_group_is_touched(place: Place) -> None:
    options = {"namesrv": place.namesrv, "topic": place.topic, "startingOffsets": "earliest"}
    reader = StreamReader(READ_SCHEMA, parse_read(options, streaming=True))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.commit(end)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()
    assert place.committed("SPARK_READER") == [None, None]
