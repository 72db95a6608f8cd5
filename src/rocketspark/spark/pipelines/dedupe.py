"""The pipeline `dedupe`: copies a topic to another, each key once within some time. Rule: no message is lost: late
ones, and those without a key, are passed on.

Time is when the pipeline saw a message, not when it was stored: Spark drops what is older than a watermark, and a queue
that lags behind the others would lose messages that way. That time never goes back, also if the driver's clock does or
another host goes on with the checkpoint, and a micro-batch that runs again has the time it had: `SeenSource` puts it
into the stream's offsets. A message that may not be written to the target is left out and counted as refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from rocketspark.arrow.message_columns import TIME, numbers
from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model.text import shown
from rocketspark.protocol.message import properties
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.options import DedupeOptions
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.session import one_line_errors
from rocketspark.spark.pipelines.parts.streaming import (
    check_delivery,
    check_name,
    check_servers,
    default_name,
    end_of_topics,
    highest_noted,
    run_query,
)
from rocketspark.spark.python_workers import plain_errors
from rocketspark.spark.read.stream_read import RefusedReader, StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ReadLimit, for_this_spark
from rocketspark.tables.options import ReadOptions, parse_read

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# The parts of a message that can be the key, besides `property:NAME` and `json:PATH`.
KEYS = ("key", "messageId", "body")
COLUMNS = ("body", "tag", "keys", "properties", "shardingKey", "flag")
_DURATION = re.compile(r"\s*([0-9]{1,9})\s*(s|m|h|d|seconds?|minutes?|hours?|days?)\s*")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
DEFAULTS = DedupeOptions()
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class DedupeResult(NamedTuple):
    """The result of a run: how many messages were read, passed on, and left out because their key was seen before.

    `refused`: messages that may not be written to the target; they are left out, and named on stderr.
    """

    source: str
    target: str
    rows: int
    passed: int
    repeated: int
    batches: int
    seconds: float
    refused: int = 0


def run(
    spark: SparkSession,
    where: Connection | str,
    source: str,
    target: str,
    options: DedupeOptions = DEFAULTS,
    *,
    checkpoint: Path | str,
    progress: Progress | None = None,
) -> DedupeResult:
    """Pass on each message of a topic whose key was not seen within some time.

    `checkpoint`: folder or URL where the query keeps its place and the keys it has seen. Raises ConfigError, also for
    one that was read from another cluster, and RocketSparkError for what fails in Spark.
    """
    progress = progress or Progress("dedupe")
    check(source, target, options)
    by, name, delivery = options.by, options.name, options.delivery
    where = connection(where)
    check_servers(checkpoint, {source: where.namesrv})
    # A body that does not inflate goes on as it is stored.
    reading = where.read_options() | {"topic": source, "startingOffsets": options.start_at}
    if options.batch_rows is not None:
        reading["maxMessagesPerTrigger"] = str(options.batch_rows)
    # Which of a micro-batch's messages with a key is its first may differ when Spark repeats it.
    writing = where.spark_options() | {"topic": target, "delivery": delivery, "comparedColumn": KEY_COLUMN}
    named = f"dedupe-{source}-{target}"
    if delivery == "exactly-once":
        writing["transactionalId"] = name or default_name(named)
    counts = _Counts(progress)
    with one_line_errors():
        spark.dataSource.register(SeenSource)
        end = partial(end_of_topics, dict(reading))
        reading |= {"seenFloor": str(watermark_of(spark, str(checkpoint))), "seenBy": by, "seenTarget": target}
        rows = spark.readStream.format(FORMAT).options(**reading).load()
        writer = _passed_on(rows, by, duration(options.within)).writeStream.format("rocketmq").options(**writing)
        outcome = run_query(
            writer,
            progress,
            name=name or f"dedupe-{source}",
            checkpoint=checkpoint,
            interval_s=options.interval_s,
            end=end,
            told=counts.add,
        )
    if counts.late:
        raise RocketSparkError(
            f"{counts.late} messages of {source} were left out as older than the watermark of {checkpoint}: run it once"
            " with another --checkpoint, and it passes them on"
        )
    return DedupeResult(
        source,
        target,
        outcome.rows,
        counts.passed,
        counts.repeated,
        outcome.batches,
        round(progress.seconds, 3),
        counts.refused,
    )


def check(source: str, target: str, options: DedupeOptions) -> None:
    """Raise ConfigError for arguments of `run` that contradict each other or make no sense."""
    if target in (topic.strip() for topic in source.split(",")):
        raise ConfigError(f"the target {target!r} is read too: what is passed on would come in again")
    by = options.by
    kind, _, rest = by.partition(":")
    if by not in KEYS and not (kind == "property" and rest) and not (kind == "json" and rest.startswith("$")):
        raise ConfigError(f"--by is {by!r}: {', '.join(KEYS)}, property:NAME or json:$.PATH is needed")
    duration(options.within)
    check_delivery(options.delivery)
    if options.name:
        check_name(options.name, options.delivery)


# Names of observed metrics.
_PASSED, _REFUSED = "dedupe", "dedupe refused"


def _passed_on(rows: DataFrame, by: str, delay: str) -> DataFrame:
    """Return the rows that are passed on: each key once, and none that may not be written; they are counted."""
    from pyspark.sql import functions as F

    key = F.coalesce(F.concat(F.lit("key/"), F.nullif(key_of(by), F.lit(""))), _no_other())
    # A message that may not be written has no key: another one with that key is the first.
    return (
        rows.observe(_REFUSED, F.count("refused").alias("refused"), F.min("refused").alias("first"))
        .where("refused IS NULL")
        .withColumn("shardingKey", F.try_element_at("properties", F.lit(properties.SHARDING_KEY)))
        .select(*COLUMNS, key.alias(KEY_COLUMN), SEEN)
        .withWatermark(SEEN, delay)
        .dropDuplicatesWithinWatermark([KEY_COLUMN])
        .select(*COLUMNS, KEY_COLUMN)
        .observe(_PASSED, F.count(F.lit(1)).alias("passed"))
    )


def _no_other() -> Column:
    """Return what a message without a key has for one: no other has it, also in a topic that was made anew, whose
    queues begin again.
    """
    from pyspark.sql import functions as F

    stored_us = F.unix_micros("storeTime")
    return F.concat(
        F.lit("place/"), F.concat_ws("/", "topic", "broker", "queueId", "queueOffset", "logPosition", stored_us)
    )


def _reasons(batch: pa.RecordBatch, topic: str) -> pa.Array:
    """Return for each row why it may not be written to a topic, and where it is; null for all others."""
    # Not with the module, which every process that reads the stream imports: it imports pandas.
    from rocketspark.spark.write.batch_encoding import refused_rows

    given = {name: batch.column(name) for name in COLUMNS if name != "shardingKey"}
    given["shardingKey"] = pc.map_lookup(given["properties"], properties.SHARDING_KEY, "last")
    reasons: list[str | None] = [None] * batch.num_rows
    for row, why in refused_rows(pa.record_batch(given), topic).items():
        place = "/".join(str(batch.column(name)[row]) for name in ("topic", "broker", "queueId", "queueOffset"))
        reasons[row] = f"{place}: {why}"
    return pa.array(reasons, pa.string())


class _Counts:
    """Sums of a query's reports: the messages read, passed on and left out."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.passed = self.refused = self.repeated = self.late = 0

    def add(self, report: Any) -> None:
        """Add the counts of one micro-batch's report."""
        for operator in report["stateOperators"]:
            self.repeated += int(operator["customMetrics"].get("numDroppedDuplicateRows", 0))
            self.late += int(operator["numRowsDroppedByWatermark"])
        if (passed := report["observedMetrics"].get(_PASSED)) is not None:
            self.passed += passed["passed"]
        metrics = report["observedMetrics"].get(_REFUSED)
        if metrics is None or not metrics["refused"]:
            return
        self.refused += metrics["refused"]
        more = f" and {metrics['refused'] - 1} more" if metrics["refused"] > 1 else ""
        self._progress.say(f"set aside: message {shown(metrics['first'], characters_max=400)}{more}")


