"""Start-up: finds the end of the log and brings queues and index in line with it.

Rule: everything before the checkpoint's position is on the disk; everything after is replayed from the log through
the same code that appends use, after the queue units and index entries from there on were taken away. The keys of
records that a slave gets late, as they were damaged, are put into the index the same way (`index_late`): its entries
ascend in the log's order, so those of all records after them are put again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from rocketspark.errors import RecordError, StoreFull
from rocketspark.model.text import shown
from rocketspark.protocol import light_queues, lite_topics
from rocketspark.protocol.message import sysflags
from rocketspark.protocol.message.record import Record, decode
from rocketspark.protocol.message.record_layout import RECORD_BYTES_MIN
from rocketspark.store.commitlog.commit_log import DOUBTS_MAX, CommitLog
from rocketspark.store.commitlog.dispatch import (
    DispatchRequest,
    dispatch_request,
    enters_index,
    enters_light,
    enters_queue,
)
from rocketspark.store.consume_queue_repair import records_between
from rocketspark.store.consumequeue.batch_consume_queue import INNER_COUNT_MAX
from rocketspark.store.consumequeue.consume_queue import SHARED, UNIT_BYTES, ConsumeQueue
from rocketspark.store.consumequeue.consume_queue_store import ConsumeQueueStore
from rocketspark.store.deleted_topics import DeletedTopics
from rocketspark.store.files.checkpoint import Checkpoint
from rocketspark.store.index.index_service import PENDING_MAX, IndexService

_log = logging.getLogger("rocketspark.store")
# Bytes of the log before the checkpoint that are read again, to notice a tail that was cut or garbled.
VERIFY_BYTES = 4 << 20
VERIFY_QUEUES_MAX = 1000
TIME_MARGIN_MS = 3000


class Recovered(NamedTuple):
    """The result of a recovery.

    `end`: of the log; `replayed`: number of records; `cut`: the log is shorter than the checkpoint says, `promised`;
    `skipped`: (begin, end) in the log of what is damaged and was passed over; `unnamed`: records of topics that no
    directory can be named after, which are in no queue; `unnamed_light`: the same of light queues; `remade`: queues are
    made anew, as some were lost; `missing`: (begin, end) in the log of files that are not there although others before
    them are; `deleted_elsewhere`: topics that another broker deleted on this store, which noted it nowhere.
    """

    end: int
    last_store_time_ms: int
    replayed: int
    cut: bool
    skipped: tuple[tuple[int, int], ...] = ()
    unnamed: int = 0
    unnamed_light: int = 0
    remade: bool = False
    missing: tuple[tuple[int, int], ...] = ()
    promised: int = 0
    deleted_elsewhere: tuple[str, ...] = ()

    @property
    def skipped_bytes(self) -> int:
        return sum(end - begin for begin, end in self.skipped)

    def remarks(self) -> list[str]:
        """Return the remarks on the recovery for the operator, a line each."""
        lines = []
        if self.missing:
            places = ", ".join(f"{begin} to {end}" for begin, end in self.missing)
            lines.append(
                f"files of the log are missing: {places}; those before {self.missing[-1][1]} are left where they are"
                " and not read, their messages count as removed: put the missing ones back and start again to have all,"
                f" or start on a copy of the store without the files from {self.missing[-1][1]} on to read these"
            )
        if self.cut:
            lines.append(
                f"the log ends at {self.end}, although it was on the disk up to {self.promised}: messages stored after"
                " that are lost; check the disk, and if there is a copy of the log's files start with that"
            )
        if self.skipped:
            begin, end = self.skipped[0]
            lines.append(
                f"{self.skipped_bytes} bytes of the log are damaged, the first at {begin} (to {end}), in "
                f"{len(self.skipped)} places: those messages are lost, the others are kept; check the disk"
            )
        if self.unnamed:
            lines.append(
                f"{self.unnamed} messages are in no queue: no directory can have the name of their topic (too long)"
            )
        if self.unnamed_light:
            lines.append(
                f"{self.unnamed_light} places in light queues are left out: no directory can have the names (slashes);"
                " the messages are in their topics"
            )
        if self.remade:
            lines.append("consume queues were lost or damaged: all were made anew from the log")
        return lines


class _QueueHole(Exception):
    """A queue lacks units from before the replayed part."""


def recover(
    log: CommitLog,
    queues: ConsumeQueueStore,
    index: IndexService | None,
    at: Checkpoint,
    deletions: DeletedTopics,
    *,
    crashed: bool,
    may_lack: bool = False,
) -> Recovered:
    """Make log, queues and index agree.

    `deletions`: those that the last run began are ended; `crashed`: the last run did not end by `close`;
    `may_lack`: its machine has stopped since.

    Raises StoreFull or StoreUnwritable if files cannot be repaired.
    """
    oldest = log.min_position
    queues.min_position = queues.expired_position = oldest
    log.set_end(log.mapped_files.end())  # So that records can be looked at; the scan finds the end.
    _note_left(queues, deletions, oldest)
    deleted: Mapping[bytes, int] = deletions.positions
    removed = queues.finish_deletions({topic.decode(): position for topic, position in deleted.items()})
    deleted_elsewhere = tuple(queues.forget_deleted(may_lack=may_lack))
    if deleted_elsewhere:
        deleted = {**deleted, **{topic.encode(): log.mapped_files.end() for topic in deleted_elsewhere}}
    # Of a topic made anew an old file was there: what came since goes into its queues again.
    since = [deleted[topic.encode()] for topic in removed]
    safe = max(oldest, min([_replay_start(log, queues, index, at), *since]))
    # The log up to the checkpoint was on the disk: damage there is skipped. After it the first damage ends the log.
    covered = min(max(at.queues_position, log.proven_end()), log.mapped_files.end())
    thorough = crashed or safe == oldest or bool(since)
    try:
        if queues.lost():
            raise _QueueHole
        found = _replay(log, queues, index, safe, covered, deleted, thorough=thorough)
        if found.end < at.queues_position:
            # Queues may point beyond the log's end: every one has to be looked at.
            found = _replay(log, queues, index, min(safe, found.end), covered, deleted, thorough=True)
            found = found._replace(cut=True, promised=at.queues_position)
    except _QueueHole:
        # Files of queues are missing or damaged beyond what the checkpoint promises: make all anew from the log.
        found = _replay(log, queues, index, oldest, covered, deleted, thorough=True)._replace(remade=True)
        queues.begin_noted(found.end)
    if crashed:
        # The last flush may have failed: then the system's memory has what the disk has not, and calls it written.
        log.mapped_files.write_again(max(safe, at.queues_position), found.end)
    log.damaged = found.skipped
    doubtful, log.doubtful = log.doubtful, {}
    for position, size in doubtful.items():
        log.doubt(position, size)
    return found._replace(missing=tuple(log.mapped_files.missing), deleted_elsewhere=deleted_elsewhere)


def _note_left(queues: ConsumeQueueStore, deletions: DeletedTopics, oldest: int) -> None:
    """Note what deletions that the last run began have left, so that it goes and no replay brings it back."""
    begun = list(deletions.under_way)
    left = deletions.left(queues.has_settings, queues.ends_before)
    try:
        if left:
            deletions.add_all(left, oldest)
            topics = sorted(set(map(lite_topics.parent_of, left)))
            _log.warning("the deletion of %s had been broken off: it is ended now", ", ".join(map(shown, topics)))
        deletions.end(begun)
    except StoreFull:
        pass  # For this run it counts all the same; the next start does it once more.


def _replay_start(log: CommitLog, queues: ConsumeQueueStore, index: IndexService | None, at: Checkpoint) -> int:
    oldest, end = log.min_position, log.mapped_files.end()
    if not queues.queues():
        return oldest
    safe = at.queues_position
    if safe <= 0:
        # Written by RocketMQ before 5.4: go by store time (rule: CommitLog.recoverAbnormally).
        times = [at.log_time_ms, at.queues_time_ms]
        if index is not None and index.has_files():
            times.append(at.index_time_ms)
        safe = _position_at_time(log, min(times) - TIME_MARGIN_MS)
    if index is not None and (index.has_files() or index.lost):
        safe = min(safe, index.end_position())
    return min(max(safe, oldest), end)


def _position_at_time(log: CommitLog, time_ms: int) -> int:
    """Return the last file whose first record was stored by `time_ms`; the log's start if in doubt."""
    for start in reversed(log.mapped_files.starts):
        if 0 <= log.first_store_time(start) <= time_ms:
            return start
    return log.min_position


