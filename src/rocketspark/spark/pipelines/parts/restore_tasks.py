"""What executors do for a restore: read spans of source queues, from an archive's files, an archive's table or a topic,
and send their rows to one target queue, in order.

Rule: one batch is on its way at a time, and before a batch is sent again the target queue is searched for it.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.errors import MessageIllegal, RocketSparkError, SendFailed, ServerError
from rocketspark.model import MessageQueue, namespace
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import origins, properties
from rocketspark.protocol.message.message_ids import UniqueIdBlocks
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.pipelines.parts import archive_tasks
from rocketspark.spark.pipelines.parts.archive_manifest import HOUR_MS, ArchivedRange, ArchiveFile, hour_name
from rocketspark.spark.pipelines.parts.archive_tasks import read_segment
from rocketspark.spark.pipelines.parts.restore_plan import ArchivedSpan, Queue
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.write.batch_encoding import BatchItems, encode, joined, refused_rows
from rocketspark.spark.write.rows import CheckedRows, parts
from rocketspark.tables.offset_ranges import Made, made_of, to_json
from rocketspark.tables.options import parse_read
from rocketspark.tables.read.executor_queries import broker_away
from rocketspark.transport.retries import Retries, RetryRule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


BATCH_BYTES = 256 << 10
SEND_TIMEOUT_MS = 10_000.0
ATTEMPTS = 6
# A send whose reply never came may still be carried out for so long; only then is it sent again.
DOUBT_S = 3.0
# Time for which a broker that does not answer is asked again.
LOOK_S, LOOK_PAUSE_S = 60.0, 0.3
# A task names no more rows that may not be written.
REASONS_MAX = 100
# These characters separate properties, so no value may hold one; a message id made elsewhere may.
_MARKS = "[\x01\x02]"
_NEEDED = "broker queueId queueOffset messageId tag keys body properties bornTime storeTime flag".split()


class RowSelection(NamedTuple):
    """Which rows are sent: those stored at or after `since_ms` and before `until_ms`, with one of `tags` (None: any
    tag).
    """

    since_ms: int | None = None
    until_ms: int | None = None
    tags: tuple[str, ...] | None = None

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that are selected."""
        times = batch.column("storeTime").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        if self.since_ms is not None:
            kept = pc.greater_equal(times, self.since_ms * 1000)
            batch, times = batch.filter(kept), times.filter(kept)
        if self.until_ms is not None:
            batch = batch.filter(pc.less(times, self.until_ms * 1000))
        if self.tags is not None:
            batch = batch.filter(pc.is_in(batch.column("tag"), value_set=pa.array(self.tags, pa.string())))
        return batch


class ArchiveSource:
    """The source of a restore from Parquet files: the rows of one topic of the archive."""

    def __init__(self, root: Path, files: Sequence[ArchiveFile]) -> None:
        self._root = root
        # By queue: the segments in order, each with its file and its number there.
        self._segments: dict[Queue, list[tuple[int, int, ArchiveFile, int]]] = defaultdict(list)
        for file in files:
            for number, segment in enumerate(file.segments):
                queue = (segment.broker, segment.queue_id)
                self._segments[queue].append((segment.first, segment.end, file, number))
        # How far each and those before it reach: of a topic that was made anew they may overlap.
        self._reach: dict[Queue, list[int]] = {}
        for queue, found in self._segments.items():
            found.sort(key=lambda one: one[0])
            self._reach[queue] = list(accumulate((one[1] for one in found), max))

    def _within(self, span: ArchivedSpan) -> list[tuple[int, int, ArchiveFile, int]]:
        """Return the segments that hold rows of a span."""
        segments = self._segments.get(span.queue, [])
        at = bisect_right(self._reach.get(span.queue, []), span.first)
        until = bisect_left(segments, span.end, key=lambda one: one[0])
        return [one for one in segments[at:until] if one[1] > span.first]

    def only(self, chunk: Sequence[ArchivedSpan]) -> ArchiveSource:
        """Return the same source with just the files that a chunk needs."""
        files = {one[2].path: one[2] for span in chunk for one in self._within(span)}
        return ArchiveSource(self._root, list(files.values()))

    def read(self, span: ArchivedSpan) -> Iterator[pa.RecordBatch]:
        """Read the rows of a span, in order."""
        for _, _, file, number in self._within(span):
            yield from read_segment(self._root, file, number, span.first, span.end)


