"""Plans batch and stream reads, and reads a partition. How offset ranges are cut into partitions, and how a micro-batch
is limited, is in `tables/offset_ranges`.

Rule: a partition holds all that it needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.arrow.decode_request import DecodeRequest
from rocketspark.errors import ConfigError, RecordError
from rocketspark.model import MessageQueue
from rocketspark.model.route import is_logical
from rocketspark.tables.cluster_queries import ClusterQueries
from rocketspark.tables.offset_ranges import Made, OffsetRange, Offsets, from_json, place, split
from rocketspark.tables.option_values import COMMITTED, EARLIEST, LATEST, AtTime, AtTimes, assigned_of, check_all_there
from rocketspark.tables.options import ReadOptions
from rocketspark.tables.queue_bounds import OffsetBounds, QueuePart, cut, part_at
from rocketspark.tables.read.data_loss import ReadFindings, lost
from rocketspark.tables.read.executor_queries import broker_away
from rocketspark.tables.read.pull_records import PulledPiece, fetch
from rocketspark.tables.read.read_filter import EVERY_MESSAGE, ReadFilter
from rocketspark.tables.read_columns import Columns

log = logging.getLogger("rocketspark.spark")

# Leaves out of ranges what holds no message that is wanted.
Narrow = Callable[[list[OffsetRange]], list[OffsetRange]]


class QueueSource(Protocol):
    """What is asked about queues to plan a read; a cluster answers it, or store directories."""

    def topics(self, pattern: str) -> list[str]:
        """Return the topics whose whole name matches a pattern, by the rule of `option_values.matching`."""

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Return every readable queue of the topics as of now."""

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, OffsetBounds]:
        """Return the offsets that each queue holds now."""

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """Return the offset of each queue's first message that was stored at or after a time; the end of the queue if
        there is none.
        """


