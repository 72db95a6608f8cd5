"""Scans over many queues, in pieces. Rule: one piece per turn of the loop, for all scans together, so other requests
go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator, Sequence
from typing import TypeVar

from rocketspark.transport.peer import Peer

T = TypeVar("T")

# Queues that are looked at in one turn: some ms.
QUEUES_IN_TURN = 256


class LongScans:
    """Runs long scans. Each is a generator that yields between its pieces and returns the answer."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._rotation = asyncio.Lock()

    async def next(self) -> None:
        """Wait until the scan that calls it may do its next piece; all scans take turns in rotation."""
        async with self._rotation:
            await asyncio.sleep(0)

    async def whole(self, steps: Generator[None, None, T]) -> T:
        """Run a generator to its end, and return its result; the first piece runs at once, others in later turns."""
        while True:
            try:
                next(steps)
            except StopIteration as e:
                found: T = e.value
                return found
            await self.next()

    async def pieces(self, rows: Sequence[T], count: int = QUEUES_IN_TURN) -> AsyncIterator[Sequence[T]]:
        """Yield `rows` in pieces of `count`: the first at once, each other in a later turn of the loop."""
        for at in range(0, len(rows), count):
            if at:
                await self.next()
            yield rows[at : at + count]

    def answer(self, peer: Peer, steps: Generator[None, None, bytes]) -> bytes | Coroutine[None, None, bytes]:
        """Return the reply that a generator makes: at once if it has one piece, else as a coroutine."""
        try:
            next(steps)
        except StopIteration as e:
            whole: bytes = e.value
            return whole
        peer.rest()
        return self._rest(steps)

    async def _rest(self, steps: Generator[None, None, bytes]) -> bytes:
        async with self._lock:
            while True:
                await asyncio.sleep(0)
                try:
                    next(steps)
                except StopIteration as e:
                    whole: bytes = e.value
                    return whole
