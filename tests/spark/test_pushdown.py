"""Filters of a query pushed down: the same rows as without, fewer messages read, and shown by explain."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rocketspark.spark.spark_features import FILTERS

if not FILTERS:
    pytest.skip("this PySpark passes no filters to a Python source", allow_module_level=True)

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.conftest import PUSH_DOWN

from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue
from rocketspark.spark.read.batch_read import PushingReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.options import parse_read
from rocketspark.tables.read.partition_planning import QueuePartition
from rocketspark.tables.read.store_read import StorePartition
from rocketspark.testing import Cluster

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.shows(
        "`where` pushed down, shown by `explain`, every test query with and without",
        "push-down of `where` when it is asked for alone: without the option every query is exact",
    ),
]

COUNT = 64
# "Aa" and "BB" have the same Java hash code, as have "AaAa", "AaBB" and "BBBB".
TAGS = ["Aa", "BB", None, "C", "AaAa", "AaBB", "O'Neil", "a|b"]
COLUMNS = "topic string, broker string, queueId int, queueOffset bigint, tag string, keys array<string>, body binary"
COLUMNS += ", storeTime timestamp, bornTime timestamp, properties map<string,string>"


@pytest.fixture(scope="module")
def topic(producer: Producer, make_topic: Callable[..., str]) -> str:
    """64 messages, 16 in each of two queues on two brokers."""
    made = make_topic()
    for broker in ("broker-a", "broker-b"):
        for queue_id in (0, 1):
            queue = MessageQueue(made, broker, queue_id)
            for i in range(COUNT // 4):
                keys = [f"k{i}"] if i % 2 else []
                message = Message(topic=made, body=b"%d" % i, tag=TAGS[i % 8], keys=keys, properties={"n": str(i)})
                producer.send(message, queue=queue)
    return made


@pytest.fixture
def load(spark: SparkSession, cluster: Cluster, topic: str) -> Callable[..., DataFrame]:
    def fresh(**options: Any) -> DataFrame:
        read = spark.read.format("rocketmq").schema(COLUMNS).option("namesrv", cluster.namesrv).option("topic", topic)
        return read.options(**{"pushDownPredicate": "true", **options}).load()

    return fresh


@pytest.fixture(scope="module")
def table(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    """The topic's rows in memory, filtered by Spark alone."""
    read = spark.read.format("rocketmq").schema(COLUMNS).option("namesrv", cluster.namesrv).option("topic", topic)
    rows = read.load().collect()
    assert len(rows) == COUNT
    return spark.createDataFrame(rows, COLUMNS).coalesce(1).cache()


# {middle} is a store time in the midst of the messages.
QUERIES = """
tag = 'Aa'
tag = 'AaBB' AND queueId = 1
tag <=> 'BB'
tag <=> null
tag = null
tag = ''
tag = 'Aa '
tag = 'a|b' OR tag = "O'Neil"
tag IN ('Aa', 'C', 'none such')
tag IN ('AaAa', null)
tag IN ("O'Neil", 'a|b', '*', ' Aa')
tag NOT IN ('Aa', 'BB')
NOT tag = 'Aa'
NOT (tag <=> 'Aa')
tag IS NULL
tag IS NOT NULL AND queueOffset < 3
tag LIKE 'A%' AND queueId = 0
tag > 'B'
upper(tag) = 'AA'
tag = 'Aa' OR queueId = 1
NOT (tag = 'Aa' OR queueId = 1)
tag = 'Aa' AND tag = 'BB'
tag = 'Aa' AND array_contains(keys, 'k1')
keys = array('k1')
queueId = 1 AND broker = 'broker-a'
queueId = '1' AND broker <> 'broker-a'
queueId IN (0, 7, null) AND broker IN ('broker-b', 'x')
queueId NOT IN (0) AND topic LIKE 't-%'
queueId > 0.5 AND queueId < 99999999999
queueId = -1
queueId > 1 AND queueId < 1
queueId IS NULL
queueOffset = 5
queueOffset > 5.5 AND queueOffset <= 9
queueOffset BETWEEN 4 AND 6 AND NOT queueOffset = 5
queueOffset IN (1, 3, 14)
queueOffset > 9223372036854775807
queueOffset < -9223372036854775807
queueOffset % 5 = queueId
queueOffset >= 3 AND queueOffset < 8 AND tag = 'Aa' AND queueId = 0
storeTime >= timestamp'{middle}'
storeTime < timestamp'{middle}' AND queueId = 0
storeTime = timestamp'{middle}'
storeTime BETWEEN timestamp'{middle}' AND timestamp'{middle}' + interval 5 milliseconds
storeTime IN (timestamp'{middle}', timestamp'2000-01-01 00:00:00')
storeTime > timestamp'9999-12-31 23:59:59'
date(storeTime) = date(timestamp'{middle}') AND tag = 'C'
storeTime > bornTime - interval 1 day AND properties['n'] = '3'
rand() >= 0 AND tag = 'C'
""".strip().splitlines()


PLACE = ["broker", "queueId", "queueOffset"]