class QueuePartition:
    """A partition: the offsets [first, end) of one queue, with the addresses of its broker.

    `filters`: the broker's filter looks at each message by itself, so it may be used. `log_end`: the end of the log
    when the partition was planned; messages behind it are of a topic that was made anew since. `store_number`: of the
    broker's store, and `shared`: what it has of others, as in OffsetBounds. `part`: of a logical queue, in which all
    these offsets lie; the broker and its store are those of the part.
    """

    def __init__(
        self,
        source: OffsetRange,
        addresses: tuple[str, ...],
        filters: bool = True,
        log_end: int | None = None,
        store_number: int = 0,
        shared: tuple[tuple[int, int], ...] = (),
        part: QueuePart | None = None,
    ) -> None:
        queue = source.queue
        self.topic, self.broker_name, self.queue_id = queue.topic, queue.broker_name, queue.queue_id
        self.first, self.end = source.first, source.end
        self.addresses = addresses
        self.filters = filters
        self.log_end = log_end
        self.store_number, self.shared = store_number, shared
        # The broker's own queue, and how much its offsets are less.
        own = queue if part is None else part.queue
        self.own_broker, self.own_queue_id = own.broker_name, own.queue_id
        self.less = None if part is None else part.logical - part.first

    @property
    def source(self) -> OffsetRange:
        """The partition's queue and offsets."""
        return OffsetRange(MessageQueue(self.topic, self.broker_name, self.queue_id), self.first, self.end)

    @property
    def own(self) -> OffsetRange:
        """What the broker is asked for: its own queue, with the offsets there."""
        less = self.less or 0
        queue = MessageQueue(self.topic, self.own_broker, self.own_queue_id)
        return OffsetRange(queue, self.first - less, self.end - less)

    def as_read(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the broker's own queue as those of the partition's."""
        if self.less is not None:
            names = rows.schema.names
            if "queueId" in names:
                at = names.index("queueId")
                given = pa.array([self.queue_id]).cast(rows.column(at).type)[0]
                rows = rows.set_column(at, rows.schema.field(at), pa.repeat(given, rows.num_rows))
            if "queueOffset" in names:
                at = names.index("queueOffset")
                rows = rows.set_column(at, rows.schema.field(at), pc.add(rows.column(at), self.less))
        return rows

    def __repr__(self) -> str:
        return f"QueuePartition({self.topic}/{self.broker_name}/{self.queue_id} [{self.first}, {self.end}))"


def open_cluster(options: ReadOptions) -> ClusterQueries:
    """Open the cluster that the options name."""
    return ClusterQueries(options.namesrv, group=options.group, access=options.access)


def queues_of(cluster: QueueSource, options: ReadOptions) -> list[MessageQueue]:
    """Return the queues that the options name, as of now. Raises RouteNotFound, ConfigError, NotSent."""
    if options.topic_pattern is not None:
        topics = cluster.topics(options.topic_pattern)
        if not topics:
            log.warning("option topicPattern: no topic matches %r now", options.topic_pattern)
        return cluster.queues(topics)
    queues = cluster.queues(options.topics)
    if options.store is None and (closed := set(options.topics) - {queue.topic for queue in queues}):
        name = min(closed)
        raise ConfigError(
            f"topic {name!r} has no queue that may be read: it would seem to be empty; give it permission to be read"
            f" (rocketspark topic update {name} --perm both)"
        )
    if options.assigned is None:
        return queues
    check_all_there(queues, options.assigned)
    return assigned_of(queues, options.assigned)


def check_open(cluster: ClusterQueries, options: ReadOptions, queues: Iterable[MessageQueue]) -> None:
    """Raise ConfigError if a broker holds messages of a topic that may not be read there, while others' are read; only
    a warning with failOnDataLoss=false, and for topics that a pattern found. `queues`: as `queues_of` found them.
    """
    for text in closed_parts(cluster, options, {queue.topic for queue in queues}).values():
        if options.fail_on_data_loss and options.topic_pattern is None:
            raise ConfigError(f"{text}, or set failOnDataLoss to false to go on without them")
        log.warning("%s", text)


def closed_parts(cluster: ClusterQueries, options: ReadOptions, topics: Iterable[str]) -> dict[str, str]:
    """Return what to say of each topic that may not be read on some of its brokers, which hold messages of it that the
    options want; as of the last look for queues.
    """
    closed = cluster.closed_queues(topics)
    if options.assigned is not None:
        closed = assigned_of(closed, options.assigned)
    found: dict[str, str] = {}
    for topic in sorted({queue.topic for queue in closed}):
        brokers = ", ".join(repr(name) for name in sorted({q.broker_name for q in closed if q.topic == topic}))
        found[topic] = (
            f"topic {topic!r} may not be read on broker {brokers}, whose messages are left out: give it permission to"
            f" be read there (rocketspark topic update {topic} --perm both)"
        )
    return found


def closed_topics(options: ReadOptions) -> dict[str, str]:
    """Return what to say of the options' topics that may not be read on some of their brokers. Raises RouteNotFound,
    ConfigError, NotSent.
    """
    with closing(open_cluster(options)) as cluster:
        cluster.queues(options.topics)
        return closed_parts(cluster, options, options.topics)


def starts(cluster: QueueSource, bounds: dict[MessageQueue, OffsetBounds], options: ReadOptions) -> Offsets:
    """Return the offset at which the read of each queue of `bounds` begins, by the options. Raises ConfigError."""
    where = options.starting
    if where == COMMITTED:
        return _committed(cluster, bounds, options)
    if not isinstance(where, AtTime | AtTimes):
        return place(where, _oldest(bounds), _newest(bounds), option="startingOffsets", default=EARLIEST)
    found = _at(cluster, bounds, where, option="startingOffsetsByTimestamp")
    option = "startingTimestamp" if isinstance(where, AtTime) else "startingOffsetsByTimestamp"
    for queue, offset in found.items():
        if where.strict and offset == bounds[queue].next:
            raise ConfigError(
                f"option {option}: queue {queue.queue_id} of topic {queue.topic!r} on broker"
                f" {queue.broker_name!r} holds no message of that time or later; leave"
                " startingOffsetsByTimestampStrategy out to begin at its end"
            )
    return _oldest(bounds) | found


def ends(cluster: QueueSource, bounds: dict[MessageQueue, OffsetBounds], options: ReadOptions) -> Offsets:
    """Return the offset before which the read of each queue of `bounds` ends, by the options. Raises as `starts`."""
    where = options.ending
    if where == COMMITTED:
        return _committed(cluster, bounds, options)
    if isinstance(where, AtTime | AtTimes):
        return _newest(bounds) | _at(cluster, bounds, where, option="endingOffsetsByTimestamp")
    return place(where, _oldest(bounds), _newest(bounds), option="endingOffsets", default=LATEST)


def _at(
    cluster: QueueSource, bounds: dict[MessageQueue, OffsetBounds], where: AtTime | AtTimes, *, option: str
) -> Offsets:
    """Return the offsets that times mean, without the queues for which no time is given."""
    times = dict.fromkeys(bounds, where.time_ms) if isinstance(where, AtTime) else from_json(where.table)
    if isinstance(where, AtTimes):
        place(where.table, _oldest(bounds), _newest(bounds), option=option, default=EARLIEST)
    found: Offsets = {}
    for time_ms in sorted(set(times.values())):
        found |= cluster.offsets_at([queue for queue, at in times.items() if at == time_ms], time_ms)
    # Messages that came after the bounds were taken belong to a later read.
    return {queue: min(offset, bounds[queue].next) for queue, offset in found.items()}


def _committed(cluster: QueueSource, bounds: dict[MessageQueue, OffsetBounds], options: ReadOptions) -> Offsets:
    """Return the group's committed offsets, and the fallback for queues of which it has committed nothing."""
    group = options.committed_group
    assert group is not None
    assert isinstance(cluster, ClusterQueries)
    placed = {EARLIEST: _oldest, LATEST: _newest}.get(options.committed_fallback, _oldest)(bounds)
    for queue, offset in cluster.committed(bounds, group).items():
        if offset is not None and offset > bounds[queue].next and bounds[queue].of_master:
            text = (
                f"group {group!r} has committed offset {offset} of queue {queue.queue_id} of topic {queue.topic!r} on"
                f" broker {queue.broker_name!r}, which ends at {bounds[queue].next}: it was made anew; set"
                " failOnDataLoss to false to take it as read up to its start"
            )
            if options.fail_on_data_loss:
                raise ConfigError(text)
            log.warning("%s", text)
            placed[queue] = bounds[queue].oldest
        elif offset is not None:
            placed[queue] = offset
        elif options.committed_fallback == "error":
            raise ConfigError(
                f"group {group!r} has committed no offset of queue {queue.queue_id} of topic {queue.topic!r} on broker"
                f" {queue.broker_name!r}: check its name, or set committedFallback to earliest or latest"
            )
    return placed


def _oldest(bounds: dict[MessageQueue, OffsetBounds]) -> Offsets:
    return {queue: found.oldest for queue, found in bounds.items()}


def _newest(bounds: dict[MessageQueue, OffsetBounds]) -> Offsets:
    return {queue: found.next for queue, found in bounds.items()}


def plan(
    cluster: ClusterQueries,
    first: Offsets,
    end: Offsets,
    options: ReadOptions,
    rows: ReadFilter | None = None,
    narrow: Narrow = list,
    *,
    made: Made | None = None,
) -> list[QueuePartition]:
    """Plan the partitions of a read of the offsets from `first` up to `end`; DataLost is raised as by `ranges`.

    `rows`: the filter of messages, by default that of the options; `narrow`: removes ranges that hold no such messages.
    `made`: given for a stream: which making of each topic it knew, by a number that rises when a topic is made anew. Of
    a topic with a higher number nothing is read now, as a later micro-batch begins at its first message. If a broker
    does not answer, a stream plans the whole range, and its tasks wait for the broker.
    """
    seen = {queue: max(first.get(queue, 0), end[queue]) for queue in end}
    bounds = cluster.bounds(changed(first, end), if_there=made is not None, seen=seen)
    if made is not None:
        end = end | _not_read(bounds, first, end, cluster.made_anew(bounds, made, seen), options)
    first = first | {
        q: max(first[q], min(now.past_gap(first[q]), end[q])) for q, now in bounds.items() if now.parts and q in first
    }
    wanted = narrow(ranges(bounds, _behind_compaction(cluster, bounds, first, end), end, options))
    parts = {r.queue: _parts_of(cluster, r.queue, bounds) for r in wanted if is_logical(r.queue)}
    wanted = [piece for r in wanted for piece in (cut(r, parts[r.queue]) if r.queue in parts else [r])]
    asked = (ReadFilter.of(options) if rows is None else rows).asked()
    found = []
    for one in split(wanted, options.partitions_min, options.rows_per_partition_max):
        part = part_at(parts[one.queue], one.first) if one.queue in parts else None
        own, held = (one.queue, bounds.get(one.queue)) if part is None else (part.queue, part.held)
        addresses = cluster.addresses(own.broker_name)
        if (not addresses and made is None) or (part is not None and not part.ended):
            raise broker_away(own)
        filters = asked.is_all or (held is not None and cluster.filters_each_message(own))
        found.append(QueuePartition(one, addresses, filters, *_log_of(held), part))
    return found


def _parts_of(
    cluster: ClusterQueries, queue: MessageQueue, bounds: dict[MessageQueue, OffsetBounds]
) -> tuple[QueuePart, ...]:
    """Return the parts of a logical queue, as last known if its leader does not answer now."""
    parts = bounds[queue].parts if queue in bounds else cluster.known_parts(queue)
    if not parts:
        raise broker_away(queue)
    return parts


def _log_of(now: OffsetBounds | None) -> tuple[int | None, int, tuple[tuple[int, int], ...]]:
    """Return the position in the log before which a queue's messages lie, the number of the store, and what it has of
    others; nothing of these with replicas, whose logs may differ.
    """
    if now is None or not now.of_master or now.replicated:
        return None, 0, ()
    return now.log_end, now.store_number, now.shared


def _not_read(
    bounds: dict[MessageQueue, OffsetBounds],
    first: Offsets,
    end: Offsets,
    anew: list[MessageQueue],
    options: ReadOptions,
) -> Offsets:
    """Return the begin of each queue that was made anew and holds nothing of what was planned. Raises as `ranges`.

    One of a broker without replicas that ends before what was seen of it has been made anew, too.
    """
    found = {}
    for queue, now in bounds.items():
        start = first.get(queue, now.oldest)
        is_short = now.of_master and not now.replicated and start <= end[queue] and now.next < end[queue]
        if is_short or queue in anew:
            held = f"{now.oldest} to {now.next - 1}" if now.next > now.oldest else "nothing"
            lost(OffsetRange(queue, start, end[queue]), f"the queue holds {held} now: it was made anew", options)
            found[queue] = start
    return found


def _behind_compaction(
    cluster: ClusterQueries, bounds: dict[MessageQueue, OffsetBounds], first: Offsets, end: Offsets
) -> Offsets:
    """Return where to begin: of queues whose first messages a compaction left out, at the oldest that is there."""
    before = [queue for queue, now in bounds.items() if first.get(queue, now.oldest) < min(now.oldest, end[queue])]
    return first | {q: min(bounds[q].oldest, end[q]) for q in before if cluster.is_compacted(q)}


def changed(first: Offsets, end: Offsets) -> list[MessageQueue]:
    """Return the queues of `end` that have something to read after `first`."""
    return sorted(queue for queue in end if end[queue] != first.get(queue))


def ranges(
    bounds: dict[MessageQueue, OffsetBounds], first: Offsets, end: Offsets, options: ReadOptions
) -> list[OffsetRange]:
    """Return, for each queue with something to read, the range of offsets, from `first` up to `end`, that its broker
    has.

    `bounds`: the oldest and newest offsets of these queues now; a queue that is not in it gets the range that was asked
    for. If the broker no longer has some of the offsets, DataLost is raised where `fail_on_data_loss` is set;
    otherwise they are left out of the range, with a warning.
    """
    found = []
    for queue in changed(first, end):
        if queue not in bounds:
            found.append(OffsetRange(queue, first.get(queue, end[queue]), end[queue]))
            continue
        oldest, newest, of_master, replicated = bounds[queue][:4]
        if not of_master:
            newest = max(newest, end[queue])  # A slave is behind; what the master had it will have.
        start = first.get(queue, oldest)
        wanted = OffsetRange(queue, start, end[queue])
        held = f"{oldest} to {newest - 1}" if newest > oldest else "nothing"
        backwards = end[queue] < start
        if replicated and (backwards or end[queue] > newest):
            why = f"the queue holds {held} now: a master was elected that did not have them, or it was made anew"
            lost(
                OffsetRange(queue, end[queue] if backwards else max(start, newest), max(start, end[queue])),
                why,
                options,
            )
            # What is left was read before.
            start = min(start, end[queue])
        elif backwards or end[queue] > newest:
            lost(wanted, f"the queue holds {held} now: it was made anew, or the offsets asked for are wrong", options)
            start = min(start, oldest) if backwards else start
        if start < oldest and not of_master:
            oldest = start  # A slave may have joined late; the master tells what is gone.
        if start < oldest:
            lost(OffsetRange(queue, start, bounds[queue].before_gap(min(oldest, end[queue]))), "deleted", options)
        found.append(OffsetRange(queue, max(start, oldest), min(end[queue], newest)))
    return found


def read_partition(
    partition: QueuePartition, columns: Columns, options: ReadOptions, rows: ReadFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a partition, as Arrow batches of some 16,000 rows; `rows` as in `plan`."""
    rows = ReadFilter.of(options) if rows is None else rows
    asked = rows.asked() if partition.filters else EVERY_MESSAGE
    findings = ReadFindings(partition.own.queue, partition.addresses, options)
    wanted = DecodeRequest(
        columns.decoded,
        broker=partition.broker_name,
        topic=partition.topic,
        position_end=partition.log_end,
        wanted=rows.wanted(),
        ascending=True,
        check_crc=options.check_crc,
        findings=findings,
    )
    for piece in fetch(partition.own, partition.addresses, options, asked, is_part=partition.less is not None):
        if piece.spans:
            for batch in rows_of(piece, partition, wanted):
                if batch.num_rows and (given := columns.given(partition.as_read(batch))).num_rows:
                    yield given
        elif piece.whole:
            findings.missing(piece.first, piece.end)
    findings.done()


def rows_of(piece: PulledPiece, partition: QueuePartition, wanted: DecodeRequest) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece that are `wanted`. Raises RecordError naming the queue, and the errors that the
    request's findings raise.
    """
    # Not with the module: the driver plans without it.
    from rocketspark.arrow import records

    asked = wanted._replace(offset_first=piece.first, offset_end=piece.end, whole=piece.whole)
    try:
        yield from records.batches(piece.buffer, asked, piece.spans)
    except RecordError as e:
        if partition.topic in str(e):
            raise
        raise RecordError(
            f"messages {piece.first} to {piece.end - 1} of queue {partition.queue_id} of topic {partition.topic!r} on"
            f" broker {partition.broker_name!r} cannot be read: {e}"
        ) from e
