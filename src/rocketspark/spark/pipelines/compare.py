"""`pipeline audit --against`: compares the messages of two places, as multisets. Rule: order, queues and times may
differ; each message's id, body, tag, keys, flag and own properties may not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rocketspark.errors import UsageError
from rocketspark.protocol.message import origins, properties
from rocketspark.spark.exactly_once.commit_topic import DEDUPE_KEY
from rocketspark.spark.lakehouse.table import TablePlace
from rocketspark.spark.pipelines import archive
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.tables.option_values import check_range

COLUMNS = (
    "topic string, broker string, queueId int, queueOffset bigint, messageId string, tag string, keys array<string>,"
    " body binary, properties map<string,string>, flag int, storeTime timestamp_ltz"
)
BY = ("id", "content")
SAMPLES = 10


class Difference(NamedTuple):
    """Messages that only one of two places has, or has otherwise: all have one id or, if contents are compared, one
    content.

    `kind`: missing (only the first place has it), extra (only the second has it), changed (both have the id, with other
    contents). `place`: where one of the messages is.
    """

    kind: str
    message_id: str
    messages: int
    place: str


class CompareReport(NamedTuple):
    """The result of a comparison of two places. `ok`: both have the same messages. Checksums are sums of 64-bit hashes
    of ids and contents, in hex.
    """

    ok: bool
    one: str
    other: str
    by: str
    one_messages: int
    other_messages: int
    one_checksum: str
    other_checksum: str
    missing: int
    extra: int
    changed: int
    differences: list[Difference]


class Side(NamedTuple):
    """One of the two places to compare: a topic of a cluster, or of an archive, which is a folder or a table; with
    topic None all topics of the archive.
    """

    where: Connection | str
    topic: str | None = None
    folder: str | Path | TablePlace | None = None

    def __str__(self) -> str:
        if self.folder is not None:
            return f"{self.folder}/{self.topic}" if self.topic else str(self.folder)
        return f"{self.topic} at {connection(self.where).namesrv}"

    def read(self, spark: SparkSession) -> DataFrame:
        """Read the place's messages, with the columns COLUMNS."""
        if self.folder is None:
            options = connection(self.where).read_options() | {"topic": self.topic or ""}
            return spark.read.format("rocketmq").options(**options).schema(COLUMNS).load()
        rows = archive.read(spark, self.folder)
        if self.topic is not None:
            rows = rows.where(F.col("topic") == self.topic)
        return rows.select(*(part.split()[0] for part in COLUMNS.split(", ")))


def run(
    spark: SparkSession,
    one: Side,
    other: Side,
    *,
    by: str = "id",
    since_ms: int | None = None,
    until_ms: int | None = None,
    samples: int = SAMPLES,
    progress: Progress | None = None,
) -> CompareReport:
    """Compare the messages of two places.

    Args:
        by: "id" compares ids and contents: the unique id, or that which a restored or resent message had before;
            "content" contents alone, for copies that have new ids.
        since_ms, until_ms: only messages first stored in [since_ms, until_ms), ms since 1970; None is open.
        samples: how many differences of each kind are named.

    Raises UsageError, RouteNotFound, ConfigError for a folder that is no archive, and what a read raises.
    """
    progress = progress or Progress("audit")
    if by not in BY:
        raise UsageError(f"by {by!r}: {' or '.join(BY)} is needed")
    check_range(since_ms, until_ms)
    progress.say(f"comparing {one} with {other}")
    sides = [
        _normal(side.read(spark), by, since_ms, until_ms).withColumn("sign", F.lit(sign))
        for side, sign in ((one, 1), (other, -1))
    ]
    # One line for each id and content; 0 where both sides have as many.
    merged = sides[0].unionByName(sides[1]).groupBy("id", "checksum")
    lines = merged.agg(
        F.count_if(F.col("sign") > 0).alias("in_one"),
        F.count_if(F.col("sign") < 0).alias("in_other"),
        F.min("place").alias("place"),
    ).persist()
    try:
        return _report(lines, one, other, by, samples)
    finally:
        lines.unpersist()


