"""`pipeline trace`: turns message traces into latencies, failures and retries. Rule: it only reads, so it may be
stopped and started again at will; a record counts by its own time, once, however often the trace topic holds it.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from rocketspark.protocol import trace as records
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.parts import trace_records as rows
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.report import fields
from rocketspark.spark.pipelines.parts.trace_records import (
    CONTEXTS,
    QUANTILES,
    Deliveries,
    Latency,
    Moment,
    Sends,
    Slow,
    TraceReport,
    TransactionFigures,
    latency,
    step_for,
)
from rocketspark.tables.option_values import check_range

SLACK_MS = 3_600_000
STEPS_MAX = 60
LINES_MAX = 8


def run(
    spark: SparkSession,
    where: Connection | str,
    *,
    topic: str = records.TOPIC,
    since_ms: int | None = None,
    until_ms: int | None = None,
    slack_ms: int = SLACK_MS,
    slowest: int = 20,
    progress: Progress | None = None,
) -> TraceReport:
    """Evaluate the traces of sends, deliveries and transactions whose time is in [since_ms, until_ms).

    Args:
        where: the cluster, or its NameServers "host:port;host:port".
        topic: the trace topic; several with a comma.
        since_ms, until_ms: ms since 1970; None is open.
        slack_ms: traces are stored after what they tell of, and a delivery's send may lie before `since_ms`: trace
            messages stored up to this much before and after the range are read too.
        slowest: how many messages are named, the slowest and the never consumed ones each.

    Raises RouteNotFound, DataLost and what else a read raises; ConfigError for an empty range.
    """
    progress = progress or Progress("trace")
    check_range(since_ms, until_ms)
    options = connection(where).read_options() | {"topic": topic}
    if since_ms is not None:
        options["startingTimestamp"] = str(max(since_ms - slack_ms, 0))
    if until_ms is not None:
        options["endingTimestamp"] = str(max(until_ms + slack_ms, 0))
    messages = spark.read.format("rocketmq").options(**options).schema("body binary").load()
    return _Job(messages, topic, since_ms, until_ms, slowest, progress).run()


def summary(report: TraceReport) -> dict[str, Any]:
    """Return a trace report as text for a person: short enough for a screen."""

    def ms(latency: Latency) -> str:
        shown = (latency.p50, latency.p99, latency.max)
        return " / ".join(f"{value:,.1f}".removesuffix(".0") for value in shown if value is not None)

    return {
        "trace_topic": report.trace_topic,
        "trace_messages": report.trace_messages,
        "records": report.records,
        "malformed": report.malformed,
        "sends": [
            fields(s, "topic group messages failed") | {"ms (50 % / 99 % / max)": ms(s.cost_ms)} for s in report.sends
        ],
        "deliveries": [
            {"topic": d.topic or "(send not traced)"}
            | fields(d, "group messages deliveries retried failed unconsumed")
            | {
                "end to end, ms (50 % / 99 % / max)": ms(d.end_to_end_ms),
                "stored to listener": ms(d.store_to_consume_ms),
                "listener": ms(d.listener_ms),
            }
            for d in report.deliveries
        ],
        "transactions": [
            fields(t, "topic group committed rolled_back unknown checked open")
            | {"ms (50 % / 99 % / max)": ms(t.half_to_end_ms)}
            for t in report.transactions
        ],
        **{
            name: [fields(m, "message_id topic group keys end_to_end_ms deliveries failed") for m in messages]
            for name, messages in (("slowest", report.slowest), ("unconsumed", report.unconsumed))
        },
    }


class _Job:
    """The figures of one trace topic. `messages`: a frame with the column body."""

    def __init__(
        self,
        messages: DataFrame,
        topic: str,
        since_ms: int | None,
        until_ms: int | None,
        slowest: int,
        progress: Progress,
    ) -> None:
        self._messages, self._topic = messages, topic
        self._since_ms, self._until_ms = since_ms, until_ms
        self._slowest = slowest
        self._progress = progress

    def run(self) -> TraceReport:
        """Return all figures. Frames that several of them need are computed once and cached meanwhile."""
        kept: list[DataFrame] = []

        def keep(frame: DataFrame) -> DataFrame:
            kept.append(frame.persist())
            return kept[-1]

        try:
            self._progress.say(f"reading {self._topic}")
            read = keep(self._messages.mapInArrow(rows.decode_batches, rows.DDL))
            counts = self._counts(read)
            total = sum(r.count_ for r in counts if r.kind != rows.MESSAGE)
            self._progress.say(f"{total:,} records; joining sends and deliveries")
            sends = keep(_sends(read))
            deliveries = keep(_deliveries(read, sends))
            consumption = keep(self._consumption(deliveries))
            return self._report(read, counts, sends, deliveries, consumption)
        finally:
            for frame in kept:
                frame.unpersist()

    def _report(
        self, read: DataFrame, counts: list[Row], sends: DataFrame, deliveries: DataFrame, consumption: DataFrame
    ) -> TraceReport:
        times = [r for r in counts if r.first_ms is not None]
        first_ms = min((r.first_ms for r in times), default=None)
        last_ms = max((r.last_ms for r in times), default=None)
        step_ms = step_for(first_ms, last_ms, STEPS_MAX)
        delivered = self._delivery_figures(deliveries, consumption)
        self._progress.say("sends, transactions, the time line and the slowest messages")
        known = (rows.MESSAGE, rows.BROKEN)
        of_kind = {kind: sum(r.count_ for r in counts if r.kind == kind) for kind in known}
        return TraceReport(
            trace_topic=self._topic,
            since_ms=self._since_ms,
            until_ms=self._until_ms,
            first_ms=first_ms,
            last_ms=last_ms,
            trace_messages=of_kind[rows.MESSAGE],
            records={r.name: r.count_ for r in counts if r.kind not in known},
            malformed=of_kind[rows.BROKEN],
            sends=self._send_figures(sends),
            deliveries=delivered,
            transactions=self._transaction_figures(read, sends),
            slowest=self._slowest_messages(consumption),
            unconsumed=self._unconsumed_messages(consumption),
            step_ms=step_ms,
            timeline=self._timeline(sends, consumption, delivered, step_ms),
        )

    def _within(self, time: Column) -> Column:
        """Return the condition that a time is within the range."""
        within = time.isNotNull()
        if self._since_ms is not None:
            within &= time >= self._since_ms
        if self._until_ms is not None:
            within &= time < self._until_ms
        return within

    def _counts(self, read: DataFrame) -> list[Row]:
        name = F.when(F.col("kind") == rows.OTHER, F.col("state")).otherwise(F.col("kind"))
        in_range = F.when(self._within(F.col("time_ms")), F.col("time_ms"))
        counted = read.groupBy("kind", name.alias("name")).agg(
            F.count("*").alias("count_"), F.min(in_range).alias("first_ms"), F.max(in_range).alias("last_ms")
        )
        return sorted(counted.collect(), key=lambda r: (r.kind, r.name))

    # -- sends and transactions ------------------------------------------------------------------------------------

    def _send_figures(self, sends: DataFrame) -> list[Sends]:
        found = (
            sends.where(self._within(F.col("sent_ms")))
            .groupBy("topic", "group")
            .agg(
                F.count("*").alias("messages"),
                F.count_if(~F.col("sent")).alias("failed"),
                F.sum("body_bytes").alias("bytes"),
                *_quantiles(F.when(F.col("sent"), F.col("send_cost_ms")), "cost"),
            )
        )
        return [
            Sends(r.topic, r.group or "", r.messages, r.failed, r.bytes or 0, _latency(r, "cost"))
            for r in sorted(found.collect(), key=_place)
        ]

    def _transaction_figures(self, read: DataFrame, sends: DataFrame) -> list[TransactionFigures]:
        state = F.col("state")
        # The broker may ask again after an end that it did not get; the last end is the one that counts.
        ends = (
            read.where(F.col("kind") == rows.ENDED)
            .groupBy("message_id")
            .agg(
                F.max(F.struct("time_ms", "state", "topic", "group")).alias("last"),
                F.bool_or("from_check").alias("checked"),
            )
            .select("message_id", "last.*", "checked")
        )
        halves = sends.where(F.col("message_kind") == records.HALF).select(
            "message_id", "sent_ms", F.col("topic").alias("half_topic"), F.col("group").alias("half_group")
        )
        both = ends.join(halves, "message_id", "full").where(self._within(F.coalesce("time_ms", "sent_ms")))
        found = both.groupBy(
            F.coalesce("topic", "half_topic").alias("topic"), F.coalesce("group", "half_group").alias("group")
        ).agg(
            F.count_if(state == "COMMIT_MESSAGE").alias("committed"),
            F.count_if(state == "ROLLBACK_MESSAGE").alias("rolled_back"),
            F.count_if(~state.isin("COMMIT_MESSAGE", "ROLLBACK_MESSAGE")).alias("unknown"),
            F.count_if("checked").alias("checked"),
            F.count_if(state.isNull()).alias("open"),
            *_quantiles(_since("time_ms", "sent_ms"), "took"),
        )
        return [
            TransactionFigures(
                *(r.topic, r.group or "", r.committed, r.rolled_back, r.unknown, r.checked, r.open), _latency(r, "took")
            )
            for r in sorted(found.collect(), key=_place)
        ]

    # -- deliveries ------------------------------------------------------------------------------------------------

    def _consumption(self, deliveries: DataFrame) -> DataFrame:
        """Return a row for each message and group with the outcome, by the records within the range."""
        failed = F.col("success") == F.lit(False)
        done = F.col("success") & self._within(F.col("consumed_ms"))
        consumption = deliveries.groupBy("message_id", "topic", "group", "sent_ms", "stored_ms", "message_kind").agg(
            F.min("received_ms").alias("first_received_ms"),
            F.min(F.when(F.col("success"), F.col("consumed_ms"))).alias("first_consumed_ms"),
            F.bool_or(done).alias("consumed"),
            F.count_if(self._within(F.col("at_ms"))).alias("deliveries"),
            F.count_if(failed & self._within(F.col("at_ms"))).alias("failed"),
            F.count_if((F.col("retry_times") > 0) & self._within(F.col("at_ms"))).alias("retried"),
            F.max("retry_times").alias("most_retries"),
            F.max(F.when(failed, F.struct("at_ms", "context"))).getField("context").alias("last_context"),
            F.first("keys", ignorenulls=True).alias("keys"),
        )
        delayed = F.coalesce(F.col("message_kind") == records.DELAY, F.lit(False))
        received_here = self._within(F.col("first_received_ms"))
        # A first delivery before the range is not measured in it.
        consumed_here = self._within(F.col("first_consumed_ms"))
        return (
            consumption.where(F.col("deliveries") > 0)
            .withColumn("delayed", delayed)
            .withColumn("skewed", F.col("first_received_ms") < F.col("sent_ms"))
            .withColumn("waited_ms", F.when(received_here, _since("first_received_ms", "stored_ms")))
            .withColumn("took_ms", F.when(consumed_here, _since("first_consumed_ms", "sent_ms")))
        )

    def _delivery_figures(self, deliveries: DataFrame, consumption: DataFrame) -> list[Deliveries]:
        within = deliveries.where(self._within(F.col("at_ms")))
        listeners = within.groupBy("topic", "group").agg(
            F.count_if(F.col("success").isNull()).alias("unfinished"),
            *(F.count_if(_failed_by(context)).alias(f"by_{context}") for context in (*CONTEXTS, -1)),
            *_quantiles(F.col("cost_ms"), "listener"),
        )
        undelayed = ~F.col("delayed")
        messages = consumption.groupBy("topic", "group").agg(
            F.count("*").alias("messages"),
            F.sum("deliveries").alias("deliveries"),
            F.sum("retried").alias("retried"),
            F.sum("failed").alias("failed"),
            F.count_if(F.col("first_consumed_ms").isNull()).alias("unconsumed"),
            F.count_if("delayed").alias("delayed"),
            F.max("most_retries").alias("most_retries"),
            F.count_if("skewed").alias("skewed"),
            *_quantiles(F.when(undelayed, F.col("waited_ms")), "waited"),
            *_quantiles(F.when(undelayed, F.col("took_ms")), "took"),
        )
        by_place = {_place(r): r for r in listeners.collect()}
        found = []
        for r in sorted(messages.collect(), key=_place):
            of = by_place[_place(r)]
            failures = {name: of[f"by_{context}"] for context, name in CONTEXTS.items()} | {"other": of["by_-1"]}
            found.append(
                Deliveries(
                    topic=r.topic,
                    group=r.group or "",
                    messages=r.messages,
                    deliveries=r.deliveries,
                    retried=r.retried,
                    failed=r.failed,
                    unfinished=of.unfinished,
                    unconsumed=r.unconsumed,
                    delayed=r.delayed,
                    most_retries=r.most_retries or 0,
                    clock_skew=r.skewed,
                    failures={name: count for name, count in failures.items() if count},
                    listener_ms=_latency(of, "listener"),
                    store_to_consume_ms=_latency(r, "waited"),
                    end_to_end_ms=_latency(r, "took"),
                )
            )
        return found

    def _slowest_messages(self, consumption: DataFrame) -> list[Slow]:
        measured = consumption.where(F.col("took_ms").isNotNull() & ~F.col("delayed"))
        return _named(measured.orderBy(F.desc("took_ms"), "message_id", "group").limit(self._slowest))

    def _unconsumed_messages(self, consumption: DataFrame) -> list[Slow]:
        never = consumption.where(F.col("first_consumed_ms").isNull())
        return _named(never.orderBy(F.desc("failed"), "first_received_ms", "message_id", "group").limit(self._slowest))

    # -- the time line -----------------------------------------------------------------------------------------------

    def _timeline(
        self, sends: DataFrame, consumption: DataFrame, found: list[Deliveries], step_ms: int
    ) -> list[Moment]:
        """Return steps by when messages were sent: of all sends, and of the busiest topics and groups."""
        start = (F.col("sent_ms") - F.col("sent_ms") % step_ms).alias("start_ms")
        within = self._within(F.col("sent_ms"))
        sent = (
            sends.where(within)
            .groupBy(start)
            .agg(
                F.count("*").alias("messages"),
                F.count_if(~F.col("sent")).alias("failed"),
                F.lit(0).alias("retried"),
                F.lit("").alias("topic"),
                F.lit("").alias("group"),
                F.percentile("send_cost_ms", F.array(F.lit(0.5), F.lit(0.99))).alias("q"),
            )
        )
        busiest = sorted(found, key=lambda d: (-d.messages, d.topic, d.group))[:LINES_MAX]
        moments = [_moment(r) for r in sent.collect()]
        if busiest:
            place = F.concat(F.col("topic"), F.lit("\x01"), F.coalesce("group", F.lit("")))
            here = place.isin([f"{d.topic}\x01{d.group}" for d in busiest])
            taken = (
                consumption.where(within & here)
                .groupBy(start, "topic", "group")
                .agg(
                    F.count("*").alias("messages"),
                    F.sum("failed").alias("failed"),
                    F.sum("retried").alias("retried"),
                    F.percentile(F.when(~F.col("delayed"), F.col("took_ms")), F.array(F.lit(0.5), F.lit(0.99))).alias(
                        "q"
                    ),
                )
            )
            moments += [_moment(r) for r in taken.collect()]
        return sorted(moments, key=lambda m: (m.topic, m.group, m.start_ms))


def _sends(read: DataFrame) -> DataFrame:
    """Return a row for each message that was sent: of several sends the one that worked."""
    best = F.max(F.struct("success", "cost_ms", "topic", "group", "keys", "message_kind", "body_bytes"))
    return (
        read.where(F.col("kind") == rows.SENT)
        .groupBy("message_id")
        .agg(F.min("time_ms").alias("sent_ms"), best.alias("best"))
        .select(
            "message_id",
            "sent_ms",
            F.col("best.success").alias("sent"),
            F.col("best.cost_ms").alias("send_cost_ms"),
            *(f"best.{name}" for name in ("topic", "group", "message_kind", "body_bytes")),
        )
    )


def _deliveries(read: DataFrame, sends: DataFrame) -> DataFrame:
    """Return a row for each message handed to a listener: its records before and after joined, and its send's."""

    def of(kind: str, name: str) -> Column:
        return F.max(F.when(F.col("kind") == kind, F.col(name)))

    joined = (
        read.where(F.col("kind").isin(rows.RECEIVED, rows.CONSUMED))
        .groupBy("request_id", "message_id")
        .agg(
            of(rows.RECEIVED, "time_ms").alias("received_ms"),
            of(rows.CONSUMED, "time_ms").alias("consumed_ms"),
            F.max("group").alias("group"),
            F.max("retry_times").alias("retry_times"),
            F.max("success").alias("success"),
            F.max("context").alias("context"),
            F.max("cost_ms").alias("cost_ms"),
            F.max("keys").alias("keys"),
        )
    )
    # Clients that write no time after a listener (older ones, those of the cloud) tell how long it took.
    ended = F.coalesce("consumed_ms", F.when(F.col("success").isNotNull(), F.col("received_ms") + F.col("cost_ms")))
    joined = joined.withColumn("consumed_ms", ended).withColumn("at_ms", F.coalesce("received_ms", "consumed_ms"))
    # The broker's time is not in a trace: RocketMQ takes the middle of the send.
    known = sends.select(
        "message_id",
        "topic",
        "sent_ms",
        (F.col("sent_ms") + F.col("send_cost_ms") / 2).alias("stored_ms"),
        "message_kind",
    )
    return joined.join(known, "message_id", "left").withColumn("topic", F.coalesce("topic", F.lit("")))


