"""Sends that a thread hands to the loop: one object each, for the loop call and for its outcome.

Rule: what can be sent at once is posted, without a task; everything else is the producer's coroutine.
"""

from __future__ import annotations

import _thread
import asyncio
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Collection
from concurrent.futures import Executor

from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.client.producer.producer import AsyncProducer, Choose
from rocketspark.client.producer.quick_future import QuickFuture
from rocketspark.client.results import SendResult
from rocketspark.errors import StateError, TooManyInFlight
from rocketspark.model import Message, MessageQueue


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

    def enter(self, end_s: float, leaver: threading.Thread) -> None:
        """Wait until there is room. Called by many threads; that of `leave` never waits.

        Raises TooManyInFlight at the monotonic time `end_s`.
        """
        # One step in C: no two threads get one number.
        number = next(self._numbers)
        if number - self._left <= self._count_max or threading.current_thread() is leaver:
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


class ThreadSend:
    """A prepared message on its way to the loop; `finish` is called once, with the outcome.

    `choose`: what finds its queue, from the topic's queues.
    """

    def __init__(
        self,
        core: AsyncProducer,
        message: Message,
        out: PreparedMessage,
        queue: MessageQueue | None,
        timeout_ms: float | None,
        attempts: int,
        choose: Choose | None = None,
    ) -> None:
        self._core = core
        self.sharding_key = message.sharding_key
        self.queue = core._full_queue(out.topic, queue) if queue is not None else None
        self._choose = choose
        self._timeout_ms = timeout_ms
        self.out = out
        self.wait_store_ok = message.wait_store_ok
        self.gathers = timeout_ms is None and core.may_gather(message, out)
        self.began_s = time.monotonic()
        self.end_s = core.end_s(timeout_ms, self.began_s)
        self.attempts = attempts
        self.codes: Collection[int] | None = None
        self.given_up = False
        self.task: asyncio.Task[None] | None = None

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send it; on the loop."""
        if self._choose is not None or not self._core.post(self):
            self.task = task = loop.create_task(self._send())
            task.add_done_callback(self._look_at)

    def _look_at(self, task: asyncio.Task[None]) -> None:
        """Finish the send of a task that was cancelled before it began: it ran nothing of `_send`."""
        if task.cancelled() and self.task is task and not self.done():
            self.finish(None, asyncio.CancelledError())

    async def _send(self) -> None:
        core, left_ms = self._core, self._timeout_ms
        try:
            if self._choose is not None:
                self.queue = await core._choose(self.out.topic, self._choose, self.end_s)
                if core.gather(self):
                    return
            if left_ms is not None:
                left_ms = (self.end_s - time.monotonic()) * 1000
            result = await core.send_packed(
                self.out, self.sharding_key, self.queue, left_ms, self.attempts, in_order=True, codes=self.codes
            )
        except BaseException as e:
            self.finish(None, e)
            if not isinstance(e, Exception):
                raise
        else:
            self.finish(result, None)

    def refuse(self, error: BaseException) -> None:
        """Fail the send, as the loop has ended."""
        self.finish(None, error)

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """End the send with its outcome."""
        raise NotImplementedError

    def done(self) -> bool:
        """Tell whether the send has ended."""
        raise NotImplementedError

    def cancelled(self) -> bool:
        """Tell whether no caller waits for this send any more."""
        return self.given_up

    def set_result(self, result: SendResult, /) -> None:
        """Finish a send that was stored together with others."""
        self.finish(self._core._shown(result), None)

    def set_exception(self, exception: BaseException | None, /) -> None:
        """Fail a send that was sent together with others."""
        self.finish(None, exception)

    def told(self, error: BaseException | None) -> BaseException | None:
        """Return the error for the caller: CancelledError only if the caller cancelled."""
        if isinstance(error, asyncio.CancelledError) and not self.given_up:
            return StateError("the client was closed before a broker had answered: the message may have been stored")
        return error


class FutureSend(ThreadSend, QuickFuture[SendResult]):
    """A send that is the future of its result."""

    def __init__(
        self,
        core: AsyncProducer,
        message: Message,
        out: PreparedMessage,
        queue: MessageQueue | None,
        timeout_ms: float | None,
        room: ThreadInFlightLimit,
        executor: Executor | None = None,
        choose: Choose | None = None,
    ) -> None:
        QuickFuture.__init__(self)
        ThreadSend.__init__(self, core, message, out, queue, timeout_ms, core.future_attempts, choose)
        self.codes = core.future_codes
        self._room = room
        self.executor = executor

    done = QuickFuture.done

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        # Called by the threads that wait.
        if self._room.is_dead() and not self.done():
            self.end(None, StateError("nobody sends it any more: this process forked, or is about to end"))
        return super()._condition

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """End the send with its outcome."""
        self.task = None
        self._room.leave()
        self.end(result, self.told(error))


class WaitingSend(ThreadSend):
    """A send that its thread waits for, with LoopThread.ask."""

    def __init__(
        self,
        core: AsyncProducer,
        message: Message,
        out: PreparedMessage,
        queue: MessageQueue | None,
        timeout_ms: float | None,
        choose: Choose | None = None,
    ) -> None:
        super().__init__(core, message, out, queue, timeout_ms, core.attempts, choose)
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.result: SendResult | None = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        """Tell whether the send has ended."""
        return self.result is not None or self.error is not None

    def cancel(self) -> None:
        """Note that the thread was interrupted: the message is not sent again."""
        self.given_up = True
        if self.task is not None:
            self.task.cancel()

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """End the send with its outcome."""
        self.task = None
        self.result, self.error = result, self.told(error)
        self.lock.release()
