"""All consume queues of a store: their names, kinds and directories.

Rule: only this file makes, finds and removes queues; the content of a queue is written by the queue alone.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise

from rocketspark.errors import ConfigError, MessageIllegal, StoreError, StoreFull, StoreUnwritable
from rocketspark.model.text import shown
from rocketspark.store.consumequeue.batch_consume_queue import BATCH_UNIT_BYTES, BatchConsumeQueue
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, SHARED, UNIT_BYTES, ConsumeQueue, RecordAt
from rocketspark.store.consumequeue.consume_queue_ext import ConsumeQueueExt
from rocketspark.store.consumequeue.queue_files import (
    FIRST_ALONE,
    ActiveQueues,
    NotedEnd,
    QueueFileInventory,
    queue_folders,
)
from rocketspark.store.files.mapped_file_queue import MappedFileQueue, MappedFiles, SizeEvidence
from rocketspark.store.files.system_calls import deepest_first, failure
from rocketspark.store.index.key_hashes import TopicKeys
from rocketspark.store.settings import StoreSettings

_log = logging.getLogger("rocketspark.store")
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_SHARED = SHARED.decode()
# Half messages, timers: what is parked there keeps the flags it came with.
_SYSTEM_PREFIX = "RMQ_SYS_"
# Between two flushes.
REMOVED_AT_ONCE = 256
# Queues whose files are put on the disk together.
FLUSHED_AT_ONCE = 4096


class ConsumeQueueStore:
    """All consume queues of a store; each is read from disk when first asked for.

    `batch_topics`: those whose queues are batch queues (attribute queue.type=BatchCQ); who makes such a topic adds it.
    """

    def __init__(
        self,
        settings: StoreSettings,
        maps: MappedFiles,
        active_max: int,
        inventory: QueueFileInventory,
        record_at: RecordAt,
        log_end: Callable[[], int],
    ) -> None:
        """Make it; `scan` finds the queues. `record_at`, `log_end`: see `CommitLog.record_at` and
        `CommitLog.written`.
        """
        self.directory = f"{settings.root}/consumequeue"
        self._batch_directory = f"{settings.root}/batchconsumequeue"
        self._ext_directory = f"{settings.root}/consumequeue_ext"
        self._settings = settings
        self.maps = maps
        self.by_bytes: dict[tuple[bytes, int], ConsumeQueue] = {}
        # Counts deletions: a queue found before one may be gone.
        self.generation = 0
        # Before it no unit counts; and up to which physical offset files of queues were removed.
        self.min_position = 0
        self.expired_position = 0
        self.batch_topics: set[bytes] = set()
        # Those that are such by their settings.
        self._told_batch_topics: set[bytes] = set()
        # Set before the store is opened: topics that are known to have simple queues.
        self.simple_topics: Collection[str] = ()
        # Where a queue of a topic begins that is made to append to.
        self.begins_at: Callable[[str, int], int] = lambda topic, queue_id: 0
        self.inventory = inventory
        self._record_at = record_at
        self._log_end = log_end
        # The log's end when the ends of queues were noted last.
        self._noted_at = 0
        # Queues that could not be read, each logged once.
        self._unread: set[tuple[str, int]] = set()
        self._listing_due = False
        self._size_shown = False
        self._name_bytes_max = 255
        self._has_ext = False
        # Whether records name light queues, and how many of these there are.
        self.light = settings.light_queues
        self.light_count = 0
        # Where the folders of deleted topics lie until `remove_deleted`; a start finds what is left there.
        self._removed_directory = f"{settings.root}/removed"
        self._removal_due = True
        self._removed_count = 0
        # Queues of deleted topics whose files may be mapped.
        self._gone: list[ConsumeQueue] = []
        self._active = ActiveQueues(active_max)
        self._by_name: dict[tuple[str, int], ConsumeQueue] = {}
        self._known: dict[str, Collection[int]] = {}
        self._keys: dict[str, TopicKeys] = {}

    def scan(self) -> None:
        """Find the topics and ids of the queues, without reading the queues."""
        try:
            # Some file systems take less than the usual 255.
            self._name_bytes_max = os.pathconf(self.directory, "PC_NAME_MAX")
        except (OSError, ValueError):
            pass
        self._told_batch_topics = set(self.batch_topics)
        self._has_ext = self._settings.queue_ext or os.path.isdir(self._ext_directory)
        for topic, ids in queue_folders(self._batch_directory):
            self.batch_topics.add(topic.encode())
            self._known[topic] = ids
        evidence = SizeEvidence()
        for topic, ids in queue_folders(self.directory):
            if topic.encode() in self.batch_topics:
                continue
            # Until one file shows that the size is as configured.
            for queue_id in ids if not evidence.found else ():
                self._make(topic, queue_id).mapped_files.look(evidence)
            self._known[topic] = ids
        self.light_count = sum(topic.startswith(_SHARED) for topic in self._known)
        # Those that are there are kept in line with the log, even if no message enters them now.
        self.light = self.light or self.light_count > 0
        evidence.judge()
        self._size_shown = evidence.found

    def forget_deleted(self, *, may_lack: bool) -> list[str]:
        """Forget topics that were noted once and have neither settings nor queues any more; returns their names.

        Another broker, such as RocketMQ's, deleted them on this store and noted it nowhere. Nothing is forgotten if no
        settings are known or no queue is left, and no topic of the system is. `may_lack`: the machine stopped, and
        names of folders may be gone with it, so those of light queues, which have no settings, say nothing.
        """
        told = {*self.simple_topics, *(topic.decode() for topic in self._told_batch_topics)}
        noted = {topic for topic, _ in self.inventory.queues} if told and self._known else set()
        kept = {topic for topic in noted if _is_of_the_system(topic) or (may_lack and topic.startswith(_SHARED))}
        gone = sorted(noted - told - kept - self._known.keys())
        self.inventory.forget(dict.fromkeys(gone))
        return gone

    def lost(self) -> bool:
        """Tell whether files of queues are missing that were there when the store was last flushed."""
        wanted = set(self.inventory.queues.items())
        if self.inventory.log_begin == self.min_position:
            wanted.update(self.inventory.firsts.items())
        for (topic, queue_id), start in wanted:
            place = f"{topic}/{queue_id}/{start:020d}"
            if not any(os.path.exists(f"{directory}/{place}") for directory in (self.directory, self._batch_directory)):
                return True
        return any(
            self._lacks_one_within(topic, queue_id)
            for topic, queue_id in self._names()
            if self.inventory.queues.get((topic, queue_id), 0) != self.inventory.firsts.get((topic, queue_id), -1)
        )

    def _lacks_one_within(self, topic: str, queue_id: int) -> bool:
        """Tell whether a file of a queue is missing between the first and the last that are known."""
        mapped_files = self._make(topic, queue_id).mapped_files
        first = self.inventory.firsts.get((topic, queue_id), 0)
        starts = [start for start in mapped_files.names() if start >= first and start % mapped_files.size == 0]
        return any(b - a != mapped_files.size for a, b in pairwise(starts))

    def set_kind(self, topic: bytes, *, is_batch: bool) -> None:
        """Note whether a topic's settings say that its queues are batch queues; queues that exist keep their kind."""
        noted = [self._told_batch_topics]
        if topic.decode() not in self._known:
            noted.append(self.batch_topics)
        for topics in noted:
            if is_batch:
                topics.add(topic)
            else:
                topics.discard(topic)

    def wrong_since(self, topic: bytes) -> int | None:
        """Return the physical offset of the oldest message in a topic's queues, if these are not of the kind that its
        settings say.
        """
        name = topic.decode()
        if (topic in self._told_batch_topics) is (topic in self.batch_topics) or name not in self._known:
            return None
        queues = (self._find_if_whole(name, queue_id) for queue_id in list(self._known[name]))
        return min((queue.unit(queue.min)[0] for queue in queues if queue and queue.min < queue.next), default=0)

    def may_be_batch(self, topic: bytes) -> bool:
        """Tell whether the queues of a topic that has none yet may become batch queues, if its records say so."""
        name = topic.decode()
        return name not in self._known and name not in self.simple_topics and not _is_of_the_system(name)

    def queues(self) -> Mapping[str, Collection[int]]:
        return self._known

    def loaded(self) -> list[ConsumeQueue]:
        return list(self._by_name.values())

    def load_all(self, below: int) -> None:
        """Read every queue from disk, and remove its units at or after physical offset `below`."""
        for topic, ids in self._known.items():
            for queue_id in ids:
                self._load(topic, queue_id, below, cut=True)

    def find(self, topic: str, queue_id: int, below: int | None = None) -> ConsumeQueue | None:
        """Return the queue, read from disk if it was not yet; None if there is none."""
        found = self._by_name.get((topic, queue_id))
        if found is None and queue_id in self._known.get(topic, ()):
            found = self._load(topic, queue_id, below, cut=False)
        return found

    def _load(self, topic: str, queue_id: int, below: int | None, *, cut: bool) -> ConsumeQueue:
        queue = self._make(topic, queue_id)
        queue.load(below, self.min_position, cut=cut, noted=self.inventory.ends.get((topic, queue_id)))
        self._enter(queue)
        return queue

    def _find_if_whole(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """`find`, for what goes on without a queue whose files cannot be read."""
        try:
            return self.find(topic, queue_id)
        except (ConfigError, StoreUnwritable) as e:
            if (topic, queue_id) not in self._unread:
                self._unread.add((topic, queue_id))
                _log.error("queue %s of topic %s is left out when old files are removed: %s", queue_id, shown(topic), e)
            return None

    def make(self, topic: bytes, queue_id: int, below: int | None = None) -> ConsumeQueue:
        """Return the queue to append to, made if there is none (its first file comes with its first unit).

        Raises MessageIllegal if no directory can have the topic's name.
        """
        name = topic.decode()
        found = self.find(name, queue_id, below)
        if found is None:
            if not self.can_have(topic):
                raise MessageIllegal(
                    f"topic {name[:300]!r} cannot be the name of a directory (at most {self._name_bytes_max} bytes): "
                    "choose another",
                    topic=name,
                )
            begin = self.begins_at(name, queue_id)
            found = self._make(name, queue_id)
            if begin:
                found.go_on_at(begin)
                found.min = found.counted = begin
            elif found.ext is not None:
                found.ext.load(None)
            self._enter(found)
            if name.startswith(_SHARED) and name not in self._known:
                self.light_count += 1
            ids = self._known.get(name, ())
            if isinstance(ids, set):
                ids.add(queue_id)
            else:
                self._known[name] = {*ids, queue_id} if ids or queue_id else FIRST_ALONE
        return found

    def can_have(self, topic: bytes) -> bool:
        """Tell whether a directory can have the topic's name. If not, its messages are in no queue."""
        return (
            0 < len(topic) <= self._name_bytes_max
            and b"/" not in topic
            and b"\0" not in topic
            and topic not in (b".", b"..")
        )

    def keys_of(self, name: str) -> TopicKeys:
        """Return the part of the index keys that all messages of a topic share."""
        found = self._keys.get(name)
        if found is None:
            found = self._keys[name] = TopicKeys(name)
        return found

    def delete_topics(self, topics: Collection[str]) -> None:
        """Close the topics' queues and move their folders away; `remove_deleted` removes the files later.

        All topics are handed in together, as each call looks through the whole inventory. Raises StoreUnwritable if a
        folder can neither be moved nor removed.
        """
        self.generation += 1
        # A thread that makes a queue's first file holds the lock: none comes back after its folder went.
        with self._active.lock:
            for topic in topics:
                self.light_count -= topic.startswith(_SHARED) and topic in self._known
                for queue_id in self._known.pop(topic, ()):
                    queue = self._by_name.pop((topic, queue_id), None)
                    if queue is not None:
                        del self.by_bytes[queue.topic, queue_id]
                        queue.let_go()
                        self._gone.append(queue)
        for topic in topics:
            self.set_kind(topic.encode(), is_batch=False)
        self.inventory.forget(dict.fromkeys(topics))
        self._listing_due = self._removal_due = True
        # The queues last: after a kill in between they show the next start that the topic was being deleted.
        for directory in (self._ext_directory, self._batch_directory, self.directory):
            for topic in topics:
                path = f"{directory}/{topic}"
                try:
                    # What a link leads to is not the store's to remove.
                    os.unlink(path) if os.path.islink(path) else self._move_away(path)
                except OSError as e:
                    raise failure(e, "remove", path) from e

    def _move_away(self, path: str) -> None:
        """Move a folder, if there is one, to where `remove_deleted` finds it."""
        if not os.path.lexists(path):
            return
        files = self.maps.files
        try:
            files.make_directory(self._removed_directory)
            while os.path.lexists(target := f"{self._removed_directory}/{self._removed_count}"):
                self._removed_count += 1
            files.replace(path, target)
        except OSError:
            # No block is left for its new name, or it lies on another disk.
            files.remove_tree(path)

    def remove_deleted(self, count_max: int = REMOVED_AT_ONCE) -> None:
        """Remove up to `count_max` queues' folders of deleted topics. For a thread: each may take 5 ms. Never fails."""
        if not self._removal_due:
            return
        self._removal_due = False
        gone, self._gone = self._gone, []
        for queue in gone:
            for mapped_files in (queue.mapped_files, *((queue.ext.mapped_files,) if queue.ext is not None else ())):
                for start in mapped_files.starts:
                    self.maps.drop(mapped_files, start)
        try:
            for number, path in enumerate(deepest_first(self._removed_directory)):
                if number == count_max:
                    self._removal_due = True
                    return
                self.maps.files.remove_tree(path)
        except OSError as e:
            _log.error("files of deleted topics are left in %s: %s", self._removed_directory, e)

    def takes_light(self, name: bytes, queue_offset: int, below: int | None) -> bool:
        """Tell whether a record may go into a light queue; while the broker has none, only at the end of one that is
        there, as a sender may have written anything.
        """
        if self._settings.light_queues:
            return True
        queue = self.find(name.decode(), 0, below)
        return queue is not None and queue.next == queue_offset

    def expired_light(self, step_count: int) -> Iterator[list[str]]:
        """Yield the light queues that had messages and have none left, once files of the log were removed, of
        `step_count` light queues at a time. None may grow before the caller has removed those that it got.
        """
        names = [name for name in self._known if name.startswith(_SHARED)] if self.min_position else []
        for begin in range(0, len(names), step_count):
            queues = (self._find_if_whole(name, 0) for name in names[begin : begin + step_count])
            yield [queue.name for queue in queues if queue is not None and queue.min == queue.next > 0]

    def emptied(self, topic: str) -> dict[int, int]:
        """Return the next offset of a topic's simple queues that had messages and have none left, by queue id; of light
        queues none.
        """
        if not self.min_position or topic.startswith(_SHARED):
            return {}
        queues = self._all_of(topic)
        return {q.queue_id: q.next for q in queues if q is not None and not q.is_batch and q.min == q.next > 0}

    def begin(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Have a topic's queues that never had a message here begin at these offsets, above 0. Raises StoreFull,
        StoreUnwritable.
        """
        name = topic.encode()
        for queue_id, offset in offsets.items() if self.can_have(name) and name not in self.batch_topics else ():
            queue = self.make(name, queue_id)
            if queue.next == 0 and not queue.mapped_files.starts:
                queue.go_on_at(offset)
                queue.min = queue.counted = offset

    def begin_noted(self, log_end: int) -> None:
        """Have lost queues, of which the log has no message, begin where they ended when that was noted. Raises
        StoreFull, StoreUnwritable.
        """
        for (topic, queue_id), noted in list(self.inventory.ends.items()):
            if noted.next and noted.position <= log_end and not topic.startswith(_SHARED):
                self.begin(topic, {queue_id: noted.next})

    def finish_deletions(self, deleted: Mapping[str, int]) -> list[str]:
        """Remove the queues of topics that still have a message from before the topic's deletion, which a kill
        interrupted; returns the topics.

        `deleted`: by topic, the physical offset at which the log ended at the deletion.
        """
        self.inventory.forget(deleted)
        found = []
        for topic, position in deleted.items():
            if not self._begins_before(topic, position):
                continue
            found.append(topic)
            is_batch = topic.encode() in self._told_batch_topics
            try:
                self.delete_topics((topic,))
            except StoreUnwritable as e:
                _log.error("topic %s was deleted, but its queues are still there: %s", shown(topic), e)
            # Its new queues are of the kind that the topic has by now.
            self.set_kind(topic.encode(), is_batch=is_batch)
        return found

    def has_settings(self, topic: str) -> bool:
        """Tell whether a topic has settings, by the topics that the broker told."""
        return topic in self.simple_topics or topic.encode() in self._told_batch_topics

    def ends_before(self, topic: str, position: int) -> bool:
        """Tell whether all messages of a topic's queues lie before a physical offset."""
        queues = self._all_of(topic)
        newest = [queue.unit(queue.next - 1)[0] for queue in queues if queue is not None and queue.min < queue.next]
        return None not in queues and max(newest, default=-1) < position

    def _begins_before(self, topic: str, position: int) -> bool:
        return any(queue is not None and queue.begins_before(position) for queue in self._all_of(topic))

    def _all_of(self, topic: str) -> list[ConsumeQueue | None]:
        """Return the queues of a topic; None in place of one that is damaged."""
        return [self._find_if_whole(topic, queue_id) for queue_id in list(self._known.get(topic, ()))]

    def cut(self, position: int) -> None:
        """Remove the units at or after a physical offset from every queue. Raises StoreFull, StoreUnwritable."""
        self.generation += 1
        for topic, queue_id in self._names():
            queue = self.find(topic, queue_id)
            if queue is not None:
                queue.cut_at(position)
                noted = self.inventory.ends.get((topic, queue_id))
                if noted is not None and noted.next > queue.next:
                    del self.inventory.ends[topic, queue_id]
        self._noted_at = min(self._noted_at, position)
        self._listing_due = True

    def outdate(self, min_position: int, step_count: int) -> Iterator[None]:
        """Raise the queues' oldest offsets to messages at or after `min_position`, before the log is cut there;
        `step_count` queues at a time.

        So no read finds a unit whose record has been removed.
        """
        self.min_position = max(self.min_position, min_position)
        for done, (topic, queue_id) in enumerate(self._names(), 1):
            queue = self._find_if_whole(topic, queue_id)
            if queue is not None:
                queue.find_min(self.min_position)
            if done % step_count == 0:
                yield

    def expire(self, min_position: int, step_count: int) -> Iterator[None]:
        """Remove queue files that only point before `min_position`, after the log was cut there; `step_count` queues at
        a time.
        """
        self.min_position = max(self.min_position, min_position)
        for done, (topic, queue_id) in enumerate(self._names(), 1):
            queue = self._find_if_whole(topic, queue_id)
            if queue is not None:
                queue.expire(self.min_position)
            if done % step_count == 0:
                yield
        self.expired_position = min_position
        self._listing_due = True

    def _names(self) -> list[tuple[str, int]]:
        # Each copied in one call: a flush asks in a thread, while queues are made beside it.
        return [(topic, queue_id) for topic, ids in list(self._known.items()) for queue_id in list(ids)]

    def release(self) -> None:
        """Unmap the files of every queue."""
        for queue in self.loaded():
            queue.release()

    def flush(self) -> None:
        """Put every unit written so far on the disk, and note which files there are. Raises OSError, StoreError."""
        loaded = self.loaded()
        for begin in range(0, len(loaded), FLUSHED_AT_ONCE):
            part = loaded[begin : begin + FLUSHED_AT_ONCE]
            written = [(queue, paths) for queue in part if (paths := queue.unflushed()) is not None]
            self.maps.files.sync_files([path for _, paths in written for path in paths])
            for queue, _ in written:
                queue.flushed = queue.flushing
            for queue in part:
                starts = queue.mapped_files.starts
                ends = (starts[0], starts[-1]) if starts else (-1, -1)
                if ends != queue.listed:
                    queue.listed = ends
                    self._listing_due = True
        # Beyond that recovery finds the newest records of queues in the log.
        if self._listing_due or self._log_end() - self._noted_at >= self._settings.log_file_bytes:
            self._list()

    def _list(self) -> None:
        known = set(self._names())
        # Queues not loaded since the start are unchanged.
        lasts = {name: start for name, start in list(self.inventory.queues.items()) if name in known}
        firsts = {name: start for name, start in list(self.inventory.firsts.items()) if name in known}
        for queue in self.loaded():
            for starts, start in zip((firsts, lasts), queue.listed, strict=True):
                starts.pop((queue.name, queue.queue_id), None)
                if start >= 0:
                    starts[queue.name, queue.queue_id] = start
        ends = {name: noted for name, noted in list(self.inventory.ends.items()) if name in known}
        self._noted_at = self._log_end()
        ends.update(self._new_ends())
        self.inventory.write(self.sizes(), lasts, firsts, ends, self.min_position, self._noted_at)
        self._listing_due = False

    def _new_ends(self) -> Iterator[tuple[tuple[str, int], NotedEnd]]:
        position, noted = self._log_end(), self.inventory.ends
        for queue in self.loaded():
            name = queue.name, queue.queue_id
            found = queue.flushed_end(position)
            if found is not None and (name not in noted or found[:2] != noted[name][:2]):
                yield name, found

    def note_ends(self) -> None:
        """Note in the inventory where the queues end, after the last flush, so that damage cannot make one look
        shorter. Does nothing on a full disk.
        """
        if any(self._new_ends()):
            try:
                self._list()
            except StoreFull:
                pass

    def note_files(self) -> None:
        """Note sizes of files and the log's folder, if others are noted; on a full disk a later flush does it."""
        if not self.inventory.is_noted(self.sizes()):
            self._listing_due = True
            try:
                self._list()
            except StoreError:
                pass

    def sizes(self) -> dict[str, int]:
        """Return the configured sizes of files, by the setting's name: in bytes, those of index files in slots and
        entries.
        """
        settings = self._settings
        return {
            "mappedFileSizeCommitLog": settings.log_file_bytes,
            "mappedFileSizeConsumeQueue": settings.queue_file_units * UNIT_BYTES,
            "mapperFileSizeBatchConsumeQueue": settings.batch_queue_file_units * BATCH_UNIT_BYTES,
            "mappedFileSizeConsumeQueueExt": settings.queue_ext_file_bytes,
            "maxHashSlotNum": settings.index_slots,
            "maxIndexNum": settings.index_entries,
        }

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        settings = self._settings
        delay_ms = None
        if topic == SCHEDULE_TOPIC:
            # A level that is not configured waits a second (rule: ScheduleMessageService, 5.x).
            delays_ms = settings.delay_ms
            delay_ms = delays_ms[queue_id] if 0 <= queue_id < len(delays_ms) else 1000
        kind, ext = ConsumeQueue, None
        directory, size, option = self.directory, settings.queue_file_units * UNIT_BYTES, "mappedFileSizeConsumeQueue"
        if topic.encode() in self.batch_topics:
            kind = BatchConsumeQueue
            directory, option = self._batch_directory, "mapperFileSizeBatchConsumeQueue"
            size = settings.batch_queue_file_units * BATCH_UNIT_BYTES
        elif self._has_ext:
            where = f"{self._ext_directory}/{topic}/{queue_id}"
            mapped_files = MappedFileQueue(
                where, settings.queue_ext_file_bytes, self.maps, "mappedFileSizeConsumeQueueExt", scattered=True
            )
            mapped_files.certain = True
            ext = ConsumeQueueExt(mapped_files, writes=settings.queue_ext)
        mapped_files = MappedFileQueue(f"{directory}/{topic}/{queue_id}", size, self.maps, option, scattered=True)
        mapped_files.certain = self.inventory.sizes.get(option) == size or self._size_shown
        return kind(
            topic,
            queue_id,
            mapped_files,
            self._active,
            self.keys_of(topic),
            delay_ms,
            self._record_at,
            rare=settings.append_record_crc,
            ext=ext,
        )

    def _enter(self, queue: ConsumeQueue) -> None:
        queue.counted = queue.next
        self._by_name[queue.name, queue.queue_id] = queue
        self.by_bytes[queue.topic, queue.queue_id] = queue


def _is_of_the_system(topic: str) -> bool:
    return topic == SCHEDULE_TOPIC or topic.upper().startswith(_SYSTEM_PREFIX)


def offset_behind(queue: ConsumeQueue, end: int | None, log_end: int) -> int:
    """Return the offset behind a queue's messages that lie before a position of the log; None: behind all. `log_end`: a
    unit that leads beyond it is damaged, and hides nothing.
    """
    low, high = queue.min, queue.next
    if end is None or end >= log_end or low >= high or _end_of(queue, high - 1, log_end) <= end:
        return high
    # From the end on: few messages are hidden, and those far before may not be in memory.
    least, step = high - 1, 1
    while least > low and _end_of(queue, least, log_end) > end:
        least, step = max(low, least - step), 2 * step
    return bisect_right(range(high), end, least, key=lambda offset: _end_of(queue, offset, log_end))


def _end_of(queue: ConsumeQueue, offset: int, log_end: int) -> int:
    """Return where a message's record ends in the log: of a gap that of the next one, 0 if none follows."""
    position, size, _ = queue.unit(offset)
    if size == GAP_SIZE:
        if (following := queue.after_gap(offset, queue.next)) == queue.next:
            return 0
        position, size, _ = queue.unit(following)
    return 0 if position + size > log_end else position + size
