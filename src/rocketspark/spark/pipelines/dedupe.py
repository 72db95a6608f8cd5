"""`pipeline dedupe`: topic to topic, each key once within a watermark. Rule: no message is lost: what comes late, or
has no key, goes on.

Time is when the pipeline saw a message, not when it was stored: Spark drops what is older than a watermark, and a queue
that lags behind the others would lose messages that way.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.progress import SILENT, Progress
from rocketspark.spark.pipelines.session import one_line_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

# What of a message tells repetitions, but for `property:NAME` and `json:PATH`.
KEYS = ("key", "messageId", "body")
COLUMNS = ("body", "tag", "keys", "properties", "shardingKey", "flag")
_DURATION = re.compile(r"\s*(\d+)\s*(s|m|h|d|seconds?|minutes?|hours?|days?)\s*")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class DedupeResult(NamedTuple):
    """What a run did: messages read, passed on, and left out because their key was seen."""

    source: str
    target: str
    rows: int
    passed: int
    repeated: int
    batches: int
    seconds: float


def run(
    spark: SparkSession,
    where: Connection | str,
    source: str,
    target: str,
    *,
    checkpoint: Path | str,
    by: str = "key",
    within: str = "1 hour",
    start_at: str = "earliest",
    name: str = "",
    rows_max: int | None = None,
    interval_s: float | None = None,
    delivery: str = "exactly-once",
    progress: Progress = SILENT,
) -> DedupeResult:
    """Pass on each message of a topic whose key was not seen within some time.

    Args:
        checkpoint: folder or URL where the query keeps its place and the keys it has seen.
        by: `key` (all keys of a message together), `messageId`, `body`, `property:NAME`, or `json:PATH` such as
            `json:$.order.id` for a body of JSON.
        within: how long a key is remembered after it was last new, such as `30 minutes`; at least that long.
        start_at: where a new query begins: earliest, latest, or JSON by queue.
        name: of the pipeline: its transactions have it; made of both topics if not given.
        rows_max: messages in a micro-batch at most.
        interval_s: given, go on until stopped, a micro-batch at most every so many seconds.
        delivery: `exactly-once` or `at-least-once`.

    Raises ConfigError, and RocketSparkError for what fails in Spark.
    """
    from pyspark.sql import functions as F

    if source == target:
        raise ConfigError(f"source and target are both {source!r}: what is passed on would come in again")
    delay = duration(within)
    options = connection(where).spark_options()
    reading = options | {"topic": source, "startingOffsets": start_at}
    if rows_max is not None:
        reading["maxMessagesPerTrigger"] = str(rows_max)
    writing = options | {"topic": target, "delivery": delivery}
    if delivery == "exactly-once":
        writing["transactionalId"] = name or f"dedupe-{source}-{target}"
    with one_line_errors():
        rows = spark.readStream.format("rocketmq").options(**reading).load()
        place = F.concat_ws("/", F.lit("place"), "broker", "queueId", "queueOffset")
        found = (
            rows.withColumn("shardingKey", F.try_element_at("properties", F.lit("__SHARDINGKEY")))
            .select(
                *COLUMNS,
                # A message without a key is like no other.
                F.coalesce(F.concat(F.lit("key/"), key_of(by)), place).alias("dedupeKey"),
                F.current_timestamp().alias("seenTime"),
            )
            .withWatermark("seenTime", delay)
            .dropDuplicatesWithinWatermark(["dedupeKey"])
            .select(*COLUMNS)
        )
        writer = found.writeStream.format("rocketmq").options(**writing)
        writer = writer.option("checkpointLocation", str(checkpoint)).queryName(name or f"dedupe-{source}")
        if interval_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds")
        query = writer.start()
        try:
            counting = _Repeats()
            outcome = progress.watch(query)
        finally:
            query.stop()
        repeated = counting.of(query.recentProgress)
    return DedupeResult(
        source,
        target,
        outcome.rows,
        outcome.rows - repeated,
        repeated,
        outcome.batches,
        round(progress.seconds, 3),
    )


class _Repeats:
    """Sums up what the operator says it dropped."""

    def of(self, reports: object) -> int:
        """Over a query's progress reports, each micro-batch once."""
        dropped: dict[int, int] = {}
        for report in reports:  # type: ignore[attr-defined]
            for operator in report["stateOperators"]:
                metrics = operator["customMetrics"]
                dropped[report["batchId"]] = int(metrics.get("numDroppedDuplicateRows", 0))
        return sum(dropped.values())


def key_of(by: str) -> Column:
    """What tells repetitions, as a column of text that is null where a message has none. Raises ConfigError."""
    from pyspark.sql import functions as F

    kind, _, rest = by.partition(":")
    if by == "key":
        joined = F.concat_ws(" ", "keys")
        return F.when(joined != "", joined)
    if by == "messageId":
        return F.col("messageId")
    if by == "body":
        return F.sha2(F.col("body"), 256)
    if kind == "property" and rest:
        return F.try_element_at("properties", F.lit(rest))
    if kind == "json" and rest.startswith("$"):
        return F.get_json_object(F.col("body").cast("string"), rest)
    raise ConfigError(f"--by is {by!r}: {', '.join(KEYS)}, property:NAME or json:$.PATH is needed")


def duration(text: str) -> str:
    """A time such as `30m` or `2 hours` as Spark writes it. Raises ConfigError."""
    found = _DURATION.fullmatch(text)
    if not found or not int(found[1]):
        raise ConfigError(f"--within is {text!r}: a time such as 30m, 2h or '3 days' is needed")
    return f"{int(found[1])} {_UNITS.get(found[2], found[2])}"