def key_of(by: str) -> Column:
    """Return the column of the messages' keys, as the option `by` says: text, and null or empty where a message has no
    key.
    """
    from pyspark.sql import functions as F

    kind, _, rest = by.partition(":")
    if by == "key":
        return F.concat_ws(" ", "keys")
    if by == "messageId":
        return F.col("messageId")
    if by == "body":
        return F.sha2(F.col("body"), 256)
    if kind == "property":
        return F.try_element_at("properties", F.lit(rest))
    return F.get_json_object(F.col("body").cast("string"), rest)


def duration(text: str) -> str:
    """Return a time such as `30m` or `2h` in the form that Spark takes. Raises ConfigError."""
    found = _DURATION.fullmatch(text)
    if not found or not int(found[1]):
        raise ConfigError(f"--within is {text!r}: a time such as 30m, 2h or '3 days' is needed")
    return f"{int(found[1])} {_UNITS.get(found[2], found[2])}"


FORMAT = "rocketspark-seen"
SEEN, REFUSED, KEY_COLUMN = "seenTime", "refused", "dedupeKey"
# Of the stream's offset, which tells how far the time had come, and by what keys are known; no topic has such a name.
_KEY, _BY_KEY = "@seen", "@by"
_FLOOR, _BY, _TARGET = "seenfloor", "seenby", "seentarget"


