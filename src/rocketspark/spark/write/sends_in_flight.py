"""Sends under way. Rule: their count and bytes are bounded, and the first that fails ends all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any


class SendsInFlight:
    """Runs sends as tasks. Ask for `room` before each `start`, and `end` it when done."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._one_ended = asyncio.Event()
        self.failed: Exception | None = None

    def has_room(self, size: int) -> bool:
        """Tell whether a send of so many bytes may start now; one that is larger than the bound goes alone."""
        if self.failed is not None:
            return False
        fits = self._bytes + size <= self._bytes_max and len(self._tasks) < self._count_max
        return fits or not self._tasks

    async def room(self, size: int) -> None:
        """Wait until a send of so many bytes may start. Raises the error of a send that failed."""
        while not self.has_room(size):
            await self._wait()

    def start(self, size: int, send: Callable[..., Awaitable[None]], *arguments: Any) -> asyncio.Task[None]:
        """Start a send of so many bytes."""
        task = asyncio.ensure_future(self._run(send, arguments))
        self._tasks.add(task)
        self._bytes += size
        task.add_done_callback(partial(self._ended, size))
        return task

    async def _run(self, send: Callable[..., Awaitable[None]], arguments: tuple[Any, ...]) -> None:
        try:
            await send(*arguments)
        except Exception as e:
            # Noted before the task is done, as other sends may wait for its end.
            self.failed = self.failed or e

    def _ended(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._bytes -= size
        self._one_ended.set()

    async def settle(self) -> None:
        """Wait until all have ended. Raises the error of a send that failed."""
        while self._tasks:
            await self._wait()
        if self.failed is not None:
            raise self.failed

    async def _wait(self) -> None:
        """Wait until one has ended. Raises the error of a send that failed."""
        if self.failed is None:
            self._one_ended.clear()
            await self._one_ended.wait()
        if self.failed is not None:
            raise self.failed

    async def end(self) -> None:
        """Cancel those under way, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
