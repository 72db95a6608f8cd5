"""Runs a listener in order: of each queue one call at a time, and the same messages again until they are taken.

Rule: ConsumeMessageOrderlyService, 5.x: a queue whose call failed rests, then its messages come again, with one more
attempt counted; those of other queues go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from rocketspark.client.callbacks import in_thread, on_loop, passes_on
from rocketspark.client.consumer.listening.listeners import Listener, Report, Unit, log_failure
from rocketspark.client.consumer.puller import Puller
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.client.real_threads import DaemonThreads
from rocketspark.model import MessageQueue, ReceivedMessage

log = logging.getLogger("rocketspark.client")

# One stay in a thread: as many calls, or as long, whichever ends first.
STAY_CALLS = 128
STAY_S = 0.1
LOOK_S = 0.2


class QueueCalls:
    """The listener calls of one queue; those whose puller was dropped are passed over."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.units: deque[Unit] = deque()
        self.busy = False
        self.rests = False
        self.idle = asyncio.Event()
        self.idle.set()


class OrderedListeners:
    """Runs the listener for up to `count` queues at once, in threads or as coroutines.

    `report` gets what was taken; `may_run` says whether a queue is (still) locked; after `attempts_max` failures (below
    0: never) messages are handed to `give_up`, and count as taken if that succeeds.
    """

    def __init__(
        self,
        listener: Listener,
        count: int,
        report: Report,
        *,
        suspend_ms: float,
        attempts_max: int,
        may_run: Callable[[MessageQueue], bool],
        give_up: Callable[[Puller, list[ReceivedMessage]], Awaitable[bool]],
    ) -> None:
        self._listener = listener
        self._coroutine = is_coroutine_function(listener)
        self._report = report
        self._suspend_s = suspend_ms / 1000
        self._attempts_max = attempts_max
        self._may_run = may_run
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(count)
        self._pool: DaemonThreads | None = None
        if not self._coroutine:
            self._pool = DaemonThreads(count, "rocketspark-ordered")
        self._queue_calls: dict[MessageQueue, QueueCalls] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def put(self, units: Iterable[Unit]) -> None:
        """Have units run; never waits."""
        touched = set()
        for unit in units:
            queue = unit[0].queue
            queue_calls = self._queue_calls.get(queue)
            if queue_calls is None:
                queue_calls = self._queue_calls[queue] = QueueCalls(queue)
            queue_calls.units.append(unit)
            touched.add(queue_calls)
        for queue_calls in touched:
            self._wake(queue_calls)

    @property
    def calls_here(self) -> bool:
        """Tell whether the thread that asks runs one of the calls."""
        return self._pool is not None and self._pool.is_current

    def wake(self, queue: MessageQueue) -> None:
        """Run the calls of a queue that may be locked again."""
        queue_calls = self._queue_calls.get(queue)
        if queue_calls is not None:
            self._wake(queue_calls)

    def _wake(self, queue_calls: QueueCalls) -> None:
        if queue_calls.busy or queue_calls.rests or self._closing or not queue_calls.units:
            return
        queue_calls.busy = True
        queue_calls.idle.clear()
        task = asyncio.ensure_future(self._run(queue_calls))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, queue_calls))

    def _ended(self, task: asyncio.Task[None], queue_calls: QueueCalls) -> None:
        self._tasks.discard(task)
        queue_calls.busy = False
        queue_calls.idle.set()
        if not queue_calls.units or queue_calls.rests or self._closing:
            return
        if task.cancelled() or not self._may_run(queue_calls.queue):
            # Its lock is not confirmed now; the confirmation wakes it up, and so does this timer.
            self._loop.call_later(LOOK_S, self._wake, queue_calls)
        else:
            self._wake(queue_calls)

    async def settled(self, puller: Puller) -> None:
        """Wait until no call for a queue that was dropped runs any more."""
        queue_calls = self._queue_calls.get(puller.queue)
        if queue_calls is not None:
            await queue_calls.idle.wait()

    async def _run(self, queue_calls: QueueCalls) -> None:
        async with self._room:
            while self._goes_on(queue_calls):
                counts, began_s = queue_calls.units[0][0].counts, time.monotonic()
                done, failed = await self._stay(queue_calls)
                if calls := len(done) + (failed is not None):
                    counts.call((time.monotonic() - began_s) * 1000, calls)
                if done:
                    self._report(done, [])
                if failed is not None:
                    await self._failed(queue_calls, failed)

    def _goes_on(self, queue_calls: QueueCalls) -> bool:
        while queue_calls.units and queue_calls.units[0][0].dropped:
            queue_calls.units.popleft()
        return (
            bool(queue_calls.units) and not queue_calls.rests and not self._closing and self._may_run(queue_calls.queue)
        )

    async def _stay(self, queue_calls: QueueCalls) -> tuple[list[Unit], Unit | None]:
        if self._coroutine:
            unit = queue_calls.units.popleft()
            try:
                taken = await on_loop(await self._listener(unit[1])) is not False
            except BaseException as e:
                if passes_on(e):
                    # Nothing later may overtake it, if the loop goes on.
                    queue_calls.units.appendleft(unit)
                    raise
                log_failure(unit[1], e)
                taken = False
            return ([unit], None) if taken else ([], unit)
        return await self._loop.run_in_executor(self._pool, self._stay_in_thread, queue_calls)

    def _stay_in_thread(self, queue_calls: QueueCalls) -> tuple[list[Unit], Unit | None]:
        done: list[Unit] = []
        units, listener = queue_calls.units, self._listener
        end_s = time.monotonic() + STAY_S
        while units and len(done) < STAY_CALLS and self._may_run(queue_calls.queue):
            unit = units.popleft()
            if unit[0].dropped:
                continue
            try:
                returned = listener(unit[1])
                if returned is False or (returned is not None and in_thread(returned, self._loop) is False):
                    return done, unit
            except BaseException as e:
                log_failure(unit[1], e)
                return done, unit
            done.append(unit)
            if self._closing or time.monotonic() > end_s:
                break
        return done, None

    async def _failed(self, queue_calls: QueueCalls, unit: Unit) -> None:
        puller, given = unit
        messages = given if isinstance(given, list) else [given]
        spent = [m for m in messages if 0 <= self._attempts_max <= m.reconsume_times]
        for message in messages:
            if message not in spent:
                message.reconsume_times += 1
        # First of all, so that an error from here on does not lose it.
        queue_calls.units.appendleft(unit)
        if len(spent) == len(messages) and await self._give_up(puller, messages):
            queue_calls.units.popleft()
            self._report([unit], [])
            return
        queue_calls.rests = True
        self._loop.call_later(self._suspend_s, self._rested, queue_calls)

    def _rested(self, queue_calls: QueueCalls) -> None:
        queue_calls.rests = False
        self._wake(queue_calls)

    async def close(self) -> None:
        """Begin no more, and return when all that began has ended and was reported."""
        self._closing = True
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
