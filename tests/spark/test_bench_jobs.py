"""The jobs that `make bench-spark` times, at a tiny size: they see every row. Speeds are not looked at."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
from bench.fill import fill
from bench.spark_kafka import (
    MIXED_BYTES,
    MIXED_PROPERTIES,
    NAIVE,
    body_of,
    mixed_body_of,
    mixed_properties_of,
)
from bench.spark_perf import ROCKETMQ, done, mixed_rows

from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "`make bench-spark` beside the Kafka connector: read 3.4x, stream 1.5x, Parquet 2.3x, store 3.0x, write 1.1x"
)


def test_each_job_sees_every_row(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    rows = 1200
    bodies = [body_of(number) for number in range(rows)]
    expected = {"rows": rows, "bytes": 128 * rows, "crc32": sum(zlib.crc32(body) for body in bodies)}

    def do(job: str, topic: str = "bench-jobs", **given: Any) -> dict[str, Any]:
        found = done(spark, ROCKETMQ, {"job": job, "address": cluster.namesrv, "topic": topic, **given})
        assert found.pop("seconds") > 0
        return found

    fill(cluster.brokers[0], "bench-jobs", rows, queues=2, body_of=body_of)
    found = do("check")
    assert {k: found[k] for k in expected} == expected
    assert do("read") == {}
    assert do("stream")["rows"] == rows
    path = str(tmp_path / "bodies")
    do("parquet", path=path)
    # Written by Spark: from these files, and made by Spark itself, as Kafka's side gets them.
    fill(cluster.brokers[0], "bench-jobs-written", 0, queues=2)
    do("write", "bench-jobs-written", path=path)
    fill(cluster.brokers[0], "bench-jobs-made", 0, queues=2)
    do("fill", "bench-jobs-made", rows=rows, queues=2, run=500)
    assert do("check", "bench-jobs-written") == do("check", "bench-jobs-made") == found


def test_both_sides_get_the_same_rows_of_mixed_sizes(spark: Any, cluster: Cluster) -> None:
    rows = 700
    made = mixed_rows(
        spark, {"rows": rows, "queues": 2, "run": 500, "sizes": MIXED_BYTES, "headers": MIXED_PROPERTIES}
    ).collect()
    fill(
        cluster.brokers[0],
        "bench-mixed-jobs",
        rows,
        queues=2,
        body_of=mixed_body_of,
        properties_of=mixed_properties_of,
    )
    reader = spark.read.format("rocketmq").options(namesrv=cluster.namesrv, topic="bench-mixed-jobs")
    ours = sorted(reader.load().collect(), key=lambda row: int(row["keys"][0][1:]))
    assert [bytes(row.body) for row in ours] == [bytes(row.body) for row in made]
    assert (min(MIXED_BYTES), max(MIXED_BYTES)) == (64, 4096)
    assert [row["keys"] for row in ours] == [[row.key.decode()] for row in made]
    for mine, theirs in zip(ours, made, strict=True):
        assert {h.key: h.value.decode() for h in theirs.headers}.items() <= mine.properties.items()
        assert mine.queueId == theirs.queueId
    for columns, _ in NAIVE:
        job = {"job": "select", "address": cluster.namesrv, "topic": "bench-mixed-jobs", "columns": columns}
        assert done(spark, ROCKETMQ, job).keys() == {"seconds"}
