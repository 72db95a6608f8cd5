"""`pipeline audit`: compares produced with consumed messages. Rule: it only reads; the messages that count are fixed
before the reading, by the offsets that queues and groups have then, so a live topic gives one consistent answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from rocketspark.admin.cluster_client import QueueProgress as State
from rocketspark.admin.messages.dead_letter_rules import ORIGINS, origin_of
from rocketspark.admin.operations import Admin
from rocketspark.errors import ConfigError, RouteNotFound, UsageError
from rocketspark.model import MessageQueue, namespace
from rocketspark.model.route import is_logical
from rocketspark.spark.pipelines.connection import Connection, closed_topics, connection, operations_of
from rocketspark.spark.pipelines.options import AuditOptions
from rocketspark.spark.pipelines.parts.audit_figures import (
    AuditReport,
    Duplicate,
    GroupFigures,
    GroupQueueProgress,
    MessagePlace,
    OffsetGap,
    QueueFigures,
    TopicFigures,
    check_kinds,
    find,
    missing_offsets,
)
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.report import fields
from rocketspark.tables.offset_ranges import to_json
from rocketspark.tables.option_values import check_range

COLUMNS = "topic string, broker string, queueId int, queueOffset bigint, messageId string, storeTime timestamp_ltz"
PLACES_MAX = 10
# Brokers' clocks may differ from ours by this much.
CLOCKS_MS = 3_600_000
DEFAULTS = AuditOptions()


class GroupStanding(NamedTuple):
    """Where a group stands in a topic before the audit reads: its offset in each queue, and how many messages its retry
    topic holds.
    """

    topic: str
    group: str
    queues: dict[MessageQueue, State]
    retrying: int


class AuditScope(NamedTuple):
    """What an audit looks at: the offsets [oldest, next) of each queue, and where the groups stand. Names are without
    namespace.
    """

    bounds: dict[MessageQueue, tuple[int, int]]
    standings: list[GroupStanding]
    silent: dict[str, list[str]]
    dead_topics: dict[str, str]


def run(
    spark: SparkSession,
    where: Connection | str,
    topics: Sequence[str],
    options: AuditOptions = DEFAULTS,
    *,
    progress: Progress | None = None,
) -> AuditReport:
    """Count the messages of topics in the time range of the options, and how far consumer groups consumed them.

    `where`: the cluster, or its NameServers "host:port;host:port". Raises RouteNotFound for a topic that is not there,
    UsageError, and what a read raises.
    """
    progress = progress or Progress("audit")
    if not topics:
        raise UsageError("no topic is named: what is to be audited?")
    check_range(options.since_ms, options.until_ms)
    check_kinds(options.ignore or ())
    where = connection(where)
    if where.choosing:
        raise ConfigError(
            f"option {min(where.choosing)}: an audit counts all messages of its topics, and would take those left out"
            " for missing; leave the option out, or choose a time with --since and --until"
        )
    progress.say("asking for queues and groups")
    scope = ask(
        where,
        list(dict.fromkeys(topics)),
        list(dict.fromkeys(options.groups or ())),
        dead_letters="dead" not in (options.ignore or ()),
    )
    return _Audit(spark, where, scope, options, progress).run()


def _dead_letter_topics(
    operations: Admin, space: str, groups: Iterable[str], there: Container[str], *, must_be_read: bool
) -> dict[str, str]:
    """Return the groups by their dead letters' topic, of those that can be read. `there`: the cluster's topics."""
    dead: dict[str, str] = {}
    for group in groups:
        full = namespace.DLQ_PREFIX + namespace.wrap(space, group)
        if full not in there:
            continue
        if operations.show_topic(full).queues:
            dead[namespace.DLQ_PREFIX + group] = group
        elif must_be_read:
            # Brokers before 5.0 make these topics without the permission to read.
            raise ConfigError(
                f"topic {full} cannot be read, so dead letters cannot be counted: give it permission 6"
                f" (`rocketspark topic update {full} --perm both`), or leave them out with --ignore dead"
            )
    return dead


def ask(where: Connection, topics: Sequence[str], groups: Sequence[str], *, dead_letters: bool = True) -> AuditScope:
    """Ask the cluster for the offsets of the topics' queues, and where groups stand in them. Raises RouteNotFound;
    ConfigError for dead letters that cannot be read, unless `dead_letters` is false: then they are left out.
    """
    space = where.namespace
    with operations_of(where) as operations:
        # Ends before offsets: what comes and is consumed meanwhile is not audited.
        bounds = _bounds(operations, where, topics)
        there = set(operations.list_topics())
        standings: list[GroupStanding] = []
        silent: dict[str, list[str]] = {topic: [] for topic in topics}
        for topic in topics:
            full = namespace.wrap(space, topic)
            for group in groups or [namespace.unwrap(space, g) for g in operations.list_groups(full)]:
                full_group = namespace.wrap(space, group)
                found = operations.show_progress(full_group, full)
                if not groups and all(p.committed is None for p in found):
                    silent[topic].append(group)
                    continue
                retry = namespace.RETRY_PREFIX + full_group
                waiting = sum(p.lag for p in operations.show_progress(full_group, retry)) if retry in there else 0
                # A queue that came since is not audited.
                queues = {_bare(space, p.queue): p for p in found if _bare(space, p.queue) in bounds}
                standings.append(GroupStanding(topic, group, queues, waiting))
        audited = dict.fromkeys(s.group for s in standings)
        dead = _dead_letter_topics(operations, space, audited, there, must_be_read=dead_letters)
    for name, text in closed_topics(where, [*topics, *dead]).items():
        if name not in dead:
            raise ConfigError(text)
        if dead_letters:
            raise ConfigError(f"{text}, or leave dead letters out with --ignore dead")
        del dead[name]
    return AuditScope(bounds, standings, silent, dead)


def _bounds(operations: Admin, where: Connection, topics: Sequence[str]) -> dict[MessageQueue, tuple[int, int]]:
    bounds: dict[MessageQueue, tuple[int, int]] = {}
    for topic in topics:
        try:
            state = operations.show_topic(namespace.wrap(where.namespace, topic))
        except RouteNotFound:
            text = f"no topic {topic!r} at {where.namesrv}: check the name, or the namespace"
            raise RouteNotFound(topic, remark=text) from None
        if any(is_logical(q.queue) for q in state.queues):
            raise ConfigError(
                f"topic {topic!r} is a static topic: its offsets have gaps where queues were moved, which an audit"
                " would take for missing messages; leave it out"
            )
        bounds |= {_bare(where.namespace, q.queue): (q.min_offset, q.max_offset) for q in state.queues}
    return bounds


def _bare(space: str, queue: MessageQueue) -> MessageQueue:
    return MessageQueue(namespace.unwrap(space, queue.topic), queue.broker_name, queue.queue_id)


class _Audit:
    """One audit of a scope."""

    def __init__(
        self,
        spark: SparkSession,
        where: Connection,
        scope: AuditScope,
        options: AuditOptions,
        progress: Progress,
    ) -> None:
        self._spark, self._where, self._scope = spark, where, scope
        self._options, self._progress = options, progress
        self._topics = list(scope.silent)

    def run(self) -> AuditReport:
        count = sum(end - first for first, end in self._scope.bounds.values())
        self._progress.say(f"reading {', '.join(self._topics)}: {count:,} messages, less those out of the time range")
        rows = self._read(COLUMNS, self._topics).withColumn("storedMs", F.unix_millis("storeTime")).drop("storeTime")
        if self._options.until_ms is not None:
            rows = rows.where(F.col("storedMs") < self._options.until_ms)
        rows = rows.persist()
        try:
            by_queue = self._by_queue(rows)
            queues = self._queues(by_queue)
            self._progress.say("looking for duplicates")
            copies, duplicates = self._duplicates(rows)
            gaps = self._gaps(rows) if any(q.missing for q in queues) else []
            dead = self._dead()
            groups = [self._group(n, by_queue, dead, rows) for n in range(len(self._scope.standings))]
        finally:
            rows.unpersist()
        topics = [self._topic(t, queues, by_queue, copies) for t in self._topics]
        findings = find(topics, groups, ignore=self._options.ignore or (), max_lag=self._options.max_lag)
        return AuditReport(
            ok=not findings,
            findings=findings,
            since_ms=self._options.since_ms,
            until_ms=self._options.until_ms,
            topics=topics,
            groups=groups,
            queues=queues,
            gaps=gaps,
            duplicates=duplicates,
        )

    def _read(self, columns: str, topics: Sequence[str]) -> DataFrame:
        """Read messages of the range up to the ends that were asked for; holes are no error here, but a finding."""
        options = self._where.read_options() | {"topic": ",".join(topics), "failOnDataLoss": "false"}
        if self._options.since_ms is not None:
            options["startingTimestamp"] = str(self._options.since_ms)
        until_ms = self._options.until_ms
        ends = {q: bounds[1] for q, bounds in self._scope.bounds.items() if q.topic in topics}
        # What came since is of a time that is not over yet.
        if ends and (until_ms is None or until_ms > time.time() * 1000 - CLOCKS_MS):
            options["endingOffsets"] = json.dumps(to_json(ends))
        elif until_ms is not None:
            options["endingTimestamp"] = str(until_ms)
        return self._spark.read.format("rocketmq").options(**options).schema(columns).load()

    # -- counting ----------------------------------------------------------------------------------------------------

    def _by_queue(self, rows: DataFrame) -> dict[MessageQueue, Row]:
        """Count messages of each queue, in one pass: all, and for each standing those before the committed offset."""
        committed: dict[MessageQueue, list[int]] = {}
        for number, standing in enumerate(self._scope.standings):
            for queue, state in standing.queues.items():
                offsets = committed.setdefault(queue, [0] * len(self._scope.standings))
                offsets[number] = state.committed or 0
        for queue in self._scope.bounds:
            committed.setdefault(queue, [0] * len(self._scope.standings))
        space = self._where.namespace
        table = [
            (*(name, q.broker_name, q.queue_id), offsets)
            for q, offsets in sorted(committed.items())
            for name in dict.fromkeys((q.topic, namespace.wrap(space, q.topic)))
        ]
        known = self._spark.createDataFrame(table, "topic string, broker string, queueId int, committed array<bigint>")
        before = [(F.col("queueOffset") < F.col("committed")[number]) for number in range(len(self._scope.standings))]
        counted = (
            rows.join(F.broadcast(known), ["topic", "broker", "queueId"])
            .groupBy("topic", "broker", "queueId")
            .agg(
                F.count("*").alias("messages"),
                F.min("queueOffset").alias("first"),
                F.max("queueOffset").alias("last"),
                F.min("storedMs").alias("first_ms"),
                F.max("storedMs").alias("last_ms"),
                *(F.count_if(is_before).alias(f"consumed_{n}") for n, is_before in enumerate(before)),
                *(
                    F.min(F.when(~is_before, F.col("storedMs"))).alias(f"oldest_{n}")
                    for n, is_before in enumerate(before)
                ),
            )
        )
        return {MessageQueue(namespace.unwrap(space, r.topic), r.broker, r.queueId): r for r in counted.collect()}

    def _queues(self, by_queue: dict[MessageQueue, Row]) -> list[QueueFigures]:
        whole = self._options.since_ms is None and self._options.until_ms is None
        # Messages may have grown too old while they were read: those are not missing.
        oldest_now = _oldest(self._where, self._topics) if whole else {}
        found = []
        for queue, (oldest, end) in sorted(self._scope.bounds.items()):
            row = by_queue.get(queue)
            messages, first, last = (row.messages, row.first, row.last) if row else (0, None, None)
            bounds = None
            if whole:
                aged = oldest_now.get(queue, oldest)
                bounds = (oldest if aged <= oldest else min(end, aged) if first is None else first, end)
            missing = missing_offsets(messages, first, last, bounds)
            found.append(
                QueueFigures(
                    topic=queue.topic,
                    broker=queue.broker_name,
                    queue_id=queue.queue_id,
                    oldest=oldest,
                    next=end,
                    messages=messages,
                    first=first,
                    last=last,
                    missing=missing,
                )
            )
        return found

    def _topic(
        self, topic: str, queues: list[QueueFigures], by_queue: dict[MessageQueue, Row], copies: dict[str, int]
    ) -> TopicFigures:
        rows = [row for queue, row in by_queue.items() if queue.topic == topic]
        of = [q for q in queues if q.topic == topic]
        return TopicFigures(
            topic=topic,
            messages=sum(q.messages for q in of),
            missing=sum(q.missing for q in of),
            duplicates=copies.get(topic, 0),
            deleted=sum(q.oldest for q in of),
            first_ms=min((row.first_ms for row in rows), default=None),
            last_ms=max((row.last_ms for row in rows), default=None),
            silent_groups=self._scope.silent[topic],
        )

    def _gaps(self, rows: DataFrame) -> list[OffsetGap]:
        place = ("topic", "broker", "queueId")
        before = F.lag("queueOffset").over(Window.partitionBy(*place).orderBy("queueOffset"))
        found = (
            rows.select(*place, (before + 1).alias("first"), F.col("queueOffset").alias("end"))
            .where(F.col("end") > F.col("first"))
            .orderBy(*place, "first")
            .limit(self._options.samples * len(self._topics))
        )
        return [OffsetGap(namespace.unwrap(self._where.namespace, r.topic), *r[1:]) for r in found.collect()]

    def _duplicates(self, rows: DataFrame) -> tuple[dict[str, int], list[Duplicate]]:
        """Return messages that repeat another's unique id, by topic; and some of them."""
        repeated = rows.groupBy("topic", "messageId").agg(F.count("*").alias("copies")).where("copies > 1")
        counted = repeated.groupBy("topic").agg(F.sum(F.col("copies") - 1).alias("copies")).collect()
        space = self._where.namespace
        if not counted:
            return {}, []
        worst = repeated.orderBy(F.desc("copies"), "topic", "messageId").limit(
            self._options.samples * len(self._topics)
        )
        places: dict[tuple[str, str], list[MessagePlace]] = {}
        counts: dict[tuple[str, str], int] = {}
        for r in rows.join(F.broadcast(worst), ["topic", "messageId"]).collect():
            name = (namespace.unwrap(space, r.topic), r.messageId)
            counts[name] = r.copies
            places.setdefault(name, []).append(_place(r))
        found = [Duplicate(*name, counts[name], sorted(of, key=_by_age)[:PLACES_MAX]) for name, of in places.items()]
        by_topic = {namespace.unwrap(space, r.topic): r.copies for r in counted}
        return by_topic, sorted(found, key=lambda d: (-d.copies, d.topic, d.message_id))

    def _dead(self) -> dict[tuple[str, str], int]:
        """Return dead letters of the range by group and the topic they came from."""
        topics = list(self._scope.dead_topics)
        if not topics:
            return {}
        came_from = [F.col("properties")[name] for name in ORIGINS]
        rows = self._read("topic string, properties map<string,string>", topics)
        found: dict[tuple[str, str], int] = {}
        space = self._where.namespace
        for topic, *origins, count in rows.groupBy("topic", *came_from).count().collect():
            group = self._scope.dead_topics[namespace.unwrap(space, topic)]
            origin = origin_of({name: value for name, value in zip(ORIGINS, origins, strict=True) if value})
            key = (group, namespace.unwrap(space, origin))
            found[key] = found.get(key, 0) + count
        return found

    def _group(
        self,
        number: int,
        by_queue: dict[MessageQueue, Row],
        dead: dict[tuple[str, str], int],
        rows: DataFrame,
    ) -> GroupFigures:
        standing = self._scope.standings[number]
        queues = []
        for queue, state in sorted(standing.queues.items()):
            oldest, end = self._scope.bounds[queue]
            lag = max(0, end - max(state.committed or 0, oldest))
            lost = max(0, oldest - state.committed) if state.committed is not None else 0
            queues.append(GroupQueueProgress(queue.broker_name, queue.queue_id, state.committed, lag, lost))
        read = {queue: row for queue, row in by_queue.items() if queue.topic == standing.topic}
        produced = sum(row.messages for row in read.values())
        consumed = sum(row[f"consumed_{number}"] for row in read.values())
        times = [row[f"oldest_{number}"] for row in read.values() if row[f"oldest_{number}"] is not None]
        return GroupFigures(
            topic=standing.topic,
            group=standing.group,
            produced=produced,
            consumed=consumed,
            unconsumed=produced - consumed,
            dead=dead.get((standing.group, standing.topic), 0),
            lag=sum(q.lag for q in queues),
            lost=sum(q.lost for q in queues),
            retrying=standing.retrying,
            oldest_unconsumed_ms=min(times, default=None),
            queues=queues,
            oldest_unconsumed=self._unconsumed(standing, read, rows) if consumed < produced else [],
        )

    def _unconsumed(
        self, standing: GroupStanding, read: dict[MessageQueue, Row], rows: DataFrame
    ) -> list[MessagePlace]:
        """Return some of the oldest messages that the group has not consumed: the first of each queue are looked at."""
        wanted = F.lit(False)
        for queue, row in read.items():
            start = max(standing.queues[queue].committed or 0, row.first)
            wanted |= (
                (F.col("broker") == queue.broker_name)
                & (F.col("queueId") == queue.queue_id)
                & F.col("queueOffset").between(start, start + self._options.samples - 1)
            )
        names = (standing.topic, namespace.wrap(self._where.namespace, standing.topic))
        found = rows.where(F.col("topic").isin(*names) & wanted).collect()
        return sorted(map(_place, found), key=_by_age)[: self._options.samples]


