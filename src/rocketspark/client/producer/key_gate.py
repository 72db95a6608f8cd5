"""The key gate: sends of one key pass one at a time, in order of arrival; different keys don't wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable


class KeyGate:
    """Locks by key; a key's lock lives as long as a send holds or awaits it."""

    def __init__(self) -> None:
        self._gates: dict[Hashable, tuple[asyncio.Lock, list[None]]] = {}

    async def enter(self, key: Hashable) -> None:
        """Wait for all who entered before, if any. `leave` must follow unless this raises."""
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = (asyncio.Lock(), [])
        lock, users = gate
        users.append(None)
        try:
            await lock.acquire()
        except BaseException:
            self._forget(key)
            raise

    def __contains__(self, key: Hashable) -> bool:
        return key in self._gates

    def leave(self, key: Hashable) -> None:
        """Let the next one enter."""
        self._gates[key][0].release()
        self._forget(key)

    def _forget(self, key: Hashable) -> None:
        users = self._gates[key][1]
        users.pop()
        if not users:
            del self._gates[key]

    def __len__(self) -> int:
        return len(self._gates)
