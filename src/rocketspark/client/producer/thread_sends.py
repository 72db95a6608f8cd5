"""Sends that threads hand to the loop, their futures, and the threads that run the futures' callbacks.

A send is one object: loop call, send and outcome. A future is cheap while no thread waits for it; each of its callbacks
is called once, in their order, and none holds up the thread that ends the future.
"""

from __future__ import annotations

import _thread
import asyncio
import itertools
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from typing import Any, ClassVar, TypeVar

import msgspec

from rocketspark import machine
from rocketspark.client.connection.loop_thread import WakeChain
from rocketspark.client.connection.real_threads import Empty, RealThread, SimpleQueue
from rocketspark.client.producer.accumulator import Accumulator
from rocketspark.client.producer.gathered_sends import BatchOutcome, EncodedMessage, own_error
from rocketspark.client.producer.in_flight_send import InFlightSend
from rocketspark.client.producer.prepared_message import make_message
from rocketspark.client.results import SendResult
from rocketspark.errors import StateError, TooManyInFlight
from rocketspark.model import MessageFields
from rocketspark.model.limited_log import LimitedLog

T = TypeVar("T")

log = logging.getLogger("rocketspark.client")
# For what is so for each callback from then on.
once_log = LimitedLog("rocketspark.client", lines_max=1)

THREADS_MAX = 4
# After so long a callback that waits has another thread join.
LOOK_S = 0.005
_PENDING, _FINISHED = "PENDING", "FINISHED"
_guard = threading.Lock()


