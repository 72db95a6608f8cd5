"""The message store: log, consume queues and key index behind one append and one read.

Rule: it never calls up, knows no sockets and no event loop; time and files are handed in.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from rocketspark import machine
from rocketspark.errors import RecordError, StoreFull, StoreUnwritable
from rocketspark.protocol import lite_topics
from rocketspark.protocol.message import record
from rocketspark.store import expired_files, recovery
from rocketspark.store.commitlog.append_message import MessageAppender
from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.store.compaction.compaction_store import CompactionStore
from rocketspark.store.consume_queue_repair import BatchUnitRepair, UnitRepair
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, SHARED
from rocketspark.store.consumequeue.consume_queue_store import ConsumeQueueStore
from rocketspark.store.consumequeue.queue_files import QueueFileInventory
from rocketspark.store.deleted_topics import DeletedTopics
from rocketspark.store.files import checkpoint, config_files, store_number
from rocketspark.store.files.mapped_file_queue import MappedFiles
from rocketspark.store.files.system_calls import (
    SPARE_BYTES,
    DirectoryLock,
    OsFiles,
    ReservedBlocks,
    boot_id,
    failure,
    free_bytes,
    is_of_this_boot,
    make_folder,
    remove_file,
)
from rocketspark.store.get_message import MessageReader
from rocketspark.store.index.index_service import IndexService
from rocketspark.store.replica import ReplicaReceiver
from rocketspark.store.settings import Clock, StoreSettings, SystemClock

if TYPE_CHECKING:
    from rocketspark.store.tiered.tier import Tier


class Store(ReplicaReceiver, MessageAppender, MessageReader):
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
        # Told before it is opened: topics with batch queues (queue.type=BatchCQ) and without, so that none is made of
        # another kind.
        self.batch_topics: Collection[str] = ()
        self.simple_topics: Collection[str] = ()
        # And those of which the newest message of each key is kept (cleanup.policy=COMPACTION).
        self.compacted_topics: Collection[str] = ()
        self._body_bytes_max = settings.message_bytes_max
        self._light = settings.light_queues
        self.light_grown: list[str] = []
        self._opened = False
        self._closed = False
        # Whether the last run did not end by `close`.
        self.crashed = False
        # Whether what was not flushed then may be gone: the machine has started since, or it is a copy.
        self.may_lack = False
        # Whether it held nothing when it was opened, and took no other broker's log since: an offset beyond a queue's
        # end counts messages of another store then.
        self.began_empty = False
        # Tells it from others that a broker of its name had before; None if it has none.
        self.number: int | None = None
        self.shared_ends: list[tuple[int, store_number.Ends]] = []
        # Told before it is opened: called with its ends then and now if the log is shorter than it was on the disk,
        # before anything forgets so.
        self.fell_short: Callable[[int, int], None] = lambda promised, end: None
        # Of replication, as the checkpoint keeps them.
        self.master_flushed_position = 0
        self.confirmed_position = 0
        # The second tier, once it is known what it has.
        self.cold: Tier | None = None
        # One flush of queues, index or checkpoint at a time: each may take seconds, so no reply waits for it.
        self._rest_lock = threading.RLock()

    # -- opening and closing

    def open(self) -> None:
        """Lock the directory and recover its files.

        Raises StoreLocked if another process has it, StoreUnwritable or StoreFull if it cannot be written,
        ConfigError if its files are of other sizes, or elsewhere, than the settings say, or a restore of them was
        broken off.
        """
        s, root = self.settings, self.settings.root
        config_files.check_restored(root)
        if s.commit_log:
            config_files.check_log_folder(s.commit_log, f"{root}/commitlog")
        for path in (root, f"{root}/config", s.commit_log or f"{root}/commitlog", f"{root}/consumequeue"):
            try:
                make_folder(self._files, path)
            except OSError as e:
                raise failure(e, "create the directory", path) from e
        self._lock = DirectoryLock(f"{root}/lock", s.commit_log)
        self._lock.acquire()
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        self._opened = True

    def _make_parts(self) -> QueueFileInventory:
        """Make the log, the queues, the index and what mends them; returns what was noted of the queues' files."""
        s = self.settings
        # Half for reading, half for queues that are written to.
        share = self._files.maps_max() // 2
        maps = MappedFiles(self._files, share)
        self._spare = ReservedBlocks(s.root, self._files)
        self._spare.release()
        maps.disk_is_full = free_bytes(s.commit_log or s.root) < SPARE_BYTES or free_bytes(s.root) < 2 * SPARE_BYTES
        self.log = CommitLog(s.commit_log or f"{s.root}/commitlog", s.log_file_bytes, maps)
        self.log.verifies_record_crc = s.verify_record_crc
        inventory = QueueFileInventory(s.root, self._files, s.commit_log)
        self.consume_queues = ConsumeQueueStore(s, maps, share, inventory, self.log.record_at, lambda: self.log.written)
        self.consume_queues.simple_topics = self.simple_topics
        self.consume_queues.batch_topics.update(topic.encode() for topic in self.batch_topics)
        self.index_service = (
            IndexService(f"{s.root}/index", s.index_slots, s.index_entries, maps, self._clock)
            if s.index_enabled
            else None
        )
        self.mender = UnitRepair(self.log, lambda topic: self._deletions.positions.get(topic, 0))
        self.batch_mender = BatchUnitRepair(self.log, self.mender)
        self._queues_by_bytes = self.consume_queues.by_bytes
        self._pending = self.index_service.pending if self.index_service else None
        self._deletions = DeletedTopics(s.root, self._files)
        return inventory

    def _read_and_recover(self, inventory: QueueFileInventory) -> checkpoint.Checkpoint:
        """Read the files, and bring log, queues and index together; returns the last checkpoint."""
        s = self.settings
        crashed = self.crashed = os.path.exists(abort := f"{s.root}/abort")
        self.may_lack = crashed and not is_of_this_boot(abort)
        try:
            inventory.read()
            inventory.check_log_folder(self.log.mapped_files.directory, may_be_gone=s.is_copied)
            inventory.check_sizes(self.consume_queues.sizes(), self.log.mapped_files.directory)
            self.log.mapped_files.certain = bool(inventory.sizes)
            self.log.mapped_files.scan()
            self.consume_queues.scan()
            if self.index_service is not None:
                self.index_service.certain = "maxIndexNum" in inventory.sizes
                self.index_service.scan(crashed=self.crashed)
            found = checkpoint.read(f"{s.root}/checkpoint")
            self._deletions.read(self.log.mapped_files.end())
            self.recovered = recovery.recover(
                self.log,
                self.consume_queues,
                self.index_service,
                found,
                self._deletions,
                crashed=crashed,
                may_lack=self.may_lack,
            )
            if self.recovered.cut:
                self.fell_short(self.recovered.promised, self.recovered.end)
            self.forget_deletions_beyond(self.recovered.end)
            if self.recovered.deleted_elsewhere:
                # From here on no replay brings them back.
                gone = dict.fromkeys(self.recovered.deleted_elsewhere, self.recovered.end)
                self._deletions.add_all(gone, self.log.min_position)
            self._open_compaction(crashed=crashed)
            if crashed:
                self._sync_left()
            if not self.may_lack:
                self._mark_open(abort)
        except OSError as e:
            raise failure(e, "open the store in", s.root) from e
        return found

    def _open(self) -> None:
        s = self.settings
        found = self._read_and_recover(self._make_parts())
        self.take_stored()  # What recovery put back was stored before.
        self._last_time_ms = self.recovered.last_store_time_ms
        self.began_empty = self.written_position == 0
        self.master_flushed_position = found.master_flushed_position
        self.confirmed_position = min(found.confirmed_position, self.recovered.end)
        if store_number.is_copy(f"{s.root}/abort"):
            store_number.renew(s.root, self._files, self.consume_queues.queues(), self.queue_range)
        self.number = store_number.number_of(s.root, self._files, is_empty=self.began_empty)
        self.shared_ends = store_number.shared(s.root)
        self._queues_position = min(found.queues_position, self.recovered.end)
        self._index_position = self._queues_position
        self.consume_queues.note_files()
        if self.recovered.cut or self.recovered.replayed:
            try:
                self.flush_log()
                self.flush_queues()
                self.flush_indexes()
                self.write_checkpoint()
            except StoreFull:
                pass  # The checkpoint stays where it was, so nothing is lost; it is tried again later.
        maps = self.log.mapped_files.maps
        if not maps.disk_is_full:
            self._spare.keep()  # Else once what starts with the store has had its room.
        maps.disk_is_full = False

    def _open_compaction(self, *, crashed: bool) -> None:
        self.compaction = CompactionStore(self.settings, self._files)
        self.compacted = self.compaction.logs
        # Only what a deletion tells of is removed: a table of topics may be lost.
        gone = {topic.decode("utf-8", "replace") for topic in self._deletions.positions}
        gone.difference_update(self.simple_topics, self.batch_topics)
        self.compaction.open(self.compacted_topics, gone, self.stored_range, crashed=crashed)

    def _sync_left(self) -> None:
        """Put on the disk what a killed process left in memory, and what recovery mended: from here on it counts so.

        Also tables and timer messages, whose checkpoint may already count what no flush has reached.
        """
        for folder in {self.settings.root, self.log.mapped_files.directory}:
            self._files.sync_all(folder)

    def lacks_nothing(self) -> None:
        """Note that this store has everything again that it may have lost, unflushed, when the machine stopped, or that
        it is not needed.

        Until this call the mark that the last process left stays, so that even after another kill it is known that
        something may be missing.
        """
        self.may_lack = False
        try:
            self._mark_open(f"{self.settings.root}/abort")
        except OSError:
            pass  # Who is killed then looks once more for those that hold more.

    def _mark_open(self, path: str) -> None:
        try:
            self._files.write_file(path, f"{machine.getpid()} {boot_id()}".encode())
            self._files.sync_directory(self.settings.root)
        except OSError as e:
            # Only its existence counts.
            if not (isinstance(failure(e, "write", path), StoreFull) and os.path.exists(path)):
                raise

    def close(self) -> None:
        """Put everything on the disk and unlock the directory. A second call does nothing.

        Raises StoreUnwritable if the last flush failed; the next start then recovers.
        """
        if not self._opened or self._closed:
            return
        with self._rest_lock:
            self._close()

    def abandon(self) -> None:
        """Close the directory as it is, with nothing flushed or noted, as a kill would leave it. For tests."""
        if self._opened and not self._closed:
            with self._rest_lock:
                self._closed = True
                self._give_back()

    def prepare_to_close(self) -> None:
        """Give up the reserved blocks if the disk is full, so that the last writes have room. Call it before other
        files are written.
        """
        if self._opened:
            self._spare.release()

    def _close(self) -> None:
        self._closed = True
        self._spare.release()
        try:
            self.flush_log()
            self.flush_queues()
            self.consume_queues.note_ends()
            self.flush_indexes()
            self.write_checkpoint()
            remove_file(f"{self.settings.root}/abort")
            self.consume_queues.remove_deleted(sys.maxsize)
        finally:
            self._spare.keep()
            self._give_back()

    def _give_back(self) -> None:
        """Release the directory's lock and the maps (each holds a file descriptor); slices read before stay valid."""
        self.log.stop(StoreUnwritable("the store is closed: open it again to write"))
        self.log.release()
        self.consume_queues.release()
        if self.index_service is not None:
            self.index_service.release()
        self.log.mapped_files.maps.clear()
        self._lock.release()

    # -- reading

    def stored_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (oldest offset, next offset) of a queue, including messages that its readers do not see yet
        (`show_up_to`).
        """
        queue = self.consume_queues.find(topic, queue_id)
        return (0, 0) if queue is None else (queue.min, queue.next)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (oldest offset, next offset) of a queue as its readers see it, with what only the second tier has;
        (0, 0) if there is none.
        """
        queue = self.consume_queues.find(topic, queue_id)
        if queue is None:
            return 0, 0
        low = queue.min if self.cold is None else self.cold.low(topic, queue_id, queue.min)
        return low, self.visible_next(queue)

    def readable_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return what `queue_range` does, but of a topic with compaction the oldest offset that was kept."""
        low, high = self.queue_range(topic, queue_id)
        if self.compacted and (log := self.compacted.get((topic, queue_id))) is not None:
            low = log.min if log.min < log.next else max(log.next, low)
        return low, high

    def read_ahead(self, on: bool) -> None:
        """Set whether the kernel reads the log ahead. Off is better for readers that jump about in a log larger than
        the memory.
        """
        self.log.mapped_files.maps.advise(self.log.mapped_files, scattered=not on)

    def flush_each(self, on: bool) -> None:
        """Set whether each message is flushed by itself, so that the log is kept in pages that a flush writes fast."""
        self.log.flushed_by_message = on

    def make_batch_topic(self, topic: str) -> None:
        """Make a topic's queues batch queues (queue.type=BatchCQ).

        Messages that waited for a deleted topic may have come before it is made anew, into simple queues: what these
        hold is put into batch queues. Raises StoreFull, StoreUnwritable.
        """
        queues, name = self.consume_queues, topic.encode()
        queues.set_kind(name, is_batch=True)
        if queues.wrong_since(name) is None:
            return
        positions = sorted(
            position
            for queue_id in list(queues.queues()[topic])
            for low, high in [self.stored_range(topic, queue_id)]
            for position, size, _ in self.queue_units(topic, queue_id, low, high - low)
            if size != GAP_SIZE
        )
        with self._rest_lock:
            # First: until they are flushed a start puts them into the queues again.
            self._queues_position = min([self._queues_position, *positions])
            self.write_checkpoint()
            queues.delete_topics((topic,))
            queues.set_kind(name, is_batch=True)
            self.put_again(positions)

    def queues(self) -> Mapping[str, Collection[int]]:
        """Return topics and the queue ids that have a consume queue."""
        return self.consume_queues.queues()

    def take_stored(self) -> list[tuple[str, int, int]]:
        """Return (topic, messages, bytes of their records) of each queue that got messages since the last call, or
        since the opening.
        """
        taken = []
        for queue in self.consume_queues.loaded():
            if queue.next != queue.counted:
                if not queue.topic.startswith(SHARED):  # Those count in their topics.
                    taken.append((queue.name, queue.next - queue.counted, queue.stored_bytes))
                queue.counted = queue.next
                queue.stored_bytes = 0
        return taken

    def record_at(self, position: int) -> memoryview | None:
        """Return the whole record at a physical offset; None if none begins there."""
        return self.log.record_at(position)

    def iterate(
        self, position: int, wanted: Callable[[memoryview], bool] | None = None, *, check_crc: bool = True
    ) -> Iterator[record.Record]:
        """Yield every whole record from `position`, where one begins, in log order; only those for which `wanted`,
        given the record's bytes, is true.

        Without `check_crc` also records whose body is damaged.
        """
        # The oldest files may go meanwhile.
        while (position := max(position, self.log.min_position)) < self.log.written:
            found = self.log.record_at(position)
            if found is None:
                # The file's end, or a damaged record.
                position = self.log.next_file(position) if self.log.is_blank(position) else self.log.next_mark(position)
                continue
            if wanted is None or wanted(found):
                try:
                    decoded = record.decode(found, check_crc=check_crc)
                except RecordError:
                    position = self.log.next_mark(position)
                    continue
                yield decoded
            position += len(found)

    # -- upkeep

    @property
    def min_position(self) -> int:
        """The first physical offset of the log that is not removed."""
        return self.log.min_position

    @property
    def written_position(self) -> int:
        """The end of the log."""
        return self.log.written

    @property
    def flushed_position(self) -> int:
        """The position up to which the log is on the disk."""
        return self.log.flushed

    @property
    def last_store_time_ms(self) -> int:
        """Store time of the newest record; 0 without any."""
        return self._last_time_ms

    def flush_log(self) -> int:
        """Put the log on the disk; returns the position up to which it is. May run beside appends.

        Raises StoreUnwritable when that fails, and from then on: the store stays readable.
        """
        return self.log.flush()

    def flush_queues(self) -> None:
        """Put the consume queues on the disk. May run beside appends. Raises StoreFull, StoreUnwritable."""
        with self._rest_lock:
            self.compaction.flush()
            self._queues_position = self._flushed(self.consume_queues, "queues")

    def flush_indexes(self) -> None:
        """Put the index files on the disk. May run beside appends. Raises StoreFull, StoreUnwritable."""
        with self._rest_lock:
            self._index_position = self._flushed(self.index_service, "index")

    def _flushed(self, what: ConsumeQueueStore | IndexService | None, name: str) -> int:
        """Call a flush; return the physical offset up to which its files are on the disk then."""
        upto = self.log.written
        self._raise_failed()
        if what is not None:
            try:
                what.flush()
            except (OSError, StoreUnwritable) as e:
                raise self.log.flush_failed(name, e, what.directory) from e
        self.log.flush_worked(name)
        return upto

    def _raise_failed(self) -> None:
        """Raise if a flush has failed: the disk's content is unknown then, even if a later flush works."""
        if self.log.failed is not None:
            raise StoreUnwritable(str(self.log.failed)) from self.log.failed

    def stop_writes(self, reason: StoreUnwritable) -> None:
        """Stop appends and flushes: each raises from here on. Reads go on."""
        self.log.stop(reason)

    def write_checkpoint(self) -> None:
        """Note in the checkpoint up to where everything is on the disk. Call it after the three flushes.

        After a kill RocketMQ drops the index files that end later than this, and makes them anew from the part of the
        log that it reads again, so it is told to read from the beginning of the first of them; our own start does not
        need that. Raises StoreFull, StoreUnwritable.
        """
        with self._rest_lock:
            self._raise_failed()
            try:
                self._write_checkpoint()
            except StoreUnwritable as e:
                raise self.log.flush_failed("checkpoint", e, self.settings.root) from e
            self.log.flush_worked("checkpoint")
            if not self._closed:
                self._spare.keep()

    def _write_checkpoint(self) -> None:
        position = min(self.log.flushed, self._queues_position, self._index_position)
        time_ms = self._last_time_ms if position == self.log.written else self._time_before(position)
        newer = self.index_service.newer_since(time_ms) if self.index_service is not None and not self._closed else None
        from_ms, from_position = newer or (time_ms, position)
        from_ms = min(time_ms, from_ms)
        checkpoint.write(
            f"{self.settings.root}/checkpoint",
            checkpoint.Checkpoint(
                from_ms, from_ms, time_ms, self.master_flushed_position, self.confirmed_position, position
            ),
            self._files,
            replay_from=min(position, from_position),
        )

    def _cut_all(self, position: int) -> None:
        super()._cut_all(position)
        self.compaction.cut(self.stored_range)

    def _prepare_to_cut(self, position: int) -> None:
        with self._rest_lock:
            self._queues_position = min(self._queues_position, position)
            self._index_position = min(self._index_position, position)
            self.confirmed_position = min(self.confirmed_position, position)
            self._deletions.cut(position)
            self.write_checkpoint()

    def _time_before(self, position: int) -> int:
        """A store time that every record before `position` is at or below, or nearly: that of the record there."""
        return max(self.log.store_time_at(position), 0)

    def populate_ahead(self) -> None:
        """Prepare blocks and pages for the next appends. For a thread. Raises StoreFull, StoreUnwritable."""
        self.log.populate_ahead()
        if self.index_service is not None:
            self.index_service.populate_ahead()

    def expire_steps(
        self, before_ms: int, count_max: int = 10, *, forced: bool = False, below: int | None = None
    ) -> Iterator[Callable[[], None] | None]:
        """Remove up to `count_max` log files whose records were all stored before a time; see `expired_files.steps`.

        `forced`: the oldest files, even if they are younger. The file being written always stays. `below`:
        only files that end at or before this position. It goes in small
        steps, in the thread that calls `append`, for a caller that serves others in between.
        """
        return expired_files.steps(
            self.log, self.consume_queues, self.index_service, before_ms, count_max, forced=forced, below=below
        )

    def refuse_writes(self, reason: StoreFull | None) -> None:
        """Make every append raise `reason`; None ends that."""
        self.log.refuse(reason)

    def deleted_topics(self) -> dict[str, int]:
        """Return, by deleted topic, the log's end at its deletion: records of the topic before it are in no queue."""
        return {topic.decode("utf-8", "replace"): at for topic, at in self._deletions.positions.items()}

    def made_at(self, topic: str) -> int | None:
        """Return a number that tells a topic from earlier ones of its name: where the log ended when the last of them
        was deleted.

        None if there was none, or nothing is left of the log from then.
        """
        return self._deletions.positions.get(topic.encode())

    def begin_deletion(self, topics: Collection[str]) -> list[str]:
        """Note that topics are about to be deleted, with their lite topics, and return the names of all.

        If a kill comes before `end_deletion`, once they have no settings any more, the next start removes what is left
        of them. Raises StoreFull, StoreUnwritable.
        """
        names = list(topics)
        if self.consume_queues.light_count:
            names += [
                name for name in self.queues() if lite_topics.is_lite(name) and lite_topics.parent_of(name) in topics
            ]
        self._deletions.begin(names, self.flush_log())
        return names

    def end_deletion(self, names: Collection[str]) -> None:
        """Note that nothing is left to be deleted of what `begin_deletion` returned."""
        self._deletions.end(names)

    def leaving(self, topic: str) -> list[str]:
        """Return what of a topic, and its lite topics, is still to be deleted, as `begin_deletion` returned it."""
        return [name for name in self._deletions.under_way if lite_topics.parent_of(name) == topic]

    def delete_topic(self, topic: str) -> None:
        """Remove the topic's consume queues. Its records stay in the log until the log's files are removed.

        The queues' files are removed by `remove_deleted`. Raises StoreFull, StoreUnwritable.
        """
        position = self.flush_log()
        # First of all: a kill in between is made good by the next start, and no replay brings the topic back.
        self._deletions.add(topic, position, self.min_position)
        self.compaction.delete(topic)
        self.consume_queues.delete_topics((topic,))

    def delete_light(self, names: Collection[str]) -> None:
        """Remove light queues none of whose records are left, together: one after another each would write a file.

        Raises StoreFull, StoreUnwritable.
        """
        self._deletions.add_light(names, self.flush_log(), self.min_position)
        self.consume_queues.delete_topics(names)

    def remove_deleted(self) -> None:
        """Remove some of the files of deleted topics; called after each flush, in its thread. Never fails."""
        self.consume_queues.remove_deleted()