def _verify_start(log: CommitLog, safe: int) -> int:
    """Return a record some MiB before `safe`, so that a tail cut or garbled there is noticed."""
    start = safe - VERIFY_BYTES
    while start > log.min_position:
        found = log.boundary(start)
        if found < safe:
            return found
        start -= VERIFY_BYTES
    return log.min_position


def _replay(
    log: CommitLog,
    queues: ConsumeQueueStore,
    index: IndexService | None,
    safe: int,
    covered: int,
    deleted: Mapping[bytes, int],
    *,
    thorough: bool,
) -> Recovered:
    verify_from = _verify_start(log, safe)
    replay = Replay(queues, index, safe, deleted, from_start=safe <= log.min_position)
    end = last_time_ms = replayed = 0
    opened = False
    # The newest record of each queue before `safe`: the queue's files must have its unit.
    newest: dict[tuple[bytes, int], Record] = {}
    while True:
        for found in log.scan(verify_from, covered):
            last_time_ms = found.store_time_ms
            if found.position < safe:
                for alike in (found, *(_in_light(found) if queues.light else ())):
                    if len(newest) < VERIFY_QUEUES_MAX or (alike.topic, alike.queue_id) in newest:
                        newest[alike.topic, alike.queue_id] = alike
                continue
            if not opened:
                _open_at(queues, index, safe, thorough=thorough)
                opened = True
            replay.put(found)
            replayed += 1
        end = log.written
        file_start = verify_from - verify_from % log.file_bytes
        if end >= safe or verify_from == file_start:
            break
        # Before data is given up: bytes within a body may look like a record; a file's start cannot deceive.
        verify_from = file_start
    replay.finish(sum(stop - begin for begin, stop in log.skipped))
    if not opened:
        _open_at(queues, index, min(safe, end), thorough=thorough)
    if safe > log.min_position:
        for found in newest.values():
            if found.position >= deleted.get(found.topic, 0):
                _check_unit(queues, found, min(safe, end))
    log.doubtful = replay.doubtful
    if index is not None:
        _write_keys(index)
    if log.mapped_files.starts and (thorough or _anything_at(log, end)):
        log.mapped_files.cut(end)
    log.set_end(end)
    return Recovered(
        end,
        last_time_ms,
        replayed,
        cut=False,
        skipped=tuple(log.skipped),
        unnamed=replay.unnamed,
        unnamed_light=replay.unnamed_light,
    )