def _oldest(where: Connection, topics: Sequence[str]) -> dict[MessageQueue, int]:
    with operations_of(where) as operations:
        return {queue: oldest for queue, (oldest, _) in _bounds(operations, where, topics).items()}


def _place(row: Row) -> MessagePlace:
    return MessagePlace(row.broker, row.queueId, row.queueOffset, row.messageId, row.storedMs)


def _by_age(place: MessagePlace) -> tuple[Any, ...]:
    return (place.stored_ms, place.broker, place.queue_id, place.queue_offset)


def summary(report: AuditReport) -> dict[str, Any]:
    """Return an audit's report as text for a person: short enough for a screen."""
    return {
        "findings": [{"finding": f.text} for f in report.findings] or "none",
        "topics": [
            fields(t, "topic messages missing duplicates")
            | {"deleted_by_age": t.deleted, "groups without offsets": t.silent_groups}
            for t in report.topics
        ],
        "groups": [fields(g, "topic group produced consumed unconsumed dead lag lost retrying") for g in report.groups],
        "gaps": [g._asdict() for g in report.gaps],
        "duplicates": [
            fields(d, "topic message_id copies")
            | {"at": ", ".join(f"{p.broker}/{p.queue_id}/{p.queue_offset}" for p in d.places)}
            for d in report.duplicates
        ],
        "oldest_unconsumed": [
            {"topic": g.topic, "group": g.group, **p._asdict()} for g in report.groups for p in g.oldest_unconsumed
        ],
    }
