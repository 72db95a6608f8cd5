"""Queries with trigger AvailableNow on every Spark: 4.0 and 4.1 end one after a micro-batch of its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocketspark.spark.spark_features import ADMISSION_CONTROL


def run_to_end(start: Callable[[], Any], limit_s: int = 600) -> list[int]:
    """Start the query, where Spark needs it until a run goes no further; return the rows of each micro-batch."""
    rows: list[int] = []
    while True:
        query = start()
        assert query.awaitTermination(limit_s)
        progress = [(p["sources"][0], p["numInputRows"]) for p in query.recentProgress]
        found = [count for source, count in progress if source["startOffset"] != source["endOffset"]]
        rows += found
        if ADMISSION_CONTROL or not found:
            return rows
        assert len(found) == 1
