"""Queue locks of orderly consumers: the client of each group that holds a queue. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rocketspark.model import MessageQueue

# Of all groups, and of one: beyond them a queue that nobody holds is not given (it is asked for again in 20 s).
LOCKS_MAX = 500_000
GROUP_LOCKS_MAX = 65_536
# Looked at in one turn of the loop: 1 to 4 ms.
LOOKED_AT_IN_TURN = 16_384


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
        for _ in self.expire_steps(now_ms):
            pass

    def expire_steps(self, now_ms: int) -> Iterator[None]:
        """`expire` in pieces; what is renewed in between stays."""
        oldest_ms = now_ms - self._expiry_ms
        looked_at = 0
        for group in list(self._held):
            queues = list(self._held.get(group, ()))
            for at in range(0, len(queues), LOOKED_AT_IN_TURN):
                part = queues[at : at + LOOKED_AT_IN_TURN]
                looked_at += len(part)
                if looked_at > LOOKED_AT_IN_TURN:
                    yield
                    looked_at = len(part)
                self._forget_old(group, part, oldest_ms)

    def _forget_old(self, group: str, queues: Iterable[MessageQueue], oldest_ms: int) -> None:
        held = self._held.get(group, {})
        for queue in [q for q in queues if q in held and held[q][1] < oldest_ms]:
            del held[queue]
            self.count -= 1
        if not held:
            self._held.pop(group, None)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; those of other clients stay."""
        held = self._held.get(group, {})
        for queue in queues:
            if held.get(queue, ("", 0))[0] == client_id:
                del held[queue]
                self.count -= 1
        if not held:
            self._held.pop(group, None)
