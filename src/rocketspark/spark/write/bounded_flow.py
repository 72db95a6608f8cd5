"""Bounds what a writing task holds in memory: rows that a thread reads ahead while those before are sent, and sends
that are in flight.

Rule: one item is read ahead, no more, so that a slow broker stops the reading. Sends have a bound on their count and
bytes, and the first that fails ends all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from rocketspark.transport.shared_task import end_tasks

T = TypeVar("T")
_END: Any = object()


class ReadAhead(Generic[T]):
    """Gives the items of an iterator, in order, while a thread reads the next one. An error of the iterator is raised
    in the place of its item. `close` it when done.

    If the thread waits for an item then, it is left to itself, and ends with that item.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._asked: SimpleQueue[asyncio.Future[T] | None] = SimpleQueue()
        # A daemon: it must not keep a process that was told to end, however long its item takes.
        threading.Thread(target=self._take, name="rocketspark-read-ahead", daemon=True).start()
        self._next = self._ask()

    def __aiter__(self) -> ReadAhead[T]:
        return self

    async def __anext__(self) -> T:
        item = await self._next
        if item is _END:
            raise StopAsyncIteration
        self._next = self._ask()
        return item

    def fail(self, error: Exception) -> None:
        """Have this error raised instead of the next item, at once, however long the item takes."""
        if not self._next.done():
            self._next.set_exception(error)
            self._next.exception()  # Whoever sends may have raised it.

    def close(self) -> None:
        """Take no more items."""
        self._next.cancel()
        self._asked.put(None)

    def _ask(self) -> asyncio.Future[T]:
        wanted: asyncio.Future[T] = self._loop.create_future()
        self._asked.put(wanted)
        return wanted

    def _take(self) -> None:
        while (wanted := self._asked.get()) is not None:
            item, error = _END, None
            try:
                item = next(self._items, _END)
            except BaseException as e:
                error = e
            try:
                self._loop.call_soon_threadsafe(_give, wanted, item, error)
            except RuntimeError:  # The loop was closed meanwhile.
                return


def _give(wanted: asyncio.Future[T], item: T, error: BaseException | None) -> None:
    if wanted.done():  # Cancelled, or failed.
        return
    if error is None:
        wanted.set_result(item)
    else:
        wanted.set_exception(error)
        wanted.exception()  # If a send fails first, nobody asks for it.


class SendsInFlight:
    """Runs sends as tasks, with a bound on those in flight. Call `room` before each `start`, and `end` when done.

    Each send notes its error by `fail`, and at its very end calls `leave`.
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
        """Tell whether a send of `size` bytes may start now; one that is larger than the bound may if it is the only
        one.
        """
        if self.failed is not None:
            return False
        return not self._count or (self._bytes + size <= self._bytes_max and self._count < self._count_max)

    async def room(self, size: int) -> None:
        """Wait until a send of `size` bytes may start. Raises the error of a send that failed."""
        while not self.has_room(size):
            await self._wait()

    def start(self, size: int, send: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a send of `size` bytes as a task, and return the task."""
        self.enter(size)
        return self.go_on(send)

    def enter(self, size: int) -> None:
        """Count a send of `size` bytes that begins without a task; it must call `leave`, too."""
        self._count += 1
        self._bytes += size

    def go_on(self, send: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the rest of a send as a task; the send was counted by `enter` before."""
        task = asyncio.ensure_future(send)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def fail(self, error: Exception) -> None:
        """Note the error of a send before its task is done: whoever waits for the task must see it."""
        if self.failed is None:
            self.failed = error
            self.on_failure(error)

    def leave(self, size: int) -> None:
        """End the counting of a send of `size` bytes."""
        self._count -= 1
        self._bytes -= size
        self._one_ended.set()

    async def settle(self) -> None:
        """Wait until all sends have ended. Raises the error of a send that failed."""
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
        """Cancel the sends that are in flight, and wait until they have ended."""
        await end_tasks(*self._tasks)
        # One that was cancelled before it began has not left.
        self._count = self._bytes = 0
