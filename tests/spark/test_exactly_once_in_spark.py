"""Exactly once from end to end in Spark: jobs, streams, tasks that die, batches that Spark runs again."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.java.apache import ApacheCluster
from tests.spark.available_now import run_to_end
from tests.spark.conftest import await_stored
from tests.spark.topics import bodies_of

from rocketspark.admin.operations import Admin
from rocketspark.errors import RocketSparkError
from rocketspark.spark.exactly_once import batch_commit as exactly_once
from rocketspark.spark.exactly_once.batch_commit import TaskAttempt
from rocketspark.tables.options import parse_write
from rocketspark.testing import Cluster

pytestmark = pytest.mark.every_spark

Topics = Callable[..., str]


class Table:
    """Writes to topics exactly once, and reads them."""

    def __init__(self, spark: SparkSession, namesrv: str) -> None:
        self.spark, self.namesrv = spark, namesrv

    def options(self, topic: str, name: str | None = None) -> dict[str, str]:
        given = {"namesrv": self.namesrv, "topic": topic, "delivery": "exactly-once"}
        return given | {"transactionalId": name or topic}

    def job(self, frame: DataFrame, topic: str, name: str | None = None) -> None:
        frame.write.format("rocketmq").options(**self.options(topic, name)).mode("append").save()

    def stream(self, frame: DataFrame, topic: str, checkpoint: Path, name: str | None = None) -> None:
        """Run a stream over what is there, to its end."""
        run_to_end(
            frame.writeStream.format("rocketmq")
            .options(**self.options(topic, name))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start
        )

    def read(self, topic: str) -> DataFrame:
        return self.spark.read.format("rocketmq").option("namesrv", self.namesrv).option("topic", topic).load()

    def found(self, topic: str) -> Counter[str]:
        return Counter(bytes(row.body).decode() for row in self.read(topic).select("body").collect())


@pytest.fixture
def table(spark: SparkSession, cluster: Cluster) -> Table:
    return Table(spark, cluster.namesrv)


def rows(spark: SparkSession, count: int, partitions: int = 2, prefix: str = "row") -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.format_string(f"{prefix} %d", "id").alias("body"), "id")


def expected(count: int, prefix: str = "row") -> Counter[str]:
    return Counter(f"{prefix} {n}" for n in range(count))


def test_a_job_that_runs_again_leaves_nothing_twice(table: Table, topic: str) -> None:
    frame = rows(table.spark, 3000).select("body", F.lit("t").alias("tag"), F.array(F.lit("k")).alias("keys"))
    for _ in range(2):
        table.job(frame, topic)
    assert table.found(topic) == expected(3000)
    stored = table.read(topic).select("tag", "keys", "properties").collect()
    assert {(r.tag, tuple(r["keys"])) for r in stored} == {("t", ("k",))}
    keys = Counter(r.properties["DEDUPE_KEY"] for r in stored)
    assert keys == Counter(f"{topic}/0/{p}/{n}" for p in range(2) for n in range(1500))


def test_another_job_under_the_same_id_is_refused(table: Table, topic: str) -> None:
    table.job(rows(table.spark, 10).select("body"), topic)
    with pytest.raises(PySparkException, match="was used for a job of 10 rows; this one has 11"):
        table.job(rows(table.spark, 11).select("body"), topic)
    with pytest.raises(PySparkException, match="was used for a job with other rows"):
        table.job(rows(table.spark, 10, prefix="other").select("body"), topic)
    # The same rows, in other tasks.
    table.job(rows(table.spark, 10, partitions=1).select("body"), topic)
    assert table.found(topic) == expected(10)


@pytest.mark.shows("mended: a job's transactionalId used for another topic too: nothing is written there, and no error")
@pytest.mark.parametrize("of_rows", [False, True])
def test_the_same_rows_for_another_topic_are_another_job(table: Table, topic: str, of_rows: bool) -> None:
    frame = rows(table.spark, 10).select("body")
    table.job(frame, topic)
    other = f"{topic}-2"
    given = frame.withColumn("topic", F.lit(other)) if of_rows else frame
    options = table.options(other, topic)
    if of_rows:
        options.pop("topic")
    with pytest.raises(PySparkException, match=f"was used for a job to {topic}; this one is to {other}, of which none"):
        given.write.format("rocketmq").options(**options).mode("append").save()
    # The same topic, named by the rows.
    options = {name: value for name, value in options.items() if name != "topic"}
    frame.withColumn("topic", F.lit(topic)).write.format("rocketmq").options(**options).mode("append").save()
    assert table.found(topic) == expected(10)


def test_a_job_that_fails_leaves_nothing(table: Table, topic: str) -> None:
    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
        if batch.column(0)[0].as_py() == b"row 0":
            raise ValueError("this job fails")

    frame = rows(table.spark, 2000).select(F.col("body").cast("binary").alias("body"))
    with pytest.raises(PySparkException, match="this job fails"):
        table.job(frame.mapInArrow(fail, "body binary"), topic)
    assert table.found(topic) == Counter()
    table.job(frame, topic)
    assert table.found(topic) == expected(2000)


def test_rows_of_tasks_that_die_are_not_seen_twice(table: Table, topic: str, tmp_path: Path) -> None:
    """Each task of the job dies once, with its process, after all its rows were handed over."""
    marks = str(tmp_path)

    def die_once(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        mark = Path(marks, str(context.partitionId()))
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)

    # A local session does not try a task again, so that the job has to run again for each task.
    frame = rows(table.spark, 1000).select(F.col("body").cast("binary").alias("body"))
    failed = 0
    while True:
        try:
            table.job(frame.mapInArrow(die_once, "body binary"), topic)
            break
        except (PySparkException, Py4JJavaError):
            failed += 1
            assert table.found(topic) == Counter()
    assert failed in (1, 2)
    assert table.found(topic) == expected(1000)


def stream_source(table: Table, make_topic: Topics, count: int) -> DataFrame:
    source = make_topic()
    (
        rows(table.spark, count)
        .select("body")
        .write.format("rocketmq")
        .option("namesrv", table.namesrv)
        .option("topic", source)
        .mode("append")
        .save()
    )
    return (
        table.spark.readStream.format("rocketmq")
        .option("namesrv", table.namesrv)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", 400)
        .load()
        .select("body")
    )


def forget(checkpoint: Path, folder: str, batch: int) -> None:
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / folder / name).unlink(missing_ok=True)


def test_a_stream_whose_batches_run_again(table: Table, make_topic: Topics, tmp_path: Path) -> None:
    frame, topic = stream_source(table, make_topic, 1000), make_topic()
    checkpoint = tmp_path / "checkpoint"
    table.stream(frame, topic, checkpoint)
    assert table.found(topic) == expected(1000)
    # The driver died before Spark noted that its last batch was committed.
    assert sorted(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit()) == [0, 1, 2]
    forget(checkpoint, "commits", 2)
    table.stream(frame, topic, checkpoint)
    assert table.found(topic) == expected(1000)
    with pytest.raises(PySparkException, match=f"transactionalId '{topic}' belongs to query"):
        table.stream(frame, topic, tmp_path / "another")
    # An older copy of the checkpoint.
    for batch in (1, 2):
        forget(checkpoint, "commits", batch)
    forget(checkpoint, "offsets", 2)
    with pytest.raises(PySparkException, match="has committed batch 2 of this query, and this is batch 1"):
        table.stream(frame, topic, checkpoint)
    assert table.found(topic) == expected(1000)


def test_options_are_checked_before_anything_runs(table: Table, topic: str) -> None:
    frame = rows(table.spark, 1).select("body")
    writer = frame.write.format("rocketmq").option("namesrv", table.namesrv).option("topic", topic).mode("append")
    with pytest.raises(PySparkException, match="option transactionalId is missing"):
        writer.option("delivery", "exactly-once").save()
    with pytest.raises(PySparkException, match="a row asks for a later delivery"):
        table.job(frame.withColumn("delayLevel", F.lit(1)), topic)


@pytest.mark.java
@pytest.mark.xdist_group("jvm")
def test_the_official_broker(spark: SparkSession, apache: ApacheCluster, tmp_path: Path) -> None:
    with Admin(apache.namesrv) as operations:
        operations.create_topic("spark-exact", queue_count=2)
    table = Table(spark, apache.namesrv)
    frame = rows(spark, 500, partitions=2).select("body", F.lit("key").alias("shardingKey"))
    for _ in range(2):
        table.job(frame, "spark-exact")
    await_stored(apache.namesrv, "spark-exact", 500)
    assert table.found("spark-exact") == expected(500)
    # Rows of one key stay in one queue, those of a task in their order.
    stored = [
        r.properties["DEDUPE_KEY"].rsplit("/", 2) for r in table.read("spark-exact").orderBy("queueOffset").collect()
    ]
    for partition in ("0", "1"):
        assert [int(n) for _, p, n in stored if p == partition] == list(range(250))


@pytest.mark.shows(
    "mended: exactly once commits rows to queues that the topic lost since they were sent: nobody reads them"
)
@pytest.mark.parametrize("queues", [0, 1])
def test_a_topic_that_lost_queues_before_the_commit(cluster: Cluster, make_topic: Topics, queues: int) -> None:
    topic = make_topic(queues=3, brokers=1)
    options = parse_write(
        {"namesrv": cluster.namesrv, "topic": topic, "delivery": "exactly-once", "transactionalId": topic}
    )
    rows = pa.record_batch({"body": [b"%d" % n for n in range(6)], "queueId": pa.array([0, 1, 2] * 2, pa.int32())})
    exactly_once.open_log(options)

    def send(columns: list[str]) -> list[exactly_once.SentAttempt]:
        return [exactly_once.send_attempt(iter([rows.select(columns)]), options, TaskAttempt("q", 0, 0))]

    sent = send(["body", "queueId"])
    with Admin(cluster.namesrv) as operations:
        operations.delete_topic(topic)
        if queues:
            operations.create_topic(topic, queue_count=queues, brokers=["broker-a"])
        with pytest.raises(
            RocketSparkError, match=rf"has {queues} queues on broker 'broker-a' now.*for queue 2: nothing"
        ):
            exactly_once.commit(sent, options, 0)
        if not queues:
            operations.create_topic(topic, queue_count=1, brokers=["broker-a"])
    exactly_once.abort(sent, options)
    exactly_once.commit(send(["body"]), options, 0)
    assert bodies_of(cluster.namesrv, topic) == [b"%d" % n for n in range(6)]
