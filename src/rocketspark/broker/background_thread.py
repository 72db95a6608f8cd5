"""Work beside the event loop. Rule: a call that takes long runs in a thread, so that it does not block the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
