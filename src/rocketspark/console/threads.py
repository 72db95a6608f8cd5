"""Threads for what may hang: other machines, databases. Rule: one that hangs takes no other's thread, and keeps neither
the console nor its process from ending, as those of the loop's pool would.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


def in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run `work` in a thread of its own; return what becomes of it, which need not be looked at."""
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

    def run() -> None:
        found, failure = None, None
        try:
            found = work()
        except Exception as e:
            failure = e
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end, found, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
