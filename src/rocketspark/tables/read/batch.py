"""The messages between two offsets of each queue. Rule: both are fixed when the read is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from rocketspark.errors import ConfigError
from rocketspark.tables.cluster_queries import ClusterQueries
from rocketspark.tables.offset_ranges import OffsetRange, Offsets
from rocketspark.tables.option_values import LATEST, AtTime, AtTimes
from rocketspark.tables.options import BAD_AS_STORED, BAD_IS_NULL, ReadOptions
from rocketspark.tables.read import partition_planning
from rocketspark.tables.read.executor_queries import addresses_now, end_of, is_compacted
from rocketspark.tables.read.partition_planning import QueuePartition, ends, open_cluster, queues_of, starts
from rocketspark.tables.read.read_filter import ReadFilter
from rocketspark.tables.read_columns import Columns, ReadColumns

if TYPE_CHECKING:
    from rocketspark.tables.read.store_read import StorePartition, Stores

    # What is asked about queues, and what is read at once.
    Source = ClusterQueries | Stores
    Partition = QueuePartition | StorePartition

# Leaves out of ranges what holds no message that is wanted; it may ask the source.
Narrowing = Callable[["Source", list[OffsetRange]], list[OffsetRange]]


def _all(source: Source, ranges: list[OffsetRange]) -> list[OffsetRange]:
    return ranges


def plan(options: ReadOptions, rows: ReadFilter | None = None, narrow: Narrowing = _all) -> list[Partition]:
    """Return the partitions to read, as of now. `rows`: by default the filter of the options.

    Raises RouteNotFound, ConfigError, TransportError, StoreError, DataLost.
    """
    if options.store is not None:
        # Not with the module: each stream of Spark starts a process that imports it.
        from rocketspark.tables.read import store_read

        with closing(store_read.Stores(options.store, options)) as stores:
            return list(store_read.plan(stores, *_bounded(stores, options), options, partial(narrow, stores)))
    with closing(open_cluster(options)) as cluster:
        return list(
            partition_planning.plan(cluster, *_bounded(cluster, options), options, rows, partial(narrow, cluster))
        )


def _bounded(source: Source, options: ReadOptions) -> tuple[Offsets, Offsets]:
    """Return the offsets at which to begin and to end in each queue."""
    queues = queues_of(source, options)
    if isinstance(source, ClusterQueries):
        partition_planning.check_open(source, options, queues)
    bounds = source.bounds(queues)
    if options.compacted and (moved := [queue for queue in queues if len(bounds[queue].parts) > 1]):
        raise ConfigError(
            f"option compacted is for queues of one broker, and queue {moved[0].queue_id} of static topic"
            f" {moved[0].topic!r} was moved, so that its keys lie on several: leave the option out"
        )
    first = starts(source, bounds, options)
    end = ends(source, bounds, options)
    stated = isinstance(options.starting, dict) and not isinstance(options.ending, AtTime | AtTimes)
    for queue in first:
        if first[queue] > end[queue] and not stated:
            end[queue] = first[queue]  # The time of one end lies behind the other: there is nothing between them.
        elif first[queue] > end[queue]:
            raise ConfigError(
                f"startingOffsets {first[queue]} is after endingOffsets {end[queue]} for queue {queue.queue_id} of"
                f" topic {queue.topic!r} on broker {queue.broker_name!r}"
            )
    return first, end


def read(
    partition: Partition, columns: Columns, options: ReadOptions, rows: ReadFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a partition, as Arrow batches of some 16,000 rows; `rows` as in `plan`. With option compacted
    those that hold the last value of their key.
    """
    if not options.compacted:
        return _every_row(partition, columns, options, rows)
    from rocketspark.tables.read.latest_values import KEY_COLUMNS, QueueReads, latest

    # Bad bodies are treated by the second look, which gives the rows.
    looked_at = options._replace(bad_bodies=BAD_AS_STORED, check_crc=False)
    reads: QueueReads[Partition] = QueueReads(
        keys=lambda part: _every_row(part, KEY_COLUMNS, looked_at, rows),
        rows=lambda part, chosen: _every_row(part, chosen, options, rows),
        count=lambda part: part.source.end - part.source.first,
        following=lambda part: _following(part, options),
    )
    return latest(partition, reads, columns)


def _following(partition: Partition, options: ReadOptions) -> Partition | None:
    """Return what came to a queue since the read of it was planned, if a broker compacts the topic and the options want
    the queue to its end; None otherwise, and if nothing came.
    """
    if options.ending != LATEST or not isinstance(partition, QueuePartition) or partition.less is not None:
        return None
    queue = partition.source.queue
    addresses = addresses_now(queue, partition.addresses, options)
    if not is_compacted(queue.topic, addresses, options):
        return None
    end = end_of(queue, addresses, options)
    if end <= partition.end:
        return None
    return QueuePartition(OffsetRange(queue, partition.end, end), addresses, partition.filters)


def _every_row(
    partition: Partition, columns: Columns, options: ReadOptions, rows: ReadFilter | None
) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, QueuePartition):
        return partition_planning.read_partition(partition, columns, options, rows)
    from rocketspark.tables.read import store_read

    return store_read.read_partition(partition, columns, options, rows)


def sampled_bodies(options: ReadOptions) -> Iterator[bytes]:
    """Yield bodies of the topics from the oldest on, queue by queue; no more is read than is taken. Raises as
    `plan`.
    """
    options = options._replace(decode=None, bad_bodies=BAD_IS_NULL, fail_on_data_loss=False, compacted=False)
    for partition in plan(options):
        for batch in read(partition, ReadColumns(["body"]), options):
            yield from (one for one in batch.column("body").to_pylist() if one is not None)