def _open_at(queues: ConsumeQueueStore, index: IndexService | None, position: int, *, thorough: bool) -> None:
    """Remove queue units and index entries for physical offsets from `position` on."""
    if index is not None:
        index.drop_from(position)
    if thorough:
        queues.load_all(position)


def _anything_at(log: CommitLog, end: int) -> bool:
    start = end - end % log.file_bytes
    if start not in log.mapped_files.starts or log.mapped_files.readable(start) < end - start + 8:
        return False
    return any(log.mapped_files.get(start).view[end - start : end - start + 8])


def _check_unit(queues: ConsumeQueueStore, found: Record, safe: int) -> None:
    """Raise _QueueHole if a queue lacks units, as its files are older than the log or of another store."""
    if not enters_queue(found.sys_flag) or not queues.can_have(found.topic):
        return
    queue = queues.find(found.topic.decode(), found.queue_id, safe)
    if queue is None:
        return  # Deleted, maybe by RocketMQ, which notes that nowhere.
    offset = found.queue_offset
    if not offset < queue.next or (offset >= queue.min and queue.unit(offset)[0] != found.position):
        raise _QueueHole


def _in_light(found: Record) -> Iterator[Record]:
    """Yield a record as it stands in each light queue that it names."""
    if enters_light(found.sys_flag):
        for name, queue_offset in light_queues.units_of(found.topic, found.properties):
            yield found._replace(topic=name, queue_id=light_queues.QUEUE_ID, queue_offset=queue_offset)


