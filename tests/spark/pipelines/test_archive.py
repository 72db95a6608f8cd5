"""archive: every message once in the files, whatever happens; compaction that no reader notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from rocketspark.spark.pipelines import archive
from rocketspark.testing import Cluster

COLUMNS = "broker queueId queueOffset messageId tag keys body properties bornTime storeTime flag".split()
LATER_MS = 10 * 24 * 3_600_000


def rows_of(rows: DataFrame) -> list[Any]:
    """All rows, in order of their place."""
    return sorted((tuple(row) for row in rows.select("topic", *COLUMNS).collect()), key=lambda row: row[:4])


def in_topic(spark: SparkSession, cluster: Cluster, topic: str) -> list[Any]:
    return rows_of(spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic).load())


def later() -> int:
    return archive.time.time_ns() // 1_000_000 + LATER_MS


def test_all_columns_of_every_message_are_there_once(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    load(topic, 300)
    first = archive.run(spark, cluster.namesrv, [topic], tmp_path, batch_rows=100)
    assert (first.rows, first.batches, first.total_rows, first.stopped) == (300, 3, 300, False)
    load(topic, 50, first=300)
    again = archive.run(spark, cluster.namesrv, [topic], tmp_path)
    assert (again.rows, again.total_rows) == (50, 350)
    assert archive.run(spark, cluster.namesrv, [topic], tmp_path).rows == 0
    wanted = in_topic(spark, cluster, topic)
    assert len(wanted) == 350
    assert rows_of(spark.read.parquet(str(tmp_path))) == wanted
    assert rows_of(archive.read(spark, tmp_path)) == wanted
    compacted = archive.run(spark, cluster.namesrv, [topic], tmp_path, now_ms=later, keep_replaced_s=3600)
    assert compacted.hours_compacted == len(archive.hours(tmp_path)) == compacted.files
    assert rows_of(spark.read.parquet(str(tmp_path))) == wanted
    assert rows_of(archive.read(spark, tmp_path)) == wanted
