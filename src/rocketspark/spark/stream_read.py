"""spark.readStream: topics as they grow. Rule: an offset once given out means the same rows for ever.

An offset is topic to broker to queue id to the next queue offset. Queues that appear later are read from their oldest
message; those whose broker is away keep their place until it is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.spark.cluster import Bounds, Cluster
from rocketspark.spark.offsets import START_KEY, Offsets, admit, from_json, to_json
from rocketspark.spark.options import ReadOptions
from rocketspark.spark.plain_errors import plain_errors
from rocketspark.spark.reading import open_cluster, plan, queues_of, read_partition, starts


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of topics. Lives on the driver; only `read` runs on executors."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._cluster: Cluster | None = None
        # With AvailableNow: where the topics ended when the query began.
        self._last: Offsets | None = None
        self._newest: Offsets = {}
        self._initial: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None}

    def _open(self) -> Cluster:
        if self._cluster is None:
            self._cluster = open_cluster(self._options)
        return self._cluster

    def _bounds(self) -> dict[MessageQueue, Bounds]:
        cluster = self._open()
        bounds = cluster.bounds(queues_of(cluster, self._options))
        self._newest = {queue: found.next for queue, found in bounds.items()}
        return bounds

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins; the same each time, as Spark asks more than once."""
        if self._initial is not None:
            return self._initial
        with plain_errors():
            bounds = self._bounds()
            self._initial = dict(to_json(starts(self._open(), bounds, self._options)))
            return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxMessagesPerTrigger, or all there is."""
        rows = self._options.rows_per_trigger_max
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query: what is there now."""
        with plain_errors():
            self._bounds()
            self._last = dict(self._newest)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch: at most as many messages as `limit` after `start`."""
        with plain_errors():
            begin = from_json(start)
            bounds = self._bounds()
            last = self._last
            ends = {
                q: n if last is None else min(n, last[q]) for q, n in self._newest.items() if last is None or q in last
            }
            for queue, end in ends.items():
                # A queue that is new to the query begins at its oldest message.
                begin.setdefault(queue, min(bounds[queue].oldest, end))
            for queue, offset in begin.items():
                # Not there: its broker is away, or came after the query's end was fixed.
                ends.setdefault(queue, offset)
            if isinstance(limit, ReadMaxRows):
                ends = admit(begin, ends, limit.max_rows)
            if ends == from_json(start):
                return start
            found: dict[str, Any] = dict(to_json(ends))
            if start == self._initial:
                found[START_KEY] = start
            return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The topics' ends as last seen, for the query's progress."""
        return to_json(self._newest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Queue ranges from `start` to `end`."""
        with plain_errors():
            cluster = self._open()
            queues_of(cluster, self._options)
            # A first micro-batch that is run again begins where it began, not where a new query would begin now.
            begin = end.get(START_KEY, start) if START_KEY not in start else start
            return list(plan(cluster, from_json(begin), from_json(end), self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; runs on an executor."""
        return read_partition(partition, self._schema, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark's checkpoint holds the offsets."""

    def stop(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


class RefusedReader(DataSourceStreamReader):
    """Stands for a stream that cannot be read as asked: whatever Spark asks first raises the error."""

    def __init__(self, error: RocketSparkError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        with plain_errors():
            raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raises the error, as the others do."""
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        """Raises the error."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raises the error."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raises the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises the error."""
        self._refuse()
