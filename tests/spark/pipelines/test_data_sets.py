"""Real data through archive, restore and audit: counts and checksums are equal, and a difference would be found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from examples.archive import datasets
from examples.archive.run import run
from pyspark.sql import SparkSession

from rocketspark import Producer
from rocketspark.spark.pipelines import compare
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows("two real data sets through archive, restore and audit")

ROWS = 1500


@pytest.mark.parametrize("load", [datasets.flights, datasets.airports])
def test_counts_and_checksums_are_equal(
    spark: SparkSession,
    cluster: Cluster,
    producer: Producer,
    load: Callable[[int], datasets.DataSet],
    tmp_path: Path,
) -> None:
    data = load(ROWS)
    found = run(spark, cluster.namesrv, data, tmp_path, say=lambda text: None)
    assert (found["ok"], found["rows"], found["archived"], found["restored"]) == (True, ROWS, ROWS, ROWS)
    if data.topic == datasets.AIRPORTS_TOPIC:
        assert sum(not body.isascii() for body in data.rows["body"].map(bytes.decode)) > 1000
        producer.send(f"{data.topic}-restored", b"one too many")
        sides = [compare.Side(cluster.namesrv, topic) for topic in (data.topic, f"{data.topic}-restored")]
        assert not compare.run(spark, *sides).ok
