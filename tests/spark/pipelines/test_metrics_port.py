"""--metrics-port: a pipeline's metrics while it runs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.scrapes import scrape, scrape_until
from tests.support.cli_calls import call
from tests.support.patience import LIMIT_S

from rocketspark.errors import ConfigError
from rocketspark.spark.metrics import listen
from rocketspark.spark.metrics.listening import listen_to_pipeline
from rocketspark.spark.pipelines import archive
from rocketspark.spark.pipelines.options import ArchiveOptions, RestoreOptions
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.restore import replay
from rocketspark.tables.client_access import Access
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "`--metrics-port` of pipelines; `archive` in both forms with durations of micro-batches and the lag by "
    "topic; `restore`, `replay`, `dlq --resend` with durations of chunks"
)

Load = Callable[..., Any]


def test_the_metrics_of_a_pipeline_that_runs(
    spark: SparkSession, cluster: Cluster, load: Load, topic: str, tmp_path: Path
) -> None:
    load(topic, 100)
    progress = Progress("archive")
    with listen_to_pipeline(spark, cluster.namesrv, Access(), progress, 0) as listening:
        done = archive.run(spark, cluster.namesrv, [topic], tmp_path / "archive", once=True, progress=progress)
        assert done.rows == 100
        found = scrape(listening.url)
    assert found.value("rocketspark_pipeline_rows", pipeline="archive") == 100
    assert found.value("rocketspark_pipeline_waiting_rows", pipeline="archive") == 0
    assert (found.value("rocketspark_pipeline_running_seconds", pipeline="archive") or 0) > 0


def test_an_archive_that_runs_on_tells_its_batches_and_its_lag(
    spark: SparkSession, cluster: Cluster, load: Load, topic: str, tmp_path: Path
) -> None:
    load(topic, 100)
    progress = Progress("archive")
    stream, of = "rocketspark_stream_", {"query": "archive", "topic": topic}
    done: list[Any] = []

    def work() -> None:
        where = cluster.namesrv, [topic], tmp_path / "archive"
        done.append(
            archive.run(
                spark, *where, once=False, options=ArchiveOptions(interval_s=3600, batch_rows=60), progress=progress
            )
        )

    with listen_to_pipeline(spark, cluster.namesrv, Access(), progress, 0, lag_interval_s=1) as listening:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            found = scrape_until(
                listening.url,
                lambda s: (
                    s.value(stream + "rows_total", query="archive") == 100
                    and s.value(stream + "lag_messages", **of) == 0
                ),
            )
            assert found.value(stream + "lag_seconds", **of) == 0
            assert found.value(stream + "messages_total", **of) == 100
            assert found.value(stream + "running", query="archive") == 1
            assert found.value(stream + "batches_total", query="archive") == 2
            assert found.value(stream + "batch_duration_seconds_count", query="archive") == 2
            for step in ("latestOffset", "addBatch"):
                assert (found.value(stream + "step_seconds_total", query="archive", step=step) or 0) > 0
            # It looks again in an hour: what comes meanwhile waits.
            sent_s = time.time()
            load(topic, 7)
            found = scrape_until(listening.url, lambda s: s.value(stream + "lag_messages", **of) == 7)
            assert 0 < (found.value(stream + "lag_seconds", **of) or 0) <= time.time() - sent_s + 1
            asked_s = found.value(stream + "lag_asked_timestamp_seconds", **of)
            assert asked_s is not None
            assert asked_s >= sent_s - 1
        finally:
            progress.stop.ask()
            thread.join(LIMIT_S)
    assert [each.rows for each in done] == [100]


def test_a_replay_tells_its_chunks_and_no_lag(
    spark: SparkSession, cluster: Cluster, load: Load, topic: str, tmp_path: Path
) -> None:
    load(topic, 100)
    progress = Progress("replay")
    with listen_to_pipeline(spark, cluster.namesrv, Access(), progress, 0) as listening:
        sent = replay(
            spark,
            cluster.namesrv,
            topic,
            f"{topic}-2",
            options=RestoreOptions(chunk_rows=50, state=tmp_path),
            progress=progress,
        )
        found = scrape(listening.url)
    assert (sent.rows, sent.chunks > 1) == (100, True)
    assert found.value("rocketspark_stream_batch_duration_seconds_count", query="replay") == sent.chunks
    assert found.value("rocketspark_stream_output_rows_total", query="replay") == 100
    assert found.labels("rocketspark_stream_lag_messages") == []


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
