"""How much a micro-batch takes: limits on messages and bytes, alone and together, and a minimum with its delay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.available_now import run_to_end
from tests.spark.conftest import Place

from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ADMISSION_CONTROL, ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from rocketspark.tables.offset_ranges import from_json
from rocketspark.tables.options import parse_read
from rocketspark.testing import Cluster

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.shows(
        "partitions, limits per micro-batch (messages, bytes, a minimum with a delay), AvailableNow and ProcessingTime"
    ),
]

Load = Callable[..., dict[Place, Message]]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Reading:
    """A reader, driven as Spark drives one with its default limit."""

    def __init__(self, cluster: Cluster, topic: str, **options: str) -> None:
        given = {"namesrv": cluster.namesrv, "topic": topic, "startingOffsets": "earliest", **options}
        self.clock = Clock()
        self.reader = StreamReader(READ_SCHEMA, parse_read(given, streaming=True), clock_s=self.clock, announced=True)
        self.at = self.reader.initialOffset()

    def step(self, limit: Any = None) -> int:
        """How many messages the next micro-batch has."""
        end = self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())
        count = sum(from_json(end).values()) - sum(from_json(self.at).values())
        assert (end == self.at) == (count == 0)
        assert sum(p.value.end - p.value.first for p in self.reader.partitions(self.at, end)) == count
        self.at = end
        return count


@pytest.fixture
def reading(cluster: Cluster, topic: str) -> Iterator[Callable[..., Reading]]:
    made: list[Reading] = []

    def make(**options: str) -> Reading:
        made.append(Reading(cluster, topic, **options))
        return made[-1]

    yield make
    for each in made:
        each.reader.stop()


def test_the_limit_that_spark_is_told(reading: Callable[..., Reading]) -> None:
    def limit(**options: str) -> Any:
        return reading(**options).reader.getDefaultReadLimit()

    assert limit() == ReadAllAvailable()
    assert limit(maxMessagesPerTrigger="7", minMessagesPerTrigger="3", maxBytesPerTrigger="9") == ReadMaxRows(7)
    assert limit(minMessagesPerTrigger="3", maxBytesPerTrigger="9") == ReadMaxBytes(9)
    assert limit(minMessagesPerTrigger="3") == ReadMinRows(3)


def test_a_minimum_waits_for_more_or_for_its_delay(reading: Callable[..., Reading], load: Load, topic: str) -> None:
    one = reading(minMessagesPerTrigger="100", maxTriggerDelay="30s")
    load(topic, 40)
    assert one.step() == 0
    load(topic, 60)
    assert one.step() == 100
    load(topic, 40)
    one.clock.now_s += 29
    assert one.step() == 0
    one.clock.now_s += 2
    assert one.step() == 40
    # The delay counts from the last micro-batch, and without messages there is none.
    one.clock.now_s += 100
    assert one.step() == 0
    load(topic, 1)
    assert one.step() == 1
    load(topic, 1)
    assert one.step() == 0


def test_a_minimum_does_not_hold_what_must_end(reading: Callable[..., Reading], load: Load, topic: str) -> None:
    load(topic, 40)
    once = reading(minMessagesPerTrigger="100")
    assert once.step(ReadAllAvailable()) == 40
    now = reading(minMessagesPerTrigger="100", maxMessagesPerTrigger="100")
    now.reader.prepareForTriggerAvailableNow()
    assert [now.step(), now.step()] == [40, 0]


def test_a_minimum_and_a_maximum(reading: Callable[..., Reading], load: Load, topic: str) -> None:
    both = reading(minMessagesPerTrigger="50", maxMessagesPerTrigger="70", maxTriggerDelay="1h")
    load(topic, 200)
    assert [both.step() for _ in range(4)] == [70, 70, 60, 0]
    # Trigger.Once asks for all there is, whatever the limits.
    load(topic, 100)
    assert both.step(ReadAllAvailable()) == 100


def test_bytes(reading: Callable[..., Reading], cluster: Cluster, topic: str) -> None:
    queues = [MessageQueue(topic, "broker-a", 0), MessageQueue(topic, "broker-b", 1)]
    with Producer(cluster.namesrv, "limits") as producer:
        # 1 KB in one queue, 10 KB in the other; 300 messages of each.
        for queue, size in zip(queues, (1000, 10_000), strict=True):
            for _ in range(10):
                producer.send_batch([Message(topic=topic, body=b"x" * size) for _ in range(30)], queue=queue)
    one = reading(maxBytesPerTrigger="660000")
    taken = [one.step() for _ in range(8)]
    assert sum(taken) == 600
    # Some 3.4 MB with the records' own fields: five micro-batches and a rest.
    assert taken[6:] == [0, 0]
    assert all(100 <= count <= 120 for count in taken[:4])
    # A limit below one message's size still goes on.
    tiny = reading(maxBytesPerTrigger="10")
    assert [tiny.step(), tiny.step()] == [1, 1]
    both = reading(maxBytesPerTrigger="660000", maxMessagesPerTrigger="50")
    assert both.step() == 50
    now = reading(maxBytesPerTrigger="2000000")
    now.reader.prepareForTriggerAvailableNow()
    counts = [now.step() for _ in range(4)]
    assert sum(counts) == 600
    assert counts[-1] == 0
    assert reading(maxBytesPerTrigger="100000000").step() == 600


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"maxMessagesPerTrigger": "60", "minMessagesPerTrigger": "50"}, [60, 60, 30]),
        ({"minMessagesPerTrigger": "100000", "maxBytesPerTrigger": "1000000000", "minPartitions": "5"}, [150]),
    ],
    ids=str,
)
def test_available_now_ends_with_each(
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    load: Load,
    tmp_path: Path,
    options: dict[str, str],
    wanted: list[int],
) -> None:
    load(topic, 150)
    source = spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic)
    start = (
        source.options(startingOffsets="earliest", **options)
        .schema("queueId int")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start
    )
    assert run_to_end(start) == wanted


def test_once(spark: SparkSession, cluster: Cluster, topic: str, load: Load, tmp_path: Path) -> None:
    load(topic, 150)
    source = spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic)
    frame = source.options(startingOffsets="earliest", maxMessagesPerTrigger="60").schema("queueId int").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(once=True).start()
    assert query.awaitTermination(600)
    assert [p["numInputRows"] for p in query.recentProgress] == [150 if ADMISSION_CONTROL else 60]


def test_a_stream_s_queues_are_split(reading: Callable[..., Reading], load: Load, topic: str) -> None:
    load(topic, 400)
    for options, least in (({"minPartitions": "10"}, 10), ({"maxRecordsPerPartition": "30"}, 14)):
        one = reading(**options)
        end = one.reader.latestOffset(one.at, ReadAllAvailable())
        parts = one.reader.partitions(one.at, end)
        assert len(parts) >= least
        assert max(p.value.end - p.value.first for p in parts) <= 50
        places = [
            (r["broker"], r["queueId"], r["queueOffset"])
            for p in parts
            for b in one.reader.read(p)
            for r in b.to_pylist()
        ]
        assert len(places) == len(set(places)) == 400


@pytest.mark.shows(
    "limits on 4.0 and 4.1, exact, over restarts; `availableNow` with a limit ends after one micro-batch, "
    "warned once; pipelines repeat until the end noted at their start; what cannot work says so with version "
    "and option"
)
def test_limits_hold_over_restarts(
    spark: SparkSession, cluster: Cluster, topic: str, load: Load, tmp_path: Path
) -> None:
    """Micro-batches fail that Spark had planned: it runs them again."""
    placed = load(topic, 330)
    seen: dict[int, list[Place]] = {}
    failed: list[int] = []

    def take(frame: DataFrame, number: int) -> None:
        rows = [(r.broker, r.queueId, r.queueOffset) for r in frame.collect()]
        again = seen.setdefault(number, rows)
        assert sorted(again) == sorted(rows)
        if number % 2 and number not in failed:
            failed.append(number)
            raise ValueError(f"micro-batch {number} fails once")

    def start(trigger: dict[str, Any]) -> Any:
        return (
            spark.readStream.format("rocketmq")
            .options(namesrv=cluster.namesrv, topic=topic, startingOffsets="earliest", maxMessagesPerTrigger="70")
            .schema("broker string, queueId int, queueOffset long")
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start()
        )

    with pytest.raises(StreamingQueryException, match="fails once"):
        start({"processingTime": "0 seconds"}).awaitTermination(600)
    while len(failed) < 2:
        with suppress(StreamingQueryException):
            start({"availableNow": True}).awaitTermination(600)
    run_to_end(lambda: start({"availableNow": True}))
    assert failed == [1, 3]
    assert [len(seen[number]) for number in sorted(seen)] == [70, 70, 70, 70, 50]
    assert sorted(place for rows in seen.values() for place in rows) == sorted(placed)
