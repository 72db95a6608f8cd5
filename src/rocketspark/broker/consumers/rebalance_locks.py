"""Queue locks of orderly consumers: the client of each group that holds a queue. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Iterable

from rocketspark.model import MessageQueue

# Of all groups, and of one: beyond them a queue that nobody holds is not given (it is asked for again in 20 s).
LOCKS_MAX = 500_000
GROUP_LOCKS_MAX = 65_536


class RebalanceLocks:
    """All queue locks. A lock lives 60 s from the last call that took it (rule: RebalanceLockManager, 5.x)."""

    def __init__(self, expiry_ms: int = 60_000) -> None:
        self._expiry_ms = expiry_ms
        self.count = 0
        self._held: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Take or renew the locks that are free; returns the queues that the client holds now."""
        held = self._held.get(group, {})
        taken = []
        before = len(held)
        room = min(LOCKS_MAX - self.count, GROUP_LOCKS_MAX - before)
        for queue in queues:
            if queue not in held:
                if room <= 0:
                    continue
                room -= 1
            owner, since_ms = held.get(queue, (client_id, now_ms))
            if owner == client_id or now_ms - since_ms > self._expiry_ms:
                held[queue] = (client_id, now_ms)
                taken.append(queue)
        self.count += len(held) - before
        if held:
            self._held[group] = held
        return taken

    def expire(self, now_ms: int) -> None:
        """Forget locks that nobody renewed."""
        for group, held in list(self._held.items()):
            for queue in [q for q, (_, since_ms) in held.items() if now_ms - since_ms > self._expiry_ms]:
                del held[queue]
                self.count -= 1
            if not held:
                del self._held[group]

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; those of other clients stay."""
        held = self._held.get(group, {})
        for queue in queues:
            if held.get(queue, ("", 0))[0] == client_id:
                del held[queue]
                self.count -= 1
        if not held:
            self._held.pop(group, None)
