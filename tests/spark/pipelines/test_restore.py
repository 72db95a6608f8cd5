"""restore and replay: each row once, in its queue's order, with all it had; nothing twice after a stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rocketspark.spark.pipelines import archive, origin, restore
from rocketspark.testing import Cluster

KEPT = "broker queueId queueOffset tag keys body flag".split()


def rows_of(spark: SparkSession, cluster: Cluster, topic: str, *, own: bool = False) -> list[Any]:
    """Rows by place: what a restore keeps, and the properties; own: without those that the restore added."""
    rows = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic).load()
    left_out = {"UNIQ_KEY", "WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER", *(origin.NAMES if own else ())}
    found = []
    for row in rows.select(*KEPT, "properties").collect():
        properties = {k: v for k, v in row["properties"].items() if k not in left_out}
        found.append((*row[:-1], sorted(properties.items())))
    return sorted(found, key=lambda row: row[:3])


def test_a_restored_topic_equals_the_old_one(
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    make_topic: Callable[..., str],
    load: Callable[..., Any],
    tmp_path: Path,
) -> None:
    load(topic, 300)
    archive.run(spark, cluster.namesrv, [topic], tmp_path, batch_rows=120)
    copy = f"{topic}-copy"
    planned = restore.restore(spark, tmp_path, cluster.namesrv, to=copy, dry_run=True)
    assert (planned.rows, planned.dry_run) == (300, True)
    done = restore.restore(spark, tmp_path, cluster.namesrv, to=copy, chunk_rows=100)
    assert (done.rows, done.already_there, done.stopped) == (300, 0, False)
    assert rows_of(spark, cluster, copy, own=True) == rows_of(spark, cluster, topic)
    again = restore.restore(spark, tmp_path, cluster.namesrv, to=copy)
    assert (again.rows, again.restore_id) == (0, done.restore_id)
    load(topic, 20, first=300)
    archive.run(spark, cluster.namesrv, [topic], tmp_path)
    assert restore.restore(spark, tmp_path, cluster.namesrv, to=copy).rows == 20
    assert rows_of(spark, cluster, copy, own=True) == rows_of(spark, cluster, topic)
    replayed = restore.replay(spark, cluster.namesrv, topic, f"{topic}-again", tags="A || C", state=tmp_path / "s")
    wanted = [row[3:] for row in rows_of(spark, cluster, topic) if row[3] in ("A", "C")]
    assert replayed.rows == len(wanted)
    assert sorted(row[3:] for row in rows_of(spark, cluster, f"{topic}-again", own=True)) == sorted(wanted)
