"""option("store", DIR): topics read from a broker's files, without the broker. Rule: nothing is written or locked.

The driver finds where the records of each queue lie; executors copy them out of the log and prove each one. Both see
the files at the same path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from rocketspark.arrow import records
from rocketspark.arrow.decode_request import DecodeRequest
from rocketspark.errors import ConfigError, StoreError
from rocketspark.model import MessageQueue
from rocketspark.protocol import light_queues
from rocketspark.store.readonly.file_places import object_folder
from rocketspark.store.readonly.log_scan import LogScan
from rocketspark.store.readonly.queue_units import QueueFiles
from rocketspark.store.readonly.read_only_store import ReadOnlyStore
from rocketspark.store.readonly.read_only_tier import ReadOnlyTier, is_tier
from rocketspark.store.readonly.record_reader import RecordReader
from rocketspark.tables.given_options import StorePaths
from rocketspark.tables.offset_ranges import OffsetRange, Offsets, split
from rocketspark.tables.option_values import matching
from rocketspark.tables.options import ReadOptions
from rocketspark.tables.queue_bounds import OffsetBounds
from rocketspark.tables.read.data_loss import ReadFindings, lost
from rocketspark.tables.read.partition_planning import Narrow, changed, ranges
from rocketspark.tables.read.read_filter import ReadFilter
from rocketspark.tables.read_columns import Columns

log = logging.getLogger("rocketspark.spark")

# The most bytes a partition reads, as in Spark's file sources (spark.sql.files.maxPartitionBytes).
PARTITION_BYTES_MAX = 128 << 20
_TOPICS_SHOWN = 20
_BROKER_FOLDER = "tieredStoreFilePath/HASH_CLUSTER/BROKER"
_IN_COMPACTION_LOG = (
    "what the topic's compaction kept of them is not in the log; option store reads no compaction log: read the topic"
    " from its broker"
)


class StorePartition:
    """A partition: messages of one queue, and the files that they are in; `topic` and `broker_name` are those that the
    user knows.
    """

    def __init__(self, name: MessageQueue, queue: QueueFiles, log_directories: tuple[str, ...]) -> None:
        self.topic, self.broker_name = name.topic, name.broker_name
        self.queue = queue
        self.log_directories = log_directories

    @property
    def source(self) -> OffsetRange:
        """The partition's queue and offsets."""
        queue = MessageQueue(self.topic, self.broker_name, self.queue.queue_id)
        return OffsetRange(queue, self.queue.first, self.queue.next)

    def __repr__(self) -> str:
        queue = self.queue
        return f"StorePartition({queue.topic}/{self.broker_name}/{queue.queue_id} [{queue.first}, {queue.next}))"


