"""The moment a queue of an ordered group is free again. Rule: who waits for it is woken then, or sooner by an ack.

Rule: QueueLevelConsumerOrderInfoLockManager, 5.5.0. Times are those of the wall clock; it is asked again when a timer
ends, as the clock may have jumped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rocketspark.broker.pop.ordered import OrderedPops
from rocketspark.broker.storage.json_tables import now_ms

# A timer ends at least so often.
LOOK_MS = 60_000

Queue = tuple[str, str, int]


class BlockEnds:
    """One timer for each queue that is held back. `wake` is called with topic, group and queue id once it is free."""

    def __init__(
        self, ordered: OrderedPops, wake: Callable[[str, str, int], None], *, enabled: Callable[[], bool]
    ) -> None:
        self._ordered = ordered
        self._wake = wake
        self._enabled = enabled
        self._timers: dict[Queue, asyncio.TimerHandle] = {}

    def look(self, topic: str, group: str, queue_id: int) -> None:
        """Look at a queue after what holds it back changed."""
        queue = (topic, group, queue_id)
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
        if not self._enabled():
            return
        left_ms = self._ordered.blocked_until_ms(topic, group, queue_id, None, 0) - now_ms()
        if left_ms <= 0:
            self._wake(topic, group, queue_id)
        else:
            # One ms more, so that the clock has reached it.
            seconds = (min(left_ms, LOOK_MS) + 1) / 1000
            self._timers[queue] = asyncio.get_running_loop().call_later(seconds, self.look, *queue)

    def look_at_all(self) -> None:
        """Look at all queues, e.g. when the broker begins."""
        for queue in list(self._ordered.blocked()):
            self.look(*queue)

    def close(self) -> None:
        """End all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
