"""What a slave looks at as it starts: whether the newest messages are those that its queues say they are.

Its CRC covers a record's body alone; a wrong queue, offset, topic or size shows beside the unit that leads to it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from rocketspark.errors import StoreError
from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.store.consume_queue_repair import AHEAD_COUNT, right_units
from rocketspark.store.consumequeue.consume_queue import SHARED, UNIT_BYTES, UNIT_TYPE, ConsumeQueue
from rocketspark.store.consumequeue.consume_queue_store import ConsumeQueueStore

# The end of the log that is looked at; it has most likely been read by recovery.
LOOKED_AT_BYTES = 4 << 20
QUEUES_MAX = 1000


def doubt_newest(log: CommitLog, queues: ConsumeQueueStore) -> None:
    """Note the messages at the log's end whose records are not what their units say. Some 20 ns a message."""
    floor = log.written - LOOKED_AT_BYTES
    for queue in islice(_simple(queues), QUEUES_MAX):
        offset, file_units = queue.next, queue.mapped_files.size // UNIT_BYTES
        while offset > queue.min:
            begin = max(queue.min, offset - AHEAD_COUNT, (offset - 1) // file_units * file_units)
            view, at, here = queue.place(begin, offset - begin)
            units = np.frombuffer(view, UNIT_TYPE, here, at)
            right = right_units(log, queue, np.arange(begin, begin + here), units)
            for row in np.flatnonzero(~right).tolist():
                log.doubt(*units[row].item()[:2])
            offset = begin if units["position"][0] > floor else 0


def _simple(queues: ConsumeQueueStore) -> Iterator[ConsumeQueue]:
    for topic, ids in queues.queues().items():
        for queue_id in () if topic.encode().startswith(SHARED) else ids:
            try:
                queue = queues.find(topic, queue_id)
            except StoreError:
                continue  # Its readers are told.
            if queue is not None and not queue.is_batch:
                yield queue
