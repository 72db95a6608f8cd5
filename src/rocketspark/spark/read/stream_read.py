"""spark.readStream: topics as they grow. Rule: an offset that was given to Spark means the same rows for ever.

An offset is topic to broker to queue id to the next queue offset. Queues that appear later are read from their oldest
message; those whose broker is away keep their place until it is back. The checkpoint alone says where a stream goes on:
offsets that are committed to a group show its progress to operators, and nothing that fails there fails a query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rocketspark.errors import RocketSparkError, ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.spark.python_workers import plain_errors
from rocketspark.spark.read.queue_discovery import QueueDiscovery, QueueGone
from rocketspark.spark.read.tasks import read_task, tasks
from rocketspark.spark.spark_features import (
    ADMISSION_CONTROL,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from rocketspark.tables.cluster_queries import TOPIC_DELETED, ClusterQueries, making_of
from rocketspark.tables.offset_ranges import (
    EACH_TOPIC,
    NAMESPACE_KEY,
    START_KEY,
    Made,
    OffsetRange,
    Offsets,
    admit,
    admit_bytes,
    from_json,
    lag,
    made_json,
    made_of,
    tells_namespace,
    to_json,
)
from rocketspark.tables.options import ReadOptions
from rocketspark.tables.queue_bounds import OffsetBounds, is_of_other_store
from rocketspark.tables.read.data_loss import lost
from rocketspark.tables.read.partition_planning import open_cluster, plan, queues_of, starts

log = logging.getLogger("rocketspark.spark")


class GroupOffsets:
    """Commits a stream's offsets to a consumer group, so that operators see its progress; the group need not exist."""

    def __init__(self, cluster: ClusterQueries, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._shown: Offsets = {}
        self._registered = False
        self._failing = False

    def show(self, offsets: Offsets) -> None:
        """Commit the offsets that have changed. Failures are warned of once, until a commit succeeds again."""
        changed = {queue: offset for queue, offset in offsets.items() if self._shown.get(queue) != offset}
        if not changed:
            return
        try:
            if not self._registered and not self._cluster.knows_group(self._group):
                self._cluster.register_group(changed, self._group)
            self._registered = True
            done = self._commit(changed)
        except RocketSparkError as e:
            self._warn(str(e))
            return
        self._shown.update((queue, changed[queue]) for queue in done)
        if away := sorted({queue.broker_name for queue in changed.keys() - set(done)}):
            self._warn(f"no answer from {', '.join(away)}")
        else:
            self._failing = False

    def _commit(self, changed: Offsets) -> Iterable[MessageQueue]:
        try:
            return self._cluster.commit(changed, self._group)
        except ServerError as e:
            if e.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
        # A broker that came later, or whose groups were deleted.
        self._cluster.register_group(changed, self._group)
        return self._cluster.commit(changed, self._group)

    def _warn(self, why: str) -> None:
        if not self._failing:
            log.warning("progress is not shown as group %r: %s; the query goes on", self._group, why)
        self._failing = True


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the micro-batches of a stream. It lives on the driver; only `read` runs on executors. `announced`: this
    Spark tells its readers of the trigger AvailableNow.
    """

    def __init__(
        self,
        schema: StructType,
        options: ReadOptions,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        announced: bool = ADMISSION_CONTROL,
    ) -> None:
        self._schema = schema
        self._options = options
        self._clock_s = clock_s
        self._cluster: ClusterQueries | None = None
        self._queue_discovery: QueueDiscovery | None = None
        self._group_offsets: GroupOffsets | None = None
        # With AvailableNow: where the topics ended when the query began.
        self._last: Offsets | None = None
        self._newest: Offsets = {}
        self._initial: dict[str, Any] | None = None
        self._triggered_s = clock_s()
        # If AvailableNow is not announced, the first micro-batch may be all of a query: it waits for nothing.
        self._may_wait = announced

    def __getstate__(self) -> dict[str, Any]:
        # Executors read; they ask nothing of what the driver does.
        return {**self.__dict__, "_cluster": None, "_queue_discovery": None, "_group_offsets": None}

    def _open(self) -> ClusterQueries:
        if self._cluster is None:
            self._cluster = open_cluster(self._options)
        return self._cluster

    def _watching(self) -> QueueDiscovery:
        if self._queue_discovery is None:
            self._queue_discovery = QueueDiscovery(self._open(), self._options)
        return self._queue_discovery

    def _look(self, held: Offsets | None) -> dict[MessageQueue, OffsetBounds]:
        """Return the bounds of the queues now, after removing the queues of deleted topics from `held`. Queues that a
        topic has no longer stay in it, as the topic may get them again. Raises QueueGone unless the options allow it.
        """
        seen = self._watching().look(held)
        for queue, why in seen.gone.items():
            assert held is not None
            self._drop(held[queue], queue, why)
            if why == TOPIC_DELETED:
                del held[queue]
        self._newest.update((queue, found.next) for queue, found in seen.bounds.items())
        return seen.bounds

    def _drop(self, offset: int, queue: MessageQueue, why: str) -> None:
        error = QueueGone(queue, offset, why)
        if self._options.fail_on_data_loss:
            raise error
        self._watching().tell(str(error))
        self._newest.pop(queue, None)

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new query begins; the same each time, as Spark asks more than once."""
        if self._initial is not None:
            return self._initial
        with plain_errors():
            cluster = self._open()
            bounds = cluster.bounds(queues_of(cluster, self._options))
            self._newest = {queue: found.next for queue, found in bounds.items()}
            self._initial = dict(to_json(starts(cluster, bounds, self._options))) | self.marks(making_of(bounds))
            return self._initial

    def marks(self, made: Made) -> dict[str, Any]:
        """Return the entries of an offset that hold no queue."""
        namespace = self._options.access.namespace
        return made_json(made) | ({NAMESPACE_KEY: namespace} if namespace else {})

    def _is_of_namespace(self, offset: Mapping[str, Any]) -> bool:
        """Tell whether an offset says that its topics are of the options' namespace. Raises ConfigError if not, unless
        the options allow one that cannot tell.
        """
        namespace = self._options.access.namespace
        if tells_namespace(offset, namespace, fail=self._options.fail_on_data_loss):
            return True
        if namespace:
            self._watching().tell(
                f"what was read up to here names no namespace: it is gone on with as of namespace {namespace!r}, where"
                " messages are passed over if it was of another one"
            )
        return False

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits of a micro-batch that the options set, as Spark wants one; `latestOffset` keeps to
        all of them.
        """
        options = self._options
        if options.rows_per_trigger_max:
            return ReadMaxRows(options.rows_per_trigger_max)
        if options.bytes_per_trigger_max:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        return ReadMinRows(options.rows_per_trigger_min) if options.rows_per_trigger_min else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query: the messages that are there now."""
        with plain_errors():
            self._look(None)
            self._last = dict(self._newest)

    def _ends(
        self, begin: Offsets, bounds: Mapping[MessageQueue, OffsetBounds], anew: set[MessageQueue]
    ) -> tuple[Offsets, Offsets]:
        """Return where the queues end now, or end for this query, and where those begin that are new to it."""
        ends: Offsets = {}
        added: Offsets = {}
        for queue, found in bounds.items():
            if self._last is not None and queue not in self._last:
                # It came after the query's end was fixed; if another one was in its place, its own is the begin.
                added |= {queue: found.oldest} if queue in anew else {}
                continue
            end = found.next if self._last is None else min(found.next, self._last[queue])
            if queue not in begin or queue in anew:
                added[queue] = min(found.oldest, end)
            elif found.next >= begin[queue] or not found.of_master:
                # A slave is behind, or `latest` was taken after the query's end was fixed.
                end = max(end, begin[queue])
            ends[queue] = end
        return ends, added

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset at which the micro-batch after `start` ends, within all limits that the options set; with
        ReadAllAvailable, without limits.
        """
        with plain_errors():
            is_noted = self._is_of_namespace(start) or NAMESPACE_KEY in start
            if start != self._initial:
                self._show(start)
            begin = from_json(start)
            bounds = self._look(begin)
            made = made_of(start)
            anew = self._made_anew(begin, bounds, made)
            ends, added = self._ends(begin, bounds, anew)
            # Queues that are new to the query begin at their oldest message.
            begin |= added
            for queue, offset in begin.items():
                ends.setdefault(queue, offset)
            # A gap in a logical queue's offsets counts as nothing.
            first, last = _rows(begin, bounds), _rows(ends, bounds)
            if not anew and self._is_too_little(first, last, limit):
                return start
            ends = self._limited(first, last, limit, bounds)
            if ends == from_json(start) and not anew and is_noted:
                return start
            self._triggered_s = self._clock_s()
            now = making_of(bounds)
            known = made | {key: at if key[0] == EACH_TOPIC else max(at, made.get(key, 0)) for key, at in now.items()}
            table: dict[str, Any] = dict(to_json(ends)) | self.marks(known)
            # Spark's log tells where a micro-batch ends; where queues begin that are in no earlier one stands here.
            if start == self._initial:
                table[START_KEY] = to_json(begin)
            elif added:
                table[START_KEY] = to_json(added)
            return table

    def _made_anew(self, begin: Offsets, bounds: dict[MessageQueue, OffsetBounds], made: Made) -> set[MessageQueue]:
        """Return the queues of topics that were deleted and made again; their messages are lost, which is an error or a
        warning. Queues that such a topic no longer has are removed from `begin`, as it may get them again.
        """
        unread = self._unread(begin, bounds, made)
        known = {queue: found for queue, found in bounds.items() if queue in begin} | unread
        found = set(self._open().made_anew(known, made, begin))
        # One of a broker that tells no such number, and has no replicas, shows it by ending before its place.
        ends_before = {q for q, now in known.items() if now.of_master and not now.replicated and now.next < begin[q]}
        anew = found | ends_before
        topics = {(queue.topic, queue.broker_name) for queue in found}
        others = {q for q in begin.keys() - bounds.keys() if (q.topic, q.broker_name) in topics or q in anew}
        others -= unread.keys() - anew
        for queue in sorted(anew | others):
            is_other = queue in known and is_of_other_store(queue, known[queue], made, begin[queue])
            why = "its broker has another store now" if is_other else "the topic was deleted and made anew"
            if self._watching().reads(queue):
                lost(OffsetRange(queue, begin[queue], begin[queue]), why, self._options)
            else:
                self._watching().tell(
                    f"queue {queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r}, which the"
                    f" options do not name now, loses its place at offset {begin[queue]} ({why}): if they name it"
                    " again, it is read from its oldest message"
                )
        for queue in others:
            del begin[queue]
        return anew

    def _unread(
        self, begin: Offsets, bounds: dict[MessageQueue, OffsetBounds], made: Made
    ) -> dict[MessageQueue, OffsetBounds]:
        """Return the bounds of the queues that are not read now, and whose topic or broker has another number than
        `made` has: the offset will hold the new number, so nothing could tell later. Those not there count as empty.
        """
        new = {
            key
            for key, at in making_of(bounds).items()
            if (at != made.get(key, at) if key[0] == EACH_TOPIC else at > made.get(key, 0))
        }
        unread = [
            queue
            for queue in begin.keys() - bounds.keys()
            if begin[queue] and new & {(queue.topic, queue.broker_name), (EACH_TOPIC, queue.broker_name)}
        ]
        try:
            found = self._open().bounds(unread, if_there=True)
        except RocketSparkError:
            found = {}
        return {queue: found.get(queue, OffsetBounds(0, 0)) for queue in unread}

    def _is_too_little(self, begin: Offsets, ends: Offsets, limit: ReadLimit) -> bool:
        """Tell whether minMessagesPerTrigger has the micro-batch wait. With AvailableNow nothing more would come."""
        least = self._options.rows_per_trigger_min
        if not least or self._last is not None or isinstance(limit, ReadAllAvailable):
            return False
        if not self._may_wait:
            self._may_wait = True
            return False
        waited_ms = (self._clock_s() - self._triggered_s) * 1000
        return sum(lag(begin, ends).values()) < least and waited_ms < self._options.trigger_delay_max_ms

    def _limited(
        self, begin: Offsets, ends: Offsets, limit: ReadLimit, bounds: Mapping[MessageQueue, OffsetBounds]
    ) -> Offsets:
        """Return the ends within the limits on messages and bytes, as offsets. `begin`, `ends`: as of `rows_before`."""
        options = self._options
        if not isinstance(limit, ReadAllAvailable):
            rows = [options.rows_per_trigger_max, limit.max_rows if isinstance(limit, ReadMaxRows) else None]
            if rows_max := min((count for count in rows if count is not None), default=None):
                ends = admit(begin, ends, rows_max)
            if options.bytes_per_trigger_max:
                ends = self._within_bytes(begin, ends, options.bytes_per_trigger_max, bounds)
        return _offsets(ends, bounds)

    def _within_bytes(
        self, begin: Offsets, ends: Offsets, bytes_max: int, bounds: Mapping[MessageQueue, OffsetBounds]
    ) -> Offsets:
        """Return ends by the size of messages at the begin of each queue, and again in the middle of what that would
        admit.
        """
        cluster = self._open()
        holding = [queue for queue, count in lag(begin, ends).items() if count]
        sizes = cluster.record_bytes(_offsets({queue: begin[queue] for queue in holding}, bounds))
        first = admit_bytes(begin, ends, sizes, bytes_max)
        middles = {queue: (begin[queue] + first[queue]) // 2 for queue in holding}
        for queue, size in cluster.record_bytes(_offsets(middles, bounds)).items():
            sizes[queue] = (sizes.get(queue, size) + size) / 2
        return admit_bytes(begin, ends, sizes, bytes_max)

    def end_now(self) -> dict[str, Any]:
        """Return where the topics end now, as an offset."""
        with plain_errors():
            self._look(None)
            return dict(to_json(self._newest))

    def of_other_store(self, offsets: Offsets, made: Made) -> list[MessageQueue]:
        """Return the queues whose broker has another store now than when `made` was noted, without those of a copy that
        has all that lies before their offsets.
        """
        try:
            bounds = self._open().bounds(offsets, if_there=True)
        except RocketSparkError:
            bounds = {}  # One is not there any more.
        return [q for q in offsets if q not in bounds or is_of_other_store(q, bounds[q], made, offsets[q])]

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the topics' ends as last seen, for the query's progress."""
        return to_json(self._newest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions that hold the offsets from `start` up to `end`."""
        with plain_errors():
            self._is_of_namespace(end)
            if start == end or (start == self._initial and START_KEY not in end):
                # The latter is a first micro-batch that found nothing new and runs again: it ends where it began, which
                # need not be where a new query would begin now.
                return []
            # A first micro-batch that is run again begins where it began, not where a new query would begin now.
            first, last = from_json(start) | from_json(end.get(START_KEY, {})), from_json(end)
            there = self._watching().find(first)
            wanted = {q: first.get(q, 0) for q in last if q not in there and first.get(q) != last[q]}
            for queue, why in self._watching().gone(wanted).items():
                self._drop(wanted.pop(queue), queue, why)
                del last[queue]
            for queue in self._left_out(wanted):
                del last[queue]
            return tasks(plan(self._open(), first, last, self._options, made=made_of(end)))

    def _left_out(self, wanted: Offsets) -> list[MessageQueue]:
        """Return, with failOnDataLoss=false, which queues of a micro-batch that was begun are read no more: those that
        the options name no more and whose broker does not answer, as it may never come back.

        `wanted`: where the queues begin of which no route tells.
        """
        if self._options.fail_on_data_loss or all(map(self._watching().reads, wanted)):
            return []
        there = self._open().bounds(wanted, if_there=True)
        away = sorted(q for q in wanted if q not in there and not self._watching().reads(q))
        for queue in away:
            why = "its broker is away, and the options name the queue no more"
            lost(OffsetRange(queue, wanted[queue], wanted[queue]), why, self._options)
        return away

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition; runs on an executor."""
        return read_task(partition, self._schema, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets to the consumer group that an option names, for operators to see; the stream itself goes
        on by Spark's checkpoint.
        """
        with plain_errors():
            self._show(end)

    def _show(self, offsets: dict[str, Any]) -> None:
        if self._options.mirror_group is None:
            return
        if self._group_offsets is None:
            self._group_offsets = GroupOffsets(self._open(), self._options.mirror_group)
        self._group_offsets.show(from_json(offsets))

    def stop(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = self._queue_discovery = self._group_offsets = None


def _rows(offsets: Offsets, bounds: Mapping[MessageQueue, OffsetBounds]) -> Offsets:
    """Return the numbers of `rows_before` for offsets."""
    return {queue: bounds[queue].rows_before(at) if queue in bounds else at for queue, at in offsets.items()}


def _offsets(rows: Offsets, bounds: Mapping[MessageQueue, OffsetBounds]) -> Offsets:
    """Return the offsets for numbers of `rows_before`."""
    return {queue: bounds[queue].offset_after(at) if queue in bounds else at for queue, at in rows.items()}


class RefusedReader(DataSourceStreamReader):
    """The reader of a stream that cannot be read as asked: every call of Spark raises the error."""

    def __init__(self, error: RocketSparkError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        with plain_errors():
            raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raise the error, as the other methods do."""
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise the error."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        self._refuse()
