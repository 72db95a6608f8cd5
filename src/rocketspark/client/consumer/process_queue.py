"""The process queue: messages that were pulled from one queue and are not finished. Rule: the offset to commit is the
lowest unfinished one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rocketspark.model import ReceivedMessage


class ProcessQueue:
    """Bounded by `count_max` messages, `bytes_max` bytes (as stored, or as inflated if that is more) and, if given,
    `span_max` offsets from the lowest unfinished one on; the puller waits for room.

    `next_offset`: the next to pull; everything below it is finished or in here.
    """

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_paused", "_pending", "_room", "_span_max", "next_offset")

    def __init__(self, next_offset: int, *, count_max: int, bytes_max: int, span_max: int = 0) -> None:
        self.next_offset = next_offset
        # Offsets come in rising order, and a dict keeps the order: its first key is the lowest.
        self._pending: dict[int, int] = {}
        self._bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._span_max = span_max
        self._paused = False
        self._room: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def bytes(self) -> int:
        """Return the size of the unfinished messages."""
        return self._bytes

    @property
    def lowest(self) -> int:
        """Return the lowest unfinished offset: what to commit."""
        # A message may claim any offset: nothing that was not fetched is ever committed.
        return min(next(iter(self._pending), self.next_offset), self.next_offset)

    @property
    def highest(self) -> int:
        """Return the highest unfinished offset, or the next to fetch if there is none."""
        return next(reversed(self._pending), self.next_offset)

    @property
    def has_room(self) -> bool:
        """Tell whether more may be pulled."""
        return (
            len(self._pending) < self._count_max
            and self._bytes < self._bytes_max
            and not self._paused
            and (not self._span_max or self.next_offset - self.lowest <= self._span_max)
        )

    def set_bounds(self, count_max: int, bytes_max: int) -> None:
        """Set other bounds from now on."""
        self._count_max, self._bytes_max = count_max, bytes_max
        self._wake()

    @property
    def paused(self) -> bool:
        """While true there is no room."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._wake()

    def add(self, messages: Iterable[ReceivedMessage], *, inflated: bool = False) -> None:
        """Take in messages that were fetched, in the order of their offsets. `inflated`: some bodies are."""
        pending = self._pending
        total = 0
        for message in messages:
            size = max(message.stored_bytes, len(message.body)) if inflated else message.stored_bytes
            pending[message.queue_offset] = size
            total += size
        self._bytes += total

    def finish(self, messages: Iterable[ReceivedMessage]) -> None:
        """Remove messages that are finished. One that is not in here is ignored."""
        pending = self._pending
        for message in messages:
            self._bytes -= pending.pop(message.queue_offset, 0)
        if self._room is not None:
            self._wake()

    def _wake(self) -> None:
        if self._room is not None and not self._room.done() and self.has_room:
            self._room.set_result(None)

    async def room(self) -> None:
        """Wait until there is room."""
        while not self.has_room:
            self._room = asyncio.get_running_loop().create_future()
            try:
                await self._room
            finally:
                self._room = None
