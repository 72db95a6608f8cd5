"""--metrics-port: a pipeline's metrics while it runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.cli_calls import call
from tests.spark.scrapes import scrape

from rocketspark.errors import ConfigError
from rocketspark.spark.client_access import Access
from rocketspark.spark.metrics import listen
from rocketspark.spark.metrics.of_pipelines import serve
from rocketspark.spark.pipelines import archive
from rocketspark.spark.pipelines.progress import Progress
from rocketspark.testing import Cluster

Load = Callable[..., Any]


def test_the_metrics_of_a_pipeline_that_runs(
    spark: SparkSession, cluster: Cluster, load: Load, topic: str, tmp_path: Path
) -> None:
    load(topic, 100)
    progress = Progress("archive")
    with serve(spark, cluster.namesrv, Access(), progress, 0) as listening:
        done = archive.run(spark, cluster.namesrv, [topic], tmp_path / "archive", once=True, progress=progress)
        assert done.rows == 100
        found = scrape(listening.url)
    assert found.value("rocketspark_pipeline_rows", pipeline="archive") == 100
    assert found.value("rocketspark_pipeline_waiting_rows", pipeline="archive") == 0
    assert (found.value("rocketspark_pipeline_running_seconds", pipeline="archive") or 0) > 0


def test_a_command_says_where_its_metrics_are_or_that_the_port_is_taken(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    where = ["--namesrv", cluster.namesrv, "--to", str(tmp_path / "archive"), "--once"]
    done = call("pipeline", "archive", topic, *where, "--metrics-port", "0")
    assert done.exit_code == 0, done.told
    assert re.search(r"^archive: metrics at http://127\.0\.0\.1:[1-9]\d+/metrics$", done.stderr, re.M)
    with listen(spark) as taken:
        done = call("pipeline", "archive", topic, *where, "--metrics-port", str(taken.port))
    assert done.exit_code != 0
    assert isinstance(done.exception, ConfigError)
    assert f"the metrics' port {taken.port} on 127.0.0.1 cannot be had" in str(done.exception)