@pytest.mark.usefixtures("pushing")
def test_every_query_gives_the_rows_it_gives_without(load: Callable[..., DataFrame], table: DataFrame) -> None:
    times = sorted(row.storeTime for row in table.select("storeTime").collect())
    middle = times[COUNT // 2].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    queries = [text.format(middle=middle) for text in QUERIES]
    # Without: Spark's own answers, to all queries at once.
    answers = table.select(*PLACE, *(F.expr(query).alias(str(i)) for i, query in enumerate(queries))).collect()

    def given(query: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in load(clockSetBackMs=0).where(query).select(*PLACE).collect())

    # Most of a query's time is spent starting Python processes.
    with ThreadPoolExecutor(4) as pool:
        for i, (query, found) in enumerate(zip(queries, pool.map(given, queries), strict=True)):
            assert found == sorted((r.broker, r.queueId, r.queueOffset) for r in answers if r[str(i)]), query


@pytest.mark.usefixtures("pushing")
def test_explain_shows_what_was_pushed(load: Callable[..., DataFrame], capsys: pytest.CaptureFixture[str]) -> None:
    query = "tag = 'Aa' AND queueId = 1 AND queueOffset < 9 AND storeTime > '2020-01-01' AND tag LIKE '%a' AND flag(n)"
    frame = load().where(query.replace("flag(n)", "properties['n'] > 3"))
    frame.explain("formatted")
    [pushed] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("PushedFilters")]
    assert pushed == (
        "PushedFilters: [IsNotNull(tag), IsNotNull(queueId), IsNotNull(queueOffset), IsNotNull(storeTime),"
        " EqualTo(tag,Aa), EqualTo(queueId,1), LessThan(queueOffset,9), GreaterThan(storeTime,2020-01-01 00:00:00.0)]"
    )
    assert frame.rdd.getNumPartitions() == 2  # Queue 1 of each broker, of four.


