"""What is old enough to go. Rule: whole files from the oldest on, never the newest; planned before any goes."""

from __future__ import annotations

from rocketspark.store.key_index import KeyIndex
from rocketspark.store.log import Log
from rocketspark.store.queue_index import QueueIndex


def expired(starts: list[int], first_times_ms: list[int], before_ms: int, count_max: int) -> list[int]:
    """The log files all of whose records were stored before `before_ms`: the file after begins no later.

    `first_times_ms`: store time of each file's first record, -1 if it has none.
    """
    found: list[int] = []
    for start, following_ms in zip(starts, first_times_ms[1:], strict=False):
        if not 0 <= following_ms <= before_ms or len(found) >= count_max:
            break
        found.append(start)
    return found


def expire(log: Log, queues: QueueIndex, keys: KeyIndex | None, before_ms: int, count_max: int) -> int:
    """Removes expired log files, then the queue and index files that only point into them; how many log files went.

    Raises StoreUnwritable if a file cannot be removed.
    """
    starts = [start for start in log.segments.starts if start + log.file_bytes <= log.flushed]
    following = [*starts, *(s for s in log.segments.starts if s <= log.written and s not in starts)]
    gone = expired(starts, [log.first_store_time(start) for start in following], before_ms, count_max)
    for start in gone:
        log.segments.remove(start)
    if gone:
        queues.expire(log.min_position)
        if keys is not None:
            keys.drop_before(log.min_position)
    return len(gone)
