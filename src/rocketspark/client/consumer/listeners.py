"""Runs a consumer's listener: in threads, as coroutines on the loop, or in order.

Rule: never more calls at once than allowed. Listeners that are quick are run one after another by one thread, since a
hop per message costs more than they do; the slower they are, the more threads take part. In order each queue has one
call at a time, and gets the same messages again until they are taken.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from rocketspark import machine
from rocketspark.client.callbacks import in_thread, on_loop, passes_on
from rocketspark.client.connection.real_threads import DaemonThreads, RealThread, SimpleQueue, real_lock
from rocketspark.client.consumer.puller import Puller
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.client.message_batch import messages_given
from rocketspark.model import MessageQueue, ReceivedMessage

log = logging.getLogger("rocketspark.client")

PACE_S = 0.002
QUICK_PER_PACE = 4
CANCELLED_PAUSE_S = 1.0


# The argument of one listener call, a message or a list of one queue's, with the puller or the pop that read it, which
# has `dropped` and `counts`. Plain tuples: one is made for every message.
Unit = tuple[Any, Any]
# Takes the units that are done, and those that failed. What was not begun, since its queue was given up, is in neither.
Report = Callable[[list[Unit], list[Unit]], None]
Listener = Callable[[Any], Any]


class Listeners(Protocol):
    """The base of both ways to run a listener."""

    def put(self, units: Iterable[Unit]) -> None:
        """Hand over units (the messages of one listener call each, with their puller) to be run; never waits."""

    async def close(self) -> None:
        """Begin no more calls; return when all calls that began have ended and were reported."""

    @property
    def calls_here(self) -> bool:
        """Tell whether the current thread is running one of the calls."""


class Overdue:
    """Finds listener calls that run for longer than `limit_s`, by looking at the running calls at intervals.

    A call writes its unit into `slots`, under a key of its thread or task, which is all that it costs. `expired` is
    called once with each unit that is overdue.
    """

    def __init__(self, limit_s: float, expired: Callable[[Unit], None]) -> None:
        self.slots: dict[int, Unit | None] = {}
        self._limit_s = limit_s
        self._expired = expired
        self._seen: dict[int, tuple[Unit, float]] = {}
        self._given_up: dict[int, Unit] = {}
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(min(limit_s / 4, 60), self._look)

    def _look(self) -> None:
        self._timer = self._loop.call_later(min(self._limit_s / 4, 60), self._look)
        now_s = self._loop.time()
        before, self._seen = self._seen, {}
        for key, unit in list(self.slots.items()):
            if unit is None:
                continue
            known = before.get(key)
            if known is None or known[0] is not unit:
                known = (unit, now_s)
            self._seen[key] = known
            if now_s - known[1] >= self._limit_s and id(unit) not in self._given_up:
                self._given_up[id(unit)] = unit
                self._expired(unit)

    def without(self, units: list[Unit]) -> list[Unit]:
        """Return the units but for those that were overdue, which `expired` has dealt with already."""
        if not self._given_up:
            return units
        return [u for u in units if self._given_up.pop(id(u), None) is None]

    def close(self) -> None:
        """Stop looking for overdue calls."""
        self._timer.cancel()


class ThreadListeners:
    """Runs a plain function as the listener, in up to `count` threads. `report` is called on the loop with what
    succeeded and failed.
    """

    def __init__(self, listener: Listener, count: int, report: Report, overdue: Overdue) -> None:
        self._listener = listener
        self._count = count
        self._report = report
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._units: deque[Unit] = deque()
        self._guard = real_lock()
        self._permits: SimpleQueue[None] = SimpleQueue()
        self._active = 0
        self._finished = 0
        self._seen = 0
        self._closing = False
        self._threads: list[RealThread] = []
        self._done: deque[Unit] = deque()
        self._failed: deque[Unit] = deque()
        self._told = False
        self._left = 0
        self._all_ended = asyncio.Event()
        self._pacer: asyncio.TimerHandle | None = None

    def put(self, units: Iterable[Unit]) -> None:
        """Hand over units to be run; never waits."""
        self._units.extend(units)
        if not self._active:
            self._activate(1)
        if self._pacer is None and self._count > 1:
            self._seen = self._finished
            self._pacer = self._loop.call_later(PACE_S, self._pace)

    @property
    def calls_here(self) -> bool:
        """Tell whether the current thread is running one of the calls."""
        return any(thread.is_current for thread in self._threads)

    def _activate(self, count: int) -> None:
        with self._guard:
            count = min(count, self._count - self._active)
            self._active += count
        while len(self._threads) < self._active:
            number = len(self._threads) + 1
            thread = RealThread(self._work, f"rocketspark-listener-{number}")
            self._threads.append(thread)
            thread.start()
        for _ in range(count):
            self._permits.put(None)

    def _pace(self) -> None:
        """Set how many threads take part: more while units wait and those at work are slow."""
        self._pacer = None
        if not self._units or self._closing:
            return
        finished, self._seen = self._finished - self._seen, self._finished
        if finished < QUICK_PER_PACE * max(self._active, 1):
            self._activate(max(self._active, 1))
        self._pacer = self._loop.call_later(PACE_S, self._pace)

    def _work(self) -> None:
        units, done, failed, listener = self._units, self._done, self._failed, self._listener
        slots, key = self._overdue.slots, threading.get_ident()
        while True:
            self._permits.get()
            while True:
                try:
                    unit = units.popleft()
                except IndexError:
                    slots[key] = None
                    with self._guard:
                        if units:
                            continue
                        self._active -= 1
                    break
                puller, given = unit
                slots[key] = unit
                if not puller.dropped:
                    # One call per report is timed: all of slow ones, few of quick ones.
                    began_s = 0.0 if self._told else machine.monotonic()
                    try:
                        returned = listener(given)
                        if returned is not None and returned is not False:
                            returned = in_thread(returned, self._loop)
                        (failed if returned is False else done).append(unit)
                    except BaseException as e:
                        log_failure(given, e)
                        failed.append(unit)
                    if began_s:
                        puller.counts.call((machine.monotonic() - began_s) * 1000)
                self._finished += 1
                if not self._told:
                    # One wake-up for all that end before the loop looks.
                    self._told = True
                    self._tell(self._take_outcomes)
            if self._closing:
                self._tell(self._thread_ended)
                return

    def _tell(self, act: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            log.warning("a listener ended after its consumer was closed; its message will be delivered again")

    def _take_outcomes(self) -> None:
        self._told = False
        self._report(self._overdue.without(_drained(self._done)), self._overdue.without(_drained(self._failed)))

    def _thread_ended(self) -> None:
        self._left -= 1
        if not self._left:
            self._all_ended.set()

    async def close(self) -> None:
        """Begin no more calls; return when all calls that began have ended and were reported."""
        self._closing = True
        self._overdue.close()
        if self._pacer is not None:
            self._pacer.cancel()
        self._units.clear()
        self._left = len(self._threads)
        for _ in self._threads:
            self._permits.put(None)
        if self._threads:
            await self._all_ended.wait()
        for thread in self._threads:
            thread.join()


class TaskListeners:
    """Runs a coroutine function as the listener, on the loop, in up to `count` tasks at once."""

    def __init__(self, listener: Callable[[Any], Awaitable[Any]], count: int, report: Report, overdue: Overdue) -> None:
        self._listener = listener
        self._count = count
        self._report = report
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._units: deque[Unit] = deque()
        self._done: deque[Unit] = deque()
        self._failed: deque[Unit] = deque()
        self._told = False
        self._closing = False
        # Those that have not ended yet, and of these the ones that take units.
        self._tasks: set[asyncio.Task[None]] = set()
        self._working: set[asyncio.Task[None]] = set()

    def put(self, units: Iterable[Unit]) -> None:
        """Hand over units to be run; never waits."""
        self._units.extend(units)
        self._engage()

    @property
    def calls_here(self) -> bool:
        """Return False: the calls run on the loop's thread, which never waits in `close`."""
        return False

    def _engage(self) -> None:
        for _ in range(min(self._count - len(self._working), len(self._units))):
            task = asyncio.ensure_future(self._work())
            self._tasks.add(task)
            self._working.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._working.discard(task)

    async def _work(self) -> None:
        in_a_row = 0
        task = asyncio.current_task()
        assert task is not None
        slots, key = self._overdue.slots, id(task)
        try:
            while self._units:
                unit = self._units.popleft()
                puller, given = unit
                if puller.dropped:
                    continue
                slots[key] = unit
                began_s = 0.0 if self._told else machine.monotonic()
                try:
                    returned = await self._listener(given)
                    if returned is not None and returned is not False:
                        returned = await on_loop(returned)
                    (self._failed if returned is False else self._done).append(unit)
                except BaseException as e:
                    if passes_on(e):
                        # Perhaps the loop ends. If it does not, the unit failed, and others take part again.
                        self._loop.call_later(CANCELLED_PAUSE_S, self._go_on, unit)
                        raise
                    log_failure(given, e)
                    self._failed.append(unit)
                if began_s:
                    puller.counts.call((machine.monotonic() - began_s) * 1000)
                self._tell()
                in_a_row += 1
                if in_a_row % 32 == 0:
                    # A listener that never waits must not keep the loop to itself.
                    await asyncio.sleep(0)
        finally:
            slots.pop(key, None)
            # At once: a unit that is put from now on must not count on this task.
            self._working.discard(task)

    def _tell(self) -> None:
        if not self._told:
            # One report for all that end before the loop comes to it.
            self._told = True
            self._loop.call_soon(self._take_outcomes)

    def _go_on(self, unit: Unit) -> None:
        if not self._closing:
            self._failed.append(unit)
            self._tell()
            self._engage()

    def _take_outcomes(self) -> None:
        self._told = False
        self._report(self._overdue.without(_drained(self._done)), self._overdue.without(_drained(self._failed)))

    async def close(self) -> None:
        """Begin no more calls; return when all calls that began have ended and were reported."""
        self._closing = True
        self._units.clear()
        self._overdue.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._take_outcomes()


