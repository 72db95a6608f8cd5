"""spark.read: messages between two offsets of each queue. Rule: these are fixed when the driver plans the query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from rocketspark.arrow.decode_request import INT64_MAX, INT64_MIN
from rocketspark.errors import ConfigError
from rocketspark.spark.cluster_queries import ClusterQueries
from rocketspark.spark.offset_ranges import OffsetRange, Offsets
from rocketspark.spark.option_values import AtTime, AtTimes
from rocketspark.spark.options import BAD_IS_NULL, ReadOptions
from rocketspark.spark.python_workers import plain_errors
from rocketspark.spark.read.partitions import ends, open_cluster, plan, queues_of, read_partition, starts
from rocketspark.spark.read.read_filter import Pushed, ReadFilter, push
from rocketspark.spark.spark_features import Filter

if TYPE_CHECKING:
    from rocketspark.spark.read.store_read import Stores


class BatchReader(DataSourceReader):
    """Reads the messages between two offsets of each queue."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._rows = ReadFilter.of(options)

    def partitions(self) -> list[InputPartition]:
        """Return the queue ranges to read, as of now. Raises RouteNotFound, ConfigError, TransportError, DataLost."""
        with plain_errors():
            if self._options.store is not None:
                # Not with the module: each stream starts a process that imports it.
                from rocketspark.spark.read import store_read

                stores = store_read.Stores(self._options.store, self._options)
                try:
                    narrow = partial(self._narrow, stores)
                    return list(store_read.plan(stores, *self._ends(stores), self._options, narrow))
                finally:
                    stores.close()
            cluster = open_cluster(self._options)
            try:
                narrow = partial(self._narrow, cluster)
                return list(plan(cluster, *self._ends(cluster), self._options, self._rows, narrow))
            finally:
                cluster.close()

    def _ends(self, cluster: ClusterQueries | Stores) -> tuple[Offsets, Offsets]:
        """Return the offsets at which to begin and to end in each queue."""
        bounds = cluster.bounds(queues_of(cluster, self._options))
        first = starts(cluster, bounds, self._options)
        end = ends(cluster, bounds, self._options)
        stated = isinstance(self._options.starting, dict) and not isinstance(self._options.ending, AtTime | AtTimes)
        for queue in first:
            if first[queue] > end[queue] and not stated:
                end[queue] = first[queue]  # The time of one end lies behind the other: there is nothing between them.
            elif first[queue] > end[queue]:
                raise ConfigError(
                    f"startingOffsets {first[queue]} is after endingOffsets {end[queue]} for queue {queue.queue_id} of"
                    f" topic {queue.topic!r} on broker {queue.broker_name!r}"
                )
        return first, end

    def _narrow(self, cluster: ClusterQueries | Stores, ranges: list[OffsetRange]) -> list[OffsetRange]:
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition; runs on an executor."""
        if self._options.store is not None:
            from rocketspark.spark.read import store_read

            if isinstance(partition, store_read.StorePartition):
                return store_read.read_partition(partition, self._schema, self._options, self._rows)
        return read_partition(partition, self._schema, self._options, self._rows)


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
        self._rows = self._rows.narrowed(self._pushed)
        return rest

    def _narrow(self, cluster: ClusterQueries | Stores, ranges: list[OffsetRange]) -> list[OffsetRange]:
        kept = [] if self._rows.tags == frozenset() else self._pushed.narrow(ranges)
        return self._within_time(cluster, kept) if kept else kept

    def _within_time(self, cluster: ClusterQueries | Stores, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Leave out offsets that lie before or after the store times wanted.

        A queue's store times ascend but where a clock was set back by some S, so the first offset stored at T - S or
        later has nothing of T or later before it, and the first one stored after T + S nothing up to T behind it.
        """
        wanted, slack = self._rows.stored_us, self._options.clock_set_back_ms
        queues = {r.queue for r in ranges}
        if wanted.first > INT64_MIN:
            starts = cluster.offsets_at(queues, max(0, -(-wanted.first // 1000) - slack))
            ranges = [r._replace(first=max(r.first, starts[r.queue])) for r in ranges]
        if wanted.last < INT64_MAX:
            ends = cluster.offsets_at(queues, max(0, wanted.last // 1000 + slack + 1))
            ranges = [r._replace(end=min(r.end, ends[r.queue])) for r in ranges]
        return [r for r in ranges if r.first < r.end]


def sampled_bodies(options: ReadOptions) -> Iterator[bytes]:
    """Yield bodies of the topics from the oldest on, queue by queue; no more is read than is taken. Raises as a batch
    read.
    """
    body = StructType([StructField("body", BinaryType())])
    reader = BatchReader(body, options._replace(decode=None, bad_bodies=BAD_IS_NULL, fail_on_data_loss=False))
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield from (one for one in batch.column("body").to_pylist() if one is not None)