class TopicSource:
    """The source of a replay: the rows of a topic on its brokers. `made`: the numbers of the topic's making that they
    are of.
    """

    def __init__(self, where: Connection, topic: str, made: Made) -> None:
        self._where, self._topic, self._made = where, topic, made

    def only(self, chunk: Sequence[ArchivedSpan]) -> TopicSource:
        """Return the same source: it holds no list of files to shorten."""
        return self

    def read(self, span: ArchivedSpan) -> Iterator[pa.RecordBatch]:
        """Read the rows of a span, in order."""
        reader = topic_reader(self._where, self._topic, READ_SCHEMA)
        try:
            yield from read_offsets(reader, self._topic, span.queue, span.first, span.end, self._made)
        finally:
            reader.stop()


def topic_reader(where: Connection, topic: str, schema: StructType, **options: str) -> StreamReader:
    """Return the reader of a stream of one topic. `options`: further options of the read."""
    # A body that does not inflate goes on as it is stored.
    given = {"startingOffsets": "earliest", **where.read_options(), "topic": topic, **options}
    return StreamReader(schema, parse_read(given, streaming=True))


def queue_offsets(topic: str, table: dict[str, Any]) -> dict[Queue, int]:
    """Return the offsets of a topic's queues from a stream's JSON."""
    brokers = table.get(topic, {})
    return {(broker, int(q)): offset for broker, queues in brokers.items() for q, offset in queues.items()}


def read_offsets(
    reader: StreamReader, topic: str, queue: Queue, first: int, end: int, made: Made
) -> Iterator[pa.RecordBatch]:
    """Read the rows of one queue with offsets in [first, end), in order. `made`: the numbers of the topic's making when
    these offsets were told; rows of one that was made later are none of them.
    """
    source = MessageQueue(topic, *queue)
    for partition in reader.partitions(to_json({source: first}), {**to_json({source: end}), **reader.marks(made)}):
        yield from reader.read(partition)


class RowSource(Protocol):
    """What a task reads spans from."""

    def read(self, span: ArchivedSpan) -> Iterator[pa.RecordBatch]:
        """Read the rows of a span, in order."""


class QueueShare(NamedTuple):
    """What one task sends: the rows of `spans`, to the queue `target`. `tail`: from this offset of the target on, rows
    of the spans may be there already.
    """

    target: Queue
    tail: int
    spans: tuple[ArchivedSpan, ...]


class TaskReport(msgspec.Struct):
    """A task's report: how many rows it sent, found in the target, and left out because they may not be written, with
    the places of some of these and the reasons. `wanted`: how many rows were selected, by the queue they come from.
    """

    target: Queue
    sent: int
    skipped: int
    refused: int = 0
    reasons: list[tuple[str, str]] = []
    wanted: list[tuple[Queue, int]] = []


def _counted(batch: pa.RecordBatch, counts: Counter[Queue]) -> pa.RecordBatch:
    """Return the batch as it is, after adding its rows to the counts of the queues they come from."""
    queues = pa.Table.from_batches([batch.select(["broker", "queueId"])]).group_by(["broker", "queueId"])
    for row in queues.aggregate([([], "count_all")]).to_pylist():
        counts[row["broker"], row["queueId"]] += row["count_all"]
    return batch