def test_it_is_offered_only_if_the_setting_and_the_option_are_on(
    spark: SparkSession, load: Callable[..., DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    def pushed(frame: DataFrame) -> str:
        frame.explain("formatted")
        lines = capsys.readouterr().out.splitlines()
        return next((line for line in lines if line.startswith("PushedFilters")), "none")

    query = "queueId = 1 AND queueOffset < 3"
    assert pushed(load().where(query)) == "none"
    assert load().where(query).count() == 6
    spark.conf.set(PUSH_DOWN, "true")
    try:
        assert pushed(load(pushDownPredicate="false").where(query)) == "none"
        # Spark reads all that one load() gave by the last plan of it, so it must be asked for: test_spark_plans.
        frame = load(pushDownPredicate="false")
        assert [frame.where(query).count(), frame.count()] == [6, COUNT]
        assert frame.union(frame.where(query)).count() == COUNT + 6
    finally:
        spark.conf.unset(PUSH_DOWN)


@pytest.mark.usefixtures("pushing")
def test_it_goes_with_options_aggregates_joins_and_limits(load: Callable[..., DataFrame], table: DataFrame) -> None:
    by_tag = load(sql="n > 3", tags="Aa || C || BB").where("queueId = 1 AND tag IN ('Aa', 'C')")
    assert sorted((r.tag, r["count"]) for r in by_tag.groupBy("tag").count().collect()) == [("Aa", 2), ("C", 2)]
    left = load().where("queueId = 0 AND tag = 'Aa'").select("broker", "queueOffset")
    right = load().where("queueId = 1").select("broker", "queueOffset", F.col("tag").alias("other"))
    assert sorted(r.other for r in left.join(right, ["broker", "queueOffset"]).collect()) == ["Aa"] * 4
    assert load().where("tag = 'C'").limit(3).count() == 3


Part = tuple[str, int, int, int]


@pytest.fixture(params=["brokers", "their files"])
def source(request: pytest.FixtureRequest, cluster: Cluster, topic: str) -> dict[str, str]:
    """Options that read the topic."""
    if request.param == "brokers":
        return {"namesrv": cluster.namesrv, "topic": topic}
    return {"store": f"{cluster.store}/broker-a,{cluster.store}/broker-b", "topic": topic}


def read_pushed(source: dict[str, str], *filters: Filter, **options: str) -> tuple[list[Part], list[dict[str, Any]]]:
    """(broker, queue, first and end of each partition; the rows) of a read with filters pushed down."""
    reader = PushingReader(READ_SCHEMA, parse_read({"clockSetBackMs": "0", **source, **options}, streaming=False))
    assert list(reader.pushFilters(list(filters))) == [f for f in filters if isinstance(f, In)]
    parts: list[Part] = []
    rows = []
    for task in reader.partitions():
        part = task.value
        if isinstance(part, QueuePartition):
            parts.append((part.broker_name, part.queue_id, part.first, part.end))
        elif isinstance(part, StorePartition):
            parts.append((part.broker_name, part.queue.queue_id, part.queue.first, part.queue.next))
        rows += [row for batch in reader.read(task) for row in batch.to_pylist()]
    return parts, rows


def test_queues_and_offsets_that_no_row_can_be_in_are_not_read(source: dict[str, str]) -> None:
    def parts(*filters: Filter, **options: str) -> list[Part]:
        return read_pushed(source, *filters, **options)[0]

    whole = [(broker, queue_id, 0, 16) for broker in ("broker-a", "broker-b") for queue_id in (0, 1)]
    assert parts() == whole
    assert parts(EqualTo(("queueId",), 1), EqualTo(("broker",), "broker-b")) == [("broker-b", 1, 0, 16)]
    some = parts(In(("queueOffset",), (3, 9)), EqualTo(("queueId",), 0))
    assert some == [("broker-a", 0, 3, 10), ("broker-b", 0, 3, 10)]
    # What is read at all is what the options say.
    first = f'{{"{source["topic"]}": {{"broker-a": {{"0": 7, "1": 2}}}}}}'
    end = f'{{"{source["topic"]}": {{"broker-a": {{"0": 9}}}}}}'
    both = parts(GreaterThan(("queueOffset",), 2), startingOffsets=first, endingOffsets=end)
    assert [part[2:] for part in both] == [(7, 9), (3, 16), (3, 16), (3, 16)]
    assert parts(EqualTo(("topic",), "another")) == []


def test_rows_that_come_though_they_were_not_asked_for_are_left_out(source: dict[str, str]) -> None:
    _, rows = read_pushed(source, EqualTo(("tag",), "BB"), In(("queueOffset",), (1, 9)), sql="n > 1", key="k9")
    assert [(row["tag"], row["queueOffset"]) for row in rows] == [("BB", 9)] * 4
    assert read_pushed(source, EqualTo(("tag",), "BB"), tags="Aa||C") == ([], [])


def test_store_times_become_offsets(source: dict[str, str], table: DataFrame) -> None:
    places = {(r.broker, r.queueId, r.queueOffset): r.storeTime.astimezone(UTC) for r in table.collect()}
    times = sorted(set(places.values()))
    first, last = times[len(times) // 3], times[-1 - len(times) // 3]
    wanted = {place for place, time in places.items() if first <= time <= last}
    ms = timedelta(milliseconds=1)
    for filters in (
        [GreaterThanOrEqual(("storeTime",), first), LessThanOrEqual(("storeTime",), last)],
        [GreaterThan(("storeTime",), first - ms / 2), LessThan(("storeTime",), last + ms / 2)],
        [GreaterThan(("storeTime",), first - ms), LessThan(("storeTime",), last + ms)],
    ):
        parts, rows = read_pushed(source, *filters)
        assert {(broker, queue_id, at) for broker, queue_id, low, high in parts for at in range(low, high)} == wanted
        assert {(r["broker"], r["queueId"], r["queueOffset"]) for r in rows} == wanted
        parts, rows = read_pushed(source, *filters, clockSetBackMs="3600000")
        assert [part[2:] for part in parts] == [(0, 16)] * 4
        assert {(r["broker"], r["queueId"], r["queueOffset"]) for r in rows} == wanted
    assert read_pushed(source, GreaterThan(("storeTime",), datetime.now(UTC) + timedelta(days=1)))[0] == []
    assert read_pushed(source, LessThan(("storeTime",), datetime(1, 1, 1, tzinfo=UTC)))[0] == []


class Clocked:
    """A cluster of one queue whose messages were stored at `times`; any offset at which they pass a time is right."""

    def __init__(self, times: list[int], seed: int) -> None:
        self._times = times
        self._random = random.Random(seed)

    def offsets_at(self, queues: set[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        edges = [-math.inf, *self._times, math.inf]
        right = [i for i in range(len(edges) - 1) if edges[i] < time_ms <= edges[i + 1]]
        return {queue: self._random.choice(right) for queue in queues}


@given(
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=40),
    first=st.integers(0, 400),
    length=st.integers(0, 100),
    seed=st.integers(),
)
def test_no_row_is_lost_where_a_clock_was_set_back(
    steps: list[tuple[int, int]], first: int, length: int, seed: int
) -> None:
    # Each message may be stored up to 20 ms before the latest one.
    times, latest = [], 100
    for on, back in steps:
        latest += on
        times.append(latest - back)
    queue = MessageQueue("T", "a", 0)
    options = {"namesrv": "127.0.0.1:1", "topic": "T", "clockSetBackMs": "20"}
    reader = PushingReader(READ_SCHEMA, parse_read(options, streaming=False))
    start = datetime(1970, 1, 1, tzinfo=UTC)
    ms = timedelta(milliseconds=1)
    bounds = [
        GreaterThanOrEqual(("storeTime",), start + first * ms),
        LessThanOrEqual(("storeTime",), start + (first + length) * ms),
    ]
    assert list(reader.pushFilters(bounds)) == []
    cluster: Any = Clocked(times, seed)
    kept = reader._narrow(cluster, [OffsetRange(queue, 0, len(times))] if times else [])
    read = {at for part in kept for at in range(part.first, part.end)}
    assert read >= {at for at, time in enumerate(times) if first <= time <= first + length}
