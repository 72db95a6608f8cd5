"""Start-up: finds the end of the log and brings queues and index in line with it.

Rule: what lies before the checkpoint's position is on the disk; everything after is replayed from the log through
the same code that appends use, after the queue units and index entries from there on were taken away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rocketspark.model.java import string_hash
from rocketspark.protocol import properties, sysflags
from rocketspark.protocol.record import Record
from rocketspark.store.batch_queue import inner_count
from rocketspark.store.checkpoint import Checkpoint
from rocketspark.store.key_index import PENDING_MAX, KeyIndex
from rocketspark.store.log import Log
from rocketspark.store.queue import UNIT_BYTES, Queue
from rocketspark.store.queue_index import QueueIndex

# How much of the log before the checkpoint is read again, to notice a tail that was cut or garbled.
VERIFY_BYTES = 4 << 20
TIME_MARGIN_MS = 3000

_TAGS = properties.TAGS.encode()
_KEYS = properties.KEYS.encode()
_UNIQUE_ID = properties.UNIQUE_ID.encode()


class Recovered(NamedTuple):
    """What was found: `end` of the log, how many records were `replayed`, `cut`: less log than the checkpoint says."""

    end: int
    last_store_time_ms: int
    replayed: int
    cut: bool


class _QueueHole(Exception):
    """A queue lacks units from before the replayed part."""


def recover(
    log: Log,
    queues: QueueIndex,
    index: KeyIndex | None,
    at: Checkpoint,
    deleted: Mapping[bytes, int],
    *,
    crashed: bool,
) -> Recovered:
    """Makes log, queues and index agree.

    `deleted`: of topics, the log position before which their records are in no queue; `crashed`: the last run did not
    end by `close`.

    Raises StoreFull or StoreUnwritable if files cannot be repaired.
    """
    oldest = log.min_position
    queues.min_position = oldest
    for topic, position in deleted.items():
        queues.finish_deletion(topic.decode(), position)
    safe = _replay_start(log, queues, index, at)
    thorough = crashed or safe == oldest
    try:
        found = _replay(log, queues, index, safe, deleted, thorough=thorough)
        if found.end < at.queues_position:
            # Queues may point beyond the log's end: every one has to be looked at.
            found = _replay(log, queues, index, min(safe, found.end), deleted, thorough=True)._replace(cut=True)
        return found
    except _QueueHole:
        # Files of queues are missing or damaged beyond what the checkpoint promises: make all anew from the log.
        return _replay(log, queues, index, oldest, deleted, thorough=True)


def _replay_start(log: Log, queues: QueueIndex, index: KeyIndex | None, at: Checkpoint) -> int:
    oldest, end = log.min_position, log.segments.end()
    if not queues.queues():
        return oldest
    safe = at.queues_position
    if safe <= 0:
        # Written by RocketMQ before 5.4: go by store time (rule: CommitLog.recoverAbnormally).
        times = [at.log_time_ms, at.queues_time_ms]
        if index is not None and index.has_files():
            times.append(at.index_time_ms)
        safe = _position_at_time(log, min(times) - TIME_MARGIN_MS)
    if index is not None and index.has_files():
        safe = min(safe, index.end_position())
    return min(max(safe, oldest), end)


def _position_at_time(log: Log, time_ms: int) -> int:
    """The last file whose first record was stored by `time_ms`; the log's start if in doubt."""
    for start in reversed(log.segments.starts):
        if 0 <= log.first_store_time(start) <= time_ms:
            return start
    return log.min_position


def _verify_start(log: Log, safe: int) -> int:
    """A record some MiB before `safe`, so that a tail cut or garbled there is noticed."""
    start = safe - VERIFY_BYTES
    while start > log.min_position:
        found = log.boundary(start)
        if found < safe:
            return found
        start -= VERIFY_BYTES
    return log.min_position