def _drained(units: deque[Unit]) -> list[Unit]:
    # Others only add: so many can be taken.
    return [units.popleft() for _ in range(len(units))]


def log_failure(given: ReceivedMessage | Sequence[ReceivedMessage], error: BaseException) -> None:
    """Log what a listener raised."""
    first = given if isinstance(given, ReceivedMessage) else given[0]
    log.warning(
        "the listener failed on message %s of topic %s (attempt %d); it will be delivered again",
        first.message_id,
        first.topic,
        first.reconsume_times + 1,
        exc_info=error,
    )


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
    """Runs the listener for up to `count` queues at once, one call at a time for each queue, in threads or as
    coroutines.

    `report` gets the messages that the listener took. `may_run` tells whether this member still has the queue's lock.
    After `attempts_max` failures (below 0: never) messages are handed to `give_up`; if it returns True they count as
    taken.
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
        """Hand over units to be run, in order within each queue; never waits."""
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
        """Tell whether the current thread is running one of the calls."""
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
                counts, began_s = queue_calls.units[0][0].counts, machine.monotonic()
                done, failed = await self._stay(queue_calls)
                if calls := len(done) + (failed is not None):
                    counts.call((machine.monotonic() - began_s) * 1000, calls)
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
        end_s = machine.monotonic() + STAY_S
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
            if self._closing or machine.monotonic() > end_s:
                break
        return done, None

    async def _failed(self, queue_calls: QueueCalls, unit: Unit) -> None:
        puller, given = unit
        messages = messages_given(given)
        spent = 0
        for message in messages:
            if 0 <= self._attempts_max <= message.reconsume_times:
                spent += 1
            else:
                message.reconsume_times += 1
        # First of all, so that an error from here on does not lose it.
        queue_calls.units.appendleft(unit)
        if spent == len(messages) and await self._give_up(puller, messages):
            queue_calls.units.popleft()
            self._report([unit], [])
            return
        queue_calls.rests = True
        self._loop.call_later(self._suspend_s, self._rested, queue_calls)

    def _rested(self, queue_calls: QueueCalls) -> None:
        queue_calls.rests = False
        self._wake(queue_calls)

    async def close(self) -> None:
        """Begin no more calls; return when all calls that began have ended and were reported."""
        self._closing = True
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
