"""Spark on an official broker with its defaults: 32 messages per pull at most, and none of our own additions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.java.apache import ApacheCluster
from tests.spark.conftest import await_stored

from rocketspark.admin.operations import Admin
from rocketspark.spark.pipelines import archive, restore
from rocketspark.spark.pipelines.options import RestoreOptions

pytestmark = pytest.mark.shows(
    "`topic`, `topicPattern`, `assign`; NameServer list, namespace, credentials (in no plan, log or error); "
    "from our brokers and Apache's",
    "`store`: a store directory read directly, live, backed up, killed or damaged; ours and Apache's",
)

COUNT = 5000


def test_write_and_read_exactly(spark: SparkSession, apache: ApacheCluster) -> None:
    frame = spark.range(COUNT).select(
        F.format_string("body %d", "id").alias("body"),
        F.format_string("t%d", F.col("id") % 3).alias("tag"),
        F.array(F.format_string("k%d", "id")).alias("keys"),
        F.format_string("s%d", F.col("id") % 10).alias("shardingKey"),
        F.create_map(F.lit("n"), F.col("id").cast("string")).alias("properties"),
    )
    target = {"namesrv": apache.namesrv, "topic": "spark-apache"}
    # Rows that choose no queue let the broker create the topic.
    frame.limit(1).drop("shardingKey").write.format("rocketmq").options(**target).mode("append").save()
    await_stored(apache.namesrv, target["topic"], 1)
    frame.offset(1).write.format("rocketmq").options(**target).mode("append").save()
    await_stored(apache.namesrv, target["topic"], COUNT)
    read = spark.read.format("rocketmq").options(**target)
    rows = read.load().collect()
    found = sorted((int(r.properties["n"]), bytes(r.body), r.tag, r["keys"]) for r in rows)
    assert found == [(i, b"body %d" % i, f"t{i % 3}", [f"k{i}"]) for i in range(COUNT)]
    queues: dict[str, set[int]] = {}
    for row in rows:
        queues.setdefault(row.properties.get("__SHARDINGKEY", ""), set()).add(row.queueId)
    assert all(len(used) == 1 for used in queues.values())
    tagged = read.option("tags", "t1 || t2").load().select("tag").collect()
    assert len(tagged) == sum(i % 3 != 0 for i in range(COUNT))
    assert {r.tag for r in tagged} == {"t1", "t2"}


def test_delivery_times_order_and_compression(spark: SparkSession, apache: ApacheCluster) -> None:
    """Late rows go to the official broker's own timer topic, the others keep their order in the queue they name."""
    target = {"namesrv": apache.namesrv, "topic": "spark-apache-late"}
    first = spark.createDataFrame([("first", 0)], "body string, number int")
    first.select("body").write.format("rocketmq").options(**target).mode("append").save()
    await_stored(apache.namesrv, target["topic"], 1)
    tomorrow = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    rows = [(f"{i:05d}" + "x" * (6000 if i % 100 == 50 else 0), None, 0) for i in range(500)]
    rows[250] = ("late", tomorrow, 0)
    frame = spark.createDataFrame(rows, "body string, deliverTime timestamp, queueId int").coalesce(1)
    ways = {"compression": "zlib", "maxBatchBytes": "4000"}
    frame.write.format("rocketmq").options(**target, **ways).mode("append").save()
    await_stored(apache.namesrv, target["topic"], len(rows))
    read = spark.read.format("rocketmq").options(**target)
    found = read.load().where("queueId = 0 and body <> 'first'").orderBy("queueOffset").collect()
    assert [bytes(r.body).decode() for r in found] == [body for body, late, _ in rows if late is None]
    assert [bool(r.sysFlag & 1) for r in found] == [len(body) > 4096 for body, late, _ in rows if late is None]
    await_stored(apache.namesrv, "rmq_sys_wheel_timer", 1)
    (waiting,) = read.option("topic", "rmq_sys_wheel_timer").load().where("body = 'late'").collect()
    assert waiting.properties["REAL_TOPIC"] == "spark-apache-late"
    assert waiting.properties["TIMER_DELIVER_MS"] == str(int(tomorrow.timestamp() * 1000))


def test_its_store_is_read_directly_while_it_runs(spark: SparkSession, apache: ApacheCluster) -> None:
    """All columns equal what the broker gives: bodies compressed or not, rows filtered by tag or time."""
    topic = "spark-apache-store"
    frame = spark.range(600).select(
        F.when(F.col("id") % 50 == 0, F.repeat(F.lit("long "), 2000))
        .otherwise(F.format_string("b %d", "id"))
        .alias("body"),
        F.format_string("t%d", F.col("id") % 3).alias("tag"),
        F.array(F.format_string("k%d", "id")).alias("keys"),
    )
    target = {"namesrv": apache.namesrv, "topic": topic}
    frame.write.format("rocketmq").options(**target, compression="zlib").mode("append").save()
    await_stored(apache.namesrv, topic, 600)
    here = {"store": str(apache.store), "topic": topic, "brokerName": "broker-a"}
    for options in ({}, {"tags": "t1 || t2"}, {"startingTimestamp": "2020-01-01"}, {"endingTimestamp": "2020-01-01"}):
        found = spark.read.format("rocketmq").options(**here, **options).load().collect()
        expected = spark.read.format("rocketmq").options(**target, **options).load().collect()
        assert sorted(found, key=lambda r: r.logPosition) == sorted(expected, key=lambda r: r.logPosition)
        assert len(found) == (600 if options.keys() <= {"startingTimestamp"} else 400 if "tags" in options else 0)


def test_archive_and_restore(spark: SparkSession, apache: ApacheCluster, tmp_path: Path) -> None:
    source, target = "spark-apache-archived", "spark-apache-restored"
    with Admin(apache.namesrv) as operations:
        operations.create_topic(source, queue_count=2)
    frame = spark.range(300).select(
        F.format_string("body %d", "id").alias("body"), (F.col("id") % 2).cast("int").alias("queueId")
    )
    frame.write.format("rocketmq").options(namesrv=apache.namesrv, topic=source).mode("append").save()
    read = spark.read.format("rocketmq").options(namesrv=apache.namesrv)
    await_stored(apache.namesrv, source, 300)
    wanted = read.option("topic", source).load().select("queueId", "queueOffset", "body").collect()
    assert archive.run(spark, apache.namesrv, [source], tmp_path).rows == 300
    assert (
        restore.restore(spark, tmp_path, apache.namesrv, to=target, options=RestoreOptions(chunk_rows=100)).rows == 300
    )
    await_stored(apache.namesrv, target, 300)
    found = read.option("topic", target).load().select("queueId", "queueOffset", "body").collect()
    assert sorted(found) == sorted(wanted)
    assert restore.restore(spark, tmp_path, apache.namesrv, to=target).rows == 0
