"""All consume queues of a store: which there are, of which kind, and where their files lie.

Rule: only this file makes, finds and removes queues; what is in one is its own affair.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping

from rocketspark.errors import StoreError
from rocketspark.store.batch_queue import BATCH_UNIT_BYTES, BatchQueue
from rocketspark.store.files import failure
from rocketspark.store.index_keys import TopicKeys
from rocketspark.store.queue import UNIT_BYTES, Active, Queue
from rocketspark.store.queue_ext import QueueExt
from rocketspark.store.segments import Maps, Segments
from rocketspark.store.settings import StoreSettings

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


class QueueIndex:
    """All consume queues of a store; each is read from disk when first asked for.

    `batch_topics`: those whose queues are batch queues (attribute queue.type=BatchCQ); who makes such a topic adds it.
    """

    def __init__(self, settings: StoreSettings, maps: Maps, active_max: int) -> None:
        self.directory = f"{settings.root}/consumequeue"
        self._batch_directory = f"{settings.root}/batchconsumequeue"
        self._ext_directory = f"{settings.root}/consumequeue_ext"
        self._settings = settings
        self.maps = maps
        self.by_bytes: dict[tuple[bytes, int], Queue] = {}
        # Counts deletions: a queue found before one may be gone.
        self.generation = 0
        self.min_position = 0
        self.batch_topics: set[bytes] = set()
        self._has_ext = False
        self._active = Active(active_max)
        self._by_name: dict[tuple[str, int], Queue] = {}
        self._known: dict[str, set[int]] = {}
        self._keys: dict[str, TopicKeys] = {}

    def scan(self) -> None:
        """Reads which queues there are, not what is in them."""
        self._has_ext = self._settings.queue_ext or os.path.isdir(self._ext_directory)
        for topic, ids in _listed(self._batch_directory):
            self.batch_topics.add(topic.encode())
            self._known[topic] = ids
        looked_at = False
        for topic, ids in _listed(self.directory):
            if topic.encode() in self.batch_topics:
                continue
            if not looked_at:
                # One is enough to notice files of another size than configured.
                self._make(topic, min(ids)).segments.scan()
                looked_at = True
            self._known[topic] = ids

    def queues(self) -> Mapping[str, Collection[int]]:
        return self._known

    def loaded(self) -> list[Queue]:
        return list(self._by_name.values())

    def load_all(self, below: int) -> None:
        """Reads every queue and removes its units at or after log position `below`."""
        for topic, ids in self._known.items():
            for queue_id in ids:
                queue = self._make(topic, queue_id)
                queue.load(below, self.min_position, cut=True)
                self._enter(queue)

    def find(self, topic: str, queue_id: int, below: int | None = None) -> Queue | None:
        """The queue, or None if there is none."""
        found = self._by_name.get((topic, queue_id))
        if found is None and queue_id in self._known.get(topic, ()):
            found = self._make(topic, queue_id)
            found.load(below, self.min_position, cut=False)
            self._enter(found)
        return found

    def make(self, topic: bytes, queue_id: int, below: int | None = None) -> Queue:
        """The queue to append to, made if there is none (its first file comes with its first unit)."""
        name = topic.decode()
        found = self.find(name, queue_id, below)
        if found is None:
            if not name or "/" in name or "\0" in name or name in (".", ".."):
                raise StoreError(f"topic {name!r} cannot be the name of a directory: choose another")
            found = self._make(name, queue_id)
            if found.ext is not None:
                found.ext.load(None)
            self._enter(found)
            self._known.setdefault(name, set()).add(queue_id)
        return found

    def keys_of(self, name: str) -> TopicKeys:
        """What the key index needs to know of a topic."""
        found = self._keys.get(name)
        if found is None:
            found = self._keys[name] = TopicKeys(name)
        return found

    def delete_topic(self, topic: str) -> None:
        """Removes the topic's queues and their files. Raises StoreUnwritable if they cannot be removed."""
        self.generation += 1
        for queue_id in self._known.pop(topic, ()):
            queue = self._by_name.pop((topic, queue_id), None)
            self.by_bytes.pop((topic.encode(), queue_id), None)
            if queue is not None:
                queue.release()
                for segments in (queue.segments, *((queue.ext.segments,) if queue.ext is not None else ())):
                    for start in segments.starts:
                        self.maps.drop(segments, start)
        self.batch_topics.discard(topic.encode())
        for directory in (self.directory, self._batch_directory, self._ext_directory):
            try:
                shutil.rmtree(f"{directory}/{topic}")
            except FileNotFoundError:
                pass
            except OSError as e:
                raise failure(e, "remove", f"{directory}/{topic}") from e

    def finish_deletion(self, topic: str, position: int) -> None:
        """Removes the topic if it still has a message from before a log position: a kill fell into its deletion."""
        for queue_id in list(self._known.get(topic, ())):
            queue = self.find(topic, queue_id)
            if queue is not None and queue.min < queue.next and queue.unit(queue.min)[0] < position:
                self.delete_topic(topic)
                return

    def expire(self, min_position: int, step_count: int) -> Iterator[None]:
        """After the log lost what lies before `min_position`: queue files go, oldest offsets rise.

        `step_count` queues at a time; until its turn a queue's oldest units lead to nothing, and reads pass over them.
        """
        self.min_position = min_position
        known = [(topic, queue_id) for topic, ids in self._known.items() for queue_id in ids]
        for done, (topic, queue_id) in enumerate(known, 1):
            queue = self.find(topic, queue_id)
            if queue is not None:
                queue.expire(min_position)
            if done % step_count == 0:
                yield

    def release(self) -> None:
        """Lets every map go."""
        for queue in self.loaded():
            queue.release()

    def flush(self) -> None:
        """Puts every unit written so far on the disk. Raises OSError."""
        for queue in self.loaded():
            queue.flush()

    def _make(self, topic: str, queue_id: int) -> Queue:
        settings = self._settings
        delay_ms = None
        if topic == SCHEDULE_TOPIC:
            # A level that is not configured waits a second (rule: ScheduleMessageService, 5.x).
            delays_ms = settings.delay_ms
            delay_ms = delays_ms[queue_id] if 0 <= queue_id < len(delays_ms) else 1000
        kind, ext = Queue, None
        directory, size, option = self.directory, settings.queue_file_units * UNIT_BYTES, "mappedFileSizeConsumeQueue"
        if topic.encode() in self.batch_topics:
            kind = BatchQueue
            directory, option = self._batch_directory, "mapperFileSizeBatchConsumeQueue"
            size = settings.batch_queue_file_units * BATCH_UNIT_BYTES
        elif self._has_ext:
            where = f"{self._ext_directory}/{topic}/{queue_id}"
            segments = Segments(
                where, settings.queue_ext_file_bytes, self.maps, "mappedFileSizeConsumeQueueExt", scattered=True
            )
            ext = QueueExt(segments, writes=settings.queue_ext)
        segments = Segments(f"{directory}/{topic}/{queue_id}", size, self.maps, option, scattered=True)
        return kind(
            topic,
            queue_id,
            segments,
            self._active,
            self.keys_of(topic),
            delay_ms,
            rare=settings.append_record_crc,
            ext=ext,
        )

    def _enter(self, queue: Queue) -> None:
        queue.counted = queue.next
        self._by_name[queue.name, queue.queue_id] = queue
        self.by_bytes[queue.topic, queue.queue_id] = queue


def _listed(directory: str) -> Iterator[tuple[str, set[int]]]:
    """Topics and queue ids that have a folder."""
    try:
        topics = os.listdir(directory)
    except FileNotFoundError:
        return
    for topic in topics:
        try:
            names = os.listdir(f"{directory}/{topic}")
        except NotADirectoryError:
            continue
        ids = {int(name) for name in names if name.isascii() and name.isdigit()}
        if ids:
            yield topic, ids
