"""Metrics of a pipeline's command: its streaming queries, or its own steps under its name as if they were one, and the
progress that it prints. Rule: as `listen`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rocketspark.spark.client_access import Access
from rocketspark.spark.metrics.listening import LAG_INTERVAL_S, Listening, Settings, listen_with
from rocketspark.spark.metrics.progress_reports import parse_report

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from pyspark.sql import SparkSession

    from rocketspark.spark.pipelines.progress import Progress


def serve(
    spark: SparkSession,
    namesrv: str,
    access: Access,
    progress: Progress,
    port: int,
    *,
    lag_interval_s: float = LAG_INTERVAL_S,
) -> Listening:
    """Serve metrics on 127.0.0.1 until `stop`. Raises ConfigError if the port cannot be had."""

    def more() -> list[Metric]:
        from rocketspark.spark.metrics.exposition import of_pipeline

        return of_pipeline(progress.name, progress.rows, progress.waiting, progress.seconds)

    settings = Settings(port=port, namesrv=namesrv, access=access, lag_interval_s=lag_interval_s)
    listening = listen_with(spark, settings, more)
    run = uuid.uuid4().hex

    def hear(report: Mapping[str, Any]) -> None:
        listening.figures.progressed(run, run, progress.name, parse_report(report))

    progress.hear = hear
    return listening
