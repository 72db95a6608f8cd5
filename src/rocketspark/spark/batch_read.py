"""spark.read: a bounded part of topics. Rule: what is read is fixed when the query is planned, on the driver."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rocketspark.errors import ConfigError
from rocketspark.spark import store_read
from rocketspark.spark.cluster import Cluster
from rocketspark.spark.offsets import Offsets
from rocketspark.spark.options import AtTime, ReadOptions
from rocketspark.spark.plain_errors import plain_errors
from rocketspark.spark.reading import ends, open_cluster, plan, queues_of, read_partition, starts
from rocketspark.spark.store_read import StorePartition, Stores


class BatchReader(DataSourceReader):
    """Reads what stands between two offsets of each queue."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Queue ranges as of now. Raises RouteNotFound, ConfigError, TransportError, DataLost."""
        with plain_errors():
            if self._options.store is not None:
                stores = Stores(self._options.store, self._options)
                try:
                    return list(store_read.plan(stores, *self._ends(stores), self._options))
                finally:
                    stores.close()
            cluster = open_cluster(self._options)
            try:
                return list(plan(cluster, *self._ends(cluster), self._options))
            finally:
                cluster.close()

    def _ends(self, cluster: Cluster | Stores) -> tuple[Offsets, Offsets]:
        """Where to begin and to end in each queue."""
        bounds = cluster.bounds(queues_of(cluster, self._options))
        first = starts(cluster, bounds, self._options)
        end = ends(cluster, bounds, self._options)
        stated = isinstance(self._options.starting, dict) and not isinstance(self._options.ending, AtTime)
        for queue in first:
            if first[queue] > end[queue] and not stated:
                end[queue] = first[queue]  # The time of one end lies behind the other: there is nothing between them.
            elif first[queue] > end[queue]:
                raise ConfigError(
                    f"startingOffsets {first[queue]} is after endingOffsets {end[queue]} for queue {queue.queue_id} of"
                    f" topic {queue.topic!r} on broker {queue.broker_name!r}"
                )
        return first, end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; runs on an executor."""
        if isinstance(partition, StorePartition):
            return store_read.read_partition(partition, self._schema, self._options)
        return read_partition(partition, self._schema, self._options)
