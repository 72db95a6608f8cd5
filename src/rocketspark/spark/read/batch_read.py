"""spark.read: messages between two offsets of each queue. Rule: these are fixed when the driver plans the query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rocketspark.arrow.decode_request import INT64_MAX, INT64_MIN
from rocketspark.spark.python_workers import plain_errors
from rocketspark.spark.read.pushed_filters import Pushed, push
from rocketspark.spark.read.tasks import read_task, tasks
from rocketspark.spark.spark_features import Filter
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.options import ReadOptions
from rocketspark.tables.read import batch
from rocketspark.tables.read.read_filter import ReadFilter

if TYPE_CHECKING:
    from rocketspark.tables.read.batch import Source


class BatchReader(DataSourceReader):
    """Reads the messages between two offsets of each queue."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._rows = ReadFilter.of(options)

    def partitions(self) -> list[InputPartition]:
        """Return the queue ranges to read, as of now. Raises RouteNotFound, ConfigError, TransportError, DataLost."""
        with plain_errors():
            return tasks(batch.plan(self._options, self._rows, self._narrow))

    def _narrow(self, source: Source, ranges: list[OffsetRange]) -> list[OffsetRange]:
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition; runs on an executor."""
        return read_task(partition, self._schema, self._options, self._rows)


class PushingReader(BatchReader):
    """A batch reader that takes over a query's filters, so that rows which they leave out are not read.

    PySpark refuses a reader with `pushFilters` while spark.sql.python.filterPushdown.enabled is off.
    """

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        super().__init__(schema, options)
        self._pushed = Pushed()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over the filters that the read can apply; return those that Spark must still apply."""
        self._pushed, rest = push(filters)
        self._rows = self._rows.narrowed(self._pushed.tags, self._pushed.stored_us)
        return rest

    def _narrow(self, source: Source, ranges: list[OffsetRange]) -> list[OffsetRange]:
        kept = [] if self._rows.tags == frozenset() else self._pushed.narrow(ranges)
        return self._within_time(source, kept) if kept else kept

    def _within_time(self, source: Source, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Leave out offsets that lie before or after the store times wanted.

        A queue's store times ascend but where a clock was set back by some S, so the first offset stored at T - S or
        later has nothing of T or later before it, and the first one stored after T + S nothing up to T behind it.
        """
        wanted, slack = self._rows.stored_us, self._options.clock_set_back_ms
        queues = {r.queue for r in ranges}
        if wanted.first > INT64_MIN:
            starts = source.offsets_at(queues, max(0, -(-wanted.first // 1000) - slack))
            ranges = [r._replace(first=max(r.first, starts[r.queue])) for r in ranges]
        if wanted.last < INT64_MAX:
            ends = source.offsets_at(queues, max(0, wanted.last // 1000 + slack + 1))
            ranges = [r._replace(end=min(r.end, ends[r.queue])) for r in ranges]
        return [r for r in ranges if r.first < r.end]
