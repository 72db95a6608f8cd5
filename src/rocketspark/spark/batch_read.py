"""spark.read: a bounded part of topics. Rule: what is read is fixed when the query is planned, on the driver."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rocketspark.errors import ConfigError
from rocketspark.spark.cluster import Cluster
from rocketspark.spark.options import AtTime, ReadOptions
from rocketspark.spark.plain_errors import plain_errors
from rocketspark.spark.reading import ends, open_cluster, plan, queues_of, read_partition, starts


class BatchReader(DataSourceReader):
    """Reads what stands between two offsets of each queue."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Queue ranges as of now. Raises RouteNotFound, ConfigError, TransportError, DataLost."""
        with plain_errors():
            cluster = open_cluster(self._options)
            try:
                return list(self._plan(cluster))
            finally:
                cluster.close()

    def _plan(self, cluster: Cluster) -> list[InputPartition]:
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
        partitions: list[InputPartition] = list(plan(cluster, first, end, self._options))
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; runs on an executor."""
        return read_partition(partition, self._schema, self._options)
