"""Threads for calls that may hang: other machines, databases, disks of theirs. Rule: one that hangs keeps neither the
server nor its process from ending, as those of the loop's pool would.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


def in_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run `call` in a thread of its own; return what becomes of it, which need not be looked at."""
    future, work = _promised(call)
    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def _promised(call: Callable[[], T]) -> tuple[asyncio.Future[T], Callable[[], None]]:
    """Return a future, and a function for a thread that runs `call` and gives the future its result or error."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    # Else an error that nobody waits for any more is written into the log.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def end(found: T | None, failure: Exception | None) -> None:
        if future.done():
            return
        if failure is None:
            future.set_result(cast(T, found))
        else:
            future.set_exception(failure)

    def work() -> None:
        if future.cancelled():
            return
        found, failure = None, None
        try:
            found = call()
        except Exception as e:
            failure = e
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end, found, failure)

    return future, work


class LooseThreads:
    """Threads that take one call after the other. `count`: at most; further calls wait for one, and are left out if
    they are cancelled meanwhile.
    """

    def __init__(self, name: str, count: int = 1) -> None:
        self._name = f"rocketspark-{name}"
        self._count = count
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call` in a thread; return what becomes of it, which need not be looked at."""
        future, work = _promised(call)
        with self._changed:
            assert not self._closed
            self._waiting.append(work)
            if self._idle < len(self._waiting) and len(self._threads) < self._count:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return future

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._waiting and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._waiting:
                    return
                work = self._waiting.popleft()
            work()

    async def close(self, timeout_s: float) -> bool:
        """Drop the calls that have not begun, and wait for the others; False if one has not ended in time."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while any(thread.is_alive() for thread in self._threads):
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(0.01)
        return True