class Replay:
    """Puts records from the log into queues and index, as the appends would have.

    No checksum covers a record's queue offset. If one leaves offsets out, since the log lacks records, the next record
    of its queue shows whether it is right, and until then it waits; in a `live` replay only if it leaves out many.
    """

    def __init__(
        self,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        safe: int | None,
        deleted: Mapping[bytes, int],
        *,
        from_start: bool,
        live: bool = False,
    ) -> None:
        """Make it. `safe`: queues not read yet are read up to this physical offset; None: as far as they are
        written.
        """
        self._queues = queues
        self._deleted = deleted
        self._index = index
        self._safe = safe
        self._from_start = from_start
        self._live = live
        self._reborn: dict[ConsumeQueue, Record] = {}
        # Records that leave offsets out, each with its queue's end.
        self._ahead: dict[ConsumeQueue, tuple[int, Record]] = {}
        self.unnamed = self.unnamed_light = 0
        # By position: the size of records without a place, and of those that have it.
        self.doubtful: dict[int, int] = {}
        # The light queues that records were put into: see `take_light`.
        self.light_put: list[bytes] = []

    def put(self, found: Record, *, light: bool = True) -> None:
        """Put the queue unit and the index keys of one record. `light`: into the light queues that it names, too.

        Raises _QueueHole if its queue lacks units before it.
        """
        queues = self._queues
        if not queues.can_have(found.topic):
            self.unnamed += 1
            return
        request = dispatch_request(found.sys_flag, found.properties)
        self._put_in_queue(found, request)
        if light and queues.light:
            self._put_in_light(found)
        self._put_keys(found, request)

    def put_of(self, topic: bytes, found: Record) -> None:
        """Put a record into queues as `put` does, but of one topic or light queue alone."""
        if topic.startswith(SHARED):
            self._put_in_light(found, topic)
        elif found.topic == topic:
            self.put(found, light=False)

    def _put_in_light(self, found: Record, only: bytes | None = None) -> None:
        """Put the units of a record into the light queues that it names, or into one of them."""
        for alike in self._in_light(found):
            if only in (None, alike.topic):
                self._put_in_queue(alike, dispatch_request(alike.sys_flag, alike.properties))
                self.light_put.append(alike.topic)

    def _in_light(self, found: Record) -> Iterator[Record]:
        """Yield a record as it stands in each light queue that takes it."""
        queues = self._queues
        for alike in _in_light(found):
            if not queues.can_have(alike.topic):
                self.unnamed_light += 1
            elif queues.takes_light(alike.topic, alike.queue_offset, self._safe):
                yield alike

    def take_light(self) -> list[ConsumeQueue]:
        """Return the light queues that got units since the last call."""
        taken, self.light_put = self.light_put, []
        return [queue for name in taken if (queue := self._queues.by_bytes.get((name, light_queues.QUEUE_ID)))]

    def _put_in_queue(self, found: Record, request: DispatchRequest) -> None:
        queues = self._queues
        if enters_queue(found.sys_flag) and found.position >= self._deleted.get(found.topic, 0):
            if found.sys_flag & sysflags.INNER_BATCH and queues.may_be_batch(found.topic):
                queues.batch_topics.add(found.topic)
            queue = queues.make(found.topic, found.queue_id, self._safe)
            if self._has_place(queue, found):
                _put_unit(queue, found, request)
            elif len(self.doubtful) < DOUBTS_MAX:
                # It may be the other one's queue or offset that is damaged.
                if not queue.is_batch and queue.min <= found.queue_offset < queue.next:
                    position, size, _ = queue.unit(found.queue_offset)
                    self.doubtful[position] = size
                self.doubtful[found.position] = found.size

    def _put_keys(self, found: Record, request: DispatchRequest) -> None:
        index = self._index
        if index is not None and enters_index(found.sys_flag):
            index.pending.append(
                (
                    self._queues.keys_of(found.topic.decode("utf-8", "replace")),
                    found.position,
                    found.store_time_ms,
                    request.unique_id,
                    request.keys,
                    request.tags,
                )
            )
            if len(index.pending) >= PENDING_MAX:
                _write_keys(index)

    def put_late(self, found: Record) -> None:
        """Put a record that was damaged when its turn came, and is mended now: into the gap in its queue, or at the
        queue's end.
        """
        if (
            not self._queues.can_have(found.topic)
            or not enters_queue(found.sys_flag)
            or found.position < self._deleted.get(found.topic, 0)
        ):
            return
        request = dispatch_request(found.sys_flag, found.properties)
        self._put_late(found, request)
        for alike in self._in_light(found) if self._queues.light else ():
            self._put_late(alike, request)

    def _put_late(self, found: Record, request: DispatchRequest) -> None:
        queue = self._queues.find(found.topic.decode(), found.queue_id, self._safe)
        if queue is None or found.queue_offset >= queue.next:
            self._put_in_queue(found, request)
        else:
            code = queue.unit_code(request.tags_code, found.store_time_ms)
            place = found.position, found.size, code, found.store_time_ms
            queue.put_in_gap(found.queue_offset, *place, request.message_count)

    def put_keys_again(self, found: Record) -> None:
        """Put the index keys of a record that is in its queue already."""
        if self._queues.can_have(found.topic):
            self._put_keys(found, dispatch_request(found.sys_flag, found.properties))

    def _has_place(self, queue: ConsumeQueue, found: Record) -> bool:
        """Bring the queue's end to the record's offset; False if the record stays out (its offset is damaged)."""
        offset = found.queue_offset
        if offset == queue.next:
            return True
        if self._from_start and offset < queue.next and queue.lost_before(offset):
            queue.cut(offset)
            return True
        reborn = self._reborn.get(queue)
        if reborn is not None:
            request = dispatch_request(reborn.sys_flag, reborn.properties)
            if offset == request.message_count:
                queue.cut(0)
                _put_unit(queue, self._reborn.pop(queue), request)
                return True
        if offset < queue.next:
            # Either RocketMQ deleted the topic and made it again, or the offset is damaged: the next record shows it.
            if offset == 0:
                self._reborn[queue] = found
            return False
        if not self._from_start:
            raise _QueueHole
        end, ahead = self._ahead.pop(queue, (-1, found))
        if end == queue.next and ahead.queue_offset < offset:
            self.doubtful.pop(ahead.position, None)
            self._put_after_gap(queue, ahead)
            if offset <= queue.next:
                return offset == queue.next
        if self._live and (_is_new(queue) or offset - queue.next <= _gap_max(queue)):
            _leave_out(queue, offset)
            return True
        last = queue.unit(queue.next - 1)[0] if queue.next > queue.min else 0
        gap_max = _messages_max(queue, found.position - last)
        if queue.min == queue.next:
            # It began behind messages that only a second tier has, with gaps in its file.
            gap_max = max(gap_max, _gap_max(queue))
        if _is_new(queue) or offset - queue.next <= gap_max:
            self._ahead[queue] = queue.next, found
        return False

    def finish(self, lost_bytes: int) -> None:
        """Put the records that still wait at the offsets they state, unless they leave out more than can be lost.
        `lost_bytes`: how much of the log is.
        """
        for queue, (end, found) in self._ahead.items():
            gap_max = max(_gap_max(queue), _messages_max(queue, lost_bytes))
            is_there = self._queues.by_bytes.get((queue.topic, queue.queue_id)) is queue and queue.next == end
            if is_there and (_is_new(queue) or found.queue_offset - end <= gap_max):
                self._put_after_gap(queue, found)
        self._ahead.clear()
        if self._from_start:
            # A damaged topic or queue may have made a queue of its own.
            alone = (queue for queue in self._queues.loaded() if queue.next - queue.min == 1 and not queue.is_batch)
            for queue in islice(alone, DOUBTS_MAX):
                position, size, _ = queue.unit(queue.min)
                self.doubtful[position] = size

    @staticmethod
    def _put_after_gap(queue: ConsumeQueue, found: Record) -> None:
        _leave_out(queue, found.queue_offset)
        _put_unit(queue, found, dispatch_request(found.sys_flag, found.properties))


