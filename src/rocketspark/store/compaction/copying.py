"""What of a store's queues is in their compaction logs, and what is still to be copied there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.protocol.message import record_layout
from rocketspark.store.compaction.compaction_log import CompactionLog
from rocketspark.store.consumequeue.batch_consume_queue import BatchConsumeQueue
from rocketspark.store.consumequeue.consume_queue import ConsumeQueue
from rocketspark.store.get_message import GetStatus

if TYPE_CHECKING:
    from rocketspark.store.store import Store

_QUEUE_OFFSET = record_layout.only("queue_offset").unpack_from
# In one call: some ms.
_COPIED_COUNT, _COPIED_BYTES = 256, 1 << 20


class CompactionCopies:
    """Copies the queues of topics with compaction to their logs. Batch queues have none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def gap(self, topic: str, queue_id: int) -> tuple[CompactionLog, int] | None:
        """Return the compaction log of a queue, and the queue's oldest offset, if the log ends before it."""
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.min:
            return None
        log = self._store.compaction.follow(topic, queue_id, queue)
        return (log, queue.min) if log.next < queue.min else None

    def uncopied_from(self, topic: str, queue_id: int) -> int:
        """Return the position in the log before which a queue's messages are in its compaction log, on the disk."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return self._store.written_position
        log = self._store.compaction.of(topic, queue_id)
        at = queue.min if log is None else max(log.on_disk_until, queue.min)
        at = queue.after_gap(at, queue.next) if at < queue.next else at
        return queue.unit(at)[0] if at < queue.next else self._store.written_position

    def copy(self, topic: str, queue_id: int) -> bool:
        """Copy the next messages of a queue to its compaction log. Returns False if that has all of them already.

        Raises StoreFull, StoreUnwritable.
        """
        queue = self._queue(topic, queue_id)
        if queue is None:
            return False
        log = self._store.compaction.follow(topic, queue_id, queue)
        if not self._is_of(log, queue):
            # A copy may hear of a deletion after it got messages of the topic made anew.
            self._store.compaction.begin_anew(topic, queue_id)
            log = self._store.compaction.follow(topic, queue_id, queue)
        log.next = max(log.next, queue.min)
        found = self._store.read(topic, queue_id, log.next, _COPIED_COUNT, _COPIED_BYTES)
        if found.status is not GetStatus.FOUND and found.status is not GetStatus.REMOVED:
            return False
        return log.append([each for run in found.records for each in record_layout.split(run)], found.next_offset)

    def _is_of(self, log: CompactionLog, queue: ConsumeQueue) -> bool:
        """Tell whether the newest message that a log has may be the one that its queue has there."""
        newest = log.newest
        offset = -1 if newest is None else _QUEUE_OFFSET(newest)[0]
        if newest is None or not queue.min <= offset < queue.next:
            return True
        stored = self._store.log.record_at(queue.unit(offset)[0])
        if stored is None or _QUEUE_OFFSET(stored)[0] != offset:
            return True
        # Either alone may be damage.
        is_of_its_time = record_layout.store_time_of(stored) == record_layout.store_time_of(newest)
        return is_of_its_time or record_layout.properties_of(stored) == record_layout.properties_of(newest)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        found = self._store.consume_queues.find(topic, queue_id)
        return None if isinstance(found, BatchConsumeQueue) else found
