"""A broker's second tier: which queues it has, what is appended, what is too old.

Rule: one thread writes, any thread reads; each call may last as long as the store of segments takes. The event loop
calls only `low`, `next` and `first_time_ms`, which look at memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from rocketspark.errors import StoreUnwritable
from rocketspark.model.text import shown
from rocketspark.protocol.message import properties, record_layout, sysflags
from rocketspark.store.commitlog.dispatch import enters_index
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.index.key_hashes import key_hash
from rocketspark.store.tiered.attempts import Attempts
from rocketspark.store.tiered.flat_file import FlatFile
from rocketspark.store.tiered.key_files import KeyFiles, NewKey
from rocketspark.store.tiered.layout import (
    INDEX_TOPIC,
    METADATA_FILE,
    NO_TIME,
    Metadata,
    QueueEntry,
    QueueName,
    SegmentEntry,
    SegmentKind,
    TopicEntry,
    base_of,
    broker_folder,
    decode_metadata,
    encode_metadata,
    first_offset,
    queue_path,
    record_size,
)
from rocketspark.store.tiered.queue_tier import NewUnit, QueueTier
from rocketspark.store.tiered.segments import FAILURES_MAX, ReadOnlySegments, SegmentStore

_log = logging.getLogger("rocketspark.store")
HOUR_MS = 3_600_000
_UNIQUE_ID, _KEYS = properties.UNIQUE_ID.encode(), properties.KEYS.encode()
_KINDS = {kind.name: kind for kind in SegmentKind}
Queue = tuple[str, int]
# Of a queue, by kind and by where they begin, the sizes of segments that were found.
Kinds = dict[SegmentKind, dict[int, int]]


class TierSettings(NamedTuple):
    """How a tier is laid out. `root`: the store's folder; `*_bytes`: of one segment; `roll_ms`: how old a segment of
    records of at least `roll_bytes` may be when it is closed.
    """

    root: str
    cluster: str
    broker: str
    log_bytes: int = 1 << 30
    queue_bytes: int = 100 << 20
    roll_ms: int = 24 * HOUR_MS
    roll_bytes: int = 16 << 20
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    index_enabled: bool = True


class Tier:
    """The second tier of one broker's store. `is_read_only`: another broker writes to it, and nothing is changed; of
    the key index only what lies in the tier is known then.
    """

    def __init__(
        self,
        settings: TierSettings,
        segments: SegmentStore,
        files: OsFiles | None = None,
        *,
        is_read_only: bool = False,
    ) -> None:
        self._settings = settings
        self._segments = ReadOnlySegments(segments) if is_read_only else segments
        self._files = files or OsFiles()
        self.is_read_only = is_read_only
        self._path = f"{settings.root}/config/{METADATA_FILE}"
        self._table = Metadata()
        self.queues: dict[Queue, QueueTier] = {}
        # Queues of which it is not known what the tier has, as they could not be read.
        self.unread: dict[Queue, Kinds] = {}
        # Where segments of records without units begin: of a first upload, or a removal, that was not finished.
        self._unfinished: dict[Queue, list[int]] = {}
        index = self._flat(queue_path(settings.broker, INDEX_TOPIC, 0), SegmentKind.INDEX, NO_TIME)
        self.keys = KeyFiles(settings.root, index, settings.index_slots, settings.index_entries, self._files)
        self._expiring = Attempts()
        # Since the start: by topic the messages that were appended, and the bytes of all.
        self.appended: dict[str, int] = {}
        self.appended_bytes = 0

    def _flat(self, path: str, kind: SegmentKind, bytes_max: int) -> FlatFile:
        return FlatFile(self._segments, self._settings.cluster, path, kind, bytes_max)

    def _queue(self, topic: str, queue_id: int) -> QueueTier:
        s = self._settings
        path = queue_path(s.broker, topic, queue_id)
        log = self._flat(path, SegmentKind.COMMIT_LOG, s.log_bytes)
        return QueueTier(topic, queue_id, log, self._flat(path, SegmentKind.CONSUME_QUEUE, s.queue_bytes))

    # -- opening and closing

    def open(self, before: Tier | None = None) -> None:
        """Find what the tier has: its segments, and what the table says of them; `before`: what was found before, which
        says it instead.

        Raises StoreUnwritable if the tier cannot be read, ConfigError if the table cannot.
        """
        s = self._settings
        if before is not None:
            self._table = before._metadata(0)
        else:
            text = config_files.read(self._path)
            self._table = decode_metadata(text, self._path) if text else Metadata()
        found: dict[Queue, Kinds] = {}
        prefix = f"{broker_folder(s.cluster, s.broker)}/"
        for key, size in self._segments.sizes(prefix):
            parts = key[len(prefix) :].split("/")
            base = base_of(parts[-1])
            if len(parts) != 4 or base is None or parts[2] not in _KINDS or not parts[1].isdecimal():
                continue
            kinds = found.setdefault((parts[0], int(parts[1])), {})
            kinds.setdefault(_KINDS[parts[2]], {})[base] = size
        failed: StoreUnwritable | None = None
        for (topic, queue_id), kinds in found.items():
            if topic == INDEX_TOPIC:
                self._take_over(self.keys.segments, kinds)
                self.keys.check_segments(is_read_only=self.is_read_only)
                continue
            try:
                queue = self._found(topic, queue_id, kinds)
            except StoreUnwritable as e:
                failed = e
                self.unread[topic, queue_id] = kinds
                if len(self.unread) >= FAILURES_MAX:
                    break
                continue
            if queue.begun:
                self.queues[topic, queue_id] = queue
        if failed is not None and (len(self.unread) >= FAILURES_MAX or not self.queues):
            # The tier is away.
            raise failed
        if s.index_enabled and not self.is_read_only:
            self.keys.open()

    def _found(self, topic: str, queue_id: int, kinds: Kinds) -> QueueTier:
        queue = self._queue(topic, queue_id)
        self._take_over(queue.log, kinds)
        self._take_over(queue.units, kinds)
        if queue.begun:
            queue.recover(is_read_only=self.is_read_only)
            self._mend_times(queue)
        else:
            self._unfinished[topic, queue_id] = list(kinds.get(SegmentKind.COMMIT_LOG, ()))
        return queue

    def found_again(self, topic: str, queue_id: int) -> QueueTier:
        """Look again at a queue that is `unread`, and leave it there. Raises StoreUnwritable."""
        return self._found(topic, queue_id, self.unread[topic, queue_id])

    def set_aside(self, queue: QueueTier) -> None:
        """Let a queue be `unread`, as it cannot be read now."""
        flats = (queue.log, queue.units)
        self.unread[queue.topic, queue.queue_id] = {
            flat.kind: {entry.base_offset: entry.size for entry in flat.entries} for flat in flats
        }
        self.queues.pop((queue.topic, queue.queue_id), None)

    def _take_over(self, flat: FlatFile, kinds: Kinds) -> None:
        found, known = dict(kinds.get(flat.kind, {})), self._table.segments(flat.kind).get(flat.path, {})
        for base, entry in known.items():
            if found.get(base, 0) < entry.size and (size := self._segments.probe(flat.key(base), found.get(base, 0))):
                found[base] = size
        flat.take_over(found, known)

    def _mend_times(self, queue: QueueTier) -> None:
        """Find the times of segments that the table did not have: those of the first message of each and the next."""
        if all(e.begin_ms != NO_TIME for e in (*queue.log.entries, *queue.units.entries) if e.size):
            return
        last_ms = queue.time_at(queue.next - 1) if queue.next > queue.low else 0
        timed: list[SegmentEntry] = []
        following_ms = last_ms
        for entry in reversed(queue.log.entries):
            if entry.size and entry.begin_ms == NO_TIME:
                begin_ms = self._time_in_log(queue, entry.base_offset)
                entry = msgspec.structs.replace(entry, begin_ms=begin_ms, end_ms=following_ms)
            following_ms = entry.begin_ms if entry.size else following_ms
            timed.append(entry)
        queue.log.entries = tuple(reversed(timed))
        queue.units.entries = tuple(
            msgspec.structs.replace(e, begin_ms=queue.time_at(max(e.base_offset // 20, queue.low)), end_ms=last_ms)
            if e.size and e.begin_ms == NO_TIME
            else e
            for e in queue.units.entries
        )

    @staticmethod
    def _time_in_log(queue: QueueTier, base: int) -> int:
        return record_layout.store_time_of(queue.log.read(base, record_layout.RECORD_BYTES_MIN + 24))

    def save(self, now_ms: int) -> None:
        """Write the table, and put the key index on the disk. Raises StoreFull, StoreUnwritable."""
        self.keys.sync()
        table = self._metadata(now_ms)
        config_files.write(self._path, encode_metadata(table), self._files)
        self._table = table

    def _metadata(self, now_ms: int) -> Metadata:
        s, before = self._settings, self._table
        table = Metadata(topic_serial_number=before.topic_serial_number)
        table.topic_metadata_table = dict(before.topic_metadata_table)
        for (topic, queue_id), queue in self.queues.items():
            self._topic_id(topic, now_ms)
            table.commit_log_file_segment_table[queue.log.path] = dict(queue.log.table())
            table.consume_queue_file_segment_table[queue.units.path] = dict(queue.units.table())
            name = QueueName(s.broker, queue_id, topic)
            entry = QueueEntry(queue=name, min_offset=queue.low, max_offset=queue.next, updated_ms=now_ms)
            table.queue_metadata_table.setdefault(topic, {})[queue_id] = entry
        for topic, queue_id in self.unread:
            path = queue_path(s.broker, topic, queue_id)
            for kind in (SegmentKind.COMMIT_LOG, SegmentKind.CONSUME_QUEUE):
                table.segments(kind)[path] = before.segments(kind).get(path, {})
        if self.keys.segments.entries:
            table.index_file_segment_table[self.keys.segments.path] = dict(self.keys.segments.table())
        table.topic_metadata_table |= before.topic_metadata_table
        table.topic_serial_number = before.topic_serial_number
        return table

    def close(self) -> None:
        """Give back what it has open."""
        self.keys.close()

    # -- what the event loop asks

    def find(self, topic: str, queue_id: int) -> QueueTier | None:
        """Return a queue; None if the tier has nothing of it."""
        return self.queues.get((topic, queue_id))

    def low(self, topic: str, queue_id: int, low: int) -> int:
        """Return the oldest offset of a queue: the tier's, or `low`, the store's, if the tier does not reach it."""
        queue = self.queues.get((topic, queue_id))
        return queue.low if queue is not None and queue.low < low <= queue.high else low

    def has(self, topic: str, queue_id: int, offset: int) -> bool:
        """Tell whether it has a message."""
        queue = self.queues.get((topic, queue_id))
        return queue is not None and queue.low <= offset < queue.high

    def time_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """Return about when a message was stored: when the first of its segment was; -1 if the tier does not have
        it.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None or not queue.low <= offset < queue.next:
            return -1
        times = [e.begin_ms for e in queue.units.entries if e.base_offset <= offset * 20 and e.begin_ms != NO_TIME]
        return max(times[-1], queue.first_time_ms()) if times else queue.first_time_ms()

    # -- writing

    def begin(self, topic: str, queue_id: int, offset: int, made_at: int | None, now_ms: int) -> QueueTier:
        """Begin a queue, which is not `unread`, with the message at an offset."""
        assert (topic, queue_id) not in self.unread
        queue = self._queue(topic, queue_id)
        unfinished = self._unfinished.pop((topic, queue_id), ())
        queue.begin_at(offset, now_ms, unfinished)
        queue.compared, queue.made_at = True, made_at
        self.queues[topic, queue_id] = queue
        return queue

    def append(self, queue: QueueTier, messages: Sequence[NewUnit], now_ms: int) -> None:
        """Append messages of a queue. Raises StoreFull, StoreUnwritable; nothing is appended then."""
        s = self._settings
        first = queue.log.entries[-1]
        if first.size >= s.roll_bytes and first.begin_ms + s.roll_ms < now_ms:
            queue.log.roll(now_ms)
        places = queue.append(messages, now_ms)
        if s.index_enabled:
            try:
                self.keys.put(self._keys_of(queue, messages, places, now_ms))
            except BaseException:
                # Without units they are none: the next attempt writes over them.
                queue.log.cut(places[0][0])
                raise
        queue.append_units(messages, places, now_ms)
        self.appended[queue.topic] = self.appended.get(queue.topic, 0) + sum(m.messages for m in messages)
        self.appended_bytes += sum(len(m.record) for m in messages if m.record is not None)

    def _keys_of(
        self, queue: QueueTier, messages: Sequence[NewUnit], places: list[tuple[int, int]], now_ms: int
    ) -> list[NewKey]:
        topic_id, prefix, found = self._topic_id(queue.topic, now_ms), f"{queue.topic}#", []
        for message, (position, size) in zip(messages, places, strict=True):
            stored = message.record
            if stored is None or not enters_index(record_layout.sys_flag_of(stored)):
                continue
            pairs = record_layout.properties_of(stored)
            words = {properties.find(pairs, _UNIQUE_ID) or b"", *(properties.find(pairs, _KEYS) or b"").split(b" ")}
            for word in words - {b""}:
                hashed = key_hash(prefix + word.decode("utf-8", "replace"))
                found.append(NewKey(hashed, topic_id, queue.queue_id, position, size, message.time_ms))
        return found

    def _topic_id(self, topic: str, now_ms: int) -> int:
        entry = self._table.topic_metadata_table.get(topic)
        if entry is None:
            self._table.topic_serial_number += 1
            entry = TopicEntry(topic_id=self._table.topic_serial_number, topic=topic, updated_ms=now_ms)
            self._table.topic_metadata_table[topic] = entry
        return entry.topic_id

    def upload_keys(self, now_ms: int) -> bool:
        """Put full files of the key index into the tier; tell whether there was one. Raises StoreUnwritable."""
        return self._settings.index_enabled and self.keys.upload(now_ms)

    def expire(
        self, now_ms: int, reserved_hours: int, reserved_ms: Callable[[str], int | None] = lambda topic: 0
    ) -> bool:
        """Remove segments that are too old; tell whether any went. Raises StoreUnwritable, once those of others went.

        `reserved_ms`: returns a topic's own time, 0 where it has none, None for a topic of which nothing goes; one in
        the table comes next, then `reserved_hours`.
        """
        longest_ms, before = reserved_hours * HOUR_MS, self._starts()
        self._expiring.begin()
        for topic, queue_id in self._expiring.order(list(self.queues)):
            kept_ms = reserved_ms(topic)
            if kept_ms is None:
                continue
            if not kept_ms:
                entry = self._table.topic_metadata_table.get(topic)
                hours = entry.reserved_hours if entry is not None and entry.reserved_hours > 0 else reserved_hours
                kept_ms = hours * HOUR_MS
            longest_ms = max(longest_ms, kept_ms)
            if not self._expiring.is_over:
                with self._expiring.at((topic, queue_id)):
                    self.queues[topic, queue_id].expire(now_ms - kept_ms)
        with self._expiring.at((INDEX_TOPIC, 0)):
            self.keys.segments.expire(now_ms - longest_ms)
        if self._expiring.errors:
            raise self._expiring.errors[0]
        return self._starts() != before

    def _starts(self) -> list[tuple[int, int]]:
        return [(self.keys.segments.start, 0), *((q.log.start, q.units.start) for q in self.queues.values())]

    def drop(self, topic: str, queue_id: int) -> None:
        """Remove a queue from the tier. Raises StoreUnwritable; a later call goes on."""
        queue = self.queues[topic, queue_id]
        queue.destroy()
        del self.queues[topic, queue_id]
        if not any(name == topic for name, _ in self.queues):
            self._table.topic_metadata_table.pop(topic, None)
        _log.info("tier: queue %d of %s is removed", queue_id, shown(topic))

    # -- reading by key

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, kind: str = "K") -> list[bytes]:
        """Return records with a key, newest first, stored in [begin_ms, end_ms]. `kind`: "K" a word of KEYS or the
        unique id, "U" the unique id. Raises StoreUnwritable.
        """
        if kind == "T" or not self._settings.index_enabled:
            return []
        found: dict[tuple[int, int], bytes] = {}
        wanted = key.encode()
        for place in self.keys.find(key_hash(f"{topic}#{key}"), begin_ms, end_ms):
            at = place.queue_id, place.position
            queue = self.queues.get((topic, place.queue_id))
            if queue is None or at in found or len(found) >= count_max:
                continue
            if not queue.log.start <= place.position <= queue.log.end - place.size or place.size <= 0:
                continue
            stored = queue.log.read(place.position, place.size)
            # An entry of another topic may have this hash, or be of an upload that was made again elsewhere.
            if record_size(stored) != place.size or not queue.leads_to(place.position, first_offset(stored)):
                continue
            if not queue.is_right(stored):
                continue
            if _has_key(stored, wanted, kind) and begin_ms <= record_layout.store_time_of(stored) <= end_ms:
                found[at] = stored
        return sorted(found.values(), key=record_layout.store_time_of, reverse=True)


def _has_key(stored: bytes, wanted: bytes, kind: str) -> bool:
    if record_layout.sys_flag_of(stored) & sysflags.TRANSACTION_PREPARED:
        return False
    pairs = record_layout.properties_of(memoryview(stored))
    if properties.find(pairs, _UNIQUE_ID) == wanted:
        return True
    return kind != "U" and wanted in (properties.find(pairs, _KEYS) or b"").split(b" ")
