"""Sends that a thread hands to the loop: one object each, for the errand and for its outcome.

Rule: what can be sent at once is posted, without a task; everything else is the producer's coroutine.
"""

from __future__ import annotations

import _thread
import asyncio
import itertools
import threading
import time

from rocketspark.client.outgoing import Outgoing
from rocketspark.client.producer import AsyncProducer
from rocketspark.client.quick_future import QuickFuture
from rocketspark.client.results import SendResult
from rocketspark.model import Message, MessageQueue

# Enough for any broker; with many more in flight, Python's garbage collector looks at them again and again.
FUTURES_IN_FLIGHT_MAX = 4096


class Turnstile:
    """Bounds what is in flight. A semaphore would make every send fight for its lock; these counters don't."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._left = 0
        self._numbers = itertools.count(1)
        self._freed = threading.Condition()
        self._waiting = False

    def enter(self) -> None:
        """Wait until fewer than the most are in flight. Called by many threads."""
        # One step in C: no two threads get one number.
        number = next(self._numbers)
        if number - self._left <= self._count_max:
            return
        with self._freed:
            while number - self._left > self._count_max:
                self._waiting = True
                self._freed.wait(0.1)

    def leave(self) -> None:
        """One less is in flight. Called by the loop's thread alone."""
        self._left += 1
        if self._waiting:
            with self._freed:
                self._waiting = False
                self._freed.notify_all()


class Send:
    """A packed message on its way to the loop; `finish` is called once, with what came of it."""

    def __init__(
        self,
        core: AsyncProducer,
        message: Message,
        out: Outgoing,
        queue: MessageQueue | None,
        timeout_ms: float | None,
        attempts: int,
    ) -> None:
        self._core = core
        self._sharding_key = message.sharding_key
        self._queue = queue
        self._timeout_ms = timeout_ms
        self.out = out
        self.wait_store_ok = message.wait_store_ok
        self.gathers = timeout_ms is None and core.may_gather(message, out)
        self.began_s = time.monotonic()
        self.end_s = core.end_s(timeout_ms, self.began_s)
        self.attempts = attempts
        self.given_up = False
        self.task: asyncio.Task[None] | None = None

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send it; on the loop."""
        if self._queue is not None or self._sharding_key or not self._core.post(self):
            self.task = loop.create_task(self._send())

    async def _send(self) -> None:
        core = self._core
        key, queue = self._sharding_key, self._queue
        try:
            if self.gathers:
                result = await core.gather(self.out, key, self.wait_store_ok, queue)
            else:
                result = await core.send_packed(self.out, key, queue, self._timeout_ms, self.attempts)
        except BaseException as e:
            self.finish(None, e)
            if not isinstance(e, Exception):
                raise
        else:
            self.finish(result, None)

    def refuse(self, error: BaseException) -> None:
        """The loop has ended."""
        self.finish(None, error)

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """It has ended."""
        raise NotImplementedError

    def done(self) -> bool:
        """Whether it has ended."""
        raise NotImplementedError

    def cancelled(self) -> bool:
        """Whether nobody waits for it."""
        return self.given_up

    def set_result(self, result: SendResult, /) -> None:
        """It was stored with others."""
        self.finish(result, None)

    def set_exception(self, exception: BaseException | None, /) -> None:
        """It failed with others."""
        self.finish(None, exception)


class FutureSend(Send, QuickFuture[SendResult]):
    """A send that is the future of its result."""

    def __init__(
        self,
        core: AsyncProducer,
        message: Message,
        out: Outgoing,
        queue: MessageQueue | None,
        timeout_ms: float | None,
        room: Turnstile,
    ) -> None:
        QuickFuture.__init__(self)
        Send.__init__(self, core, message, out, queue, timeout_ms, core.future_attempts)
        self._room = room

    done = QuickFuture.done

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """It has ended."""
        self.task = None
        self._room.leave()
        self.end(result, error)


class WaitingSend(Send):
    """A send that its thread waits for: LoopThread.ask."""

    def __init__(
        self, core: AsyncProducer, message: Message, out: Outgoing, queue: MessageQueue | None, timeout_ms: float | None
    ) -> None:
        super().__init__(core, message, out, queue, timeout_ms, core.attempts)
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.result: SendResult | None = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        """Whether it has ended."""
        return self.result is not None or self.error is not None

    def cancel(self) -> None:
        """The thread was interrupted: it is not sent again."""
        self.given_up = True
        if self.task is not None:
            self.task.cancel()

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """It has ended."""
        self.task = None
        self.result, self.error = result, error
        self.lock.release()
