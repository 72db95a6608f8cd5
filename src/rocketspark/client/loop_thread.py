"""The background loop that all synchronous clients of a process share. Rule: it ends with the last of them."""

from __future__ import annotations

import _thread
import asyncio
import os
import threading
from collections import deque
from collections.abc import Coroutine
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from rocketspark.errors import StateError

T = TypeVar("T")
R = TypeVar("R", covariant=True)


class Errand(Protocol):
    """Something to be run on the loop."""

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do it; called on the loop."""

    def refuse(self, error: BaseException) -> None:
        """The loop has ended."""


class Waits(Errand, Protocol[R]):
    """An errand that a thread waits for: `lock` is held until `result` or `error` is there."""

    @property
    def lock(self) -> _thread.LockType: ...

    @property
    def result(self) -> R | None: ...

    @property
    def error(self) -> BaseException | None: ...

    def cancel(self) -> None:
        """Nobody waits any more; called on the loop."""


class LoopThread:
    """A thread with an event loop; `acquire` and `release` count its users."""

    _shared: ClassVar[LoopThread | None] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._users = 0
        self._inbox: deque[Errand] = deque()
        self._awake = False
        self._ended = False
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="rocketspark-client", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> LoopThread:
        """The shared loop, started if there is none. `release` must follow."""
        with cls._guard:
            if cls._shared is None or not cls._shared._thread.is_alive():
                cls._shared = cls()
            cls._shared._users += 1
            return cls._shared

    def release(self) -> None:
        """No longer used by the caller; the last one ends the thread."""
        with self._guard:
            self._users -= 1
            if self._users:
                return
            if LoopThread._shared is self:
                LoopThread._shared = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._ended = True
            self._refuse_all()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def put(self, errand: Errand) -> None:
        """Have something run on the loop."""
        # One wake-up for all that come before the loop looks: it costs more than a call itself.
        self._inbox.append(errand)
        if self._ended:
            self._refuse_all()
        elif not self._awake:
            self._awake = True
            try:
                self._loop.call_soon_threadsafe(self._take)
            except RuntimeError:  # The loop was closed in between.
                self._refuse_all()

    def _refuse_all(self) -> None:
        while self._inbox:
            try:
                errand = self._inbox.popleft()
            except IndexError:  # Another thread took it.
                return
            errand.refuse(StateError("the client was closed, or this process forked: make a new one"))

    def _take(self) -> None:
        self._awake = False
        inbox = self._inbox
        while inbox:
            inbox.popleft().run(self._loop)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; an interrupt cancels it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
        waiter: Waiter[T] = Waiter(coroutine)
        return self.ask(waiter)

    def ask(self, waiter: Waits[T]) -> T:
        """Run an errand that this thread waits for, and return its result; an interrupt cancels it."""
        if threading.current_thread() is self._thread:
            raise StateError(
                "a synchronous client was called in a coroutine or callback that runs on its own thread, and would wait"
                " for ever: use the Async client there"
            )
        self.put(waiter)
        try:
            waiter.lock.acquire()
        except BaseException:
            self._loop.call_soon_threadsafe(waiter.cancel)
            raise
        if waiter.error is not None:
            try:
                raise waiter.error
            finally:
                del waiter
        return cast(T, waiter.result)


def _forked() -> None:
    """A child has no background thread: clients of its parent are closed there, new ones begin anew."""
    LoopThread._guard = threading.Lock()
    if LoopThread._shared is not None:
        LoopThread._shared._ended = True
        LoopThread._shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Waiter(Generic[T]):
    """One thread that waits for one task. A bare lock costs a fifth of a Future."""

    __slots__ = ("_coroutine", "error", "lock", "result", "task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.task: asyncio.Task[T] | None = None
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin the task."""
        self.task = loop.create_task(self._coroutine)
        self.task.add_done_callback(self._ended)

    def refuse(self, error: BaseException) -> None:
        """Let the thread go on with an error."""
        self._coroutine.close()
        self.error = error
        self.lock.release()

    def _ended(self, task: asyncio.Task[T]) -> None:
        self.result, self.error = _outcome(task)
        self.task = None
        self.lock.release()

    def cancel(self) -> None:
        """Cancel the task, if it has begun."""
        if self.task is not None:
            self.task.cancel()


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