class SendTask:
    """The work of a restore's tasks: task i sends the rows of share i; with `dry` it only counts them. `topics`: the
    source topic and the target topic; `wanted`: which rows are sent.
    """

    def __init__(
        self,
        source: RowSource,
        where: Connection,
        topics: tuple[str, str],
        *,
        restore_id: str,
        wanted: RowSelection,
        shares: Sequence[QueueShare],
        dry: bool,
    ) -> None:
        self._source, self._where, self._topics, self._id = source, where, topics, restore_id
        self._wanted, self._shares, self._dry = wanted, shares, dry
        self.count = len(shares)

    def __call__(self, number: int) -> Iterator[TaskReport]:
        return self.send(number, (batch for span in self._shares[number].spans for batch in self._source.read(span)))

    def send(self, number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[TaskReport]:
        """Send the rows in `batches`, which are those of share `number`, in their order, without those that the target
        holds already; yield the task's report.
        """
        share = self._shares[number]
        wanted: Counter[Queue] = Counter()
        rows = (_counted(self._wanted.of(batch), wanted) for batch in batches if batch.num_rows)
        if self._dry:
            yield TaskReport(share.target, sum(batch.num_rows for batch in rows), 0, wanted=sorted(wanted.items()))
            return
        topic, to = self._topics
        with asyncio.Runner() as runner:
            sender = runner.run(_opened(self._where, to, share.target, share.tail, self._id))
            try:
                for batch in rows:
                    for part in parts(batch) if batch.num_rows else ():
                        runner.run(sender.send(with_origin(part, topic, self._id)))
            finally:
                runner.run(sender.close())
        told = sender.sent, sender.skipped, sender.refused, sender.reasons
        yield TaskReport(share.target, *told, sorted(wanted.items()))


def with_origin(batch: pa.RecordBatch, topic: str, restore_id: str) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
    """Return rows with the columns of a write, and the texts of the properties that name where each row was before."""
    columns = {name: batch.column(name) for name in _NEEDED}
    texts = {name: columns[name].cast(pa.string()) for name in ("broker", "queueId", "queueOffset")}
    place = pc.binary_join_element_wise(pa.scalar(topic), *texts.values(), "/")
    ids = columns["messageId"]
    if pc.any(pc.match_substring_regex(ids, _MARKS)).as_py():
        ids = pc.replace_substring_regex(ids, _MARKS, "?")
    times = (columns[name].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()) for name in ("bornTime", "storeTime"))
    born, stored = (column.cast(pa.string()) for column in times)
    labels = dict(
        zip(
            origins.NAMES,
            (pa.array([restore_id] * len(place)), place, ids, born, stored),
            strict=True,
        )
    )
    pairs = columns["properties"]
    key = pc.map_lookup(pairs, properties.SHARDING_KEY, "last")
    if pc.any(pc.is_in(pairs.keys, value_set=pa.array(origins.NAMES))).as_py():
        # A row that was replayed before: only its latest origin is kept.
        kept = [[(k, v) for k, v in row or () if k not in origins.NAMES] for row in pairs.to_pylist()]
        pairs = pa.array(kept, pa.map_(pa.string(), pa.string()))
    rows = {"body": columns["body"], "tag": columns["tag"], "keys": columns["keys"], "properties": pairs}
    return pa.record_batch({**rows, "shardingKey": key, "flag": columns["flag"]}), labels


