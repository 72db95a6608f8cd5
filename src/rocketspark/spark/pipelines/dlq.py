"""The pipeline `dlq`: shows dead letters. Which are meant stands here too; `dlq_resend` sends them, by the rules of
`admin.messages.dead_letter_rules`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rocketspark.admin.messages.dead_letter_rules import DEAD_FROM_TOPIC
from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue, namespace
from rocketspark.protocol.message import properties
from rocketspark.spark.pipelines.connection import Connection, connection, operations_of
from rocketspark.spark.pipelines.options import Choice
from rocketspark.spark.pipelines.parts import trace_records as records
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.report import fields
from rocketspark.tables.offset_ranges import to_json
from rocketspark.tables.option_values import check_range
from rocketspark.tables.options import over

BODY_SHOWN = 200
AGES_MS = {"1 h": 3_600_000, "1 d": 86_400_000, "7 d": 604_800_000}


def age_name(age_ms: int) -> str:
    """Return the class of an age in ms: under 1 h, under 1 d, under 7 d, or older."""
    return next((f"under {name}" for name, limit_ms in AGES_MS.items() if age_ms < limit_ms), "older")


def shown(body: bytes) -> dict[str, Any]:
    """Return the beginning of a body for a report: as text if it is text, else as bytes."""
    begin = body[:BODY_SHOWN]
    try:
        # A character may be cut in two.
        text = begin.decode("utf-8") if len(body) <= BODY_SHOWN else begin.decode("utf-8", "ignore")
        if "\ufffd" not in text and not _is_binary(body):
            return {"body": text, "body_bytes": len(body)}
    except UnicodeDecodeError:
        pass
    return {"body_hex": begin.hex(), "body_bytes": len(body)}


def _is_binary(body: bytes) -> bool:
    try:
        return any(ord(c) < 32 and c not in "\t\r\n" for c in body.decode("utf-8"))
    except UnicodeDecodeError:
        return True


def quoted(values: Collection[str]) -> str:
    """Return names, sorted, as one text."""
    return ", ".join(sorted(values))


COLUMNS = (
    "topic string, broker string, queueId int, queueOffset bigint, messageId string, tag string, keys array<string>,"
    " body binary, properties map<string,string>, bornTime timestamp_ltz, storeTime timestamp_ltz, reconsumeTimes int,"
    " flag int"
)
SAMPLES = 10
EVERYTHING = Choice()


class DeadLetterGroup(NamedTuple):
    """Counts of the dead letters with the same group, topic, tag and error; times are those at which they became dead
    letters, in ms since 1970.
    """

    group: str
    topic: str
    tag: str
    error: str
    letters: int
    least_attempts: int
    most_attempts: int
    oldest_ms: int
    newest_ms: int
    ages: dict[str, int]


class DlqReport(NamedTuple):
    """The report on dead letters; `samples`: the oldest letters, with the beginning of their bodies."""

    letters: int
    heaps: list[DeadLetterGroup]
    samples: list[dict[str, Any]]


class DeadLetterSource(NamedTuple):
    """The dead letter topics to read, named without namespace, and the ends of their queues: what comes later is not
    read.
    """

    topics: list[str]
    ends: dict[MessageQueue, int]


def run(
    spark: SparkSession,
    where: Connection | str,
    choice: Choice = EVERYTHING,
    *,
    trace_topic: str = "",
    error_property: str = "",
    samples: int = SAMPLES,
    now_ms: int | None = None,
    progress: Progress | None = None,
) -> DlqReport:
    """Count dead letters by group, topic they came from, tag, error and age.

    Args:
        where: the cluster, or its NameServers "host:port;host:port".
        trace_topic: where message traces tell how the last listener failed; "" looks nothing up.
        error_property: a property in which the application notes an error; shown rather than what the trace tells.
        samples: how many letters are shown.

    Raises ConfigError for a group without dead letters or an empty time range, and what a read raises.
    """
    progress = progress or Progress("dlq")
    check_range(choice.since_ms, choice.until_ms)
    where = connection(where)
    source = find(where, choice.groups or (), progress)
    if not source.topics:
        return DlqReport(0, [], [])
    progress.say(f"reading dead letters of {len(source.topics):,} groups")
    chosen = choose(letters(spark, where, source), choice)
    error: Column = F.lit(None).cast("string")
    if trace_topic:
        chosen = chosen.join(_failures(spark, where, trace_topic), ["messageId", "group"], "left")
        names = F.create_map(*(F.lit(part) for pair in records.CONTEXTS.items() for part in pair))
        error = F.coalesce(names[F.col("context")], F.concat(F.lit("code "), F.col("context").cast("string")))
    if error_property:
        error = F.coalesce(F.col("properties")[error_property], error)
    chosen = chosen.withColumn("error", F.coalesce(error, F.lit(""))).persist()
    try:
        return _report(chosen, samples, int(time.time() * 1000) if now_ms is None else now_ms)
    finally:
        chosen.unpersist()


def _report(chosen: DataFrame, samples: int, now_ms: int) -> DlqReport:
    age_ms = F.lit(now_ms) - F.col("deadMs")
    # Few classes: the limits are Python's, the counting Spark's.
    limits = {name: edge for edge in (0, 3_600_000, 86_400_000, 604_800_000) for name in [age_name(edge)]}
    edges = [*limits.values(), None]
    heaps = (
        chosen.groupBy("group", "originTopic", F.coalesce("tag", F.lit("")).alias("tag"), "error")
        .agg(
            F.count("*").alias("letters"),
            F.min("reconsumeTimes").alias("least"),
            F.max("reconsumeTimes").alias("most"),
            F.min("deadMs").alias("oldest"),
            F.max("deadMs").alias("newest"),
            *(F.count_if(_between(age_ms, edges[n], edges[n + 1])).alias(f"age_{n}") for n in range(len(limits))),
        )
        .collect()
    )
    found = [
        DeadLetterGroup(
            group=r.group,
            topic=r.originTopic,
            tag=r.tag,
            error=r.error,
            letters=r.letters,
            least_attempts=r.least,
            most_attempts=r.most,
            oldest_ms=r.oldest,
            newest_ms=r.newest,
            ages={name: r[f"age_{n}"] for n, name in enumerate(limits) if r[f"age_{n}"]},
        )
        for r in heaps
    ]
    place = ("deadMs", "dlqTopic", "broker", "queueId", "queueOffset")
    oldest = chosen.orderBy(*place).limit(samples).collect() if samples else []
    return DlqReport(
        letters=sum(h.letters for h in found),
        heaps=sorted(found, key=lambda h: (h.group, -h.letters, h.topic, h.tag, h.error)),
        samples=[
            {
                "group": r.group,
                "topic": r.originTopic,
                "message_id": r.messageId,
                "tag": r.tag or "",
                "keys": list(r["keys"]),
                "attempts": r.reconsumeTimes,
                "dead_ms": r.deadMs,
                "error": r.error,
                "place": r.place,
                "properties": _own(r.properties),
                **shown(bytes(r.body)),
            }
            for r in oldest
        ],
    )


def _between(value: Column, low: int | None, high: int | None) -> Column:
    within = F.lit(True) if not low else value >= low
    return within if high is None else within & (value < high)


def _own(pairs: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(pairs.items()) if name not in properties.SYSTEM_NAMES}


def find(where: Connection, groups: Sequence[str], progress: Progress | None = None) -> DeadLetterSource:
    """Return the dead letter topics of these groups; of all groups if none is named. Raises ConfigError for a group
    that has none to read.
    """
    progress = progress or Progress("dlq")
    space = where.namespace
    with operations_of(where) as operations:
        there = operations.list_topics()
        prefix = namespace.DLQ_PREFIX + (f"{space}%" if space else "")
        known = {namespace.unwrap(space, topic): topic for topic in there if topic.startswith(prefix)}
        wanted = {namespace.DLQ_PREFIX + group: group for group in groups} or dict.fromkeys(known, "")
        if missing := {group for topic, group in wanted.items() if topic not in known}:
            have = quoted([topic.removeprefix(namespace.DLQ_PREFIX) for topic in known]) or "none"
            raise ConfigError(f"no dead letters of group {quoted(missing)}; these groups have some: {have}")
        topics: list[str] = []
        ends: dict[MessageQueue, int] = {}
        for topic in sorted(wanted):
            queues = operations.show_topic(known[topic]).queues
            if not queues:
                # Brokers before 5.0 make these topics without the permission to read.
                mend = f"give it permission 6 (`rocketspark topic update {topic} --perm both`)"
                text = f"topic {topic} cannot be read: {mend}"
                if groups:
                    raise ConfigError(text)
                progress.say(text)
                continue
            topics.append(topic)
            ends |= {MessageQueue(topic, q.queue.broker_name, q.queue.queue_id): q.max_offset for q in queues}
    return DeadLetterSource(topics, ends)


def letters(spark: SparkSession, where: Connection | str, source: DeadLetterSource) -> DataFrame:
    """Read dead letters as rows.

    Columns: those of COLUMNS but topic, and group, originTopic (the topic they came from), dlqTopic, place
    (topic/broker/queueId/queueOffset), bornMs (when they were first sent) and deadMs (when they became dead letters).
    """
    where = connection(where)
    options = {"topic": ",".join(source.topics), "failOnDataLoss": "false", "badBodies": "stored"}
    options = over(where.spark_options(), options | {"endingOffsets": json.dumps(to_json(source.ends))})
    rows = spark.read.format("rocketmq").options(**options).schema(COLUMNS).load()
    pairs = F.col("properties")
    # As dead_letter_rules.origin_of has it.
    whence = F.coalesce(pairs[properties.RETRY_TOPIC], pairs[DEAD_FROM_TOPIC], F.lit(""))
    whence = F.when(whence.startswith(namespace.RETRY_PREFIX), F.lit("")).otherwise(whence)
    if where.namespace:
        space = f"{where.namespace}%"
        whence = F.when(whence.startswith(space), F.substring(whence, len(space) + 1, 1 << 30)).otherwise(whence)
    return rows.withColumns(
        {
            "dlqTopic": F.col("topic"),
            "group": F.substring("topic", len(namespace.DLQ_PREFIX) + 1, 1 << 30),
            "originTopic": whence,
            "place": F.concat_ws("/", "topic", "broker", "queueId", "queueOffset"),
            "bornMs": F.unix_millis("bornTime"),
            "deadMs": F.unix_millis("storeTime"),
        }
    ).drop("topic")


def choose(rows: DataFrame, choice: Choice) -> DataFrame:
    """Return the rows of `letters` that the choice names."""
    for name, wanted in (("originTopic", choice.topics), ("tag", choice.tags), ("messageId", choice.ids)):
        if wanted:
            rows = rows.where(F.col(name).isin(*wanted))
    if choice.keys:
        rows = rows.where(F.arrays_overlap("keys", F.array(*map(F.lit, choice.keys))))
    if choice.since_ms is not None:
        rows = rows.where(F.col("deadMs") >= choice.since_ms)
    if choice.until_ms is not None:
        rows = rows.where(F.col("deadMs") < choice.until_ms)
    if choice.sql:
        rows = rows.where(choice.sql)
    if choice.limit is not None:
        rows = rows.orderBy("deadMs", "dlqTopic", "broker", "queueId", "queueOffset").limit(choice.limit)
    return rows


def _failures(spark: SparkSession, where: Connection, topic: str) -> DataFrame:
    """Return how the last listener of a group failed with a message, by message traces: messageId, group, context."""
    options = over(where.without_choice().read_options(), {"topic": topic, "failOnDataLoss": "false"})
    bodies = spark.read.format("rocketmq").options(**options).schema("body binary").load()
    read = bodies.mapInArrow(records.decode_batches, records.DDL)
    taken = (
        read.where(F.col("kind").isin(records.RECEIVED, records.CONSUMED))
        .groupBy("request_id", "message_id")
        .agg(*(F.max(name).alias(name) for name in ("group", "success", "context", "time_ms")))
    )
    failed = taken.where(~F.col("success")).groupBy(F.col("message_id").alias("messageId"), "group")
    return failed.agg(F.max(F.struct("time_ms", "context")).getField("context").alias("context"))


def summary(report: DlqReport) -> dict[str, Any]:
    """Return a report on dead letters as text for a person: short enough for a screen."""

    def shown_time(time_ms: int) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_ms / 1000))

    return {
        "letters": report.letters,
        "heaps": [
            fields(h, "group topic tag error letters")
            | {
                "attempts": f"{h.least_attempts} to {h.most_attempts}",
                "died, UTC": f"{shown_time(h.oldest_ms)} to {shown_time(h.newest_ms)}",
                "ages": h.ages,
            }
            for h in report.heaps
        ],
        "samples": [
            {name: s[name] for name in ("group", "topic", "message_id", "keys")}
            | {
                "died, UTC": shown_time(s["dead_ms"]),
                "body": s.get("body", s.get("body_hex")),
            }
            for s in report.samples
        ],
    }