def _is_new(queue: ConsumeQueue) -> bool:
    return queue.next == 0 and not queue.mapped_files.starts


def _gap_max(queue: ConsumeQueue) -> int:
    """Return how many messages may be left out without a record after them that says so, too: those of a file."""
    return queue.mapped_files.size // UNIT_BYTES


def _messages_max(queue: ConsumeQueue, log_bytes: int) -> int:
    """Return how many messages of the queue so many bytes of the log can hold."""
    return log_bytes // RECORD_BYTES_MIN * (INNER_COUNT_MAX if queue.is_batch else 1)


def _leave_out(queue: ConsumeQueue, offset: int) -> None:
    """Make `offset` the next of a queue."""
    if _is_new(queue):
        queue.start_at(offset)
    else:
        is_empty = queue.min == queue.next
        queue.fill_to(offset)
        queue.min = offset if is_empty else queue.min


def _write_keys(index: IndexService) -> None:
    """Write the index keys; on a full disk they are kept in memory, so that the store can be opened and cleaned."""
    try:
        index.write_pending()
    except StoreFull:
        pass


def _put_unit(queue: ConsumeQueue, found: Record, request: DispatchRequest) -> None:
    code = queue.unit_code(request.tags_code, found.store_time_ms)
    queue.put(found.position, found.size, code, found.store_time_ms, request.message_count)


