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
from operator import length_hint
from typing import Any, NamedTuple, TypeVar

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
    check_ran(returned)
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
        check_ran(returned)
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


def check_ran(returned: Any) -> None:
    """Raise UsageError if what an application's function returned is a generator."""
    # A generator that types.coroutine made can be awaited.
    if isinstance(returned, AsyncGenerator) or (isinstance(returned, Generator) and not inspect.isawaitable(returned)):
        raise UsageError(
            "the function holds a `yield`: calling it made a generator and ran nothing; leave the yield out"
        )


class Run:
    """Messages of one owner that were read together, on their way to the listener.

    `owner`: the puller or the pop that read them, which has `dropped` and `counts`. `calls`: the argument of each call
    that has not begun: a message, or a list or batch of one queue's. Threads take them from it side by side, so it has
    to be an iterator in C, whose steps no other thread can divide. `done`, `failed`: the arguments of calls that ended
    and are not reported; `told`: the loop was told that there are some.
    """

    __slots__ = ("calls", "done", "failed", "owner", "told")

    def __init__(self, owner: Any, calls: Iterable[Any]) -> None:
        self.owner = owner
        self.calls = iter(calls)
        self.done: list[Any] = []
        self.failed: list[Any] = []
        self.told = False

    @property
    def is_over(self) -> bool:
        """True if no call is left that could begin, as far as the iterator tells."""
        return not length_hint(self.calls, 1)


class Outcome(NamedTuple):
    """Calls of one owner's messages that ended: their arguments, by whether the listener took them."""

    owner: Any
    done: list[Any]
    failed: list[Any]


class Slot:
    """The call that one thread or task runs: its run and its argument, None between calls."""

    __slots__ = ("given", "run")

    def __init__(self) -> None:
        self.run: Run | None = None
        self.given: Any = None


class Overdue:
    """Finds listener calls that run for longer than `limit_s`, by looking at the running calls at intervals.

    A call writes its argument into one of `slots`, which is all that it costs. `expired(owner, given)` is called once
    for each call that is overdue.
    """

    def __init__(self, limit_s: float, expired: Callable[[Any, Any], None]) -> None:
        self.slots: set[Slot] = set()
        self._limit_s = limit_s
        self._expired = expired
        self._seen: dict[Slot, tuple[Run, Any, float]] = {}
        # With what their ids are of, which would else be given to others.
        self._given_up: dict[tuple[int, int], tuple[Run, Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(min(limit_s / 4, 60), self._look)

    def slot(self) -> Slot:
        """Return a new slot, for one thread or task."""
        slot = Slot()
        self.slots.add(slot)
        return slot

    def _look(self) -> None:
        self._timer = self._loop.call_later(min(self._limit_s / 4, 60), self._look)
        now_s = self._loop.time()
        before, self._seen = self._seen, {}
        for slot in list(self.slots):
            run, given = slot.run, slot.given
            if run is None or given is None:
                continue
            known = before.get(slot)
            if known is None or known[0] is not run or known[1] is not given:
                known = (run, given, now_s)
            self._seen[slot] = known
            key = (id(run), id(given))
            if now_s - known[2] >= self._limit_s and key not in self._given_up:
                self._given_up[key] = (run, given)
                self._expired(run.owner, given)

    def without(self, run: Run, ended: list[Any]) -> list[Any]:
        """Return the arguments of calls of a run that ended, but for those that were overdue, which `expired` has dealt
        with already.
        """
        if not self._given_up:
            return ended
        return [given for given in ended if self._given_up.pop((id(run), id(given)), None) is None]

    def close(self) -> None:
        """Stop looking for overdue calls."""
        self._timer.cancel()