class QueueSender:
    """Sends rows to one queue, one batch at a time, and none that the queue holds already."""

    def __init__(self, where: Connection, topic: str, target: Queue, tail: int, restore_id: str) -> None:
        self._producer = AsyncProducer(
            where.namesrv,
            "SPARK_RESTORE",
            send_timeout_ms=SEND_TIMEOUT_MS,
            **where.access.client_options(),
        )
        self._where, self._topic, self._target, self._id = where, topic, target, restore_id
        self._queue = MessageQueue(topic, *target)
        self._wire_topic = namespace.wrap(where.namespace, topic)
        self._tail = tail
        self._there: set[str] = set()
        self._ids = UniqueIdBlocks()
        self.sent = self.skipped = self.refused = 0
        self.reasons: list[tuple[str, str]] = []

    async def start(self) -> None:
        """Start the producer, and find out which rows of this restore the queue holds already."""
        await self._producer.start()
        await self._looked(time.monotonic() + LOOK_S)

    async def close(self) -> None:
        """Close the producer."""
        await self._producer.close()

    def _look(self) -> None:
        """Note the rows that the queue holds of this restore from `tail` on. Raises NotSent if its broker is away: what
        it holds cannot be told then.
        """
        schema = StructType([READ_SCHEMA["queueOffset"], READ_SCHEMA["properties"]])
        # What a kill left over may be compressed, or from any producer: only properties are read. What is deleted there
        # by now cannot be looked at: where it was of this restore it is sent again.
        reader = topic_reader(self._where.without_choice(), self._topic, schema, failOnDataLoss="false")
        try:
            begin = reader.initialOffset()
            end = queue_offsets(self._topic, reader.end_now()).get(self._target)
            if end is None:
                raise broker_away(self._queue)
            for batch in read_offsets(reader, self._topic, self._target, self._tail, end, made_of(begin)):
                pairs = batch.column("properties")
                of_this = pc.equal(pc.map_lookup(pairs, origins.RESTORE_ID, "last"), self._id)
                places = pc.map_lookup(pairs.filter(of_this.fill_null(False)), origins.ORIGIN_PLACE, "last")
                self._there.update(places.to_pylist())
            self._tail = max(self._tail, end)
        finally:
            reader.stop()

    async def send(self, made: tuple[pa.RecordBatch, dict[str, pa.Array]]) -> None:
        """Send the rows that the queue does not hold, in order. `made`: the result of `with_origin`. Raises the
        broker's refusal, or that it cannot be reached.
        """
        batch, labels = made
        places = labels[origins.ORIGIN_PLACE]
        if self._there:
            absent = pc.invert(pc.is_in(places, value_set=pa.array(sorted(self._there), pa.string())))
            self.skipped += batch.num_rows - (pc.sum(absent).as_py() or 0)
            batch, labels = batch.filter(absent), {name: column.filter(absent) for name, column in labels.items()}
            places = places.filter(absent)
        if not batch.num_rows:
            return
        try:
            items = self._encoded(batch, labels)
        except MessageIllegal:
            bad = refused_rows(batch, self._topic, labels)
            if not bad:
                raise
            for row, why in bad.items():
                self._refuse(places[row].as_py(), why)
            kept = pa.array([row not in bad for row in range(batch.num_rows)], pa.bool_())
            batch, labels = batch.filter(kept), {name: column.filter(kept) for name, column in labels.items()}
            places = places.filter(kept)
            items = self._encoded(batch, labels)
        at = 0
        while at < items.count:
            end = int(np.searchsorted(items.starts, int(items.starts[at]) + BATCH_BYTES, "right")) - 1
            end = max(at + 1, min(end, items.count))
            await self._store(items, at, end, places)
            at = end

    def _encoded(self, batch: pa.RecordBatch, labels: dict[str, pa.Array]) -> BatchItems:
        rows = CheckedRows(batch, self._topic)
        rows.texts.update(labels)
        return encode(rows, self._ids)

    async def _store(self, items: BatchItems, at: int, end: int, places: pa.Array) -> None:
        """Store rows [at, end), but for those that the broker itself refuses."""
        try:
            await self._deliver(self._outgoing(items, at, end), places[at].as_py())
            self.sent += end - at
        except (ServerError, SendFailed) as e:
            if e.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            if end - at == 1:
                self._refuse(places[at].as_py(), e.remark or str(e))
                return
            # A batch that is refused is refused whole: by halves.
            middle = (at + end) // 2
            await self._store(items, at, middle, places)
            await self._store(items, middle, end, places)

    def _refuse(self, place: str, why: str) -> None:
        self.refused += 1
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append((place, why))

    def _outgoing(self, items: BatchItems, at: int, end: int) -> PreparedMessage:
        if end - at == 1:
            return items.outgoing(at, self._wire_topic)
        return joined([items.data[items.starts[at] : items.starts[end]]], self._wire_topic)

    async def _deliver(self, out: PreparedMessage, first_place: str) -> None:
        """Store a batch, and never twice: after a send without a good reply it looks whether the batch is there before
        it sends again. A broker stores all rows of a batch or none, so looking for the row of `first_place` is enough.
        """
        retries = Retries(RetryRule(ATTEMPTS))
        while True:
            try:
                await self._producer.send_packed(out, None, self._queue, SEND_TIMEOUT_MS, 1)
                return
            except RocketSparkError as e:
                retries.pause_s(e)
            # That looks for a while, which is pause enough.
            if await self._came(first_place):
                return

    async def _came(self, place: str) -> bool:
        """Tell whether a batch whose send had no good reply is stored after all."""
        give_up_s, since_s = time.monotonic() + LOOK_S, None
        while True:
            await self._looked(give_up_s)
            since_s = time.monotonic() if since_s is None else since_s
            if place in self._there:
                return True
            if time.monotonic() - since_s >= DOUBT_S:
                return False
            await asyncio.sleep(LOOK_PAUSE_S)

    async def _looked(self, give_up_s: float) -> None:
        """Look, again and again while that fails, until the time `give_up_s`; then raise what it fails with."""
        while True:
            try:
                return await asyncio.to_thread(self._look)
            except RocketSparkError:
                if time.monotonic() > give_up_s:
                    raise
            await asyncio.sleep(LOOK_PAUSE_S)