# Of so much of the log keys are put again at once, some 0.2 s.
REINDEX_BYTES_MAX = 32 << 20


def index_late(log: CommitLog, index: IndexService, replay: Replay, begin: int, late: Sequence[Record]) -> None:
    """Put the keys of the records `late`, which were mended, into the index, unless it has them; the first begins at
    position `begin`.

    The entries of all records after `begin` are put again, as entries ascend in the log's order.
    """
    end = log.written
    if all(_is_indexed(index, found) for found in late):
        return
    try:
        if end - begin > REINDEX_BYTES_MAX:
            raise StoreFull(f"{end - begin} bytes of the log follow, more than are put into the index anew")
        index.cut(begin)
    except StoreFull as e:
        _log.warning("%d mended messages are not found by key: %s", len(late), e)
        return
    for data in records_between(log, begin, end):
        try:
            replay.put_keys_again(decode(data, check_crc=False))
        except RecordError:
            continue  # It was told when it came.


def _is_indexed(index: IndexService, found: Record) -> bool:
    request = dispatch_request(found.sys_flag, found.properties)
    key = request.unique_id or (request.keys or b"").partition(b" ")[0]
    if not key or not enters_index(found.sys_flag):
        return True
    topic, time_ms = found.topic.decode("utf-8", "replace"), found.store_time_ms
    return found.position in index.find(topic, key.decode("utf-8", "replace"), time_ms, time_ms)
