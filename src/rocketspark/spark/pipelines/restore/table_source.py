"""The rows of a topic in an archive that is a table, for a restore. Rule: Spark reads them and brings the rows of each
target queue into one task, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rocketspark.spark.pipelines.archive import tasks
from rocketspark.spark.pipelines.archive.manifest import HOUR_MS, ArchivedRange, ArchiveFile, hour_name
from rocketspark.spark.pipelines.restore.plan import ArchivedSpan
from rocketspark.spark.pipelines.restore.tasks import QueueShare, SendTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHARE = "_share"
_SHARES = f"{SHARE} int, broker string, queueId int, _first bigint, _end bigint"


class TableSource:
    """Rows of a topic in a table."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows

    def only(self, chunk: Sequence[ArchivedSpan]) -> NoRows:
        """Return what a task gets: nothing, as Spark brings it the rows."""
        return NoRows()

    def ranges(self) -> list[ArchiveFile]:
        """Return what the table holds of each hour, as a Parquet archive's manifest has it of its files."""
        from pyspark.sql import functions as F

        found = self._rows.groupBy("topic", "hour", "broker", "queueId").agg(
            F.min("queueOffset").alias("first"), F.max("queueOffset").alias("last"), F.count("*").alias("rows")
        )
        return [
            ArchiveFile(r.topic, r.hour, "", r.rows, 0, 0, [ArchivedRange(r.broker, r.queueId, *_range(r))])
            for r in found.orderBy("topic", "hour", "broker", "queueId").collect()
        ]

    def send(self, task: SendTask, shares: Sequence[QueueShare]) -> Iterator[str]:
        """Send the rows of shares; returns the reports of the tasks, as JSON."""
        from pyspark.sql import functions as F

        spans = [(n, *span.queue, span.first, span.end) for n, share in enumerate(shares) for span in share.spans]
        first, end = min(span[3] for span in spans), max(span[4] for span in spans)
        table = self._rows.sparkSession.createDataFrame(spans, _SHARES)
        # The literal bounds let the table leave files out.
        rows = self._rows.where((F.col("queueOffset") >= first) & (F.col("queueOffset") < end))
        rows = rows.join(F.broadcast(table), ["broker", "queueId"])
        rows = rows.where("queueOffset >= _first AND queueOffset < _end").drop("_first", "_end")
        rows = rows.repartition(len(shares), SHARE).sortWithinPartitions(SHARE, "broker", "queueId", "queueOffset")

        def act(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number, group in groupby(parts_by_share(batches), key=lambda part: part[0]):
                yield from tasks.tell(task.send(number, (batch for _, batch in group)))

        return (row[0] for row in rows.mapInArrow(act, tasks.TOLD).collect())


class NoRows:
    """The source of a task whose rows Spark brings."""

    def read(self, span: ArchivedSpan) -> Iterator[pa.RecordBatch]:
        """Return nothing."""
        return iter(())


def parts_by_share(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Return rows, which are ordered by share, in parts of one share."""
    for batch in batches:
        numbers = batch.column(SHARE).to_numpy()
        at = 0
        while at < len(numbers):
            end = int(np.searchsorted(numbers, numbers[at], "right"))
            yield int(numbers[at]), batch.slice(at, end - at)
            at = end


def hour_bounds(since_ms: int | None, until_ms: int | None) -> tuple[str | None, str | None]:
    """Return the first and the last hour that may hold rows stored in [since, until)."""
    first = None if since_ms is None else hour_name(since_ms // HOUR_MS * HOUR_MS)
    last = None if until_ms is None else hour_name((until_ms - 1) // HOUR_MS * HOUR_MS)
    return first, last


def _range(row: object) -> tuple[int, int, int]:
    first, last, rows = (getattr(row, name) for name in ("first", "last", "rows"))
    return first, last + 1, rows
