"""The background loop that all synchronous clients of a process share.

Rule: it ends with the last of them; if a loop call or a callback raises, its waiting thread gets the error and the loop
goes on.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from rocketspark.client.connection.real_threads import DaemonThreads, RealThread, check_threads, hold_hub
from rocketspark.errors import StateError

T = TypeVar("T")
R = TypeVar("R", covariant=True)

log = logging.getLogger("rocketspark.client")

# A task that does not heed its cancellation is left behind after this long.
ENDING_S = 5.0
# Calls of threads that one turn of the loop takes: what it writes leaves, and replies are read, between.
TURN_CALLS = 1000
EXECUTOR_THREADS = 16
# A chain of threads that wake one another is looked after this often.
CHAIN_S = 0.002
# Where a step of it takes longer, threads are woken all at once for so long.
STEP_S, CROWD_S = 0.00025, 0.1
# So many calls of theirs wake the loop before the chain has ended.
GATHERED_CALLS = 64


class LoopCall(Protocol):
    """A call to be run on the loop."""

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do the call; called on the loop."""

    def refuse(self, error: BaseException) -> None:
        """End the call, as the loop has ended."""


class WaitingLoopCall(LoopCall, Protocol[R]):
    """A loop call that a thread waits for: `lock` is held until `result` or `error` is there."""

    @property
    def lock(self) -> _thread.LockType: ...

    @property
    def result(self) -> R | None: ...

    @property
    def error(self) -> BaseException | None: ...

    def cancel(self) -> None:
        """Note that the thread no longer waits for this call; called on the loop."""