def _report(lines: DataFrame, one: Side, other: Side, by: str, samples: int) -> CompareReport:
    checksum = F.xxhash64("id", "checksum").cast("decimal(20,0)")
    totals = lines.agg(
        F.sum("in_one").alias("one"),
        F.sum("in_other").alias("other"),
        F.sum(checksum * F.col("in_one")).alias("one_sum"),
        F.sum(checksum * F.col("in_other")).alias("other_sum"),
    ).collect()[0]
    apart = F.col("in_one") - F.col("in_other")
    name = "id" if by == "id" else "checksum"
    by_id = (
        lines.where(apart != 0)
        .groupBy(F.col(name).cast("string").alias("name"))
        .agg(
            F.sum(F.greatest(apart, F.lit(0))).alias("missing"),
            F.sum(F.greatest(-apart, F.lit(0))).alias("extra"),
            F.min("place").alias("place"),
        )
    )
    changed = F.least("missing", "extra")
    counts = {"changed": changed, "missing": F.col("missing") - changed, "extra": F.col("extra") - changed}
    by_id = by_id.select("name", "place", *(count.alias(f"{kind}_") for kind, count in counts.items())).persist()
    try:
        sums = by_id.agg(*(F.coalesce(F.sum(f"{kind}_"), F.lit(0)).alias(kind) for kind in counts)).collect()[0]
        found = [
            Difference(kind, r.name, r.messages, r.place)
            for kind in counts
            if sums[kind]
            for r in by_id.where(F.col(f"{kind}_") > 0)
            .select("name", F.col(f"{kind}_").alias("messages"), "place")
            .orderBy("name")
            .limit(samples)
            .collect()
        ]
    finally:
        by_id.unpersist()
    return CompareReport(
        ok=not any(sums),
        one=str(one),
        other=str(other),
        by=by,
        one_messages=totals.one or 0,
        other_messages=totals.other or 0,
        one_checksum=_hex(totals.one_sum),
        other_checksum=_hex(totals.other_sum),
        missing=sums.missing,
        extra=sums.extra,
        changed=sums.changed,
        differences=found,
    )


def _hex(total: Any) -> str:
    return f"{int(total or 0) % (1 << 64):016x}"


def _normal(rows: DataFrame, by: str, since_ms: int | None, until_ms: int | None) -> DataFrame:
    """Return id, checksum and place of each message of the range."""
    pairs = F.col("properties")
    stored_ms = F.coalesce(pairs[origins.ORIGIN_STORE_TIME].try_cast("bigint"), F.unix_millis("storeTime"))
    if since_ms is not None:
        rows = rows.where(stored_ms >= since_ms)
    if until_ms is not None:
        rows = rows.where(stored_ms < until_ms)
    message_id = F.coalesce(pairs[origins.ORIGIN_MESSAGE_ID], F.col("messageId"))
    return rows.select(
        (message_id if by == "id" else F.lit("")).alias("id"),
        content().alias("checksum"),
        F.concat_ws("/", "topic", "broker", "queueId", "queueOffset").alias("place"),
    )


def content() -> Column:
    """Return a column with a 64-bit hash of each message's content: body, tag, keys, flag and its own properties,
    without those that a restore or an exactly-once write adds.
    """
    system = [
        *sorted(properties.SYSTEM_NAMES - {properties.SHARDING_KEY}),
        *origins.NAMES,
        DEDUPE_KEY,
    ]
    own = F.map_filter("properties", lambda name, value: ~name.isin(system))
    entries = F.array_sort(F.map_entries(own))
    # Hashes skip nulls, and lists run into one another without their lengths.
    parts = (F.coalesce("tag", F.lit("")), F.size("keys"), F.col("keys"), F.size(entries), entries)
    return F.xxhash64(F.col("body"), *parts, F.col("flag"))
