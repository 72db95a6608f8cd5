"""The streaming queries of pipelines. Rule: without an interval, one takes what is there and ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketspark.spark.pipelines.progress import Progress, QueryOutcome

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def start_query(
    writer: DataStreamWriter, *, name: str, checkpoint: Path | str, interval_s: float | None
) -> StreamingQuery:
    """Start a query. `interval_s`: go on, a micro-batch at most every so many seconds; None: AvailableNow."""
    writer = writer.queryName(name).option("checkpointLocation", str(checkpoint))
    if interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds").start()


def run_query(
    writer: DataStreamWriter,
    progress: Progress,
    *,
    name: str,
    checkpoint: Path | str,
    interval_s: float | None,
    told: Callable[[Any], None] | None = None,
) -> QueryOutcome:
    """Start a query and watch it to its end; `told` as of `Progress.watch`. Raises what it failed with."""
    query = start_query(writer, name=name, checkpoint=checkpoint, interval_s=interval_s)
    try:
        return progress.watch(query, told=told)
    finally:
        query.stop()
