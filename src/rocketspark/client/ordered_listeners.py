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
from concurrent.futures import ThreadPoolExecutor

from rocketspark.client.fetcher import Fetcher
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.client.listeners import Listener, Report, Unit, log_failure
from rocketspark.model import MessageQueue, ReceivedMessage

log = logging.getLogger("rocketspark.client")

# One stay in a thread: as many calls, or as long, whichever ends first.
STAY_CALLS = 128
STAY_S = 0.1
LOOK_S = 0.2


class Lane:
    """One queue's calls; those whose fetcher was dropped are passed over."""

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
        give_up: Callable[[Fetcher, list[ReceivedMessage]], Awaitable[bool]],
    ) -> None:
        self._listener = listener
        self._coroutine = is_coroutine_function(listener)
        self._report = report
        self._suspend_s = suspend_ms / 1000
        self._attempts_max = attempts_max
        self._may_run = may_run
        self._give_up = give_up
        self._room = asyncio.Semaphore(count)
        self._pool: ThreadPoolExecutor | None = None
        if not self._coroutine:
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="rocketspark-ordered")
        self._lanes: dict[MessageQueue, Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def put(self, units: Iterable[Unit]) -> None:
        """Have units run; never waits."""
        touched = set()
        for unit in units:
            queue = unit[0].queue
            lane = self._lanes.get(queue)
            if lane is None:
                lane = self._lanes[queue] = Lane(queue)
            lane.units.append(unit)
            touched.add(lane)
        for lane in touched:
            self._wake(lane)

    def wake(self, queue: MessageQueue) -> None:
        """A queue may be locked again."""
        lane = self._lanes.get(queue)
        if lane is not None:
            self._wake(lane)

    def _wake(self, lane: Lane) -> None:
        if lane.busy or lane.rests or self._closing or not lane.units:
            return
        lane.busy = True
        lane.idle.clear()
        task = asyncio.ensure_future(self._run(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self, fetcher: Fetcher) -> None:
        """Wait until no call for a queue that was dropped runs any more."""
        lane = self._lanes.get(fetcher.queue)
        if lane is not None:
            await lane.idle.wait()

    async def _run(self, lane: Lane) -> None:
        try:
            async with self._room:
                while self._goes_on(lane):
                    counts, began_s = lane.units[0][0].counts, time.monotonic()
                    done, failed = await self._stay(lane)
                    if calls := len(done) + (failed is not None):
                        counts.call((time.monotonic() - began_s) * 1000, calls)
                    if done:
                        self._report(done, [])
                    if failed is not None:
                        await self._failed(lane, failed)
        finally:
            lane.busy = False
            lane.idle.set()
        if lane.units and not lane.rests and not self._closing:
            # Its lock is not confirmed just now; who confirms it wakes this up, and so does a look now and then.
            asyncio.get_running_loop().call_later(LOOK_S, self._wake, lane)

    def _goes_on(self, lane: Lane) -> bool:
        while lane.units and lane.units[0][0].dropped:
            lane.units.popleft()
        return bool(lane.units) and not lane.rests and not self._closing and self._may_run(lane.queue)

    async def _stay(self, lane: Lane) -> tuple[list[Unit], Unit | None]:
        if self._coroutine:
            unit = lane.units.popleft()
            try:
                taken = await self._listener(unit[1]) is not False
            except Exception as e:
                log_failure(unit[1], e)
                taken = False
            return ([unit], None) if taken else ([], unit)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._stay_in_thread, lane)

    def _stay_in_thread(self, lane: Lane) -> tuple[list[Unit], Unit | None]:
        done: list[Unit] = []
        units, listener = lane.units, self._listener
        end_s = time.monotonic() + STAY_S
        while units and len(done) < STAY_CALLS and self._may_run(lane.queue):
            unit = units.popleft()
            if unit[0].dropped:
                continue
            try:
                if listener(unit[1]) is False:
                    return done, unit
            except BaseException as e:
                log_failure(unit[1], e)
                return done, unit
            done.append(unit)
            if self._closing or time.monotonic() > end_s:
                break
        return done, None

    async def _failed(self, lane: Lane, unit: Unit) -> None:
        fetcher, given = unit
        messages = given if isinstance(given, list) else [given]
        spent = [m for m in messages if 0 <= self._attempts_max <= m.reconsume_times]
        for message in messages:
            if message not in spent:
                message.reconsume_times += 1
        if len(spent) == len(messages) and await self._give_up(fetcher, messages):
            self._report([unit], [])
            return
        lane.units.appendleft(unit)
        lane.rests = True
        asyncio.get_running_loop().call_later(self._suspend_s, self._rested, lane)

    def _rested(self, lane: Lane) -> None:
        lane.rests = False
        self._wake(lane)

    async def close(self) -> None:
        """Begin no more, and return when all that began has ended and was reported."""
        self._closing = True
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._pool is not None:
            self._pool.shutdown(wait=False)
