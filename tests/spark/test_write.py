"""df.write and df.writeStream: every row arrives, with what its columns say; rows that cannot be sent are named."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from tests.spark.available_now import run_to_end
from tests.spark.conftest import Place

from rocketspark.client.producer.prepared_message import queue_of_key
from rocketspark.model import Message, MessageQueue
from rocketspark.testing import Cluster

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.shows(
        "batch and stream, all columns and options, delivery times, bounded memory, order per queue, a killed "
        "broker, inner batches"
    ),
]

Topics = Callable[..., str]


class Table:
    """Writes frames to topics and reads them back."""

    def __init__(self, spark: SparkSession, cluster: Cluster) -> None:
        self.spark, self.namesrv = spark, cluster.namesrv

    def write(self, frame: DataFrame, topic: str | None, mode: str = "append", **options: Any) -> None:
        writer = frame.write.format("rocketmq").option("namesrv", self.namesrv).options(**options)
        (writer.option("topic", topic) if topic else writer).mode(mode).save()

    def read(self, topic: str) -> list[Row]:
        frame = self.spark.read.format("rocketmq").option("namesrv", self.namesrv).option("topic", topic).load()
        return frame.orderBy("broker", "queueId", "queueOffset").collect()


@pytest.fixture
def table(spark: SparkSession, cluster: Cluster) -> Table:
    return Table(spark, cluster)


@pytest.mark.shows("Spark: batch write")
def test_round_trip(table: Table, topic: str) -> None:
    frame = table.spark.range(20_000).select(
        F.format_string("body %d", "id").alias("body"),
        F.when(F.col("id") % 2 == 0, F.format_string("t%d", F.col("id") % 3)).alias("tag"),
        F.array(F.format_string("k%d", "id"), F.lit("all")).alias("keys"),
        F.create_map(F.lit("n"), F.col("id").cast("string")).alias("properties"),
        F.col("id").cast("int").alias("flag"),
    )
    # Some ten batches for each task.
    table.write(frame, topic, maxBatchBytes=1 << 17)
    rows = table.read(topic)
    found = sorted((r.flag, bytes(r.body), r.tag, r["keys"], r.properties["n"]) for r in rows)
    assert found == [
        (i, b"body %d" % i, None if i % 2 else f"t{i % 3}", [f"k{i}", "all"], str(i)) for i in range(20_000)
    ]
    assert len({(r.broker, r.queueId) for r in rows}) == 4
    assert len({r.messageId for r in rows}) == 20_000


def test_topic_by_column_and_copy_of_a_read(table: Table, make_topic: Topics, load: Callable[..., Any]) -> None:
    one, two = make_topic(queues=1, brokers=1), make_topic(queues=1, brokers=1)
    frame = table.spark.createDataFrame(
        [(f"{i}", one if i % 3 else two) for i in range(90)], "body string, topic string"
    )
    table.write(frame, None)
    assert sorted(int(bytes(r.body)) for r in table.read(one)) == [i for i in range(90) if i % 3]
    assert sorted(int(bytes(r.body)) for r in table.read(two)) == [i for i in range(90) if not i % 3]
    # All columns of a read may be written again; the option beats the column.
    source, target = make_topic(), make_topic()
    placed: dict[Place, Message] = load(source, 500)
    read = table.spark.read.format("rocketmq").option("namesrv", table.namesrv).option("topic", source).load()
    table.write(read, target)
    copies = table.read(target)
    assert {(r.broker, r.queueId, bytes(r.body), r.tag, tuple(r["keys"]), r.flag) for r in copies} == {
        (broker, queue, m.body, m.tag, tuple(m.keys), m.flag) for (broker, queue, _), m in placed.items()
    }
    assert len(copies) == 500
    assert {r.properties["uni"] for r in copies} == {"中文-é-🚀"}


def test_sharding_key_keeps_queue_and_order(table: Table, topic: str) -> None:
    rows = [(f"{i}", f"key{i % 37}") for i in range(5000)]
    frame = table.spark.createDataFrame(rows, "body string, shardingKey string").coalesce(1)
    table.write(frame, topic, maxBatchBytes="2000")
    queues = [MessageQueue(topic, broker, i) for broker in ("broker-a", "broker-b") for i in (0, 1)]
    by_key = defaultdict(list)
    for row in table.read(topic):
        key = row.properties["__SHARDINGKEY"]
        wanted = queue_of_key(key, queues)
        assert (row.broker, row.queueId) == (wanted.broker_name, wanted.queue_id)
        by_key[key].append(int(bytes(row.body)))
    assert by_key == {f"key{k}": list(range(k, 5000, 37)) for k in range(37)}


def test_chosen_queue(table: Table, topic: str) -> None:
    rows = [("a", "broker-b", 1), ("b", None, 1), ("c", "broker-a", 0), ("d", None, None)]
    table.write(table.spark.createDataFrame(rows, "body string, broker string, queueId int"), topic)
    found = {bytes(r.body).decode(): (r.broker, r.queueId) for r in table.read(topic)}
    assert found.pop("d")
    assert found == {"a": ("broker-b", 1), "b": ("broker-a", 1), "c": ("broker-a", 0)}


def test_large_body_and_delay_go_alone(table: Table, topic: str) -> None:
    large = "x" * 600_000
    frame = table.spark.createDataFrame(
        [("first", 0), (large, None), ("late", 1), ("last", None)], "body string, delayLevel int"
    )
    table.write(frame.coalesce(1), topic)
    now = {bytes(r.body).decode() for r in table.read(topic)}
    assert {"first", large, "last"} <= now
    # Delay level 1 is one second: the message waits in its own topic, then comes.
    held = table.read("SCHEDULE_TOPIC_XXXX")
    assert [bytes(r.body) for r in held if r.properties["REAL_TOPIC"] == topic] == [b"late"]


def test_delivery_times(table: Table, topic: str) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    rows = [
        ("past", None, now - timedelta(hours=1)),
        ("at once", 0, None),
        ("soon", 1500, None),
        ("hour", 3_600_000, None),
        ("tomorrow", None, now + timedelta(days=1)),
    ]
    frame = table.spark.createDataFrame(rows, "body string, delayMs long, deliverTime timestamp")
    table.write(frame.coalesce(1), topic)
    waiting = {bytes(r.body): r.properties for r in table.read("rmq_sys_wheel_timer") if r.topic and r.body}
    hour, tomorrow = waiting[b"hour"], waiting[b"tomorrow"]
    assert (hour["TIMER_DELAY_MS"], hour["REAL_TOPIC"]) == ("3600000", topic)
    assert tomorrow["TIMER_DELIVER_MS"] == str(int(now.timestamp() + 86_400) * 1000)
    found: set[str] = set()
    end = time.monotonic() + 120
    while "soon" not in found and time.monotonic() < end:
        found = {bytes(r.body).decode() for r in table.read(topic)}
    assert found == {"past", "at once", "soon"}


def test_several_topics_and_tasks_without_rows(table: Table, make_topic: Topics) -> None:
    topics = [make_topic() for _ in range(3)]
    rows = [(f"{i}", topics[i % 3], f"t{i}") for i in range(7)]
    frame = table.spark.createDataFrame(rows, "body string, topic string, tag string")
    # More tasks than rows.
    table.write(frame.repartition(12), None)
    for number, name in enumerate(topics):
        assert sorted(bytes(r.body).decode() for r in table.read(name)) == [str(i) for i in range(number, 7, 3)]
    empty = table.spark.createDataFrame([], "body string")
    table.write(empty, topics[0])
    table.write(empty, "no-such-topic-" + topics[0])
    assert len(table.read(topics[0])) == 3


def test_a_topic_of_one_queue_keeps_a_task_s_order(table: Table, make_topic: Topics) -> None:
    topic = make_topic(queues=1, brokers=1)
    # Now and then a row too large for a batch.
    text = F.col("id").cast("string")
    body = F.when(F.col("id") % 4000 == 7, F.rpad(text, 9000, "x")).otherwise(text)
    table.write(table.spark.range(20_000).coalesce(1).select(body.alias("body")), topic, maxBatchBytes=4000)
    bodies = [bytes(r.body).rstrip(b"x") for r in table.read(topic)]
    assert bodies == [b"%d" % i for i in range(20_000)]


def test_a_topic_with_batch_queues_takes_inner_batches(table: Table, make_topic: Topics) -> None:
    topic = make_topic(queues=1, brokers=1, attributes="+queue.type=BatchCQ")
    frame = (
        table.spark.range(3000)
        .coalesce(1)
        .select(F.format_string("body %d", "id").alias("body"), F.format_string("t%d", F.col("id") % 3).alias("tag"))
    )
    table.write(frame, topic, maxBatchBytes="1000000")
    rows = table.read(topic)
    assert [(bytes(r.body), r.tag, r.queueOffset) for r in rows] == [
        (b"body %d" % i, f"t{i % 3}", i) for i in range(3000)
    ]
    # One record for all.
    assert len({r.logPosition for r in rows}) == 1


def test_compression_and_a_broker_s_queues(table: Table, topic: str) -> None:
    rows = [("a" * 10_000, "broker-b"), ("small", "broker-b"), ("c" * 5000, "broker-a")]
    frame = table.spark.createDataFrame(rows, "body string, broker string")
    table.write(frame, topic, compression="zstd")
    found = {bytes(r.body).decode(): (r.broker, bool(r.sysFlag & 1)) for r in table.read(topic)}
    assert found == {"a" * 10_000: ("broker-b", True), "small": ("broker-b", False), "c" * 5000: ("broker-a", True)}


@pytest.mark.shows("Spark: stream write, at least once")
def test_stream_write(
    table: Table, cluster: Cluster, make_topic: Topics, load: Callable[..., Any], tmp_path: Path
) -> None:
    source, target = make_topic(), make_topic()
    reader = table.spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", source)

    def run() -> None:
        frame = reader.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", "400").load()
        run_to_end(
            frame.select(F.upper(F.col("body").cast("string")).alias("body"), "tag", "keys")
            .writeStream.format("rocketmq")
            .option("namesrv", cluster.namesrv)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start
        )

    load(source, 1000)
    run()
    load(source, 300, first=1000)
    run()
    rows = table.read(target)
    assert len(rows) == 1300
    assert sorted(int(bytes(r.body).split(b":")[0]) for r in rows) == list(range(1300))
    assert all(bytes(r.body).isupper() or b"X" not in bytes(r.body) for r in rows)


ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("SELECT 'x' AS value", {}, "the rows have no column 'body'"),
    ("SELECT 'x' AS body, 'y' AS tags", {}, "column 'tags' is not understood"),
    ("SELECT 1 AS body", {}, "column 'body' is int, not binary or string"),
    ("SELECT 'x' AS body", {"topic": None}, "option topic is missing"),
    ("SELECT 'x' AS body", {"namesrv": ""}, "option namesrv is missing"),
    ("SELECT 'x' AS body", {"mode": "overwrite"}, "a topic can only be appended to"),
    ("SELECT 'x' AS body", {"topic": "a b"}, "only letters"),
    ("SELECT '' AS body", {}, "body is empty"),
    ("SELECT CAST(NULL AS STRING) AS body", {}, "no body"),
    ("SELECT 'x' AS body, 9 AS queueId", {}, "names queue 9"),
    ("SELECT 'x' AS body, 0 AS queueId", {"topic": "absent"}, "does not exist"),
    ("SELECT 'x' AS body, 'broker-z' AS broker", {}, "names broker 'broker-z', which has no queue"),
    ("SELECT 'x' AS body, 3 AS delayLevel, 5L AS delayMs", {}, "several of delayLevel, delayMs and deliverTime"),
    ("SELECT 'x' AS body, now() + INTERVAL 100 DAYS AS deliverTime", {}, "should not be bigger than the max delay"),
]


@pytest.mark.parametrize(("query", "changes", "says"), ERRORS, ids=lambda v: str(v)[:40])
def test_errors_are_clear(table: Table, topic: str, query: str, changes: dict[str, Any], says: str) -> None:
    target = changes.pop("topic", topic) if "topic" in changes else topic
    with pytest.raises(Exception) as caught:
        table.write(table.spark.sql(query), target, **changes)
    assert says in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_broker_down_is_named(table: Table, topic: str) -> None:
    with pytest.raises(Exception, match="no NameServer answers"):
        table.write(table.spark.sql("SELECT 'x' AS body"), topic, namesrv="127.0.0.1:1")
