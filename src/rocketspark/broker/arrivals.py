"""Who waits for messages. Rule: a waiter is asked again when its queue grew, and once more when its time is over.

Appends mark their queue; all marked queues are looked at once per turn of the loop, so a burst costs one look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

QueueKey = tuple[str, int]


class Waiter:
    """One held request. `retry(final)` answers it and returns True, or returns False to go on waiting."""

    __slots__ = ("key", "retry", "timer")

    def __init__(self, key: QueueKey, retry: Callable[[bool], bool]) -> None:
        self.key = key
        self.retry = retry
        self.timer: asyncio.TimerHandle | None = None


class Arrivals:
    """The held requests of one broker, by queue."""

    def __init__(self) -> None:
        self._waiting: dict[QueueKey, dict[Waiter, None]] = {}
        self._marked: set[QueueKey] = set()

    @property
    def waiting(self) -> int:
        """How many requests are held."""
        return sum(len(w) for w in self._waiting.values())

    @property
    def awaited(self) -> bool:
        """Whether any request is held."""
        return bool(self._waiting)

    def wait(self, key: QueueKey, timeout_s: float, retry: Callable[[bool], bool]) -> Waiter:
        """Hold a request until `retry` answers it; after `timeout_s` it is asked a last time, with final=True."""
        waiter = Waiter(key, retry)
        waiter.timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, waiter)
        self._waiting.setdefault(key, {})[waiter] = None
        return waiter

    def drop(self, waiter: Waiter) -> None:
        """Forget a held request, e.g. because its connection ended."""
        if waiter.timer is not None:
            waiter.timer.cancel()
        waiters = self._waiting.get(waiter.key)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiting[waiter.key]

    def mark(self, topic: str, queue_id: int) -> None:
        """The queue grew: its waiters are looked at later in this turn of the loop."""
        key = (topic, queue_id)
        if key in self._waiting:
            if not self._marked:
                asyncio.get_running_loop().call_soon(self._wake)
            self._marked.add(key)

    def _wake(self) -> None:
        marked, self._marked = self._marked, set()
        for key in marked:
            for waiter in list(self._waiting.get(key, ())):
                if waiter.retry(False):
                    self.drop(waiter)

    def _expire(self, waiter: Waiter) -> None:
        self.drop(waiter)
        waiter.retry(True)

    def close(self) -> None:
        """Answer every held request now."""
        for waiters in list(self._waiting.values()):
            for waiter in list(waiters):
                self._expire(waiter)