class WakeChain:
    """Wakes waiting threads one after another: each that was woken wakes the next before it goes on.

    Woken at once, the threads whose replies came in one read would crowd before the interpreter's lock, which costs as
    much as the rest of their sends. `over` is called when nobody waits any more, by the thread that was woken last.
    Where each step takes long, as another thread keeps the interpreter's lock, or the machine its processors, all are
    woken at once for a while.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop = loop
        self._over = over
        self._waiting: deque[_thread.LockType] = deque()
        # A thread was woken that is to wake the next; and the loop will look whether it did.
        self.goes_on = False
        self._steps = 0
        self.looks = False
        self._crowds = False
        self._ended = False

    @property
    def gathers(self) -> bool:
        """True while calls may wait for the end of the chain, which comes, or is seen to be overdue."""
        return self.goes_on and self.looks

    def wake(self, lock: _thread.LockType) -> None:
        """Let the thread that waits for `lock` go on; called on the loop."""
        if self._ended or self._crowds:
            lock.release()
            return
        self._waiting.append(lock)
        if not self.goes_on:
            self.goes_on = True
            self.pass_on()
        elif not self.looks:
            self._look_later(lock)

    def pass_on(self) -> None:
        """Wake the next thread; called by each that was woken."""
        self._steps += 1
        while True:
            if self._waiting:
                try:
                    lock = self._waiting.popleft()
                except IndexError:  # Another thread took it.
                    continue
                lock.release()
                return
            self.goes_on = False
            if not self._waiting:
                self._over()
                return
            # It came before the loop could see that the chain had ended.
            self.goes_on = True

    def _look_later(self, last: _thread.LockType | None) -> None:
        self.looks = True
        self._loop.call_later(CHAIN_S, self._look, self._steps, last, self._loop.time())

    def _look(self, steps: int, last: _thread.LockType | None, since_s: float) -> None:
        """See whether the chain got on since `since_s`, when `steps` had been made and `last` was the last to wait."""
        self.looks = False
        steps = self._steps - steps
        # A copy, in one step: others take from it.
        waiting = list(self._waiting)
        if last in waiting and self._loop.time() - since_s > steps * STEP_S:
            # Who was to wake the next was interrupted, or everyone takes long to come to it.
            self._crowds = True
            self._loop.call_later(CROWD_S, self._crowd_no_more)
            self._wake_all()
        elif not steps:
            self._wake_all()
        elif self.goes_on:
            self._look_later(waiting[-1] if waiting else None)

    def _crowd_no_more(self) -> None:
        self._crowds = False

    def _wake_all(self) -> None:
        self.goes_on = False
        while self._waiting:
            with contextlib.suppress(IndexError):  # Another thread took it.
                self._waiting.popleft().release()
        self._over()

    def end(self) -> None:
        """Wake all, and from now on each at once, as the loop ends."""
        self._ended = True
        self._wake_all()


class LoopThread:
    """A thread with an event loop; `acquire` and `release` count its users."""

    _shared: ClassVar[LoopThread | None] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._users = 0
        self._inbox: deque[LoopCall] = deque()
        self._awake = False
        self._ended = False
        self._stopping = False
        self._loop = _new_loop()
        self.wakes = WakeChain(self._loop, self._chain_over)
        # For what may block: files, an application's functions.
        self._executor = DaemonThreads(EXECUTOR_THREADS, "rocketspark-blocking")
        self._loop.set_default_executor(self._executor)
        self._let_hub_go = hold_hub()
        self._thread = RealThread(self._run, "rocketspark-client")
        self._thread.start()

    @property
    def thread(self) -> RealThread:
        """Return the thread."""
        return self._thread

    @classmethod
    def acquire(cls) -> LoopThread:
        """Return the shared loop, started if there is none. `release` must follow."""
        if sys.is_finalizing():
            raise StateError("the interpreter is about to end: no client can start any more")
        check_threads()
        with cls._guard:
            if cls._shared is None or not cls._shared._thread.is_alive():
                cls._shared = cls()
            cls._shared._users += 1
            return cls._shared

    def release(self) -> None:
        """Give up one use of the loop, taken by `acquire`; the last one ends the thread."""
        with self._guard:
            self._users -= 1
            if self._users:
                return
            if LoopThread._shared is self:
                LoopThread._shared = None
        self._stopping = True
        self._let_hub_go()
        if self.is_dead:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self._thread.is_current:
            self._thread.join()

    @property
    def is_dead(self) -> bool:
        """Tell whether nothing can run on the loop any more: it ended, this process forked, or the interpreter is at
        its end.
        """
        return self._ended or sys.is_finalizing()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._stopping:
                try:
                    self._loop.run_forever()
                except BaseException:
                    # SystemExit and KeyboardInterrupt of one task's or callback's would end all others with it.
                    log.exception("what ran on the clients' own thread wanted to end it; it goes on")
        finally:
            self._ended = True
            self.wakes.end()
            self._refuse_all()
            try:
                self._end_tasks()
            except BaseException:
                log.exception("the clients' own thread ended with an error")
            finally:
                self._refuse_all()
                self._executor.shutdown(wait=False)
                self._loop.close()

    def _end_tasks(self) -> None:
        # Tasks made in the last turn begin first: one that is cancelled before it begins runs no code at all.
        self._loop.run_until_complete(asyncio.sleep(0))
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            _, deaf = self._loop.run_until_complete(asyncio.wait(left, timeout=ENDING_S))
            for task in deaf:
                log.warning("%r does not heed its cancellation: it is left behind", task)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    def put(self, loop_call: LoopCall) -> None:
        """Have something run on the loop."""
        # One wake-up for all that come before the loop looks: it costs more than a call itself. While threads wake one
        # another, those that were woken are about to call too.
        self._inbox.append(loop_call)
        if self._ended:
            self._refuse_all()
        elif not self._awake and (not self.wakes.gathers or len(self._inbox) >= GATHERED_CALLS):
            self._wake()

    def _wake(self) -> None:
        self._awake = True
        try:
            self._loop.call_soon_threadsafe(self._take)
        except RuntimeError:  # The loop was closed in between.
            self._refuse_all()

    def _chain_over(self) -> None:
        if self._inbox and not self._awake:
            self._wake()

    def _refuse_all(self) -> None:
        while self._inbox:
            try:
                loop_call = self._inbox.popleft()
            except IndexError:  # Another thread took it.
                return
            _refuse(loop_call, StateError("the client was closed, or this process forked: make a new one"))

    def _take(self) -> None:
        self._awake = False
        inbox = self._inbox
        for _ in range(TURN_CALLS):
            if not inbox:
                return
            loop_call = inbox.popleft()
            try:
                loop_call.run(self._loop)
            except BaseException as e:
                _refuse(loop_call, e)
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._take)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; an interrupt cancels it."""
        if self._thread.is_current:
            coroutine.close()
        waiter: ThreadWaiter[T] = ThreadWaiter(coroutine)
        return self.ask(waiter)

    def ask(self, waiter: WaitingLoopCall[T]) -> T:
        """Run a loop call that this thread waits for, and return its result; an interrupt cancels it."""
        if self._thread.is_current:
            raise StateError(
                "a synchronous client was called in a coroutine or callback that runs on its own thread, and would wait"
                " for ever: use the Async client there"
            )
        try:
            self.put(waiter)
            if self.is_dead:
                # Whoever is here at the end of the interpreter would wait for a thread that is stopped already.
                self._refuse_all()
            waiter.lock.acquire()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # The loop was closed in between: it was told.
                self._loop.call_soon_threadsafe(waiter.cancel)
            raise
        finally:
            self.wakes.pass_on()
        if waiter.error is not None:
            try:
                raise waiter.error
            finally:
                del waiter
        return cast(T, waiter.result)

    def end_with(self, coroutine: Coroutine[Any, Any, None], *, waits: bool = True) -> Callable[[], None] | None:
        """Run the last coroutine of a user of the loop, wait for it, and release the loop.

        The coroutine runs to its end even if the wait is interrupted. There is no wait in the loop's own threads, nor
        without `waits` (when the coroutine waits for the caller): then a function is returned that waits for the end,
        for another thread to call.
        """
        if self.is_dead:
            coroutine.close()
            self.release()
            return None
        if not waits or self._is_here:
            farewell = self.end_later(coroutine)
            return lambda: self._wait(farewell)
        farewell = LastLoopCall(coroutine)
        try:
            self.put(farewell)
            farewell.lock.acquire()
        except BaseException:
            self._loop.call_soon_threadsafe(farewell.then, self.release)
            raise
        self.release()
        if farewell.error is not None:
            try:
                raise farewell.error
            finally:
                del farewell
        return None

    @property
    def _is_here(self) -> bool:
        """Tell whether one of the loop's own threads asks."""
        return self._thread.is_current or self._executor.is_current

    def _wait(self, farewell: LastLoopCall) -> None:
        if not self.is_dead and not self._is_here:
            farewell.lock.acquire()
            farewell.lock.release()

    def end_later(self, coroutine: Coroutine[Any, Any, None]) -> LastLoopCall:
        """Run the last coroutine of a user of the loop in the background, and then release the loop."""
        farewell = LastLoopCall(coroutine)
        farewell.then(self.release)
        self.put(farewell)
        return farewell


