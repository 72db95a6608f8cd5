"""Spark on an official broker with its defaults: 32 messages per pull at most, and none of our own additions."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.java.apache import ApacheCluster

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
    frame.offset(1).write.format("rocketmq").options(**target).mode("append").save()
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
