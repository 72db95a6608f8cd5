"""The message store: log, consume queues and key index behind one append and one read.

Rule: it never calls up, knows no sockets and no event loop; time and files are handed in.
"""

from __future__ import annotations

import os
import resource
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from rocketspark.errors import MessageIllegal, StateError, StoreUnwritable
from rocketspark.model.java import string_hash
from rocketspark.protocol import properties as props
from rocketspark.protocol import record, sysflags
from rocketspark.store import checkpoint, recovery
from rocketspark.store.clock import Clock, SystemClock
from rocketspark.store.files import OsFiles, failure
from rocketspark.store.key_index import PENDING_MAX, KeyIndex
from rocketspark.store.lock import DirectoryLock
from rocketspark.store.log import Log, store_time_of
from rocketspark.store.queue_index import GAP_SIZE, UNIT, UNIT_BYTES, Queue, QueueIndex
from rocketspark.store.segments import Maps

DELAY_LEVELS_MS = (
    *(1_000, 5_000, 10_000, 30_000),
    *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
# Tags codes at or below this are addresses in a consume queue extension, not hashes (wire.md 5).
_EXT_ADDRESS_MAX = -2147483649
_SCAN_BYTES_MIN = 16000
_CRC_MASK = record.CRC_MASK
_PACK_UNIT = UNIT.pack_into
_PACK_V4 = record.FIXED_V4.pack_into
_TAGS = props.TAGS.encode()
_KEYS = props.KEYS.encode()
_UNIQUE_ID = props.UNIQUE_ID.encode()
# Lengths of properties as they stand in a record; a table is half the cost of packing.
_LENGTH2 = [n.to_bytes(2, "big") for n in range(2048)]


class StoreSettings(msgspec.Struct, kw_only=True):
    """Where and in which sizes. The defaults are RocketMQ's; sizes must not change while there are files."""

    root: str
    commit_log: str | None = None
    log_file_bytes: int = 1 << 30
    queue_file_units: int = 300_000
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    index_enabled: bool = True
    message_bytes_max: int = 4 << 20
    delay_ms: tuple[int, ...] = DELAY_LEVELS_MS


class Found(Enum):
    """What a read came to; the names are RocketMQ's get statuses put plainly."""

    FOUND = "found"
    NO_MATCHED = "no message matched"
    OFFSET_TOO_BIG = "offset beyond the end"
    OFFSET_TOO_SMALL = "offset before the oldest"
    AT_END = "offset is the next to be written"
    EMPTY = "empty queue"
    NO_QUEUE = "no such queue"


class Read(NamedTuple):
    """The result of a read. `records`: slices of the log, each one or more whole records; `count` of messages."""

    status: Found
    records: list[memoryview]
    count: int
    next_offset: int
    min_offset: int
    max_offset: int


class BatchMessage(NamedTuple):
    """One message for `append_batch`; see `Store.append` for the fields."""

    body: bytes | memoryview
    properties: bytes
    tags_code: int = 0
    unique_id: bytes | None = None
    keys: bytes | None = None
    tags: bytes | None = None
    flag: int = 0


class Store:
    """A store directory, opened by one process at a time."""

    def __init__(
        self,
        settings: StoreSettings,
        *,
        store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f",
        clock: Clock | None = None,
        files: OsFiles | None = None,
    ) -> None:
        """`store_host`: packed ip (4 or 16 bytes) and i4 port, written into every record."""
        self.settings = settings
        self.store_host = store_host
        self._clock = clock or SystemClock()
        self._files = files or OsFiles()
        self._opened = False
        self._closed = False

    # -- opening and closing

    def open(self) -> None:
        """Takes the directory and recovers it.

        Raises StoreLocked if another process has it, StoreUnwritable or StoreFull if it cannot be written,
        ConfigError if its files are of other sizes than the settings say.
        """
        s = self.settings
        root = s.root
        for path in (root, f"{root}/config", s.commit_log or f"{root}/commitlog", f"{root}/consumequeue"):
            try:
                self._files.make_directory(path)
            except OSError as e:
                raise failure(e, "create the directory", path) from e
        self._lock = DirectoryLock(f"{root}/lock")
        self._lock.acquire()
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        self._opened = True

    def _open(self) -> None:
        s = self.settings
        # A Python map keeps a file descriptor; stay well within what the process may have.
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        share = max(32, min(4096, descriptors // 4 if descriptors > 0 else 4096))
        maps = Maps(self._files, share)
        self.log = Log(s.commit_log or f"{s.root}/commitlog", s.log_file_bytes, maps)
        self.queue_index = QueueIndex(f"{s.root}/consumequeue", s.queue_file_units, maps, s.delay_ms, share)
        self.key_index = (
            KeyIndex(f"{s.root}/index", s.index_slots, s.index_entries, maps, self._clock)
            if s.index_enabled
            else None
        )
        self._queues_by_bytes = self.queue_index.by_bytes
        self._pending = self.key_index.pending if self.key_index else None
        abort = f"{s.root}/abort"
        try:
            self.log.segments.list()
            self.queue_index.list()
            if self.key_index is not None:
                self.key_index.list()
            crashed = os.path.exists(abort)
            found = checkpoint.read(f"{s.root}/checkpoint")
            self.recovered = recovery.recover(
                self.log, self.queue_index, self.key_index, found, crashed=crashed
            )
            self._files.write_file(abort, str(os.getpid()).encode())
        except OSError as e:
            raise failure(e, "open the store in", s.root) from e
        self._last_time_ms = self.recovered.last_store_time_ms
        self._queues_position = min(found.queues_position, self.recovered.end)
        self._index_position = self._queues_position
        if self.recovered.cut or self.recovered.replayed:
            self.flush_log()
            self.flush_queues()
            self.flush_indexes()
            self.write_checkpoint()

    def close(self) -> None:
        """Puts everything on the disk and gives the directory back. A second call does nothing.

        Raises StoreUnwritable if the last flush failed; the next start then recovers.
        """
        if not self._opened or self._closed:
            return
        self._closed = True
        try:
            self.flush_log()
            self.flush_queues()
            self.flush_indexes()
            self.write_checkpoint()
            try:
                os.unlink(f"{self.settings.root}/abort")
            except FileNotFoundError:
                pass
            except OSError as e:
                raise failure(e, "remove", f"{self.settings.root}/abort") from e
        finally:
            self.log.limit = 0
            self.log.failed = self.log.failed or StoreUnwritable("the store is closed: open it again to write")
            self._lock.release()

    # -- writing

    def append(
        self,
        topic: bytes,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        tags_code: int,
        unique_id: bytes | None,
        keys: bytes | None,
        tags: bytes | None,
        now_ms: int,
        flag: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_position: int = 0,
    ) -> tuple[int, int, int]:
        """Stores one message: record, queue unit and index keys in this call.

        `tags_code`: Java hash of the tags, 0 without (for the schedule topic the delivery time is put in its
        place); `unique_id`, `keys`, `tags`: the property values as bytes, for the index. Hosts are packed.
        The store time is `now_ms`, or that of the record before if that is later.

        Returns (log position, queue offset, position after the record). Raises MessageIllegal if it is too
        large, StoreFull, StoreUnwritable; nothing is stored then.
        """
        queue = self._queues_by_bytes.get((topic, queue_id))
        if queue is None:
            queue = self.queue_index.make(topic, queue_id)
        if sys_flag & 4 or len(born_host) != 8 or len(self.store_host) != 8 or len(topic) > 127:
            return self._append_rare(
                queue, body, properties, tags_code, unique_id, keys, tags, now_ms, flag, sys_flag,
                born_time_ms, born_host, reconsume_times, prepared_position,
            )  # fmt: skip
        body_length = len(body)
        properties_length = len(properties)
        if body_length > self.settings.message_bytes_max or properties_length > 32767:
            raise self._too_large(queue, body_length, properties_length)
        pending = self._pending
        if pending is not None:
            if len(pending) >= PENDING_MAX:
                self.key_index.write_pending()  # type: ignore[union-attr]
        # Room first, in queue and log: what fails here has written nothing.
        at = queue.at
        if at >= queue.limit:
            at = queue.make_room()
        log = self.log
        size = queue.fixed_bytes + 16 + body_length + properties_length
        position = log.written
        end = position + size
        if end > log.limit:
            log.make_room(size)
            position = log.written
            end = position + size
        if now_ms < self._last_time_ms:
            now_ms = self._last_time_ms
        else:
            self._last_time_ms = now_ms
        queue_offset = queue.next
        start = position - log.base
        # Fixed part last, its body length last of all: a kill in between leaves no record that looks whole.
        log.map[start + 88 : start + size] = b"".join(
            (
                body,
                queue.suffix,
                _LENGTH2[properties_length]
                if properties_length < 2048
                else properties_length.to_bytes(2, "big"),
                properties,
            )
        )
        _PACK_V4(
            log.map, start, size, -626843481, zlib.crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset,
            position, sys_flag & ~48, born_time_ms, born_host, now_ms, self.store_host, reconsume_times,
            prepared_position, body_length,
        )  # fmt: skip
        if queue.delay_ms is not None:
            tags_code = now_ms + queue.delay_ms
        _PACK_UNIT(queue.map, at, position, size, tags_code)
        queue.at = at + 20
        queue.next = queue_offset + 1
        if pending is not None:
            pending.append((queue.keys, position, now_ms, unique_id, keys, tags))
        log.written = end
        return position, queue_offset, end

    def _append_rare(
        self,
        queue: Queue,
        body: bytes | memoryview,
        properties: bytes,
        tags_code: int,
        unique_id: bytes | None,
        keys: bytes | None,
        tags: bytes | None,
        now_ms: int,
        flag: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_position: int,
    ) -> tuple[int, int, int]:
        """`append` for IPv6 hosts, topics over 127 bytes, and records that enter no queue."""
        if len(body) > self.settings.message_bytes_max or len(properties) > 32767:
            raise self._too_large(queue, len(body), len(properties))
        pending = self._pending
        if self.key_index is not None and pending is not None and len(pending) >= PENDING_MAX:
            self.key_index.write_pending()
        # Prepared and rolled back records are in no queue (wire.md 4.3).
        queued = not sys_flag & sysflags.TRANSACTION_PREPARED
        if queued and queue.at >= queue.limit:
            queue.make_room()
        log = self.log
        host_bits = (len(born_host) == 20 and sysflags.BORN_HOST_V6) | (
            len(self.store_host) == 20 and sysflags.STORE_HOST_V6
        )
        size = record.record_bytes(len(body), len(queue.topic), len(properties), host_bits)
        if log.written + size > log.limit:
            log.make_room(size)
        position = log.written
        self._last_time_ms = now_ms = max(now_ms, self._last_time_ms)
        queue_offset = queue.next if queued else 0
        encoded = record.encode(
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            position=position,
            body=bytes(body),
            properties=properties,
            flag=flag,
            sys_flag=sys_flag,
            born_time_ms=born_time_ms,
            born_host=born_host,
            store_time_ms=now_ms,
            store_host=self.store_host,
            reconsume_times=reconsume_times,
            prepared_position=prepared_position,
        )
        start = position - log.base
        log.map[start + 4 : start + size] = encoded[4:]
        log.map[start : start + 4] = encoded[:4]
        if queued:
            if queue.delay_ms is not None:
                tags_code = now_ms + queue.delay_ms
            queue.put(position, size, tags_code)
        if pending is not None and sys_flag & sysflags.TRANSACTION_MASK != sysflags.TRANSACTION_ROLLBACK:
            pending.append((queue.keys, position, now_ms, unique_id, keys, tags))
        log.written = position + size
        return position, queue_offset, position + size

    def _too_large(self, queue: Queue, body_bytes: int, properties_bytes: int) -> MessageIllegal:
        what = (
            f"properties of {properties_bytes} bytes, at most 32767 are stored"
            if properties_bytes > 32767
            else f"a body of {body_bytes} bytes, at most {self.settings.message_bytes_max} (maxMessageSize) are stored"
        )
        return MessageIllegal(f"message for topic {queue.name!r} has {what}", topic=queue.name)

    def append_batch(
        self,
        topic: bytes,
        queue_id: int,
        messages: Sequence[BatchMessage],
        now_ms: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> list[tuple[int, int, int]]:
        """Stores messages one after another in one queue and one log file, or none of them.

        Returns (log position, queue offset, position after the record) of each. Raises as `append` does.
        """
        queue = self._queues_by_bytes.get((topic, queue_id)) or self.queue_index.make(topic, queue_id)
        host_bits = (len(born_host) == 20 and sysflags.BORN_HOST_V6) | (
            len(self.store_host) == 20 and sysflags.STORE_HOST_V6
        )
        total = 0
        for message in messages:
            body_length, properties_length = len(message.body), len(message.properties)
            if body_length > self.settings.message_bytes_max or properties_length > 32767:
                raise self._too_large(queue, body_length, properties_length)
            total += record.record_bytes(body_length, len(topic), properties_length, host_bits)
        if self.key_index is not None:
            self.key_index.write_pending()
        queue.make_room_for(len(messages))
        if self.log.written + total > self.log.limit:
            self.log.make_room(total)
        pending = self._pending
        appended = []
        for m in messages:
            appended.append(
                self.append(
                    topic, queue_id, m.body, m.properties, m.tags_code, m.unique_id, m.keys, m.tags, now_ms,
                    m.flag, sys_flag, born_time_ms, born_host, reconsume_times,
                )
            )  # fmt: skip
        del pending
        return appended

    # -- reading

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        bytes_max: int,
        codes: frozenset[int] | None = None,
        accepts: Callable[[memoryview], bool] | None = None,
    ) -> Read:
        """Messages of a queue from an offset on, as slices of the log.

        At most `count_max` messages and `bytes_max` bytes, but at least one message. `codes`: only tags codes
        in it; `accepts`: only records it is true for. A call looks at no more than max(800, count_max) units.
        """
        queue = self.queue_index.find(topic, queue_id)
        if queue is None:
            return Read(Found.NO_QUEUE, [], 0, 0, 0, 0)
        low, high = queue.min, queue.next
        if not low <= queue_offset < high:
            if high == 0 or low == high == queue_offset:
                return Read(Found.EMPTY, [], 0, high, low, high)
            if queue_offset < low:
                return Read(Found.OFFSET_TOO_SMALL, [], 0, low, low, high)
            status = Found.AT_END if queue_offset == high else Found.OFFSET_TOO_BIG
            return Read(status, [], 0, high, low, high)
        units_max = min(max(_SCAN_BYTES_MIN // UNIT_BYTES, count_max), high - queue_offset)
        if codes is None and accepts is None:
            units_max = min(units_max, count_max)
        count = total = 0
        runs: list[tuple[int, int]] = []
        run_start = run_end = -1
        next_offset = queue_offset
        file_bytes = self.log.file_bytes
        for position, size, code in queue.units(queue_offset, units_max):
            if codes is not None and code not in codes and not self._ext_matches(code, position, codes):
                next_offset += 1
                continue
            if count and (total + size > bytes_max or count >= count_max):
                break
            next_offset += 1
            if size == GAP_SIZE or (accepts is not None and not self._accepted(position, accepts)):
                continue
            if position == run_end and position % file_bytes:
                run_end = position + size
            else:
                if run_end > 0:
                    runs.append((run_start, run_end))
                run_start, run_end = position, position + size
            count += 1
            total += size
        if run_end > 0:
            runs.append((run_start, run_end))
        records = []
        for start, end in runs:
            found = self.log.slice(start, end - start)
            if found is not None:
                records.append(found)
        status = Found.FOUND if records else Found.NO_MATCHED
        return Read(status, records, count if records else 0, next_offset, low, high)

    def _accepted(self, position: int, accepts: Callable[[memoryview], bool]) -> bool:
        found = self.log.record_at(position)
        return found is not None and accepts(found)

    def _ext_matches(self, code: int, position: int, codes: frozenset[int]) -> bool:
        """Whether the tags match where the unit holds an address in the extension instead of their hash."""
        if code > _EXT_ADDRESS_MAX:
            return False
        found = self.log.record_at(position)
        if found is None:
            return False
        tags = props.find(record.decode(found, check_crc=False).properties, _TAGS)
        return (string_hash(tags.decode("utf-8", "replace")) if tags else 0) in codes

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(oldest offset, next offset) of a queue; (0, 0) if there is none."""
        queue = self.queue_index.find(topic, queue_id)
        return (0, 0) if queue is None else (queue.min, queue.next)

    def queues(self) -> Mapping[str, Collection[int]]:
        """Topics and the queue ids that have a consume queue."""
        return self.queue_index.queues()

    def offset_at_time(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        """The first message stored at or after `time_ms` (the next offset if none is); with `upper` the last one
        stored at or before it (the oldest offset if none is). Rule: wire.md 5.
        """
        queue = self.queue_index.find(topic, queue_id)
        if queue is None or queue.min == queue.next:
            return 0 if queue is None else queue.min
        low, high = queue.min, queue.next
        while low < high:
            middle = (low + high) // 2
            stored = self.log.store_time_at(queue.unit(middle)[0])
            if stored < time_ms or (upper and stored == time_ms):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.min) if upper else low

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time in ms of one message; -1 if it is not there."""
        queue = self.queue_index.find(topic, queue_id)
        if queue is None or not queue.min <= queue_offset < queue.next:
            return -1
        return self.log.store_time_at(queue.unit(queue_offset)[0])

    def record_at(self, position: int) -> memoryview | None:
        """The whole record at a log position; None if none begins there."""
        return self.log.record_at(position)

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, kind: str = "K"
    ) -> list[memoryview]:
        """Records with a key, newest first, stored within [begin_ms, end_ms].

        `kind`: "K" a word of KEYS or the unique id, "U" the unique id, "T" the tags.
        """
        if self.key_index is None:
            return []
        wanted = key.encode()
        topic_bytes = topic.encode()
        found: list[memoryview] = []
        seen: set[int] = set()
        for position in self.key_index.find(topic, key, begin_ms, end_ms, tag=kind == "T"):
            if len(found) >= count_max:
                break
            if position in seen:
                continue
            seen.add(position)
            view = self.log.record_at(position)
            if view is None or not begin_ms <= store_time_of(view) <= end_ms:
                continue
            message = record.decode(view, check_crc=False)
            if message.topic == topic_bytes and _has_key(message.properties, wanted, kind):
                found.append(view)
        return found

    def iterate(self, position: int) -> Iterator[record.Record]:
        """Every record from a record's position on, in log order."""
        while position < self.log.written:
            found = self.log.record_at(position)
            if found is None:
                following = position - position % self.log.file_bytes + self.log.file_bytes
                position = following
                continue
            decoded = record.decode(found)
            yield decoded
            position += decoded.size

    # -- upkeep

    @property
    def min_position(self) -> int:
        """The first log position that is still there."""
        return self.log.min_position

    @property
    def written_position(self) -> int:
        """The end of the log."""
        return self.log.written

    @property
    def flushed_position(self) -> int:
        """Up to here the log is on the disk."""
        return self.log.flushed

    @property
    def last_store_time_ms(self) -> int:
        """Store time of the newest record; 0 without any."""
        return self._last_time_ms

    def flush_log(self) -> int:
        """Puts the log on the disk; returns the position up to which it is. May run beside appends.

        Raises StoreUnwritable when that fails, and from then on: the store stays readable.
        """
        return self.log.flush()

    def flush_queues(self) -> None:
        """Puts the consume queues on the disk. May run beside appends. Raises StoreUnwritable."""
        upto = self.log.written
        try:
            self.queue_index.flush()
        except OSError as e:
            self.log.fail(e, self.queue_index.directory)
            raise StoreUnwritable(str(self.log.failed)) from e
        self._queues_position = upto

    def flush_indexes(self) -> None:
        """Puts the index files on the disk. May run beside appends. Raises StoreFull, StoreUnwritable."""
        upto = self.log.written
        if self.key_index is not None:
            try:
                self.key_index.flush()
            except OSError as e:
                self.log.fail(e, self.key_index.directory)
                raise StoreUnwritable(str(self.log.failed)) from e
        self._index_position = upto

    def write_checkpoint(self) -> None:
        """Notes up to where everything is on the disk. Call after the three flushes."""
        position = min(self.log.flushed, self._queues_position, self._index_position)
        time_ms = self._last_time_ms if position == self.log.written else self._time_before(position)
        checkpoint.write(
            f"{self.settings.root}/checkpoint",
            checkpoint.Checkpoint(time_ms, time_ms, time_ms, 0, 0, position),
            self._files,
        )

    def _time_before(self, position: int) -> int:
        """A store time that every record before `position` is at or below, or nearly: that of the record there."""
        return max(self.log.store_time_at(position), 0)

    def populate_ahead(self) -> None:
        """Prepares blocks and pages for the next appends. For a thread. Raises StoreFull, StoreUnwritable."""
        self.log.populate_ahead()

    def delete_topic(self, topic: str) -> None:
        """Removes the topic's consume queues; its records stay in the log until that is deleted."""
        self.queue_index.delete_topic(topic)
        # Without this a crash would replay the topic's records and bring it back.
        self.flush_log()
        self.flush_queues()
        self.flush_indexes()
        self.write_checkpoint()


def _has_key(properties: bytes, wanted: bytes, kind: str) -> bool:
    if kind == "T":
        return props.find(properties, _TAGS) == wanted
    if props.find(properties, _UNIQUE_ID) == wanted:
        return True
    if kind == "U":
        return False
    keys = props.find(properties, _KEYS)
    return keys is not None and wanted in keys.split(b" ")


__all__ = ["DELAY_LEVELS_MS", "BatchMessage", "Found", "Read", "Store", "StoreSettings", "StateError"]
