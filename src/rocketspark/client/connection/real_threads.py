"""Threads of the clients' own: real ones, also where gevent has made greenlets of a program's.

Rule: none of them keeps a process alive, however long what it runs takes.
"""

from __future__ import annotations

import _thread
import math
import sys
import threading

# The one in C, which gevent does not replace.
from _queue import Empty, SimpleQueue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from rocketspark import machine
from rocketspark.errors import StateError

__all__ = ["DaemonThreads", "Empty", "RealThread", "SimpleQueue", "check_threads", "hold_hub", "real_lock"]

P = ParamSpec("P")
T = TypeVar("T")


def _original(name: str) -> Any:
    """Return a function of `_thread` as it was before gevent replaced it, None if it is as it was."""
    monkey = sys.modules.get("gevent.monkey")
    patched = monkey is not None and monkey.is_module_patched("threading")
    return monkey.get_original("_thread", name) if monkey is not None and patched else None


def real_lock() -> _thread.LockType:
    """Return a lock for real threads, to be held for moments."""
    lock: _thread.LockType = (_original("allocate_lock") or _thread.allocate_lock)()
    return lock


def check_threads() -> None:
    """Raise StateError if eventlet has replaced this process's threads: they cannot be woken by the client's own
    threads.
    """
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        raise StateError(
            "eventlet has replaced this process's threads, and a client would wait for ever: use gevent, real threads,"
            " or eventlet.monkey_patch(thread=False)"
        )


def hold_hub() -> Callable[[], None]:
    """Keep gevent's hub running while a greenlet waits for another thread. Returns the function that ends this, for any
    thread.

    Without it the hub would take the waiting greenlet for one that nothing can wake, and raise an error.
    """
    if _original("allocate_lock") is None:
        return lambda: None
    told = sys.modules["gevent"].get_hub().loop.async_()

    def end() -> None:
        told.stop()
        told.close()

    told.start(end)
    release: Callable[[], None] = told.send
    return release


class RealThread:
    """A daemon thread."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        self._target = target
        self._name = name
        self._ident: int | None = None
        self._runs = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin it."""
        self._runs = True
        start = _original("start_new_thread")
        if start is not None:
            start(self._run, ())
            return
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        try:
            self._target()
        finally:
            self._runs = False

    @property
    def is_current(self) -> bool:
        """Tell whether the current thread is this one."""
        return threading.get_ident() == self._ident

    def is_alive(self) -> bool:
        """Tell whether it was begun and has not ended."""
        return self._runs if self._thread is None else self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended, or the time is over."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        end_s = math.inf if timeout_s is None else machine.monotonic() + timeout_s
        while self._runs and self._thread is None and machine.monotonic() < end_s:
            machine.sleep(0.002)  # gevent's: others go on.


class DaemonThreads(ThreadPoolExecutor):
    """An executor whose threads Python does not wait for when it ends: up to `count`, begun when they are needed."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count)
        self._count, self._name = count, name
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._guard = real_lock()
        self._begun = self._open = 0
        self._workers: list[RealThread] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a function called in one of the threads. As every executor's."""
        future: Future[T] = Future()
        with self._guard:
            self._open += 1
            begins = self._open > self._begun and self._begun < self._count
            self._begun += begins
        self._jobs.put((future, lambda: fn(*args, **kwargs)))
        if begins:
            worker = RealThread(self._work, self._name)
            self._workers.append(worker)
            worker.start()
        return future

    @property
    def is_current(self) -> bool:
        """Tell whether the current thread is running one of the executor's calls."""
        return any(worker.is_current for worker in self._workers)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as e:
                    future.set_exception(e)
            with self._guard:
                self._open -= 1
            del job, future, call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End each thread once it has run what it runs and what waits. Never waits for them, whatever `wait` says.

        `cancel_futures`: calls that have not begun are cancelled instead.
        """
        while cancel_futures and not self._jobs.empty():
            job = self._jobs.get()
            if job is not None:
                job[0].cancel()
        for _ in range(self._begun):
            self._jobs.put(None)
