"""Streams on a Spark without admission control (4.0, 4.1). Rule: the limits of micro-batches hold, over restarts too.

Such a Spark calls `latestOffset()` without telling where the query is, so the reader keeps its place: it is where the
last micro-batch ends. After a restart Spark asks once for the partitions between the newest offset it knows and
itself, before anything else; a query that begins asks for `initialOffset`.

Such a Spark tells nothing of AvailableNow either: it takes the first `latestOffset()` as the end of the query.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from rocketspark.spark.spark_features import ADMISSION_CONTROL, VERSION, ReadAllAvailable, ReadLimit

log = logging.getLogger("rocketspark.spark")


class LimitedReader(Protocol):
    """A stream's reader, as a Spark with admission control calls it."""

    def initialOffset(self) -> dict[str, Any]: ...
    def getDefaultReadLimit(self) -> ReadLimit: ...
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]: ...
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]: ...
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...
    def commit(self, end: dict[str, Any]) -> None: ...
    def stop(self) -> None: ...


class OwnLimitsReader(DataSourceStreamReader):
    """Calls a reader as admission control would. `repeated`: the query is started again until its end."""

    def __init__(self, reader: LimitedReader, *, repeated: bool = False) -> None:
        self._reader = reader
        self._reached: dict[str, Any] | None = None
        self._told = repeated

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new query begins."""
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the end of the next micro-batch, within the reader's limits."""
        limit = self._reader.getDefaultReadLimit()
        if not self._told and not isinstance(limit, ReadAllAvailable):
            self._told = True
            log.warning(
                "Spark %s ends a query with trigger AvailableNow after one micro-batch if a limit is set; start it"
                " again for the rest, or use Spark 4.2 (docs/spark.md, Versions of Spark)",
                VERSION,
            )
        start = self._reader.initialOffset() if self._reached is None else self._reached
        # Spark makes a micro-batch of every answer that is new, though it may plan no partitions of it: with a filter
        # that is never true, or a join with an empty table.
        self._reached = self._reader.latestOffset(start, limit)
        return self._reached

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions between two offsets; the query is at the second one from now on."""
        self._reached = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition; runs on an executor."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Have the reader commit."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Stop the reader."""
        self._reader.stop()


def for_this_spark(reader: LimitedReader, *, repeated: bool = False) -> DataSourceStreamReader:
    """Return a stream's reader as the installed Spark calls it. `repeated` is that of OwnLimitsReader."""
    if ADMISSION_CONTROL and isinstance(reader, DataSourceStreamReader):
        return reader
    return OwnLimitsReader(reader, repeated=repeated)