class SeenSource(DataSource):
    """A data source: a stream as format("rocketmq") reads it, with two more columns: the time at which each message was
    seen, and why it may not be written, if so.

    Options: seenFloor, the lower bound of that time in ms since 1970; seenBy, what repeated messages have in common;
    and seenTarget, the topic that they are written to.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return all columns of a read, and the two columns."""
        return StructType([*READ_SCHEMA.fields, StructField(SEEN, TimestampType()), StructField(REFUSED, StringType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for spark.readStream."""
        try:
            given = {name.lower(): value for name, value in self.options.items()}
            floor_ms, by, target = int(given.pop(_FLOOR, "0")), given.pop(_BY, ""), given.pop(_TARGET, "")
            own = StructType([field for field in schema.fields if field.name not in (SEEN, REFUSED)])
            reader = SeenReader(own, parse_read(given, streaming=True), floor_ms, by=by, target=target)
            return for_this_spark(reader, repeated=True)
        except RocketSparkError as e:
            return for_this_spark(RefusedReader(e))


class SeenReader(StreamReader):
    """The reader of a SeenSource stream: each of its offsets also holds the time at which Spark asked for it.
    `clock_ms`: the driver's clock.
    """

    def __init__(
        self,
        schema: StructType,
        options: ReadOptions,
        floor_ms: int,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        by: str = "",
        target: str = "",
    ) -> None:
        super().__init__(schema, options)
        self._by, self._target = by, target
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
        """Return the stream's latest offset, together with the time now."""
        self._check_by(start)
        own = _without(start)
        end = super().latestOffset(own, limit)
        if end == own:
            return start
        marks = {_KEY: self._seen_ms(start.get(_KEY, 0))}
        return {**end, **marks, **({_BY_KEY: self._by} if self._by else {})}

    def _check_by(self, offset: Mapping[str, Any]) -> None:
        """Raise ConfigError if the checkpoint's keys were made in another way: no key would be found among them."""
        by = offset.get(_BY_KEY, self._by)
        if by != self._by:
            with plain_errors():
                raise ConfigError(
                    f"the checkpoint remembers keys by {shown(str(by))}, not by {shown(self._by)}: give --by"
                    f" {shown(str(by))}, or another --checkpoint"
                )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the stream's partitions, each with the time in the offset `end`."""
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
            reasons = _reasons(batch, self._target)
            yield batch.append_column(pa.field(SEEN, TIME), numbers(seen_us, TIME)).append_column(REFUSED, reasons)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit as the plain stream does."""
        super().commit(_without(end))


def _without(offset: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in offset.items() if name not in (_KEY, _BY_KEY)}


def watermark_of(spark: SparkSession, checkpoint: str) -> int:
    """Return the latest watermark that a checkpoint holds, in ms since 1970; 0 if there is none."""
    return highest_noted(spark, checkpoint, "$.batchWatermarkMs")