def _replay(
    log: Log, queues: QueueIndex, index: KeyIndex | None, safe: int, deleted: Mapping[bytes, int], *, thorough: bool
) -> Recovered:
    verify_from = _verify_start(log, safe)
    replay = _Replay(queues, index, safe, deleted, from_start=safe <= log.min_position)
    end = last_time_ms = replayed = 0
    opened = False
    while True:
        for found in log.scan(verify_from):
            last_time_ms = found.store_time_ms
            if found.position < safe:
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
    if not opened:
        _open_at(queues, index, min(safe, end), thorough=thorough)
    if index is not None:
        index.write_pending()
    if log.segments.starts and (thorough or _anything_at(log, end)):
        log.segments.cut(end)
    log.set_end(end)
    return Recovered(end, last_time_ms, replayed, cut=False)


def _open_at(queues: QueueIndex, index: KeyIndex | None, position: int, *, thorough: bool) -> None:
    """Takes away what stands in queues and index for log positions from `position` on."""
    if index is not None:
        index.drop_from(position)
    if thorough:
        queues.load_all(position)


def _anything_at(log: Log, end: int) -> bool:
    start = end - end % log.file_bytes
    if start not in log.segments.starts:
        return False
    return any(log.segments.get(start).view[end - start : end - start + 8])


class _Replay:
    """Puts records into queues and index, as their appends would have (rule: wire.md 4.3)."""

    def __init__(
        self, queues: QueueIndex, index: KeyIndex | None, safe: int, deleted: Mapping[bytes, int], *, from_start: bool
    ) -> None:
        self._queues = queues
        self._deleted = deleted
        self._index = index
        self._safe = safe
        self._from_start = from_start
        self._reborn: dict[Queue, Record] = {}

    def put(self, found: Record) -> None:
        """Queue unit and index keys of one record. Raises _QueueHole if its queue lacks units before it."""
        queues, index = self._queues, self._index
        kind = found.sys_flag & sysflags.TRANSACTION_MASK
        if not kind & sysflags.TRANSACTION_PREPARED and found.position >= self._deleted.get(found.topic, 0):
            if found.sys_flag & sysflags.INNER_BATCH and found.topic.decode() not in queues.queues():
                queues.batch_topics.add(found.topic)
            queue = queues.make(found.topic, found.queue_id, self._safe)
            if self._has_place(queue, found):
                _put_unit(queue, found)
        if index is not None and kind != sysflags.TRANSACTION_ROLLBACK:
            index.pending.append(
                (
                    queues.keys_of(found.topic.decode("utf-8", "replace")),
                    found.position,
                    found.store_time_ms,
                    properties.find(found.properties, _UNIQUE_ID),
                    properties.find(found.properties, _KEYS),
                    properties.find(found.properties, _TAGS),
                )
            )
            if len(index.pending) >= PENDING_MAX:
                index.write_pending()

    def _has_place(self, queue: Queue, found: Record) -> bool:
        """Brings the queue's end to the record's offset; False if it stays out (its offset is damaged)."""
        offset = found.queue_offset
        if offset == queue.next:
            return True
        reborn = self._reborn.get(queue)
        if reborn is not None and offset == inner_count(reborn.sys_flag, reborn.properties):
            queue.cut(0)
            _put_unit(queue, self._reborn.pop(queue))
            return True
        if offset < queue.next:
            # Either the topic was deleted and made again by RocketMQ, or the offset is damaged: the next one tells.
            if offset == 0:
                self._reborn[queue] = found
            return False
        if not self._from_start:
            raise _QueueHole
        if queue.next == 0 and not queue.segments.starts:
            queue.start_at(offset)
            return True
        if offset - queue.next > queue.segments.size // UNIT_BYTES:
            return False
        queue.fill_to(offset)
        return True


def _put_unit(queue: Queue, found: Record) -> None:
    if queue.delay_ms is not None:
        code = found.store_time_ms + queue.delay_ms
    else:
        tags = properties.find(found.properties, _TAGS)
        code = string_hash(tags.decode("utf-8", "replace")) if tags else 0
    queue.put(found.position, found.size, code, found.store_time_ms, inner_count(found.sys_flag, found.properties))
