"""The consume queues: per topic and queue id a row of 20-byte units (log position, size, tags code).

Rule: unit n is the message with queue offset n; only this file writes units (`Store.append` by `map` and `at`).
"""

from __future__ import annotations

import os
import shutil
import struct
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from functools import cache

import numpy as np

from rocketspark.errors import StoreError
from rocketspark.store.files import failure
from rocketspark.store.key_index import TopicKeys
from rocketspark.store.segments import Maps, Segments

UNIT = struct.Struct(">qiq")
UNIT_BYTES = UNIT.size
UNIT_TYPE = np.dtype([("position", ">i8"), ("size", ">i4"), ("code", ">i8")])
GAP_SIZE = 0x7FFFFFFF
RESERVE_STEP_BYTES = 64 << 10
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_NO_MAP = memoryview(bytearray())
_SIZE = struct.Struct(">i")


@cache
def places(count: int) -> struct.Struct:
    """Position and size of `count` units in a row, without their tags codes."""
    return struct.Struct(">" + "qi8x" * count)


class Queue:
    """One consume queue.

    Fields of the hot path: `map` the file written to, `at` the byte of the next unit in it, `limit` the byte up
    to which there are blocks (0 while the file is not mapped), `next` the queue offset of the next message.
    """

    __slots__ = (
        "_active",
        "at",
        "counted",
        "delay_ms",
        "fixed_bytes",
        "flushed",
        "keys",
        "limit",
        "long_topic",
        "map",
        "min",
        "name",
        "next",
        "queue_id",
        "reserved",
        "segments",
        "start",
        "stored_bytes",
        "suffix",
        "topic",
    )

    def __init__(
        self, name: str, queue_id: int, segments: Segments, active: Active, keys: TopicKeys, delay_ms: int | None
    ) -> None:
        self.name = name
        self.topic = name.encode()
        self.queue_id = queue_id
        self.segments = segments
        self.keys = keys
        self.delay_ms = delay_ms
        self._active = active
        # Topic length and topic as they stand in a record after the body.
        length = len(self.topic)
        self.long_topic = length > 127
        self.suffix = length.to_bytes(1 if length <= 127 else 2, "big") + self.topic
        # Bytes of a record that are neither host, body nor properties.
        self.fixed_bytes = 72 + len(self.suffix) + 2
        self.map = _NO_MAP
        self.at = self.limit = self.reserved = self.start = 0
        self.next = self.min = 0
        self.flushed = 0
        # For the count of what was stored: up to which message, and bytes of records since.
        self.counted = 0
        self.stored_bytes = 0

    def load(self, below: int | None, min_position: int, *, cut: bool) -> None:
        """Finds the queue's end: the last unit that is written and lies before log position `below`.

        `cut`: what follows is looked through to the end and made zero, as after a power cut pages may be missing.
        """
        segments = self.segments
        segments.scan()
        end = segments.starts[0] if segments.starts else 0
        for start in reversed(segments.starts):
            count = self._written_units(segments.get(start).view, below)
            if count:
                end = start + count * UNIT_BYTES
                break
        if segments.starts and (cut or self._anything_at(end)):
            segments.cut(end)
        self._set_end(end)
        self.flushed = end
        self.find_min(min_position)

    def _set_end(self, end: int) -> None:
        self.next = end // UNIT_BYTES
        self.start = end - end % self.segments.size
        if end and end == self.start and self.start not in self.segments.starts:
            self.start -= self.segments.size
        self.at = self.reserved = end - self.start
        self.limit = 0
        self.map = _NO_MAP

    def _written_units(self, view: memoryview, below: int | None) -> int:
        low, high = 0, self.segments.size // UNIT_BYTES
        while low < high:
            middle = (low + high) // 2
            position, size, _ = UNIT.unpack_from(view, middle * UNIT_BYTES)
            if size > 0 and (below is None or position < below):
                low = middle + 1
            else:
                high = middle
        return low

    def _anything_at(self, end: int) -> bool:
        start = end - end % self.segments.size
        if start not in self.segments.starts:
            return False
        return bool(UNIT.unpack_from(self.segments.get(start).view, end - start)[1])

    def find_min(self, min_position: int) -> None:
        """Sets `min`: the first unit that is no gap and lies at or after log position `min_position`."""
        low = self.segments.starts[0] // UNIT_BYTES if self.segments.starts else self.next
        high = self.next
        while low < high:
            middle = (low + high) // 2
            position, size, _ = self.unit(middle)
            if size == GAP_SIZE or position < min_position:
                low = middle + 1
            else:
                high = middle
                if middle == low:
                    break
        self.min = low

    def expire(self, min_position: int) -> None:
        """Removes the files whose units all lie before log position `min_position`, but never the last."""
        segments = self.segments
        while len(segments.starts) > 1 and segments.starts[0] < self.start:
            last = segments.starts[0] + segments.size - UNIT_BYTES
            if self.unit(last // UNIT_BYTES)[0] >= min_position:
                break
            segments.remove(segments.starts[0])
        self.find_min(min_position)

    def make_room(self) -> int:
        """Maps the file for the next unit, a new one if need be, with blocks for some; returns `at`.

        Raises StoreFull or StoreUnwritable.
        """
        segments = self.segments
        if self.at >= segments.size or not segments.starts:
            start = self.start + (self.at if self.at >= segments.size else 0)
            if start in segments.starts:
                reserved = segments.reserve(start, RESERVE_STEP_BYTES) - start
            else:
                segments.add(start, RESERVE_STEP_BYTES)
                reserved = min(RESERVE_STEP_BYTES, segments.size)
            self.start, self.at, self.reserved = start, 0, reserved
            self.limit = 0
        elif self.at >= self.reserved:
            self.reserved = segments.reserve(self.start + self.at, RESERVE_STEP_BYTES) - self.start
        if self.limit == 0:
            self.map = segments.get(self.start).view
            self._active.enter(self)
        # A limit is a whole number of units, so that none is begun that has no block to end in.
        self.limit = self.reserved - self.reserved % UNIT_BYTES
        if self.limit <= self.at:
            self.reserved = segments.reserve(self.start + self.at, RESERVE_STEP_BYTES) - self.start
            self.limit = self.reserved - self.reserved % UNIT_BYTES
        return self.at

    def make_room_for(self, count: int) -> None:
        """Room for `count` units in a row, so that a batch is written whole or not at all."""
        if self.at >= self.limit:
            self.make_room()
        end = self.at + count * UNIT_BYTES
        size = self.segments.size
        if end > self.limit and self.reserved < size:
            self.reserved = self.segments.reserve(self.start + self.at, min(end, size) - self.at) - self.start
            self.limit = self.reserved - self.reserved % UNIT_BYTES
        following = self.start + size
        while following < self.start + end:
            if following not in self.segments.starts:
                self.segments.add(following, RESERVE_STEP_BYTES)
            self.segments.reserve(following, min(size, self.start + end - following))
            following += size

    def release(self) -> None:
        """Lets the map go; the next append maps it again."""
        self.limit = 0
        self.map = _NO_MAP

    def put(self, position: int, size: int, code: int) -> None:
        """Writes the next unit."""
        at = self.at
        if at >= self.limit:
            at = self.make_room()
        UNIT.pack_into(self.map, at, position, size, code)
        self.at = at + UNIT_BYTES
        self.next += 1

    def start_at(self, offset: int) -> None:
        """Makes an empty queue begin at `offset`; the units before it in its file become gaps."""
        assert not self.segments.starts
        size = self.segments.size
        self.start = offset * UNIT_BYTES - offset * UNIT_BYTES % size
        self.at = self.reserved = self.limit = 0
        self.next = self.start // UNIT_BYTES
        self.flushed = self.start
        self.fill_to(offset)
        self.min = offset

    def fill_to(self, offset: int) -> None:
        """Gaps up to `offset`."""
        while self.next < offset:
            self.put(0, GAP_SIZE, 0)

    def cut(self, offset: int) -> None:
        """Removes the units from `offset` on."""
        end = offset * UNIT_BYTES
        if self.segments.starts and end < self.segments.starts[0]:
            for start in self.segments.starts[::-1]:
                self.segments.remove(start)
            self.start_at(offset)
            return
        self.segments.cut(end)
        self._set_end(end)
        self.min = min(self.min, offset)
        self.flushed = min(self.flushed, end)

    def unit(self, offset: int) -> tuple[int, int, int]:
        """(log position, record size, tags code) of one message; the offset must be in the queue."""
        byte = offset * UNIT_BYTES
        start = byte - byte % self.segments.size
        view = self.map if start == self.start and self.limit else self.segments.get(start).view
        return UNIT.unpack_from(view, byte - start)

    def place(self, offset: int, count: int) -> tuple[memoryview, int, int]:
        """(view of a file, byte of a message's unit in it, how many of `count` units from it on the file holds).

        The messages [offset, offset + count) must be in the queue.
        """
        size = self.segments.size
        at = offset * UNIT_BYTES % size
        start = offset * UNIT_BYTES - at
        view = self.map if start == self.start and self.limit else self.segments.get(start).view
        end = at + count * UNIT_BYTES
        return view, at, count if end <= size else (size - at) // UNIT_BYTES

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """The units of messages [offset, offset + count), which must be in the queue."""
        while count:
            view, at, here = self.place(offset, count)
            yield from UNIT.iter_unpack(view[at : at + here * UNIT_BYTES])
            offset += here
            count -= here

    def flush(self) -> None:
        """Puts the units written so far on the disk. Safe beside appends. Raises OSError."""
        segments = self.segments
        end = self.next * UNIT_BYTES
        if self.flushed >= end:
            return
        for start in list(segments.starts):
            if start + segments.size > self.flushed and start < end:
                try:
                    segments.files.sync_file(segments.path(start))
                except FileNotFoundError:
                    pass  # The topic was deleted meanwhile.
        self.flushed = end


class Active:
    """Which queues hold their file mapped for writing: at most `count_max`, first in, first out."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._queues: deque[Queue] = deque()

    def enter(self, queue: Queue) -> None:
        self._queues.append(queue)
        while len(self._queues) > self.count_max:
            oldest = self._queues.popleft()
            if oldest is not queue:
                oldest.release()


class QueueIndex:
    """All consume queues of a store; each is read from disk when first asked for."""

    def __init__(self, directory: str, file_units: int, maps: Maps, delay_ms: tuple[int, ...], active_max: int) -> None:
        self.directory = directory
        self.file_bytes = file_units * UNIT_BYTES
        self.maps = maps
        self.delay_ms = delay_ms
        self.by_bytes: dict[tuple[bytes, int], Queue] = {}
        self.min_position = 0
        # Topics with batch consume queues (wire.md 4.5), which are not written here: their records get no unit.
        self.batch_topics: set[bytes] = set()
        self._active = Active(active_max)
        self._by_name: dict[tuple[str, int], Queue] = {}
        self._known: dict[str, set[int]] = {}
        self._keys: dict[str, TopicKeys] = {}

    def scan(self) -> None:
        """Reads which queues there are, not what is in them."""
        try:
            batch_directory = f"{os.path.dirname(self.directory)}/batchconsumequeue"
            self.batch_topics.update(topic.encode() for topic in os.listdir(batch_directory))
        except FileNotFoundError:
            pass
        try:
            topics = os.listdir(self.directory)
        except FileNotFoundError:
            return
        for topic in topics:
            try:
                names = os.listdir(f"{self.directory}/{topic}")
            except NotADirectoryError:
                continue
            ids = {int(name) for name in names if name.isascii() and name.isdigit()}
            if ids:
                if not self._known:
                    # One looked at is enough to notice files of another size than configured.
                    self._make(topic, min(ids)).segments.scan()
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
        for queue_id in self._known.pop(topic, ()):
            queue = self._by_name.pop((topic, queue_id), None)
            self.by_bytes.pop((topic.encode(), queue_id), None)
            if queue is not None:
                queue.release()
                for start in queue.segments.starts:
                    self.maps.drop(queue.segments, start)
        try:
            shutil.rmtree(f"{self.directory}/{topic}")
        except FileNotFoundError:
            pass
        except OSError as e:
            raise failure(e, "remove", f"{self.directory}/{topic}") from e

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
        delay_ms = None
        if topic == SCHEDULE_TOPIC:
            # A level that is not configured waits a second (rule: ScheduleMessageService, 5.x).
            delay_ms = self.delay_ms[queue_id] if 0 <= queue_id < len(self.delay_ms) else 1000
        segments = Segments(
            f"{self.directory}/{topic}/{queue_id}",
            self.file_bytes,
            self.maps,
            "mappedFileSizeConsumeQueue",
            scattered=True,
        )
        return Queue(topic, queue_id, segments, self._active, self.keys_of(topic), delay_ms)

    def _enter(self, queue: Queue) -> None:
        queue.counted = queue.next
        self._by_name[queue.name, queue.queue_id] = queue
        self.by_bytes[queue.topic, queue.queue_id] = queue
