"""The background loop that all synchronous clients of a process share. Rule: it ends with the last of them."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

from rocketspark.errors import StateError

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]


class LoopThread:
    """A thread with an event loop; `acquire` and `release` count its users."""

    _shared: ClassVar[LoopThread | None] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._users = 0
        self._inbox: deque[tuple[Coroutine[Any, Any, Any], Done, list[asyncio.Task[Any]] | None]] = deque()
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

    def _put(
        self, coroutine: Coroutine[Any, Any, Any], done: Done, tasks: list[asyncio.Task[Any]] | None = None
    ) -> None:
        # One wake-up for all calls that come before the loop looks: it costs more than the call itself.
        self._inbox.append((coroutine, done, tasks))
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
                coroutine, done, _ = self._inbox.popleft()
            except IndexError:  # Another thread took it.
                return
            coroutine.close()
            done(None, StateError("the client was closed meanwhile"))

    def _take(self) -> None:
        self._awake = False
        inbox = self._inbox
        while inbox:
            coroutine, done, tasks = inbox.popleft()
            task = self._loop.create_task(coroutine)
            if tasks is not None:
                tasks.append(task)
            task.add_done_callback(_Report(done))

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; an interrupt cancels it."""
        assert threading.current_thread() is not self._thread, "a synchronous client was called on its own loop"
        # A bare lock costs a fifth of a Future.
        lock = _thread.allocate_lock()
        lock.acquire()
        outcome: list[Any] = []

        def done(result: Any, error: BaseException | None) -> None:
            outcome.append(result)
            outcome.append(error)
            lock.release()

        tasks: list[asyncio.Task[Any]] = []
        self._put(coroutine, done, tasks)
        try:
            lock.acquire()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: [t.cancel() for t in tasks])
            raise
        error = outcome[1]
        if error is not None:
            try:
                raise error
            finally:
                del error, outcome
        result: T = outcome[0]
        return result

    def submit(self, coroutine: Coroutine[Any, Any, T], then: Callable[[], None] | None = None) -> Future[T]:
        """Run a coroutine on the loop; its result is the future's. `then` is called after it."""
        future: Future[T] = Future()

        def done(result: Any, error: BaseException | None) -> None:
            if then is not None:
                then()
            if not future.set_running_or_notify_cancel():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._put(coroutine, done)
        return future

    def soon(self, act: Callable[[], object]) -> None:
        """Call a plain function on the loop, without waiting."""
        self._loop.call_soon_threadsafe(act)


class _Report:
    """Hands a task's end on as (result, error)."""

    __slots__ = ("_done",)

    def __init__(self, done: Done) -> None:
        self._done = done

    def __call__(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._done(None, asyncio.CancelledError())
            return
        error = task.exception()
        self._done(None if error is not None else task.result(), error)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
