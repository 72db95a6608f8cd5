"""The message store: log, consume queues and key index behind one append and one read.

Rule: it never calls up, knows no sockets and no event loop; time and files are handed in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import StoreFull, StoreUnwritable
from rocketspark.protocol import record
from rocketspark.store import checkpoint, recovery, retention
from rocketspark.store.appending import Appending
from rocketspark.store.clock import Clock, SystemClock
from rocketspark.store.deletions import Deletions
from rocketspark.store.files import OsFiles, failure
from rocketspark.store.key_index import KeyIndex
from rocketspark.store.lock import DirectoryLock
from rocketspark.store.log import Log
from rocketspark.store.queue_index import QueueIndex
from rocketspark.store.reading import Read, Reader
from rocketspark.store.segments import Maps
from rocketspark.store.settings import StoreSettings


class Store(Appending):
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
        self._host_v6 = len(store_host) == 20
        # Told before it is opened: topics with batch queues (queue.type=BatchCQ), so that none is made of another kind.
        self.batch_topics: Collection[str] = ()
        self._body_bytes_max = settings.message_bytes_max
        self._opened = False
        self._closed = False
        # One flush of queues, index or checkpoint at a time: each may take seconds, so nobody who answers waits for it.
        self._rest_lock = threading.RLock()

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
        # Half for reading, half for queues that are written to.
        share = self._files.maps_max() // 2
        maps = Maps(self._files, share)
        self.log = Log(s.commit_log or f"{s.root}/commitlog", s.log_file_bytes, maps)
        self.log.verifies_record_crc = s.verify_record_crc
        self.queue_index = QueueIndex(s, maps, share)
        self.queue_index.batch_topics.update(topic.encode() for topic in self.batch_topics)
        self.key_index = (
            KeyIndex(f"{s.root}/index", s.index_slots, s.index_entries, maps, self._clock) if s.index_enabled else None
        )
        self._reader = Reader(self.log, self.queue_index, self.key_index)
        self._queues_by_bytes = self.queue_index.by_bytes
        self._pending = self.key_index.pending if self.key_index else None
        self._deletions = Deletions(s.root, self._files)
        abort = f"{s.root}/abort"
        try:
            self.log.segments.scan()
            self.queue_index.scan()
            if self.key_index is not None:
                self.key_index.scan()
            crashed = os.path.exists(abort)
            found = checkpoint.read(f"{s.root}/checkpoint")
            self._deletions.read(self.log.segments.end())
            self.recovered = recovery.recover(
                self.log, self.queue_index, self.key_index, found, self._deletions.positions, crashed=crashed
            )
            self._files.write_file(abort, str(os.getpid()).encode())
        except OSError as e:
            raise failure(e, "open the store in", s.root) from e
        self.take_stored()  # What recovery put back was stored before.
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
        with self._rest_lock:
            self._close()

    def _close(self) -> None:
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
            self._give_back()

    def _give_back(self) -> None:
        """The directory to others, and maps (each holds a file descriptor); slices read before stay valid."""
        self.log.stop(StoreUnwritable("the store is closed: open it again to write"))
        self.log.release()
        self.queue_index.release()
        if self.key_index is not None:
            self.key_index.release()
        self.log.segments.maps.clear()
        self._lock.release()

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
        """Messages of a queue from an offset on; see `Reader.read`."""
        return self._reader.read(topic, queue_id, queue_offset, count_max, bytes_max, codes, accepts)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(oldest offset, next offset) of a queue; (0, 0) if there is none."""
        queue = self.queue_index.find(topic, queue_id)
        return (0, 0) if queue is None else (queue.min, queue.next)

    def queue_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[tuple[int, int, int]]:
        """(log position, record size, tags code) of `count` messages, which must be in the queue."""
        return self._reader.units(topic, queue_id, queue_offset, count)

    def record_sizes(self, topic: str, queue_id: int, queue_offset: int, count: int) -> Iterator[NDArray[np.int32]]:
        """Record sizes of `count` messages, which must be in the queue; see `Reader.sizes`."""
        return self._reader.sizes(topic, queue_id, queue_offset, count)

    def read_ahead(self, on: bool) -> None:
        """Whether the kernel may read the log ahead; off suits readers that jump about in a log beyond memory."""
        self.log.segments.maps.advise(self.log.segments, scattered=not on)

    def make_batch_topic(self, topic: str) -> None:
        """From here on new queues of a topic are batch queues (queue.type=BatchCQ); one with queues keeps its kind."""
        if topic not in self.queue_index.queues():
            self.queue_index.batch_topics.add(topic.encode())

    def queues(self) -> Mapping[str, Collection[int]]:
        """Topics and the queue ids that have a consume queue."""
        return self.queue_index.queues()

    def take_stored(self) -> list[tuple[str, int, int]]:
        """(topic, messages, bytes of their records) stored in a queue since the last call, or since the opening."""
        taken = []
        for queue in self.queue_index.loaded():
            if queue.next != queue.counted:
                taken.append((queue.name, queue.next - queue.counted, queue.stored_bytes))
                queue.counted = queue.next
                queue.stored_bytes = 0
        return taken

    def offset_at_time(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        """The queue offset that belongs to a store time; see `Reader.offset_at_time`."""
        return self._reader.offset_at_time(topic, queue_id, time_ms, upper)

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time in ms of one message; -1 if it is not there."""
        return self._reader.store_time_at(topic, queue_id, queue_offset)

    def record_at(self, position: int) -> memoryview | None:
        """The whole record at a log position; None if none begins there."""
        return self.log.record_at(position)

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, kind: str = "K"
    ) -> list[memoryview]:
        """Records with a key, newest first; see `Reader.query`."""
        return self._reader.query(topic, key, count_max, begin_ms, end_ms, kind)

    def iterate(self, position: int, wanted: Callable[[memoryview], bool] | None = None) -> Iterator[record.Record]:
        """Every record from a record's position on, in log order; only what is `wanted`, by its bytes."""
        while position < self.log.written:
            found = self.log.record_at(position)
            if found is None:
                following = position - position % self.log.file_bytes + self.log.file_bytes
                position = following
                continue
            if wanted is None or wanted(found):
                yield record.decode(found)
            position += len(found)

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
        """Puts the consume queues on the disk. May run beside appends. Raises StoreFull, StoreUnwritable."""
        with self._rest_lock:
            self._queues_position = self._flushed(self.queue_index)

    def flush_indexes(self) -> None:
        """Puts the index files on the disk. May run beside appends. Raises StoreFull, StoreUnwritable."""
        with self._rest_lock:
            self._index_position = self._flushed(self.key_index)

    def _flushed(self, what: QueueIndex | KeyIndex | None) -> int:
        """Flushes it; the log position up to which it is on the disk then."""
        upto = self.log.written
        if self.log.failed is not None:
            raise StoreUnwritable(str(self.log.failed)) from self.log.failed
        if what is not None:
            try:
                what.flush()
            except OSError as e:
                self.log.fail(e, what.directory)
                raise StoreUnwritable(str(self.log.failed)) from e
        return upto

    def write_checkpoint(self) -> None:
        """Notes up to where everything is on the disk. Call after the three flushes.

        After a kill RocketMQ drops the index files that end later than this and makes anew what it reads of the log,
        so it is told to read from the begin of the first of them on; a start of ours needs not. Raises StoreFull,
        StoreUnwritable.
        """
        with self._rest_lock:
            # What a flush that failed left on the disk is unknown, whoever else flushed since.
            if self.log.failed is not None:
                raise StoreUnwritable(str(self.log.failed)) from self.log.failed
            try:
                self._write_checkpoint()
            except StoreUnwritable as e:
                self.log.stop(e)
                raise

    def _write_checkpoint(self) -> None:
        position = min(self.log.flushed, self._queues_position, self._index_position)
        time_ms = self._last_time_ms if position == self.log.written else self._time_before(position)
        newer = self.key_index.newer_since(time_ms) if self.key_index is not None and not self._closed else None
        from_ms, from_position = newer or (time_ms, position)
        from_ms = min(time_ms, from_ms)
        checkpoint.write(
            f"{self.settings.root}/checkpoint",
            checkpoint.Checkpoint(from_ms, from_ms, time_ms, 0, 0, position),
            self._files,
            replay_from=min(position, from_position),
        )

    def _time_before(self, position: int) -> int:
        """A store time that every record before `position` is at or below, or nearly: that of the record there."""
        return max(self.log.store_time_at(position), 0)

    def populate_ahead(self) -> None:
        """Prepares blocks and pages for the next appends. For a thread. Raises StoreFull, StoreUnwritable."""
        self.log.populate_ahead()

    def expire(self, before_ms: int, count_max: int = 10, *, forced: bool = False) -> int:
        """Removes up to `count_max` log files whose records were all stored before a time; how many went.

        `forced`: the oldest even if they are younger. The file being written always stays. Call where `append` is
        called. Raises StoreUnwritable if a file cannot be removed.
        """
        removed = 0
        for remove in self.expire_steps(before_ms, count_max, forced=forced):
            if remove is not None:
                remove()
                removed += 1
        return removed

    def expire_steps(
        self, before_ms: int, count_max: int = 10, *, forced: bool = False
    ) -> Iterator[Callable[[], None] | None]:
        """`expire` in small steps, for a caller that serves others in between; see `retention.steps`."""
        return retention.steps(self.log, self.queue_index, self.key_index, before_ms, count_max, forced=forced)

    def refuse_writes(self, reason: StoreFull | None) -> None:
        """From here on every append raises `reason`, until None is given."""
        self.log.refuse(reason)

    def delete_topic(self, topic: str) -> None:
        """Removes the topic's consume queues; its records stay in the log until that is deleted.

        Raises StoreFull, StoreUnwritable.
        """
        position = self.flush_log()
        # First of all: a kill in between is made good by the next start, and no replay brings the topic back.
        self._deletions.add(topic, position, self.min_position)
        self.queue_index.delete_topic(topic)
