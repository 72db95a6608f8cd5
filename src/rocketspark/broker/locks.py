"""Which client of a group holds which queue, for orderly consumers. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Iterable

from rocketspark.model import MessageQueue


class QueueLocks:
    """Locks live 60 s from the last call that took them (rule: RebalanceLockManager, 5.x)."""

    def __init__(self, expiry_ms: int = 60_000) -> None:
        self._expiry_ms = expiry_ms
        self._held: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Take or renew the locks that are free; returns the queues that the client holds now."""
        held = self._held.setdefault(group, {})
        taken = []
        for queue in queues:
            owner, since_ms = held.get(queue, (client_id, now_ms))
            if owner == client_id or now_ms - since_ms > self._expiry_ms:
                held[queue] = (client_id, now_ms)
                taken.append(queue)
        return taken

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; those of other clients stay."""
        held = self._held.get(group, {})
        for queue in queues:
            if held.get(queue, ("", 0))[0] == client_id:
                del held[queue]
        if not held:
            self._held.pop(group, None)
