"""One at a time per key, in the order of arrival; different keys don't wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable


class Lanes:
    """Locks by key; a key's lock lives as long as somebody holds or awaits it."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, tuple[asyncio.Lock, list[None]]] = {}

    async def enter(self, key: Hashable) -> None:
        """Wait for all who entered before. `leave` must follow unless this raises."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = (asyncio.Lock(), [])
        lock, users = lane
        users.append(None)
        try:
            await lock.acquire()
        except BaseException:
            self._forget(key)
            raise

    def leave(self, key: Hashable) -> None:
        """Let the next one enter."""
        self._lanes[key][0].release()
        self._forget(key)

    def _forget(self, key: Hashable) -> None:
        users = self._lanes[key][1]
        users.pop()
        if not users:
            del self._lanes[key]

    def __len__(self) -> int:
        return len(self._lanes)