def _since(end: str, start: str) -> Column:
    """Return the ms between two times; 0 where clocks differ so much that it would be less."""
    span = F.col(end) - F.col(start)
    return F.when(span.isNotNull(), F.greatest(span, F.lit(0)))


def _failed_by(context: int) -> Column:
    """Count failures of that context; -1: of one that is not known."""
    code = F.coalesce("context", F.lit(-1))
    matches = ~code.isin(*CONTEXTS) if context == -1 else code == context
    return (F.col("success") == F.lit(False)) & matches


def _quantiles(value: Column, name: str) -> list[Column]:
    quantiles = F.array(*(F.lit(q) for q in QUANTILES))
    return [
        F.count(value).alias(f"{name}_count"),
        F.avg(value).alias(f"{name}_mean"),
        F.percentile(value, quantiles).alias(f"{name}_quantiles"),
    ]


def _latency(row: Row, name: str) -> Latency:
    return latency(row[f"{name}_count"], row[f"{name}_mean"], row[f"{name}_quantiles"])


def _place(row: Row) -> tuple[str, str]:
    return (row.topic, row.group or "")


def _moment(row: Row) -> Moment:
    p50, p99 = row.q or (None, None)
    return Moment(row.start_ms, row.topic, row.group or "", row.messages, row.failed, row.retried, p50, p99)


def _named(frame: DataFrame) -> list[Slow]:
    return [
        Slow(
            message_id=r.message_id,
            topic=r.topic,
            group=r.group or "",
            keys=r["keys"] or "",
            sent_ms=r.sent_ms,
            first_received_ms=r.first_received_ms,
            consumed_ms=r.first_consumed_ms,
            end_to_end_ms=r.took_ms,
            store_to_consume_ms=r.waited_ms,
            deliveries=r.deliveries,
            failed=r.failed,
            last_failure="" if r.last_context is None else CONTEXTS.get(r.last_context, f"code {r.last_context}"),
        )
        for r in frame.collect()
    ]
