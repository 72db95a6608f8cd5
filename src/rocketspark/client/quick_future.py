"""A future that is cheap while nobody waits for it. Rule: each callback is called once, whoever comes first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("rocketspark.client")

_PENDING, _FINISHED = "PENDING", "FINISHED"
_guard = threading.Lock()


class QuickFuture(Future[T]):
    """A concurrent.futures.Future whose lock is made when somebody waits: to make and to use it costs more than a send.

    It cannot be cancelled. `end` finishes it, and is called once.
    """

    def __init__(self) -> None:
        # Not the base's: what it makes is made here, or later.
        self._made: threading.Condition | None = None
        self._state = _PENDING
        self._result: T | None = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[T]], Any]] = []

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _guard:
                if self._made is None:
                    self._made = threading.Condition()
        return self._made

    def cancel(self) -> bool:
        """False: what was handed over cannot be taken back."""
        return False

    def done(self) -> bool:
        """Whether it has ended."""
        return self._state == _FINISHED

    def end(self, result: T | None, error: BaseException | None) -> None:
        """Take the outcome, and tell who waits."""
        self._result, self._exception = result, error
        # Who makes the lock after this line sees the state; who made it before is seen below.
        self._state = _FINISHED
        if self._made is not None:
            with self._made:
                for waiter in self._waiters:
                    (waiter.add_result if error is None else waiter.add_exception)(self)
                self._made.notify_all()
        while self._done_callbacks:
            try:
                callback = self._done_callbacks.pop(0)
            except IndexError:
                break
            self._call(callback)

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call it with this future when it has ended; at once if it has."""
        if self._state == _PENDING:
            self._done_callbacks.append(callback)
            if self._state == _PENDING:
                return
            try:
                self._done_callbacks.remove(callback)
            except ValueError:
                return
        self._call(callback)

    def _call(self, callback: Callable[[Future[T]], Any]) -> None:
        try:
            callback(self)
        except Exception:
            log.exception("a callback of a send failed; the send itself did not")
