"""Sends that a thread hands to the loop: one object each, for the loop call, the send and its outcome."""

from __future__ import annotations

import _thread
import asyncio
import itertools
import os
import sys
import threading
import time
from collections import deque
from concurrent.futures import Executor

import msgspec

from rocketspark.client.producer.in_flight_send import InFlightSend
from rocketspark.client.producer.quick_future import CallbackThreads, QuickFuture
from rocketspark.client.real_threads import RealThread
from rocketspark.client.results import SendResult
from rocketspark.errors import StateError, TooManyInFlight


class ThreadInFlightLimit:
    """Limits the sends of threads in flight. A semaphore would make every send fight for its lock; these counters
    don't.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._process = os.getpid()
        self._left = 0
        self._numbers = itertools.count(1)
        self._freed = threading.Condition()
        self._waiting = False
        # By threads that gave up: only the loop's thread counts.
        self._given_back: deque[None] = deque()

    def enter(self, end_s: float, leaver: RealThread) -> None:
        """Wait until there is room. Called by many threads; that of `leave` never waits.

        Raises TooManyInFlight at the monotonic time `end_s`.
        """
        # One step in C: no two threads get one number.
        number = next(self._numbers)
        if number - self._left <= self._count_max or leaver.is_current:
            return
        try:
            with self._freed:
                while number - self._left > self._count_max:
                    left_s = end_s - time.monotonic()
                    if left_s <= 0:
                        text = f"nothing was sent: {self._count_max} sends are in flight"
                        raise TooManyInFlight(f"{text}; send slower, or allow more with in_flight_max")
                    self._waiting = True
                    self._freed.wait(min(left_s, 0.1))
        except BaseException:
            self._given_back.append(None)
            raise

    def wait_empty(self, end_s: float) -> int:
        """Wait until nothing is in flight, at most until the monotonic time `end_s`; returns what is left."""
        with self._freed:
            while (left := self._count()) and (left_s := end_s - time.monotonic()) > 0:
                self._waiting = True
                self._freed.wait(min(left_s, 0.1))
        return left

    def _count(self) -> int:
        number = next(self._numbers)
        self._given_back.append(None)
        return number - self._left - len(self._given_back)

    def is_dead(self) -> bool:
        """Tell whether no thread calls `leave` any more."""
        return sys.is_finalizing() or os.getpid() != self._process

    def leave(self) -> None:
        """Note that one send less is in flight. Called by the loop's thread alone."""
        self._left += 1
        while self._given_back:
            self._given_back.pop()
            self._left += 1
        if self._waiting:
            with self._freed:
                self._waiting = False
                self._freed.notify_all()


class ThreadSend(InFlightSend):
    """A send of a thread, on its way to the loop."""

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send it; on the loop."""
        if not self.begin():
            self.drive()


class SendFuture(QuickFuture[SendResult]):
    """The future of a send. `room`: where the send entered; `executor`: what runs the callbacks."""

    def __init__(self, room: ThreadInFlightLimit, executor: Executor | CallbackThreads) -> None:
        super().__init__()
        self.room = room
        self.executor = executor

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        # Called by the threads that wait.
        if self.room.is_dead() and not self.done():
            self.end(None, StateError("nobody sends it any more: this process forked, or is about to end"))
        return super()._condition


class FutureSend(ThreadSend, kw_only=True):
    """A send whose thread has a future of its result."""

    future: SendFuture

    def tell(self, result: SendResult | None, error: BaseException | None) -> None:
        """End the future."""
        self.future.room.leave()
        self.future.end(result, error)


def _held_lock() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


class WaitingSend(ThreadSend):
    """A send that its thread waits for, with LoopThread.ask."""

    lock: _thread.LockType = msgspec.field(default_factory=_held_lock)
    result: SendResult | None = None
    error: BaseException | None = None

    def cancel(self) -> None:
        """Note that the thread was interrupted: the message is not sent again."""
        self.given_up = True
        if self._task is not None:
            self._task.cancel()
        elif self._awaited is not None:
            self.finish(None, asyncio.CancelledError())

    def tell(self, result: SendResult | None, error: BaseException | None) -> None:
        """Let the thread go on."""
        self.result, self.error = result, error
        self.lock.release()
