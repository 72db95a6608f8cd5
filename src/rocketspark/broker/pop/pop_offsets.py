"""Where the next pop of a queue goes on. Rule: an offset is committed once the check point before it is on the disk.

So a power cut never takes a check point whose messages count as given out; pops are committed in their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets

# Topic, group, queue id.
Key = tuple[str, str, int]

LOOK_S = 0.1


class PopOffsets:
    """The offsets of pops that are not committed yet."""

    def __init__(self, consumer_offsets: ConsumerOffsets, flushed_position: Callable[[], int]) -> None:
        self._consumer_offsets = consumer_offsets
        self._flushed_position = flushed_position
        # (physical offset after the check point, key, next offset), in the order of the pops.
        self._waiting: deque[tuple[int, Key, int]] = deque()
        # The last of each queue.
        self._next: dict[Key, int] = {}
        self._timer: asyncio.Handle | None = None

    def popped(self, topic: str, group: str, queue_id: int, next_offset: int, end: int) -> None:
        """Note where the next pop goes on; `end`: what has to be on the disk before, 0 for nothing new."""
        key = topic, group, queue_id
        self.commit_flushed()
        if end <= self._flushed_position() and key not in self._next:
            self._commit(key, next_offset)
            return
        self._next[key] = next_offset
        self._waiting.append((end, key, next_offset))
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        try:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        except RuntimeError:
            pass  # Without a loop the next pop looks.

    @property
    def is_waiting(self) -> bool:
        """Tell whether a pop's offset is not committed yet."""
        return bool(self._waiting)

    def next_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return where the next pop of a queue goes on; None if that is the committed offset."""
        return self._next.get((topic, group, queue_id)) if self._next else None

    def forget(self, topic: str, group: str, queue_id: int) -> None:
        """Commit nothing more of what was popped from a queue so far."""
        key = topic, group, queue_id
        if self._next.pop(key, None) is not None:
            self._waiting = deque(row for row in self._waiting if row[1] != key)

    def clear(self) -> None:
        """Forget what is not committed: what counts is what the log has, which may have been cut."""
        self._next.clear()
        self._waiting.clear()

    def _look(self) -> None:
        self._timer = None
        self.commit_flushed()
        if self._waiting:
            self._arm()

    def commit_flushed(self, *, everything: bool = False) -> None:
        """Commit what is on the disk, or everything once all is."""
        if not self._waiting:
            return
        flushed = self._flushed_position()
        while self._waiting and (everything or self._waiting[0][0] <= flushed):
            _, key, next_offset = self._waiting.popleft()
            self._commit(key, next_offset)
            if self._next.get(key) == next_offset:
                del self._next[key]

    def _commit(self, key: Key, next_offset: int) -> None:
        topic, group, queue_id = key
        if not self._consumer_offsets.is_reset(group, topic, queue_id):
            self._consumer_offsets.commit(group, topic, queue_id, next_offset)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
