"""Metrics of a pipeline's command: its streaming queries, and the progress that it prints. Rule: as `listen`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.spark.client_access import Access
from rocketspark.spark.metrics.listening import Listening, Settings, listen_with

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from pyspark.sql import SparkSession

    from rocketspark.spark.pipelines.progress import Progress


def serve(spark: SparkSession, namesrv: str, access: Access, progress: Progress, port: int) -> Listening:
    """Serve metrics on 127.0.0.1 until `stop`. Raises ConfigError if the port cannot be had."""

    def more() -> list[Metric]:
        from rocketspark.spark.metrics.exposition import of_pipeline

        return of_pipeline(progress.name, progress.rows, progress.waiting, progress.seconds)

    return listen_with(spark, Settings(port=port, namesrv=namesrv, access=access), more)
