"""An iterator that blocks, read in a thread of its own: Spark makes the next rows while those before are sent.

Rule: one item is taken ahead, no more, so that a slow broker stops the reading.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_END: Any = object()


class ReadAhead(Generic[T]):
    """The items of an iterator, in order; what it raises is raised in its place. `close` it when done.

    A thread that waits for an item then is left to itself, and ends with the item.
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
        """Raise this instead of the next item, at once: it may take long."""
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