async def _opened(where: Connection, topic: str, target: Queue, tail: int, restore_id: str) -> QueueSender:
    sender = QueueSender(where, topic, target, tail, restore_id)
    await sender.start()
    return sender


SHARE = "_share"
_SHARES = f"{SHARE} int, broker string, queueId int, _first bigint, _end bigint"


class TableSource:
    """The source of a restore from a table: the rows of one topic of the archive. Spark brings the rows for each target
    queue into one task, in their order.
    """

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows

    def only(self, chunk: Sequence[ArchivedSpan]) -> NoRows:
        """Return a source that reads nothing: the tasks get their rows from Spark."""
        return NoRows()

    def ranges(self) -> list[ArchiveFile]:
        """Return what the table holds of each hour and queue, in the form of a Parquet archive's files."""
        from pyspark.sql import functions as F

        found = self._rows.groupBy("topic", "hour", "broker", "queueId").agg(
            F.min("queueOffset").alias("first"), F.max("queueOffset").alias("last"), F.count("*").alias("rows")
        )
        return [
            ArchiveFile(r.topic, r.hour, "", r.rows, 0, 0, [ArchivedRange(r.broker, r.queueId, *_range(r))])
            for r in found.orderBy("topic", "hour", "broker", "queueId").collect()
        ]

    def send(self, task: SendTask, shares: Sequence[QueueShare]) -> Iterator[str]:
        """Have Spark bring the rows of each share to a task that sends them; returns the tasks' reports, as JSON."""
        from pyspark.sql import functions as F

        spans = [(n, *span.queue, span.first, span.end) for n, share in enumerate(shares) for span in share.spans]
        first, end = min(span[3] for span in spans), max(span[4] for span in spans)
        table = self._rows.sparkSession.createDataFrame(spans, _SHARES)
        # The literal bounds let the table leave files out.
        rows = self._rows.where((F.col("queueOffset") >= first) & (F.col("queueOffset") < end))
        rows = rows.join(F.broadcast(table), ["broker", "queueId"])
        rows = rows.where("queueOffset >= _first AND queueOffset < _end").drop("_first", "_end")
        rows = rows.repartition(len(shares), SHARE).sortWithinPartitions(SHARE, "broker", "queueId", "queueOffset")

        def act(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number, group in groupby(parts_by_share(batches), key=lambda part: part[0]):
                yield from archive_tasks.tell(task.send(number, (batch for _, batch in group)))

        return (row[0] for row in rows.mapInArrow(act, archive_tasks.TOLD).collect())


class NoRows:
    """A source without rows, for tasks that get their rows from Spark."""

    def read(self, span: ArchivedSpan) -> Iterator[pa.RecordBatch]:
        """Return no rows."""
        return iter(())


def parts_by_share(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield rows in parts that are of one share each, with the number of the share. Rows must be ordered by share."""
    for batch in batches:
        numbers = batch.column(SHARE).to_numpy()
        at = 0
        while at < len(numbers):
            end = int(np.searchsorted(numbers, numbers[at], "right"))
            yield int(numbers[at]), batch.slice(at, end - at)
            at = end


def hour_bounds(since_ms: int | None, until_ms: int | None) -> tuple[str | None, str | None]:
    """Return the first and the last hour that may hold rows stored in [since, until)."""
    first = None if since_ms is None else hour_name(since_ms // HOUR_MS * HOUR_MS)
    last = None if until_ms is None else hour_name((until_ms - 1) // HOUR_MS * HOUR_MS)
    return first, last


def _range(row: object) -> tuple[int, int, int]:
    first, last, rows = (getattr(row, name) for name in ("first", "last", "rows"))
    return first, last + 1, rows