def _forked() -> None:
    global _guard
    _guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class CallbackThreads:
    """Threads that run callbacks, in the order in which they were submitted; they are begun when they are needed, and
    keep no process alive.

    One of them runs all: others would only wait for it. Where callbacks take their time, so that some have waited for
    `LOOK_S`, another helps, up to `THREADS_MAX`.
    """

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], object]] = deque()
        # A True for each thread that is to run callbacks, a False for one that is to end.
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._looks: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[RealThread] = []
        self._changed = threading.Condition()
        # Guarded by `_changed`: threads that run callbacks, callbacks submitted, whether somebody looks at them.
        self._busy = self._given = 0
        self._looked_at = False

    def submit(self, job: Callable[[], object]) -> None:
        """Have `job` run in one of the threads; it must not raise."""
        self.submit_all([job])

    def submit_all(self, jobs: Collection[Callable[[], object]]) -> None:
        """Have jobs run; none of them must raise."""
        with self._changed:
            self._jobs.extend(jobs)
            self._given += len(jobs)
            if self._busy:
                return
            self._call_one()
            if not self._looked_at:
                self._looked_at = True
                self._looks.put(True)

    def _call_one(self) -> None:
        self._busy += 1
        self._calls.put(True)
        if not self._threads:
            self._begin(self._look)
        # The first one looks.
        if len(self._threads) <= self._busy:
            self._begin(self._work)

    def _begin(self, work: Callable[[], None]) -> None:
        thread = RealThread(work, "rocketspark-callbacks")
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        jobs = self._jobs
        while self._calls.get():
            while True:
                try:
                    job = jobs.popleft()
                except IndexError:
                    with self._changed:
                        if jobs:
                            continue
                        self._busy -= 1
                        if not self._busy:
                            self._changed.notify_all()
                        break
                job()
                del job

    def _look(self) -> None:
        while self._looks.get():
            given = self._given
            while True:
                try:
                    if not self._looks.get(timeout=LOOK_S):
                        return
                except Empty:
                    pass
                with self._changed:
                    if not self._busy:
                        self._looked_at = False
                        break
                    if self._given - len(self._jobs) < given and self._busy < THREADS_MAX:
                        self._call_one()
                    given = self._given

    def wait(self, timeout_s: float) -> bool:
        """Wait until all jobs have run; False if they did not within the time. Called within a job it returns True at
        once.
        """
        if any(thread.is_current for thread in self._threads):
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait as `wait` does, and end the threads."""
        self.wait(timeout_s)
        self._looks.put(False)
        for _ in self._threads:
            self._calls.put(False)


class QuickFuture(Future[T]):
    """A concurrent.futures.Future whose lock is made only when a thread waits for it, as a lock costs more than a send.

    It cannot be cancelled. `end` sets its outcome, and is called once. `executor`: what runs the callbacks; None for
    the thread that calls `end`.
    """

    executor: Executor | CallbackThreads | None = None

    # Before there is one, it is the class's: an attribute less to make.
    _made: threading.Condition | None = None
    _state = _PENDING
    _result: T | None = None
    _exception: BaseException | None = None

    def __init__(self) -> None:
        # Not the base's: what it makes is made here, or later.
        self._done_callbacks: list[Callable[[Future[T]], Any]] = []

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _guard:
                if self._made is None:
                    self._waiters: list[Any] = []
                    self._made = threading.Condition()
        return self._made

    def cancel(self) -> bool:
        """Return False: a send that was handed over cannot be taken back."""
        return False

    def done(self) -> bool:
        """Tell whether the future has its outcome."""
        return self._state == _FINISHED

    def result(self, timeout: float | None = None) -> T:
        """Return the result, or raise the error; wait for it up to `timeout` seconds. As every future's."""
        if self._state == _FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value]
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, None without one; wait for it up to `timeout` seconds. As every future's."""
        return self._exception if self._state == _FINISHED else super().exception(timeout)

    def end(self, result: T | None, error: BaseException | None) -> None:
        """Set the outcome, and wake those who wait."""
        self._result, self._exception = result, error
        if self._finish():
            self.call_all([self])

    def _finish(self) -> bool:
        """Let everybody see the outcome; returns whether there are callbacks to call."""
        # A thread that makes the lock after this line sees the state; a lock made before is seen below.
        self._state = _FINISHED
        if self._made is not None:
            self._wake_waiters()
        return bool(self._done_callbacks)

    def _wake_waiters(self) -> None:
        assert self._made is not None
        with self._made:
            for waiter in self._waiters:
                (waiter.add_result if self._exception is None else waiter.add_exception)(self)
            self._made.notify_all()

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call `callback` with this future when it has ended; at once if it has."""
        if self._state == _PENDING:
            self._done_callbacks.append(callback)
            if self._state == _PENDING:
                return
            try:
                self._done_callbacks.remove(callback)
            except ValueError:
                return
        self._call(callback)

    @staticmethod
    def call_all(futures: Sequence[QuickFuture[Any]]) -> None:
        """Call the callbacks of futures that ended together, by their executor, or on the thread that ended them."""
        executor = futures[0].executor
        if type(executor) is CallbackThreads:
            executor.submit_all([future._called for future in futures])
            return
        for future in futures:
            try:
                if executor is not None:
                    executor.submit(future._called)
                    continue
            except RuntimeError:
                once_log.warning("the callbacks' executor takes no more calls: they are called on the client's thread")
            future._called()

    def _called(self) -> None:
        callbacks = self._done_callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # Another thread took it.
                return
            # As `_call`, without a call.
            try:
                callback(self)
            except Exception:
                log.exception("a callback of a send failed; the send itself did not")
            except BaseException:
                log.exception("a callback of a send wanted to end its thread, which others need; it goes on")

    def _call(self, callback: Callable[[Future[T]], Any]) -> None:
        try:
            callback(self)
        except Exception:
            log.exception("a callback of a send failed; the send itself did not")


class ThreadInFlightLimit:
    """A limit for the sends of threads in flight. A semaphore would make every send wait for its lock; these counters
    do not.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._process = machine.getpid()
        self._left = 0
        self._numbers = itertools.count(1)
        self._freed = threading.Condition()
        self._waiting = False
        # By threads that gave up: only the loop's thread counts.
        self._given_back: deque[None] = deque()

    def enter(self, timeout_s: float, leaver: RealThread) -> None:
        """Wait until a send is allowed. Called by many threads; `leaver` is the thread that calls `leave`, which must
        never wait.

        Raises TooManyInFlight after `timeout_s`.
        """
        # One step in C: no two threads get one number.
        number = next(self._numbers)
        if number - self._left <= self._count_max or leaver.is_current:
            return
        end_s = machine.monotonic() + timeout_s
        try:
            with self._freed:
                while number - self._left > self._count_max:
                    left_s = end_s - machine.monotonic()
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
            while (left := self._count()) and (left_s := end_s - machine.monotonic()) > 0:
                self._waiting = True
                self._freed.wait(min(left_s, 0.1))
        return left

    def _count(self) -> int:
        number = next(self._numbers)
        self._given_back.append(None)
        return number - self._left - len(self._given_back)

    def is_dead(self) -> bool:
        """Tell whether no thread will call `leave` any more: this process is a fork, or the interpreter is at its
        end.
        """
        return sys.is_finalizing() or machine.getpid() != self._process

    def leave(self, count: int = 1, /) -> None:
        """Note that so many sends less are in flight. Called by the loop's thread alone."""
        self._left += count
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
    """The future of a send's result. `room`: the limit that counts the send; `executor`: what runs the callbacks."""

    # The result, or whose part it is, and its number; a future whose result nobody looks at makes none.
    _told: SendResult | BatchOutcome | None = None
    _number = 0

    def __init__(self, room: ThreadInFlightLimit, executor: Executor | CallbackThreads) -> None:
        self.room = room
        self.executor = executor
        self._done_callbacks = []

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        # Called by the threads that wait.
        if self.room.is_dead() and not self.done():
            self.end(None, StateError("nobody sends it any more: this process forked, or is about to end"))
        return super()._condition

    @property
    def _result(self) -> SendResult | None:
        told = self._told
        if isinstance(told, BatchOutcome):
            told = self._told = told.part(self._number)
        return told

    @_result.setter
    def _result(self, result: SendResult | None) -> None:
        self._told = result