def _refuse(loop_call: LoopCall, error: BaseException) -> None:
    try:
        loop_call.refuse(error)
    except BaseException:
        log.exception("a callback that was given an error failed itself")


def _forked() -> None:
    """Close the parent's clients in a forked child, which has no background thread; new clients begin anew."""
    LoopThread._guard = threading.Lock()
    if LoopThread._shared is not None:
        LoopThread._shared._ended = True
        # The parent's: their callbacks are not to be called here as well.
        LoopThread._shared._inbox.clear()
        LoopThread._shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class ThreadWaiter(Generic[T]):
    """A task's result that one thread waits for. A bare lock costs a fifth of a Future."""

    __slots__ = ("_coroutine", "_given_up", "_take_back", "error", "lock", "result", "task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.task: asyncio.Task[T] | None = None
        self.result: T | None = None
        self.error: BaseException | None = None
        self._given_up = False
        self._take_back: Callable[[T], object] | None = None

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin the task."""
        self.task = loop.create_task(self._coroutine)
        self.task.add_done_callback(self._ended)

    def close(self) -> None:
        """Close the coroutine, if the task has not begun."""
        self._coroutine.close()

    def refuse(self, error: BaseException) -> None:
        """End the wait of the thread with an error."""
        self._coroutine.close()
        self.error = error
        self.lock.release()

    def _ended(self, task: asyncio.Task[T]) -> None:
        self.result, self.error = _outcome(task)
        if task.cancelled() and not self._given_up:
            self.error = StateError("the client was closed while this call was under way")
        self.task = None
        self.lock.release()
        if self._take_back is not None and self.result is not None:
            self._take_back(self.result)

    def cancel(self) -> None:
        """Cancel the task, if it has begun."""
        self._given_up = True
        if self.task is not None:
            self.task.cancel()

    def return_to(self, take_back: Callable[[T], object]) -> None:
        """Have the result handed to `take_back` instead of the thread, which no longer waits; called on the loop.

        Needed because a task that is cancelled in its last step still ends with a result. `take_back` is called now, or
        when the result is there.
        """
        if self.task is not None:
            self._take_back = take_back
        elif self.result is not None:
            take_back(self.result)


class LastLoopCall(ThreadWaiter[None]):
    """The last call that a user of the loop thread makes on it, with which it closes. It is never cancelled."""

    __slots__ = ("_next", "_over")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        super().__init__(coroutine)
        self._over = False
        self._next: Callable[[], None] | None = None

    def refuse(self, error: BaseException) -> None:
        """End the call with an error, as the loop has ended."""
        super().refuse(error)
        self._end()

    def _ended(self, task: asyncio.Task[None]) -> None:
        super()._ended(task)
        self._end()

    def _end(self) -> None:
        self._over = True
        if self._next is not None:
            self._next()

    def then(self, act: Callable[[], None]) -> None:
        """Call `act` on the loop when the last loop call is over."""
        if self._over:
            act()
        else:
            self._next = act


def _outcome(task: asyncio.Task[T]) -> tuple[T | None, BaseException | None]:
    if task.cancelled():
        return None, asyncio.CancelledError()
    error = task.exception()
    return (None, error) if error is not None else (task.result(), None)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
