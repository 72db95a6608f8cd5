"""Work beside the event loop. Rule: a call that takes long runs in a thread, so that it does not block the loop;
one that may never end runs in a thread that the process does not wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

T = TypeVar("T")


class BackgroundThread:
    """One thread that runs one call after the other."""

    def __init__(self, name: str) -> None:
        self._name = f"rocketspark-{name}"
        self._thread: ThreadPoolExecutor | None = None

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call` in the thread; return a future of its result."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self._name)
        return asyncio.get_running_loop().run_in_executor(self._thread, call)

    def close(self) -> None:
        """Wait for the call that is running; calls that have not begun are dropped."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)


class LooseThreads:
    """Threads for calls that may hang, as those to other machines do. `count`: at most; further calls wait for one."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._name = f"rocketspark-{name}"
        self._count = count
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call` in a thread; return a future of its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def end(found: T | None, failure: Exception | None) -> None:
            if future.done():
                return
            if failure is None:
                future.set_result(cast(T, found))
            else:
                future.set_exception(failure)

        def work() -> None:
            found, failure = None, None
            try:
                found = call()
            except Exception as e:
                failure = e
            # The loop may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(end, found, failure)

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
