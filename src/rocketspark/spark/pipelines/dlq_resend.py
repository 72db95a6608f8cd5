"""Sends dead letters again. Rule: before a letter is sent, its target is searched for the unique id of its resend; and
once more after a send without a reply. Letters go only to queues that are searched, all of them.

The sending is the driver's: letters are few, go in the order they died in, and a stop leaves no task behind that sends.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from rocketspark.admin.messages.dead_letter_rules import DeadLetter, outgoing, queue_of, resend_id
from rocketspark.client.producer.prepared_message import PackingSettings, PreparedMessage
from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.errors import ConfigError, MessageIllegal, RocketSparkError, RouteNotFound, UsageError
from rocketspark.model import MessageQueue, namespace
from rocketspark.spark.pipelines.connection import Connection, closed_topics, connection, operations_of
from rocketspark.spark.pipelines.dlq import choose, find, letters
from rocketspark.spark.pipelines.options import Choice, ResendOptions
from rocketspark.spark.pipelines.parts.progress import Progress, step_report
from rocketspark.tables.option_values import check_range
from rocketspark.tables.options import over

PRODUCER_GROUP = "rocketspark_dlq"
SEND_TIMEOUT_MS = 10_000.0
IN_FLIGHT_MAX = 64
# Letters come to the driver by parts of about so many bytes, of which each takes some beside its body. In flight are
# not many more.
PART_BYTES = 8 << 20
AROUND_BYTES = 1 << 10
ORDER = ("deadMs", "dlqTopic", "broker", "queueId", "queueOffset")
ROUNDS = 5
# A send whose answer never came may still be carried out for so long.
DOUBT_S = 3.0
# Brokers' clocks may differ by this much.
CLOCKS_MS = 3_600_000
DEFAULTS = ResendOptions()


class ResendTarget(NamedTuple):
    """Counts of a group's dead letters that came from `topic` and go to `target`; `already_there`: an earlier run sent
    them.
    """

    group: str
    topic: str
    target: str
    chosen: int
    already_there: int
    sent: int


class ResendReport(NamedTuple):
    """The result of a run. `failed`: letters that were not sent, and are not in their target; `errors`: the reasons,
    each once. `unknown`: chosen letters that do not say which topic they came from, and need a target to be named.
    """

    dry_run: bool
    chosen: int
    already_there: int
    sent: int
    failed: int
    unknown: int
    targets: list[ResendTarget]
    errors: list[str]
    seconds: float
    stopped: bool


def run(
    spark: SparkSession,
    where: Connection | str,
    choice: Choice,
    options: ResendOptions = DEFAULTS,
    *,
    progress: Progress | None = None,
) -> ResendReport:
    """Send the chosen dead letters again, each once, whatever runs before this one did. The choice names its groups.

    Raises UsageError, ConfigError for a group without dead letters or a target that may not be read, RouteNotFound for
    a target that is not there.
    """
    progress = progress or Progress("dlq")
    if options.to is not None and options.to_group:
        raise UsageError("give a topic to send to, or to_group, not both")
    if not choice.groups:
        raise UsageError("name the groups whose dead letters are to be sent again")
    if options.rate is not None and options.rate <= 0:
        raise UsageError(f"rate {options.rate}: more than 0 letters a second are needed")
    check_range(choice.since_ms, choice.until_ms)
    return _Resend(spark, connection(where), choice, options, progress).run()


Counts = dict[tuple[str, str, str], int]


class _Resend:
    """One run. A target is named by group, the topic letters came from, and the topic they go to."""

    def __init__(
        self,
        spark: SparkSession,
        where: Connection,
        choice: Choice,
        options: ResendOptions,
        progress: Progress,
    ) -> None:
        self._spark, self._where = spark, where
        self._choice, self._options, self._progress = choice, options, progress
        self._errors: dict[str, None] = {}
        self._sent: Counts = {}
        self._illegal: set[str] = set()
        self._doubtful = 0
        self._parts = 1
        self._blocked: set[tuple[str, str]] = set()
        self._kept: list[DataFrame] = []
        # By target: the queues that can be read, and those of them that letters go to.
        self._searched: dict[str, set[MessageQueue]] = {}
        self._queues: dict[str, list[MessageQueue]] = {}

    def run(self) -> ResendReport:
        """Look, send, and look again for letters whose send had no reply."""
        began_s = time.monotonic()
        source = find(self._where, self._choice.groups or ())
        try:
            # Kept: a choice by time or number would be another one in the next round.
            chosen = self._keep(self._addressed(choose(letters(self._spark, self._where, source), self._choice)))
            rows = (
                chosen.groupBy("group", "originTopic", "target")
                .agg(
                    F.count("*").alias("letters"),
                    F.min("deadMs").alias("oldest"),
                    F.sum(F.length("body") + AROUND_BYTES).alias("bytes"),
                )
                .collect()
            )
            counts = {_key(r): r.letters for r in rows if r.target}
            unknown = sum(r.letters for r in rows if not r.target)
            oldest_ms = min((r.oldest for r in rows), default=0)
            self._parts = 1 + sum(r.bytes for r in rows) // PART_BYTES
            self._check_targets({target for _, _, target in counts})
            self._progress.say(f"{sum(counts.values()):,} letters are chosen; looking which were sent before")
            found, there = self._look(chosen, counts, oldest_ms)
            before = there
            for _ in range(ROUNDS):
                left = sum(counts.values()) - sum(there.values()) - len(self._illegal)
                if left <= 0 or self._options.dry_run or self._progress.stop.asked:
                    break
                self._doubtful = 0
                self._blocked.clear()
                self._send(chosen.where("target != ''").join(found, ["resendId", "target"], "left_anti"), left)
                if not self._doubtful:
                    break
                error = next(iter(self._errors))
                self._progress.say(f"{self._doubtful:,} letters may not have been sent ({error}); looking again")
                self._progress.stop.wait(DOUBT_S)
                self._await_brokers()
                found, there = self._look(chosen, counts, oldest_ms)
        finally:
            for frame in self._kept:
                frame.unpersist()
        if there is not before:
            # Some replies never came: the messages that are there now count more than the replies.
            self._sent = {key: max(there.get(key, 0) - before.get(key, 0), self._sent.get(key, 0)) for key in counts}
        return self._report(counts, before, unknown, time.monotonic() - began_s)

    def _report(self, counts: Counts, before: Counts, unknown: int, seconds: float) -> ResendReport:
        targets = [
            ResendTarget(*key, chosen, before.get(key, 0), self._sent.get(key, 0))
            for key, chosen in sorted(counts.items())
        ]
        chosen, already = sum(t.chosen for t in targets), sum(t.already_there for t in targets)
        sent = sum(t.sent for t in targets)
        stopped = self._progress.stop.asked
        failed = len(self._illegal) if self._options.dry_run or stopped else chosen - already - sent
        return ResendReport(
            dry_run=self._options.dry_run,
            chosen=chosen + unknown,
            already_there=already,
            sent=sent,
            failed=failed,
            unknown=unknown,
            targets=targets,
            errors=list(self._errors),
            seconds=round(seconds, 3),
            stopped=stopped,
        )

    def _keep(self, frame: DataFrame) -> DataFrame:
        # Letters may be more than the memory that Spark would take for them, and are read a few times only.
        self._kept.append(frame.persist(StorageLevel.DISK_ONLY))
        return self._kept[-1]

    def _addressed(self, rows: DataFrame) -> DataFrame:
        """Return the letters with their target, "" where none is known, and the id of their resend."""
        target = F.col("originTopic")
        if self._options.to is not None:
            target = F.lit(self._options.to)
        elif self._options.to_group:
            # A consumer takes a retried message as one of the topic it came from: that must be known.
            target = F.when(target == "", "").otherwise(F.concat(F.lit(namespace.RETRY_PREFIX), "group"))
        # Without type hints: PySpark would make a pandas UDF of some, and warns of others.
        of_letter = F.udf(lambda place, message_id, dead_ms: resend_id(place, message_id, dead_ms), "string")
        return rows.withColumn("target", target).withColumn("resendId", of_letter("place", "messageId", "deadMs"))

    def _check_targets(self, targets: set[str]) -> None:
        """Raise RouteNotFound unless all targets exist: a topic that a send creates may have too few queues. Raise
        ConfigError for one that cannot be searched.
        """
        with operations_of(self._where) as operations:
            there = set(operations.list_topics())
            for name in sorted(targets):
                full = namespace.wrap(self._where.namespace, name)
                if full not in there:
                    text = f"letters would go to topic {name!r}, which is not there: create it, or name another"
                    raise RouteNotFound(name, remark=text)
                state = operations.show_topic(full)
                self._searched[name] = {q.queue for q in state.queues}
                self._queues[name] = [q for q in state.route.producer_queues() if q in self._searched[name]]
                if not self._queues[name]:
                    lacks = "be read, so those sent before cannot be seen" if not state.queues else "be written"
                    raise ConfigError(
                        f"letters would go to topic {name!r}, which may not {lacks}: give it both permissions"
                        f" (rocketspark topic update {full} --perm both)"
                    )
        for text in closed_topics(self._where, sorted(targets)).values():
            raise ConfigError(f"letters that were sent before cannot be seen: {text}")

    def _await_brokers(self) -> None:
        """Wait until all queues that letters may have been sent to can be searched. Raises ConfigError if one cannot:
        a letter there would be sent again.
        """
        for _ in range(ROUNDS):
            away: set[MessageQueue] = set()
            with operations_of(self._where) as operations:
                for queues in self._searched.values():
                    there: set[MessageQueue] = set()
                    with suppress(RocketSparkError):
                        there = {q.queue for q in operations.show_topic(next(iter(queues)).topic).queues}
                    away |= queues - there
            if not away or self._progress.stop.wait(DOUBT_S):
                break
        if away:
            queue = min(away)
            raise ConfigError(
                f"broker {queue.broker_name!r} is away, so it cannot be seen which letters topic {queue.topic!r} has"
                " there: run this again once it is back"
            )

    def _look(self, chosen: DataFrame, counts: Counts, oldest_ms: int) -> tuple[DataFrame, Counts]:
        """Find the chosen letters that their targets hold: return their resendId and target; and how many, by
        target.
        """
        targets = sorted({target for _, _, target in counts})
        wanted = chosen.select("resendId", "target", "group", "originTopic")
        if not targets:
            return wanted.where("false").select("resendId", "target"), {}
        # Nothing was sent again before the first of them died.
        since = str(max(0, oldest_ms - CLOCKS_MS))
        places: dict[str, dict[str, list[int]]] = {}
        for name in targets:
            for queue in sorted(self._searched[name]):
                places.setdefault(name, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
        # Named one by one: without those of a broker that is away, letters there would be sent again.
        own = {"assign": json.dumps(places), "failOnDataLoss": "false", "startingTimestamp": since}
        # What chooses letters need not be true of what they are sent as.
        options = over(self._where.without_choice().read_options(), own)
        there = self._spark.read.format("rocketmq").options(**options).schema("topic string, messageId string").load()
        there = there.select(F.col("topic").alias("target"), F.col("messageId").alias("resendId"))
        found = self._keep(wanted.join(there, ["resendId", "target"], "left_semi"))
        by_target = found.groupBy("group", "originTopic", "target").count().collect()
        return found.select("resendId", "target").distinct(), {_key(r): r[3] for r in by_target}

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, rows: DataFrame, count: int) -> None:
        """Send letters in the order they died in, until all are sent or a stop is asked for."""
        # The iterator has a whole part in the JVM's memory, and in this process's.
        ordered = rows.repartitionByRange(self._parts, *ORDER).sortWithinPartitions(*ORDER)
        waiting = (_letter(row) for row in ordered.toLocalIterator())
        size = max(1, min(IN_FLIGHT_MAX, int(self._options.rate or IN_FLIGHT_MAX)))
        began_s, tried, number = time.monotonic(), 0, 0
        with asyncio.Runner() as runner:
            producer = AsyncProducer(
                self._where.namesrv,
                PRODUCER_GROUP,
                # An attempt whose answer never came may have worked: it is looked for before the next one.
                retries=0,
                send_timeout_ms=SEND_TIMEOUT_MS,
                **self._where.access.client_options(),
            )
            runner.run(producer.start())
            try:
                while not self._progress.stop.asked and (some := take(waiting, size)):
                    some_s = time.monotonic()
                    runner.run(self._send_some(producer, some))
                    tried, number = tried + len(some), number + 1
                    self._progress.hear(step_report(number, len(some), {"addBatch": time.monotonic() - some_s}))
                    self._progress.update(tried, lag=count - tried)
                    if self._options.rate is not None:
                        self._progress.stop.wait(max(0.0, began_s + tried / self._options.rate - time.monotonic()))
            finally:
                runner.run(producer.close())

    async def _send_some(self, producer: AsyncProducer, some: Sequence[DeadLetter]) -> None:
        """Send letters at once, those of one sharding key one after the other."""
        packing = PackingSettings(namespace=self._where.namespace)
        chains: dict[tuple[str, str], list[tuple[DeadLetter, PreparedMessage]]] = {}
        for letter in some:
            if letter.resend_id in self._illegal:
                continue
            try:
                out, sharding_key = outgoing(letter, packing, to_group=self._options.to_group)
            except MessageIllegal as e:
                self._illegal.add(letter.resend_id)
                self._errors.setdefault(f"{letter.place}: {e}")
                continue
            chain = (letter.target, sharding_key) if sharding_key else ("", letter.resend_id)
            chains.setdefault(chain, []).append((letter, out))
        await asyncio.gather(*(self._send_chain(producer, key, chain) for key, chain in chains.items()))

    async def _send_chain(
        self, producer: AsyncProducer, key: tuple[str, str], chain: Sequence[tuple[DeadLetter, PreparedMessage]]
    ) -> None:
        """Send letters that belong together in their order. `key`: topic and sharding key, or "" and the
        letter itself.
        """
        for number, (letter, out) in enumerate(chain):
            try:
                if key not in self._blocked:
                    sharding_key = key[1] if key[0] else None
                    queue = queue_of(letter, sharding_key, self._queues[letter.target])
                    await producer.send_packed(out, sharding_key, queue, None)
            except RocketSparkError as e:
                self._errors.setdefault(str(e))
                self._blocked.add(key)
            if key in self._blocked:
                # Later letters must not overtake it.
                self._doubtful += len(chain) - number
                return
            place = (letter.group, letter.topic, letter.target)
            self._sent[place] = self._sent.get(place, 0) + 1


def _key(row: Row) -> tuple[str, str, str]:
    return (row.group, row.originTopic, row.target)


def take(waiting: Iterator[DeadLetter], count: int) -> list[DeadLetter]:
    """Return the next letters: up to `count`, and none once there are PART_BYTES of them."""
    some, size = [], 0
    for letter in islice(waiting, count):
        some.append(letter)
        size += len(letter.body)
        if size >= PART_BYTES:
            break
    return some


def _letter(row: Row) -> DeadLetter:
    return DeadLetter(
        group=row.group,
        topic=row.originTopic,
        target=row.target,
        place=row.place,
        resend_id=row.resendId,
        message_id=row.messageId,
        body=bytes(row.body),
        tag=row.tag,
        keys=list(row["keys"]),
        properties=row.properties,
        flag=row.flag,
        born_ms=row.bornMs,
        dead_ms=row.deadMs,
    )
