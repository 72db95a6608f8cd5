"""A stream's messages with the time at which it saw them. Rule: that time never goes back, and a micro-batch that runs
again has the one it had.

Spark leaves out of stateful queries what is older than the watermark, and keeps the watermark in the checkpoint: with
the driver's clock, all that comes after it was set back, or on another host, would be left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructField, StructType, TimestampType

from rocketspark.arrow.columns import TIME, numbers
from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model.text import shown
from rocketspark.spark.columns import READ_SCHEMA
from rocketspark.spark.options import ReadOptions, parse_read
from rocketspark.spark.plain_errors import plain_errors
from rocketspark.spark.read.own_limits import for_this_spark
from rocketspark.spark.read.stream_read import RefusedReader, StreamReader
from rocketspark.spark.spark_features import ReadLimit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("rocketspark.spark")

FORMAT = "rocketspark-seen"
SEEN = "seenTime"
# Of the stream's offset, which tells how far the time had come, and by what keys are known; no topic has such a name.
_KEY, _BY_KEY = "@seen", "@by"
_FLOOR, _BY = "seenfloor", "seenby"


class SeenSource(DataSource):
    """format("rocketmq") as a stream with a column of the time. Options: seenFloor, its lower bound in ms since 1970,
    and seenBy, what tells keys, which a checkpoint keeps.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return all columns of a read, and the time."""
        return StructType([*READ_SCHEMA.fields, StructField(SEEN, TimestampType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for spark.readStream."""
        try:
            given = {name.lower(): value for name, value in self.options.items()}
            floor_ms, by = int(given.pop(_FLOOR, "0")), given.pop(_BY, "")
            own = StructType([field for field in schema.fields if field.name != SEEN])
            return for_this_spark(SeenReader(own, parse_read(given, streaming=True), floor_ms, by=by), repeated=True)
        except RocketSparkError as e:
            return for_this_spark(RefusedReader(e))


class SeenReader(StreamReader):
    """A stream whose offsets hold the time at which they were looked at. `clock_ms`: the driver's."""

    def __init__(
        self,
        schema: StructType,
        options: ReadOptions,
        floor_ms: int,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        by: str = "",
    ) -> None:
        super().__init__(schema, options)
        self._by = by
        self._floor_ms = floor_ms
        self._clock_ms = clock_ms

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_clock_ms": None}

    def _seen_ms(self, before_ms: int) -> int:
        now_ms, least_ms = self._clock_ms(), max(before_ms, self._floor_ms + 1)
        if now_ms < least_ms:
            self._watching().tell("the clock is behind what it was: the time at which messages are seen stands still")
        return max(now_ms, least_ms)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the stream's latest offset, with the time."""
        self._check_by(start)
        own = _without(start)
        end = super().latestOffset(own, limit)
        if end == own:
            return start
        marks = {_KEY: self._seen_ms(start.get(_KEY, 0))}
        return {**end, **marks, **({_BY_KEY: self._by} if self._by else {})}

    def _check_by(self, offset: Mapping[str, Any]) -> None:
        """Raise ConfigError if a checkpoint's keys were told by something else: none of them would be known."""
        by = offset.get(_BY_KEY, self._by)
        if by != self._by:
            with plain_errors():
                raise ConfigError(
                    f"the checkpoint remembers keys by {shown(str(by))}, not by {shown(self._by)}: give --by"
                    f" {shown(str(by))}, or another --checkpoint"
                )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the stream's partitions; each has the time."""
        self._check_by(end)
        found = super().partitions(_without(start), _without(end))
        # A micro-batch that an earlier version planned has no time.
        seen_ms = end[_KEY] if _KEY in end else self._seen_ms(0)
        for part in found:
            part.seen_ms = seen_ms  # type: ignore[attr-defined]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition; runs on an executor."""
        for batch in super().read(partition):
            seen_us = np.full(batch.num_rows, partition.seen_ms * 1000, np.int64)  # type: ignore[attr-defined]
            yield batch.append_column(pa.field(SEEN, TIME), numbers(seen_us, TIME))

    def commit(self, end: dict[str, Any]) -> None:
        """Commit as the stream does."""
        super().commit(_without(end))


def _without(offset: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in offset.items() if name not in (_KEY, _BY_KEY)}


def watermark_of(spark: SparkSession, checkpoint: str) -> int:
    """Return the latest watermark that a checkpoint holds, in ms since 1970; 0 if there is none."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        lines = spark.read.text(f"{checkpoint}/offsets")
        found = F.max(F.get_json_object("value", "$.batchWatermarkMs").try_cast("bigint"))
        row = lines.select(found).first()
    except AnalysisException:
        return 0  # There is no checkpoint yet.
    return int(row[0] or 0) if row is not None else 0
