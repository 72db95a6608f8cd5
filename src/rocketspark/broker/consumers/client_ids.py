"""Whose each client id is. Rule: a client id belongs to the user who came with it first, for as long as he says it.

It stays his for some time after his last heartbeat, so that nobody takes it while he connects anew.
"""

from __future__ import annotations

from collections.abc import Hashable

# Ids kept; past it those go that were said least recently.
KEPT_MAX = 200_000


class ClientIds:
    """Ids with their users; `kept_ms`: for how long after the last heartbeat."""

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        # Since when, and when last; the one that was said least recently first.
        self._said: dict[tuple[str, Hashable], tuple[int, int]] = {}
        self._count = 0

    def said(self, client_id: str, user: Hashable, now_ms: int) -> None:
        """Note a heartbeat."""
        key = client_id, user
        before = self._said.pop(key, None)
        if before is None:
            self._count += 1
        self._said[key] = (self._count if before is None else before[0]), now_ms
        if len(self._said) > KEPT_MAX:
            del self._said[next(iter(self._said))]

    def turn(self, client_id: str, user: Hashable) -> int:
        """Return a number that is the lower the earlier a user came with an id."""
        return self._said.get((client_id, user), (self._count + 1, 0))[0]

    def expire(self, now_ms: int) -> None:
        """Forget the ids that were not said for too long."""
        while self._said:
            key = next(iter(self._said))
            if self._said[key][1] >= now_ms - self._kept_ms:
                return
            del self._said[key]
