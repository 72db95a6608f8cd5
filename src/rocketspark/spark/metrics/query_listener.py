"""Hears what Spark tells of streaming queries. Rule: whatever an event holds, the query does not notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from rocketspark.model.limited_log import LimitedLog
from rocketspark.spark.metrics.progress_reports import parse_report
from rocketspark.spark.metrics.query_figures import QueryFigures

log = LimitedLog("rocketspark.spark")


class QueryListener(StreamingQueryListener):
    """Counts the events of queries. With Spark Connect it runs in the client."""

    def __init__(self, figures: QueryFigures) -> None:
        self._figures = figures

    def onQueryStarted(self, event: Any) -> None:
        """Count a start."""
        self._safely("started", lambda: self._figures.started(str(event.runId), str(event.id), event.name))

    def onQueryProgress(self, event: Any) -> None:
        """Count what a trigger did."""

        def count() -> None:
            told = event.progress
            self._figures.progressed(str(told.runId), str(told.id), told.name, parse_report(told))

        self._safely("progress", count)

    def onQueryIdle(self, event: Any) -> None:
        """Note that a query is alive."""
        self._safely("idle", lambda: self._figures.idled(str(event.runId)))

    def onQueryTerminated(self, event: Any) -> None:
        """Count an end, with an error or without."""
        self._safely(
            "terminated",
            lambda: self._figures.ended(str(event.runId), str(event.id), failed=event.exception is not None),
        )

    def _safely(self, kind: str, count: Callable[[], None]) -> None:
        try:
            count()
        except Exception:
            self._figures.listener_failed(kind)
            log.exception("an event of a query could not be counted")
