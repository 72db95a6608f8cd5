"""Calls of an application's functions: listeners, hooks, callbacks.

Rule: a call is over when all of it ran: a coroutine that a plain function returns (an `async def` under a plain
decorator) is run, what would never run is an error. Whatever a call raises is its own failure, SystemExit and
CancelledError too, as other work must not end with it; but Ctrl-C and the cancellation of the task that makes the
call are passed on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, TypeVar

import numpy as np

from rocketspark.errors import UsageError
from rocketspark.model.limited_log import LimitedLog

log = logging.getLogger("rocketspark.client")
# For what goes wrong again and again while a server is away.
trouble_log = LimitedLog("rocketspark.client")

T = TypeVar("T")

# Interval at which a thread that waits for the loop checks that the loop still runs.
LOOK_S = 1.0


def passes_on(error: BaseException) -> bool:
    """Tell whether `error`, raised by a call of an application's function on the loop, must be raised further.

    True for Ctrl-C, and for a cancellation if somebody asked to cancel the current task; everything else is a failure
    of the call alone.
    """
    if isinstance(error, asyncio.CancelledError):
        # Without a request to cancel this task, it is something of the application's that was cancelled.
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, (KeyboardInterrupt, GeneratorExit))


def ends_loop(error: BaseException) -> bool:
    """Tell whether `error`, raised by one turn of a task that repeats its work, ends the whole task.

    A task that was cancelled ends, even if the turn raised another error instead of the CancelledError.
    """
    task = asyncio.current_task()
    return passes_on(error) or (task is not None and task.cancelling() > 0)


def in_thread(returned: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """Return the final result of a call in a thread; an awaitable that it returned is run on `loop` and waited for.

    Raises UsageError for a generator, which would never run.
    """
    if returned is None or returned is True or returned is False:
        return returned
    _check(returned)
    if not inspect.isawaitable(returned):
        return plain(returned)
    awaited = _awaited(returned)
    try:
        running = asyncio.run_coroutine_threadsafe(awaited, loop)
    except RuntimeError:  # The loop has ended.
        awaited.close()
        raise
    while True:
        try:
            return running.result(LOOK_S)
        except concurrent.futures.TimeoutError:
            if running.done() or loop.is_closed():
                raise


async def on_loop(returned: Any) -> Any:
    """Return the final result of a call on the loop, as `in_thread` does in a thread."""
    while returned is not None and returned is not True and returned is not False:
        _check(returned)
        if not inspect.isawaitable(returned):
            return plain(returned)
        returned = await returned
    return returned


def plain(returned: Any) -> Any:
    """Return a truth value of numpy as Python's own, anything else as it is."""
    # What `(batch.queue_offsets > 0).all()` gives: a False that is not `False`.
    return bool(returned) if isinstance(returned, np.bool_) else returned


async def _awaited(returned: Awaitable[Any]) -> Any:
    try:
        return await on_loop(returned)
    except SystemExit as e:
        # It would end the loop.
        raise RuntimeError(f"a coroutine asked the process to exit ({e})") from e


class Tasks(set[asyncio.Task[Any]]):
    """Tasks that run in the background, each kept until it has ended: asyncio itself keeps none alive."""

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task, and return it."""
        return self.keep(asyncio.create_task(work))

    def keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Keep a task that runs already, and return it."""
        self.add(task)
        task.add_done_callback(self.discard)
        return task


async def every(interval_s: float, act: Callable[[], Awaitable[object]], what: str) -> None:
    """Call `act` again and again until cancelled; what it raises is logged, and ends nothing."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            await act()
        except BaseException as e:
            if ends_loop(e):
                raise
            log.error("%s: that failed, and is tried again in %.0f s", what, interval_s, exc_info=e)


async def end_all(tasks: Iterable[asyncio.Future[Any]], timeout_s: float) -> bool:
    """Cancel tasks and wait until they have ended. Returns False if some did not within the time."""
    left = {task for task in tasks if not task.done() and task is not asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=timeout_s)
    return not left


def _check(returned: Any) -> None:
    # A generator that types.coroutine made can be awaited.
    if isinstance(returned, AsyncGenerator) or (isinstance(returned, Generator) and not inspect.isawaitable(returned)):
        raise UsageError(
            "the function holds a `yield`: calling it made a generator and ran nothing; leave the yield out"
        )