class FutureSend(ThreadSend, kw_only=True):
    """A send whose thread has a future of its result."""

    future: SendFuture

    def tell(self, result: SendResult | None, error: BaseException | None) -> None:
        """Give the future its result or its error, and count one send less in flight."""
        self.future.room.leave()
        self.future.end(result, error)


class FuturePart(msgspec.Struct, eq=False, gc=False):
    """A message for a batch, on its way from a thread to the loop, and the future of its result.

    Without `encoded` it is what `Accumulator.is_simple` takes. Nothing that it holds leads back to it once it is told.
    """

    future: SendFuture
    accumulator: Accumulator
    topic: str
    body: bytes
    fields: MessageFields
    encoded: EncodedMessage | None = None
    # A send that was handed over cannot be taken back.
    given_up: ClassVar[bool] = False

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have it gathered; on the loop."""
        accumulator, encoded = self.accumulator, self.encoded
        if encoded is None:
            if accumulator.add_simple(self.topic, self.body, self.fields, self):
                return
            encoded = accumulator.encode(make_message(self.topic, self.body, self.fields), None)
            assert encoded is not None
        accumulator.add_part(encoded, self)

    def cancelled(self) -> bool:
        """Return False."""
        return False

    def take_part(self, outcome: BatchOutcome, number: int) -> None:
        """Give the future its part of a batch's outcome; its result is made of that when somebody asks for it."""
        future = self.future
        outcome.left.append(future.room)
        if outcome.error is not None:
            future._exception = own_error(outcome.error)
        future._number, future._told = number, outcome
        # As `_finish`, without a call.
        future._state = _FINISHED
        if future._made is not None:
            future._wake_waiters()
        if future._done_callbacks:
            outcome.called.append(future)

    def refuse(self, error: BaseException) -> None:
        """End it with an error, as its loop has ended or it could not be gathered."""
        self.future.room.leave()
        self.future.end(None, error)


def _held_lock() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


class WaitingSend(ThreadSend):
    """A send that its thread waits for, with LoopThread.ask."""

    wakes: WakeChain | None = None
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
        if self.wakes is None:
            self.lock.release()
        else:
            self.wakes.wake(self.lock)

    def refuse(self, error: BaseException) -> None:
        """End the send with an error; its thread goes on whatever the others do, which may have ended with the loop."""
        self.wakes = None
        super().refuse(error)