class Stores:
    """Store directories, for the driver's questions about queues; used like ClusterQueries. Close it when done."""

    def __init__(self, paths: StorePaths, options: ReadOptions) -> None:
        self._options = options
        self._access = options.access
        self._stores: dict[str, ReadOnlyStore | ReadOnlyTier] = {}
        self._queues: dict[MessageQueue, QueueFiles] = {}
        for root, name in zip(paths.roots, paths.broker_names, strict=True):
            if object_folder(root) is not None:
                self._stores[name] = ReadOnlyTier(root, paths.objects)
            elif not paths.commit_logs and is_tier(root):
                self._stores[name] = ReadOnlyTier(root)
            else:
                self._stores[name] = ReadOnlyStore(root, paths.commit_logs)

    def topics(self, pattern: str) -> list[str]:
        """Return the topics whose whole name matches a pattern, by the rule of `option_values.matching`. Raises
        StoreError.
        """
        servers = [*self._stores, "DefaultCluster"]
        self._load(lambda topic: bool(matching(pattern, (topic,), servers)))
        return sorted({queue.topic for queue in self._queues})

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Return every queue of the topics as of now. Raises ConfigError for a topic that no store has, StoreError."""
        wanted = frozenset(topics)
        if wanted - {queue.topic for queue in self._queues}:
            self._load(wanted.__contains__)
        unknown = wanted - {queue.topic for queue in self._queues}
        held = self._held() if unknown else frozenset()
        for topic in sorted(unknown - held):
            if topic.startswith(light_queues.NAME_PREFIX):
                raise ConfigError(f"{topic!r} is a light queue: read the topic that its messages were sent to")
            names = sorted(held)
            more = f" and {len(names) - _TOPICS_SHOWN} more" if len(names) > _TOPICS_SHOWN else ""
            listing = ", ".join(names[:_TOPICS_SHOWN]) + more if names else "none"
            roots = ", ".join(store.root for store in self._stores.values())
            where = "" if names or object_folder(roots) is None else f" ({_BROKER_FOLDER} is needed)"
            raise ConfigError(f"no topic {topic!r} in {roots}: check the name; there are: {listing}{where}")
        return sorted(queue for queue in self._queues if queue.topic in wanted)

    def _held(self) -> frozenset[str]:
        return frozenset(own for store in self._stores.values() for t in store.topics() if (own := self._access.own(t)))

    def _load(self, wanted: Callable[[str], bool]) -> None:
        """Load the queues of the topics that are wanted, by their own names."""

        def is_wanted(topic: str) -> bool:
            own = self._access.own(topic)
            return own is not None and wanted(own)

        for name, store in self._stores.items():
            for (topic, queue_id), queue in store.load(is_wanted).items():
                self._queues[MessageQueue(self._access.own(topic) or topic, name, queue_id)] = queue
            for damage in store.damages:
                text = (
                    f"the log in {', '.join(store.log_directories)} is damaged from position {damage.first} to"
                    f" {damage.end}, with whole messages after it"
                )
                if self._options.fail_on_data_loss:
                    raise StoreError(f"{text}; set failOnDataLoss to false to read all others")
                log.warning("%s", text)

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, OffsetBounds]:
        """Return the offsets that each queue held when its store was looked at."""
        return {queue: OffsetBounds(self._queues[queue].first, self._queues[queue].next) for queue in queues}

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """Return the offset of each queue's first message that was stored at or after a time; the end of the queue if
        there is none.
        """
        return {
            queue: self._queues[queue].offset_at_time(
                time_ms, self._stores[queue.broker_name].log_of(self._queues[queue])
            )
            for queue in queues
        }

    def is_compacted(self, queue: MessageQueue) -> bool:
        """Tell whether a queue's topic has compaction."""
        store = self._stores[queue.broker_name]
        return isinstance(store, ReadOnlyStore) and self._access.wire(queue.topic) in store.compacted()

    def partition(self, part: OffsetRange) -> StorePartition:
        """Return the partition with which an executor reads a range."""
        store = self._stores[part.queue.broker_name]
        queue = self._queues[part.queue].part(part.first, part.end)
        return StorePartition(part.queue, queue, store.directories_of(queue))

    def bytes_per_message(self, queue: MessageQueue) -> float:
        """Return about how much of the log a message of a queue takes."""
        return self._queues[queue].mean_size()

    def close(self) -> None:
        """Close the files."""
        for store in self._stores.values():
            store.close()


def plan(
    stores: Stores, first: Offsets, end: Offsets, options: ReadOptions, narrow: Narrow = list
) -> list[StorePartition]:
    """Plan the partitions of a read of the offsets from `first` up to `end`; none of them reads much more than 128 MiB,
    unless option compacted needs a queue in one.

    `narrow`: removes ranges that hold no message that is wanted. Raises DataLost if offsets are not in the store and
    `fail_on_data_loss` is set; else those are left out.
    """
    parts = []
    bounds = stores.bounds(changed(first, end))
    for queue, (oldest, *_) in bounds.items():
        if 0 < oldest >= first.get(queue, oldest) and stores.is_compacted(queue):
            lost(OffsetRange(queue, 0, oldest), _IN_COMPACTION_LOG, options)
    for part in split(
        narrow(ranges(bounds, first, end, options)),
        options.partitions_min,
        options.rows_per_partition_max,
    ):
        rows_max = None
        if options.rows_per_partition_max is None and not options.compacted:
            rows_max = max(1, int(PARTITION_BYTES_MAX / stores.bytes_per_message(part.queue)))
        parts += split([part], 1, rows_max)
    return [stores.partition(part) for part in parts]


def read_partition(
    partition: StorePartition, columns: Columns, options: ReadOptions, rows: ReadFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a partition, as Arrow batches of some 16,000 rows; `rows`: by default those of the options."""
    rows = ReadFilter.of(options) if rows is None else rows
    queue = partition.queue
    source = partition.source.queue

    def gone(first: int, end: int, why: str) -> None:
        first, end = max(first, queue.first), min(end, queue.next)
        if first < end:
            lost(OffsetRange(source, first, end), why, options)

    findings = ReadFindings(source, (), options)
    asked = DecodeRequest(
        columns.decoded,
        broker=partition.broker_name,
        topic=partition.topic,
        offset_first=queue.first,
        offset_end=queue.next,
        wanted=rows.wanted(),
        findings=findings,
    )
    files = LogScan(partition.log_directories, queue.place)
    try:
        files.check_there()
        reader = RecordReader(queue, files, gone, check_crc=options.check_crc)
        for piece in reader.pieces(rows.codes()):
            for batch in records.batches(piece.buffer, asked, starts=piece.starts):
                if batch.num_rows and (given := columns.given(batch)).num_rows:
                    yield given
        findings.done()
    finally:
        files.close()
