"""Sends under way. Rule: their count and bytes are bounded, and the first that fails ends all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class SendsInFlight:
    """Runs sends as tasks. Ask for `room` before each `start`; `end` it when done.

    Each send notes what it fails with by `fail`, and at its very end calls `leave`.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._forget = self._tasks.discard
        self._count = self._bytes = 0
        self._one_ended = asyncio.Event()
        self.failed: Exception | None = None
        # Called with the first failure.
        self.on_failure: Callable[[Exception], None] = lambda error: None

    def has_room(self, size: int) -> bool:
        """Tell whether a send of so many bytes may start now; one that is larger than the bound goes alone."""
        if self.failed is not None:
            return False
        return not self._count or (self._bytes + size <= self._bytes_max and self._count < self._count_max)

    async def room(self, size: int) -> None:
        """Wait until a send of so many bytes may start. Raises the error of a send that failed."""
        while not self.has_room(size):
            await self._wait()

    def start(self, size: int, send: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a send of so many bytes."""
        self.enter(size)
        return self.go_on(send)

    def enter(self, size: int) -> None:
        """Note the begin of a send of so many bytes that runs without a task; it must `leave`, too."""
        self._count += 1
        self._bytes += size

    def go_on(self, send: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task of a send that has entered."""
        task = asyncio.ensure_future(send)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def fail(self, error: Exception) -> None:
        """Note what a send failed with, before its task is done: what waits for that must know."""
        if self.failed is None:
            self.failed = error
            self.on_failure(error)

    def leave(self, size: int) -> None:
        """Note the end of a send."""
        self._count -= 1
        self._bytes -= size
        self._one_ended.set()

    async def settle(self) -> None:
        """Wait until all have ended. Raises the error of a send that failed."""
        while self._count or self.failed is not None:
            await self._wait()

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
        # One that was cancelled before it began has not left.
        self._count = self._bytes = 0
