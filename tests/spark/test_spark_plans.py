"""What Spark does with the plan of a Python source: why `where` is pushed down by an option, and not by itself.

From 4.1 on Spark keeps one plan for each `load()`: the last that its planner made. A small source shows it. If a newer
Spark fails these tests, it plans each table of a query by itself, and the option may go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from rocketspark.client import Producer
from rocketspark.errors import ConfigError
from rocketspark.model import Message, MessageQueue
from rocketspark.spark import source
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import FILTERS
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "`where` pushed down, shown by `explain`, every test query with and without",
    "push-down of `where` when it is asked for alone: without the option every query is exact",
)

ALL = [0, 1, 2, 3]


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row.queueId for row in frame.collect())


def all_after_a_filter(frame: DataFrame) -> object:
    return numbers(frame.where("queueId = 1")), numbers(frame)


def all_beside_a_filter(frame: DataFrame) -> object:
    return numbers(frame.union(frame.where("queueId = 1")))


def two_filters_in_a_query(frame: DataFrame) -> object:
    return numbers(frame.where("queueId = 1").union(frame.where("queueId = 2")))


def two_filters_in_a_join(frame: DataFrame) -> object:
    return numbers(frame.where("queueId = 3").crossJoin(frame.where("queueId = 1").toDF("other")))


def a_filter_planned_before_another(frame: DataFrame) -> object:
    first = frame.where("queueId = 1")
    first.explain()
    return numbers(frame.where("queueId = 2")), numbers(first)


def all_cached_after_a_filter(frame: DataFrame) -> object:
    filtered = numbers(frame.where("queueId = 1"))
    cached = frame.cache()
    try:
        return filtered, numbers(cached)
    finally:
        cached.unpersist()


def a_view_filtered_then_whole(frame: DataFrame) -> object:
    frame.createOrReplaceTempView("four")
    sql = frame.sparkSession.sql
    try:
        return numbers(sql("SELECT * FROM four WHERE queueId = 1")), numbers(sql("SELECT * FROM four"))
    finally:
        sql("DROP VIEW four")


def a_view_and_its_subquery(frame: DataFrame) -> object:
    frame.createOrReplaceTempView("four")
    sql = frame.sparkSession.sql
    try:
        return numbers(sql("SELECT * FROM four WHERE queueId >= (SELECT max(queueId) FROM four WHERE queueId = 2)"))
    finally:
        sql("DROP VIEW four")


# What is asked of a frame of the rows 0 to 3, and the answer.
CASES: list[tuple[Callable[[DataFrame], object], object]] = [
    (all_after_a_filter, ([1], ALL)),
    (all_beside_a_filter, [0, 1, 1, 2, 3]),
    (two_filters_in_a_query, [1, 2]),
    (two_filters_in_a_join, [3]),
    (a_filter_planned_before_another, ([2], [1])),
    (all_cached_after_a_filter, ([1], ALL)),
    (a_view_filtered_then_whole, ([1], ALL)),
    (a_view_and_its_subquery, [2, 3]),
]


def toy_source(log: str) -> type[DataSource]:
    """Return a source of the rows 0 to 3, a partition each, that takes `queueId = x` and notes every call in `log`.

    A local class is sent to Spark's Python processes whole; they need not find this module.
    """

    def note(call: str, **facts: Any) -> None:
        with open(log, "a") as out:
            out.write(json.dumps({"call": call, **facts}) + "\n")

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.wanted: int | None = None

        def pushFilters(self, filters: list[Any]) -> list[Any]:
            note("pushFilters", filters=[str(f) for f in filters])
            equal = [f for f in filters if type(f).__name__ == "EqualTo"]
            self.wanted = equal[0].value if equal else None
            return [f for f in filters if f not in equal]

        def partitions(self) -> list[InputPartition]:
            parts = [n for n in range(4) if self.wanted in (None, n)]
            note("partitions", parts=parts)
            return [InputPartition(n) for n in parts]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            task: Any = TaskContext.get()
            note("read", part=partition.value, wanted=self.wanted, told=task._localProperties)
            yield (partition.value,)

    class Toy(DataSource):
        @classmethod
        def name(cls) -> str:
            return "toy"

        def schema(self) -> str:
            return "queueId int"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    return Toy


class Toy:
    """The small source, and the calls that Spark made of it since the last look."""

    def __init__(self, spark: SparkSession, log: Path) -> None:
        self._spark = spark
        self._log = log
        log.touch()
        spark.dataSource.register(toy_source(str(log)))

    def load(self) -> DataFrame:
        return self._spark.read.format("toy").load()

    def calls(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return (the calls of the planner, those of the tasks), and forget them."""
        found = [json.loads(line) for line in self._log.read_text().splitlines()]
        self._log.write_text("")
        return [c for c in found if c["call"] != "read"], [c for c in found if c["call"] == "read"]


