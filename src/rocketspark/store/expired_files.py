"""The removal of expired files. Whether files expire, by age or use of the disk, the broker's `storage/retention` says.

Rule: whole files, oldest first, never the one being written; which files go is planned before the first one goes.

The oldest offsets rise before a file goes, so no queue ever leads to a removed record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.store.consumequeue.consume_queue_store import ConsumeQueueStore
from rocketspark.store.files.system_calls import remove_file
from rocketspark.store.index.index_service import IndexService

# Queues in one step: each costs some 20 us.
QUEUES_PER_STEP = 100


def expired(
    starts: list[int], first_times_ms: list[int], before_ms: int, count_max: int, *, forced: bool = False
) -> list[int]:
    """Return up to `count_max` of the oldest log files, all of whose records were stored before `before_ms`.

    That is so if the next file's first record was. `first_times_ms`: the store time of each file's first record, -1 if
    it has none. `forced`: younger files too.
    """
    found: list[int] = []
    for start, following_ms in zip(starts, first_times_ms[1:], strict=False):
        if following_ms < 0 or (following_ms > before_ms and not forced) or len(found) >= count_max:
            break
        found.append(start)
    return found


def steps(
    log: CommitLog,
    queues: ConsumeQueueStore,
    keys: IndexService | None,
    before_ms: int,
    count_max: int,
    *,
    forced: bool,
    below: int | None = None,
) -> Iterator[Callable[[], None] | None]:
    """Remove expired log files, then the queue and index files that only point into them, a little at each step.

    A step that removes a log file yields a function with the slow part of it, which any thread may call, before the
    next step; other steps yield None. `below`: only files that end at or before this position go. Appends and reads may
    go on between steps. Raises StoreUnwritable if a file cannot be removed.
    """
    # Files not wholly on the disk stay, so the file being written does; one whose first record is not whole tells no
    # time.
    starts = [start for start in log.mapped_files.starts if start + log.file_bytes <= log.flushed]
    if below is not None:
        starts = [start for start in starts if start + log.file_bytes <= below]
    following = [*starts, *(s for s in log.mapped_files.starts if s < log.written and s not in starts)]
    times = [log.first_store_time(start) for start in following]
    going = expired(starts, times, before_ms, count_max, forced=forced)
    if going:
        # First of all: a reader of expired messages then gets the oldest offset, and no answer with a hole.
        yield from queues.outdate(going[-1] + log.file_bytes, QUEUES_PER_STEP)
    for start in going:
        yield _remover(log, start)
    if queues.expired_position < log.min_position:
        yield from queues.expire(log.min_position, QUEUES_PER_STEP)
        if keys is not None:
            keys.drop_before(log.min_position)


def _remover(log: CommitLog, start: int) -> Callable[[], None]:
    """Take a file out of the log; return the call that frees its space (60 ms for 1 GiB in memory)."""
    path = log.mapped_files.path(start)
    mapped = log.mapped_files.detach(start)

    def remove() -> None:
        nonlocal mapped
        remove_file(path)
        if mapped is not None:
            try:
                mapped.view.release()
                mapped.map.close()
            except BufferError:
                pass  # Slices are in use, e.g. in a reply being written: the last one lets the map go.
            mapped = None

    return remove
