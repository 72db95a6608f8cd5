"""Whose each client id is. Rule: a client id belongs to the user who came with it first, for as long as he says it.

It stays his for some time after his last heartbeat, so that nobody takes it while he connects anew. Who says more ids
than are kept loses his own: those of the user with the most go first.
"""

from __future__ import annotations

from collections.abc import Hashable

KEPT_MAX = 200_000


class ClientIds:
    """Ids with their users; `kept_ms`: for how long after the last heartbeat."""

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        # Of each user: since when, and when last; the id that was said least recently first.
        self._said: dict[Hashable, dict[str, tuple[int, int]]] = {}
        self._kept = self._count = 0

    def said(self, client_id: str, user: Hashable, now_ms: int) -> None:
        """Note a heartbeat."""
        own = self._said.setdefault(user, {})
        before = own.pop(client_id, None)
        if before is None:
            self._count += 1
            self._kept += 1
        own[client_id] = (self._count if before is None else before[0]), now_ms
        if self._kept > KEPT_MAX:
            most = max(self._said.values(), key=len)
            del most[next(iter(most))]
            self._kept -= 1

    def turn(self, client_id: str, user: Hashable) -> int:
        """Return a number that is the lower the earlier a user came with an id."""
        return self._said.get(user, {}).get(client_id, (self._count + 1, 0))[0]

    def expire(self, now_ms: int) -> None:
        """Forget the ids that were not said for too long."""
        for user, own in list(self._said.items()):
            while own:
                client_id = next(iter(own))
                if own[client_id][1] >= now_ms - self._kept_ms:
                    break
                del own[client_id]
                self._kept -= 1
            if not own:
                del self._said[user]