@pytest.fixture
def toy(spark: SparkSession, tmp_path: Path) -> Toy:
    return Toy(spark, tmp_path / "calls")


@pytest.fixture
def topic(producer: Producer, make_topic: Callable[..., str]) -> str:
    """A topic of the queues 0 to 3, a message in each."""
    made = make_topic(queues=4, brokers=1)
    for queue_id in ALL:
        producer.send(Message(topic=made, body=b"x"), queue=MessageQueue(made, "broker-a", queue_id))
    return made


@pytest.fixture
def load(spark: SparkSession, cluster: Cluster, topic: str) -> Callable[..., DataFrame]:
    read = spark.read.format("rocketmq").schema("queueId int").option("namesrv", cluster.namesrv).option("topic", topic)
    return lambda **options: read.options(**options).load()


needs_filters = pytest.mark.skipif(not FILTERS, reason="this PySpark passes no filters to a Python source")
cases = pytest.mark.parametrize(("ask", "answer"), [pytest.param(*case, id=case[0].__name__) for case in CASES])


@cases
@pytest.mark.usefixtures("pushing")
def test_without_the_option_no_filter_changes_another_result(
    load: Callable[..., DataFrame], ask: Callable[[DataFrame], object], answer: object
) -> None:
    assert ask(load()) == answer


@needs_filters
@cases
@pytest.mark.usefixtures("pushing")
def test_spark_reads_a_source_that_takes_filters_by_its_last_plan(
    toy: Toy, ask: Callable[[DataFrame], object], answer: object
) -> None:
    assert ask(toy.load()) != answer, "Spark plans each table of a query by itself now"


@needs_filters
@pytest.mark.usefixtures("pushing")
def test_no_reader_can_tell_a_filtered_query_from_one_that_also_needs_the_other_rows(toy: Toy) -> None:
    frame = toy.load()
    assert numbers(frame.where("queueId = 1")) == [1]
    planned, _ = toy.calls()
    assert [call["call"] for call in planned] == ["pushFilters", "partitions"]
    # The planner is asked the same of both, so it must answer the same.
    frame = toy.load()
    assert numbers(frame.union(frame.where("queueId = 1"))) == [1, 1]
    again, tasks = toy.calls()
    assert again == planned
    # The tasks of both halves get the same reader, partition and properties. Their numbers differ: the planner cannot
    # know them.
    assert len(tasks) == 2
    assert tasks[0] == tasks[1]
    # And the planner is not asked at all once a filtered query has been planned.
    assert numbers(frame) == [1]
    assert toy.calls()[0] == []


def test_one_load_reads_what_was_there_at_its_first_query(
    load: Callable[..., DataFrame], producer: Producer, topic: str
) -> None:
    # The PySpark that brought filters, 4.1, brought the plan that is kept, too.
    frame = load()
    assert frame.count() == 4
    producer.send(Message(topic=topic, body=b"x"), queue=MessageQueue(topic, "broker-a", 0))
    assert frame.count() == (4 if FILTERS else 5)
    assert load().count() == 5


def test_without_filters_the_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "FILTERS", False)
    options = {"namesrv": "127.0.0.1:1", "topic": "orders", "pushDownPredicate": "true"}
    with pytest.raises(ConfigError, match=r"pushDownPredicate needs Spark 4\.1 or later, and this is 4\.\d"):
        source.RocketMQDataSource(options).reader(READ_SCHEMA)
