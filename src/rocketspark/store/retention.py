"""What is old enough to go. Rule: whole files, oldest first, never the one being written; planned before any goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from rocketspark.store.files import failure
from rocketspark.store.key_index import KeyIndex
from rocketspark.store.log import Log
from rocketspark.store.queue_index import QueueIndex

# How many queues one step looks at: each costs some 20 us.
QUEUES_PER_STEP = 100


def expired(
    starts: list[int], first_times_ms: list[int], before_ms: int, count_max: int, *, forced: bool = False
) -> list[int]:
    """The log files all of whose records were stored before `before_ms`: the file after begins no later.

    `first_times_ms`: store time of each file's first record, -1 if it has none. `forced`: younger ones, too.
    """
    found: list[int] = []
    for start, following_ms in zip(starts, first_times_ms[1:], strict=False):
        if following_ms < 0 or (following_ms > before_ms and not forced) or len(found) >= count_max:
            break
        found.append(start)
    return found


def steps(
    log: Log, queues: QueueIndex, keys: KeyIndex | None, before_ms: int, count_max: int, *, forced: bool
) -> Iterator[Callable[[], None] | None]:
    """Removes expired log files, then the queue and index files that only point into them, a little at each step.

    A step that removes a log file gives the slow part of it, to be called, by any thread, before the next step; the
    others give None. Between steps appends and reads may go on. Raises StoreUnwritable if a file cannot be removed.
    """
    # What is not on the disk stays, so the file being written does.
    starts = [start for start in log.segments.starts if start + log.file_bytes <= log.flushed]
    following = [*starts, *(s for s in log.segments.starts if s <= log.written and s not in starts)]
    times = [log.first_store_time(start) for start in following]
    for start in expired(starts, times, before_ms, count_max, forced=forced):
        yield _remover(log, start)
    if queues.min_position < log.min_position:
        yield from queues.expire(log.min_position, QUEUES_PER_STEP)
        if keys is not None:
            keys.drop_before(log.min_position)


def _remover(log: Log, start: int) -> Callable[[], None]:
    """Takes a file out of the log; what is returned gives its space back (60 ms for 1 GiB in memory)."""
    path = log.segments.path(start)
    mapped = log.segments.detach(start)

    def remove() -> None:
        nonlocal mapped
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise failure(e, "remove", path) from e
        if mapped is not None:
            try:
                mapped.view.release()
                mapped.map.close()
            except BufferError:
                pass  # Slices are in use, e.g. in a reply being written: the last one lets the map go.
            mapped = None

    return remove
