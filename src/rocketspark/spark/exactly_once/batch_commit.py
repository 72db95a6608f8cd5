"""The exactly-once write of one batch: task attempts send its rows as half messages, then the driver commits or aborts
the batch.

Rules: a batch is committed by one commit record, which exists once; every step after it can be repeated. The writers
that Spark makes for planning, for tasks and for the commit share nothing but the messages of the tasks to the driver.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pyarrow as pa

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.protocol.message import checksums
from rocketspark.spark.exactly_once import commit_records
from rocketspark.spark.exactly_once.commit_records import (
    JOB,
    AttemptPart,
    BatchVerdict,
    CommitRecord,
    TransactionalIdState,
)
from rocketspark.spark.exactly_once.commit_topic import CommitTopic
from rocketspark.spark.exactly_once.end_transactions import EndTransactions
from rocketspark.spark.exactly_once.failpoints import passing
from rocketspark.spark.exactly_once.half_messages import HalfMessageSender
from rocketspark.spark.python_workers import plain_errors
from rocketspark.spark.write.bounded_flow import ReadAhead
from rocketspark.tables.options import WriteOptions

log = logging.getLogger("rocketspark.spark")

# JSON numbers that any reader takes.
_CHECKSUM_END = 1 << 53


class TakenOver(RocketSparkError):
    """Raised when another writer with the same transactionalId has taken over the work of this one."""


class TaskAttempt(msgspec.Struct, frozen=True):
    """One attempt at a task: its query, batch and partition. For a batch job the query is JOB and the batch 0."""

    query: str
    batch: int | None
    partition: int


class SentAttempt(msgspec.Struct, frozen=True):
    """What a task attempt reports to the driver. `part`: where its manifest is; None if the batch was committed before.

    `rows`, `checksum`: of the rows that it sent; in a repeat of a committed batch, of the rows that it was given.
    `queues`: where these rows go. `seen`: the end of the commit records when the attempt began.
    """

    query: str
    part: AttemptPart | None
    rows: int
    checksum: int
    queues: tuple[tuple[str, str, int], ...]
    seen: int


@asynccontextmanager
async def _opened(options: WriteOptions) -> AsyncIterator[CommitTopic]:
    commit_log = CommitTopic(options)
    await commit_log.start()
    try:
        yield commit_log
    finally:
        await commit_log.close()


def open_log(options: WriteOptions) -> None:
    """Make the commit topic if it does not exist; on the driver, before any task runs. Raises RocketSparkError."""

    async def make() -> None:
        async with _opened(options) as commit_log:
            await commit_log.make()

    asyncio.run(make())


# -- a task ---------------------------------------------------------------------------------------------------------


def send_attempt(batches: Iterator[pa.RecordBatch], options: WriteOptions, attempt: TaskAttempt) -> SentAttempt:
    """Send a task's rows as half messages, and a manifest of them; send nothing if their batch is committed already.

    Raises SendFailed, MessageIllegal, ConfigError, RouteNotFound.
    """
    with plain_errors():
        return asyncio.run(_send_attempt(batches, options, attempt))


async def _send_attempt(batches: Iterator[pa.RecordBatch], options: WriteOptions, attempt: TaskAttempt) -> SentAttempt:
    checksum = 0
    async with _opened(options) as commit_log:
        await commit_log.find()
        state = await commit_log.state()
        if attempt.batch is not None:
            verdict = state.judge(commit_log.name, attempt.query, attempt.batch)
            if verdict is BatchVerdict.REPEAT:
                rows, topics = 0, set[str]()
                for batch in batches:
                    rows += batch.num_rows
                    checksum += _checksum(batch, options.compared_column)
                    topics.update([options.topic] if options.topic else batch.column("topic").unique().to_pylist())
                queues = tuple((options.access.wire(topic), "", 0) for topic in topics if topic)
                return SentAttempt(attempt.query, None, rows, checksum % _CHECKSUM_END, queues, state.end)
        sender = HalfMessageSender(
            commit_log,
            options,
            attempt=uuid.uuid4().hex,
            query=attempt.query,
            batch=-1 if attempt.batch is None else attempt.batch,
            partition=attempt.partition,
        )
        ahead = ReadAhead(batches)
        sender.in_flight.on_failure = ahead.fail
        try:
            async for batch in ahead:
                await sender.send(batch)
                checksum += _checksum(batch, options.compared_column)
            part = await sender.finish()
        finally:
            ahead.close()
            await sender.close()
        passing("task done")
        queues = tuple((q.topic, q.broker_name, q.queue_id) for q in sender.queues)
        return SentAttempt(attempt.query, part, part.rows, checksum % _CHECKSUM_END, queues, state.end)


def _checksum(batch: pa.RecordBatch, name: str) -> int:
    """Return the checksum of all values of a column, in whatever order they come."""
    column = batch.column(batch.schema.get_field_index(name)).drop_null().cast(pa.binary())
    return sum(map(checksums.crc32, column.to_pylist()))


# -- the driver -----------------------------------------------------------------------------------------------------


def commit(messages: Sequence[SentAttempt], options: WriteOptions, batch: int | None) -> None:
    """Commit a batch: record it in the commit topic, then end its half messages. `batch` is None for a batch job.

    Raises ConfigError if the batch cannot belong to its transactionalId. Raises RocketSparkError if it cannot be
    committed now: nothing is changed then, or the batch is recorded and the next try goes on from there.
    """

    async def run() -> None:
        async with _opened(options) as commit_log:
            await commit_log.find()
            await _Commit(commit_log, options, messages, 0 if batch is None else batch).run()

    with plain_errors():
        asyncio.run(run())


class _Commit:
    def __init__(
        self, commit_log: CommitTopic, options: WriteOptions, messages: Sequence[SentAttempt], batch: int
    ) -> None:
        self._log = commit_log
        self._options = options
        self._batch = batch
        self._messages = messages
        self._parts = tuple(m.part for m in messages if m.part is not None and m.part.rows)
        self._rows = sum(m.rows for m in messages)
        self._checksum = sum(m.checksum for m in messages) % _CHECKSUM_END
        queries = {m.query for m in messages}
        self._query = queries.pop() if len(queries) == 1 else ""
        self._queues = sorted({queue for m in messages for queue in m.queues})
        self._since = min((m.seen for m in messages), default=None)

    async def run(self) -> None:
        state = await self._log.state(self._since)
        if self._messages and state.end < max(m.seen for m in self._messages):
            raise RocketSparkError(
                f"the commit topic {self._log.topic} was removed, or an older copy of it restored, while batch"
                f" {self._batch} was written: nothing of it is committed"
            )
        verdict = self._judge(state)
        if verdict is BatchVerdict.NEW:
            if any(m.part is None for m in self._messages):
                raise RocketSparkError(
                    f"the record of batch {self._batch} in {self._log.topic}, which its tasks saw, is gone"
                )
            if not self._parts:
                return  # Nothing was written; nor would a repeat leave anything twice.
            verdict, state = await self._record(state)
        if state.last is not None and not state.ended:
            await self._finish(state, fresh=verdict is BatchVerdict.NEW)
        if verdict is BatchVerdict.REPEAT:
            await self._drop_repeat(state)
        await self._log.keep(state)
        passing("ended")

    def _judge(self, state: TransactionalIdState) -> BatchVerdict:
        if dead := state.aborted & {part.attempt for part in self._parts}:
            raise RocketSparkError(f"batch {self._batch} was aborted ({len(dead)} of its tasks): run it again")
        return state.judge(self._log.name, self._query, self._batch)

    async def _record(self, state: TransactionalIdState) -> tuple[BatchVerdict, TransactionalIdState]:
        """Write the commit record, unless another one is found to stand; return the verdict on the batch now."""
        name = uuid.uuid4().hex
        bounds = await self._bounds()
        while True:
            # Manifests that the commit before covers are decided; so are all before its tasks began.
            swept_from = state.last.swept_to if state.last is not None else 0
            record = CommitRecord(
                kind=commit_records.COMMIT,
                at=state.end,
                id=name,
                query=self._query,
                batch=self._batch,
                rows=self._rows,
                checksum=self._checksum,
                time_ms=int(time.time() * 1000),
                parts=self._parts,
                swept_from=swept_from,
                # An official broker shows a manifest a little later than it takes it.
                swept_to=max(await self._log.manifests_end(), *(part.last + 1 for part in self._parts)),
                bounds=bounds,
            )
            passing("before record")
            offset = await self._log.append(record)
            passing("record sent")
            if offset != record.at:
                # Something came in between: another writer's record, or a copy of this one whose reply was lost.
                state = await self._log.state(min(record.at, self._since or 0), upto=offset + 1)
                if state.last is None or state.last.id != name:
                    verdict = self._judge(state)
                    if verdict is BatchVerdict.REPEAT:
                        return verdict, state
                    continue
            else:
                state.add(offset, record)
            passing("recorded")
            return BatchVerdict.NEW, state

    async def _bounds(self) -> tuple[tuple[str, str, int, int], ...]:
        """Return the ends of the queues that the rows are for: none of them is committed yet.

        Raises RocketSparkError if one is not there any more: nobody would read what is committed to it.
        """
        last = {queue[:2]: MessageQueue(*queue) for queue in self._queues}
        counts = await asyncio.gather(*map(self._log.read_count, last.values()))
        for queue, count in zip(last.values(), counts, strict=True):
            if count is not None and queue.queue_id >= count:
                raise RocketSparkError(
                    f"topic {queue.topic!r} has {count} queues on broker {queue.broker_name!r} now, and rows of batch"
                    f" {self._batch} are for queue {queue.queue_id}: nothing of it is committed; run it again"
                )
        ends = await asyncio.gather(*(self._log.bounds(MessageQueue(*queue)) for queue in self._queues))
        return tuple((*queue, end) for queue, (_, end) in zip(self._queues, ends, strict=True))

    async def _finish(self, state: TransactionalIdState, *, fresh: bool) -> None:
        """Commit the half messages of the last commit record, and roll back those of attempts that it does not name."""
        assert state.last is not None
        record, claim, seen = state.last, "", state.end
        if not fresh and record.parts:
            log.info("batch %d of transactionalId %s was recorded before: its ends go on", record.batch, self._log.name)
            claim = uuid.uuid4().hex
            seen = 1 + await self._log.append(CommitRecord(kind=commit_records.CLAIM, at=record.at, id=claim))

        async def guard() -> None:
            now = await self._log.state(record.at, upto=seen)
            if now.last is None or now.last.at != record.at or now.ended or now.claim != claim:
                raise TakenOver(
                    f"another writer with transactionalId {self._log.name!r} has taken over: this one stops"
                )

        ends = EndTransactions(self._log, self._options, record.bounds, fresh=fresh, guard=guard)
        if not fresh:
            await ends.wait_for_others(record.parts)
        done = await self._end_parts(ends, record)
        if missing := [part.attempt for part in record.parts if done.get(part.attempt, 0) != part.rows]:
            raise RocketSparkError(
                f"batch {record.batch} is recorded, but manifests of {len(missing)} of its {len(record.parts)} tasks"
                f" are gone from {self._log.topic}: the broker keeps messages for fileReservedTime hours"
            )
        passing("before ended")
        state.end = 1 + await self._log.append(CommitRecord(kind=commit_records.ENDED, at=record.at, id=record.id))
        state.ended = True

    async def _end_parts(self, ends: EndTransactions, record: CommitRecord) -> dict[str, int]:
        """Commit the recorded attempts, then roll back the others; return the rows committed by attempt."""
        wanted = {part.attempt for part in record.parts}
        done: dict[str, int] = {}
        seen: set[tuple[str, int]] = set()
        dead = False
        first = min([record.swept_from, *(part.first for part in record.parts)])
        async for stored in self._log.manifests(first, record.swept_to):
            manifest = commit_records.decode_manifest(stored.body)
            head = manifest.head
            if head.attempt not in wanted:
                dead = True
            elif (head.attempt, head.sequence) not in seen:
                # A manifest whose reply was lost stands there twice.
                seen.add((head.attempt, head.sequence))
                await ends.commit(manifest)
                done[head.attempt] = done.get(head.attempt, 0) + head.rows
        if dead:
            async for stored in self._log.manifests(record.swept_from, record.swept_to):
                manifest = commit_records.decode_manifest(stored.body)
                if manifest.head.attempt not in wanted:
                    await ends.roll_back(manifest)
        return done

    def _difference(self, state: TransactionalIdState) -> str:
        """Tell how the rows differ from those that were committed under the same name; empty if they do not."""
        if state.last is not None and state.last.rows != self._rows:
            return f"of {state.last.rows} rows; this one has {self._rows}"
        content = commit_records.content_hash(self._rows, self._checksum)
        if state.content not in (None, content):
            return f"with other rows; this one has {self._rows}"
        if state.last is not None and self._query == JOB:
            before, now = ({queue[0] for queue in queues} for queues in (state.last.bounds, self._queues))
            if before and before != now:
                return f"to {', '.join(sorted(before))}; this one is to {', '.join(sorted(now))}"
        return ""

    async def _drop_repeat(self, state: TransactionalIdState) -> None:
        """Roll back the half messages of a repeat: the batch was committed before."""
        last = state.last
        if told := self._difference(state):
            if self._query == JOB:
                raise RocketSparkError(
                    f"transactionalId {self._log.name!r} was used for a job {told}, of which none is written: give each"
                    " run of a job its own transactionalId"
                )
            if not self._options.first_rows_stay:
                raise ConfigError(
                    f"transactionalId {self._log.name!r} has committed this query's batch {self._batch} {told}, of"
                    " which none is written: its checkpoint is an older one than what was written; use the newest, or"
                    " another transactionalId (if its rows differ each time that it runs, option differingRepeat=first"
                    " leaves those that were committed)"
                )
            log.warning(
                "transactionalId %s: batch %d was committed before %s, which are left out (differingRepeat=first)",
                *(self._log.name, self._batch, told),
            )
        if self._query == JOB:
            log.warning(
                "transactionalId %s: its job was committed before; nothing is written again. Another job needs another"
                " transactionalId",
                self._log.name,
            )
        committed = {part.attempt for part in last.parts} if last is not None else set()
        await roll_back(self._log, self._options, [p for p in self._parts if p.attempt not in committed])


async def roll_back(commit_log: CommitTopic, options: WriteOptions, parts: Sequence[AttemptPart]) -> None:
    """Roll back the half messages of task attempts that never will be committed."""
    if not parts:
        return

    async def no_guard() -> None:
        pass

    wanted = {part.attempt for part in parts}
    ends = EndTransactions(commit_log, options, (), fresh=True, guard=no_guard)
    first, last = min(part.first for part in parts), max(part.last for part in parts)
    async for stored in commit_log.manifests(first, last + 1):
        manifest = commit_records.decode_manifest(stored.body)
        if manifest.head.attempt in wanted:
            await ends.roll_back(manifest)


def abort(messages: Sequence[SentAttempt], options: WriteOptions) -> None:
    """Roll back the half messages of a batch's tasks, unless a commit record names them: Spark also aborts when a
    commit failed half-way.

    Half messages of a task that died are not known here: they are rolled back when their broker asks about them. Never
    raises for a broker that is down.
    """
    parts = [m.part for m in messages if m.part is not None and m.part.rows]
    if not parts:
        return

    async def run() -> None:
        async with _opened(options) as commit_log:
            await commit_log.find()
            # From now on a commit that is under way cannot come about any more.
            attempts = tuple(part.attempt for part in parts)
            since = min(m.seen for m in messages)
            state = await commit_log.state(since)
            aborted = CommitRecord(kind=commit_records.ABORTED, at=state.end, id=uuid.uuid4().hex, attempts=attempts)
            offset = await commit_log.append(aborted)
            state = await commit_log.state(since, upto=offset + 1)
            committed = {part.attempt for part in state.last.parts} if state.last is not None else set()
            await roll_back(commit_log, options, [part for part in parts if part.attempt not in committed])
            await commit_log.keep(state)

    with plain_errors():
        try:
            asyncio.run(run())
        except RocketSparkError as e:
            log.warning("the half messages of an aborted batch are left to the broker's checks: %s", e)
