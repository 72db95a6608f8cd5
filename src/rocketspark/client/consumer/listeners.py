"""Runs a consumer's listener: in threads, as coroutines on the loop, or in order.

Rule: never more calls at once than allowed. Listeners that are quick are run one after another by one thread, since a
hop per message costs more than they do; the slower they are, the more threads take part. In order each queue has one
call at a time, and gets the same messages again until they are taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Protocol

from rocketspark import machine
from rocketspark.client.callbacks import Outcome, Overdue, Run, Slot, in_thread, on_loop, passes_on
from rocketspark.client.connection.real_threads import DaemonThreads, RealThread, SimpleQueue, real_lock
from rocketspark.client.consumer.puller import Puller
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.client.message_batch import messages_given
from rocketspark.model import MessageQueue, ReceivedMessage

log = logging.getLogger("rocketspark.client")

PACE_S = 0.002
QUICK_PER_PACE = 4
CANCELLED_PAUSE_S = 1.0
# Calls that never wait are made on the loop for so long, then others have their turn; the clock is looked at after so
# many.
REST_AFTER_S = 0.001
LOOK_CALLS = 32


Listener = Callable[[Any], Any]


# Takes what calls came to. Those that were not begun, since their queue was given up, are in none.
Report = Callable[[list[Outcome]], None]


class Listeners(Protocol):
    """The base of both ways to run a listener."""

    def put(self, owner: Any, calls: Iterable[Any]) -> None:
        """Hand over the arguments of calls (see Run) to be run; never waits."""

    async def close(self) -> None:
        """Begin no more calls; return when all calls that began have ended and were reported."""

    @property
    def calls_here(self) -> bool:
        """Tell whether the current thread is running one of the calls."""


class _InAnyOrder:
    """What listeners without an order share: the runs that wait, and what ended, on its way to the report."""

    def __init__(self, listener: Listener, count: int, report: Report, overdue: Overdue) -> None:
        self._listener = listener
        self._count = count
        self._report = report
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        # A run stays here until somebody finds that no call of it is left.
        self._runs: deque[Run] = deque()
        # Those with something to report, and whether the loop was told of them.
        self._ended: deque[Run] = deque()
        self._told = False
        self._finished = 0
        self._closing = False

    def _soon(self, act: Callable[[], None]) -> None:
        """Have `act` called on the loop; called by whoever runs the calls."""
        raise NotImplementedError

    def _tell(self, run: Run) -> None:
        """Tell the loop that a run has something to report."""
        run.told = True
        self._ended.append(run)
        if not self._told:
            # One wake-up for all that end before the loop looks.
            self._told = True
            self._soon(self._take_outcomes)

    def _take_outcomes(self) -> None:
        self._told = False
        outcomes: list[Outcome] = []
        # Others only add: so many can be taken.
        for _ in range(len(self._ended)):
            run = self._ended.popleft()
            # First of all: a call that ends from here on is told anew.
            run.told = False
            done, failed = _drained(run.done), _drained(run.failed)
            self._finished += len(done) + len(failed)
            if done or failed:
                outcomes.append(
                    Outcome(run.owner, self._overdue.without(run, done), self._overdue.without(run, failed))
                )
        if outcomes:
            self._report(outcomes)

    def _drop_ended(self) -> None:
        """Drop the runs that have no call left but that nobody has found so."""
        while self._runs and self._runs[0].is_over:
            self._runs.popleft()

    def _begin_no_more(self) -> None:
        self._closing = True
        self._overdue.close()
        for run in self._runs:
            # In one step: what is left of them is given to nobody.
            deque(run.calls, 0)
        self._runs.clear()


def _drained(ended: list[Any]) -> list[Any]:
    # Others only add.
    taken = ended[:]
    del ended[: len(taken)]
    return taken


class ThreadListeners(_InAnyOrder):
    """Runs a plain function as the listener, in up to `count` threads. `report` is called on the loop with what
    succeeded and failed.
    """

    def __init__(self, listener: Listener, count: int, report: Report, overdue: Overdue) -> None:
        super().__init__(listener, count, report, overdue)
        self._guard = real_lock()
        self._permits: SimpleQueue[None] = SimpleQueue()
        self._active = 0
        self._seen = 0
        self._threads: list[RealThread] = []
        self._left = 0
        self._all_ended = asyncio.Event()
        self._pacer: asyncio.TimerHandle | None = None

    def put(self, owner: Any, calls: Iterable[Any]) -> None:
        """Hand over the arguments of calls to be run; never waits."""
        self._runs.append(Run(owner, calls))
        with self._guard:
            # A thread that finds nothing says so under the guard: it has seen these, or is not active any more.
            idle = not self._active
        if idle:
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
        """Set how many threads take part: more while calls wait and those at work are slow."""
        self._pacer = None
        with self._guard:
            self._drop_ended()
        if not self._runs or self._closing:
            return
        # What ended while this timer was due counts.
        self._take_outcomes()
        finished, self._seen = self._finished - self._seen, self._finished
        if finished < QUICK_PER_PACE * max(self._active, 1):
            self._activate(max(self._active, 1))
        self._pacer = self._loop.call_later(PACE_S, self._pace)

    def _work(self) -> None:
        runs, slot = self._runs, self._overdue.slot()
        while True:
            self._permits.get()
            while True:
                try:
                    run = runs[0]
                except IndexError:
                    with self._guard:
                        if runs:
                            continue
                        self._active -= 1
                    break
                self._make_calls(run, slot)
                with self._guard:
                    if runs and runs[0] is run:
                        runs.popleft()
            if self._closing:
                self._soon(self._thread_ended)
                return

    def _make_calls(self, run: Run, slot: Slot) -> None:
        """Make calls of a run until none is left; other threads may do the same at the same time."""
        owner, done, failed, listener = run.owner, run.done.append, run.failed.append, self._listener
        slot.run = run
        for given in run.calls:
            if owner.dropped:
                break
            slot.given = given
            # One call per report is timed: all of slow ones, few of quick ones.
            began_s = 0.0 if run.told else machine.monotonic()
            try:
                returned = listener(given)
                if returned is None:
                    done(given)
                else:
                    (failed if in_thread(returned, self._loop) is False else done)(given)
            except BaseException as e:
                log_failure(given, e)
                failed(given)
            if began_s:
                owner.counts.call((machine.monotonic() - began_s) * 1000)
            if not run.told:
                self._tell(run)
        slot.given = slot.run = None

    def _soon(self, act: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            log.warning("a listener ended after its consumer was closed; its message will be delivered again")

    def _thread_ended(self) -> None:
        self._left -= 1
        if not self._left:
            self._all_ended.set()

    async def close(self) -> None:
        """Begin no more calls; return when all calls that began have ended and were reported."""
        if self._pacer is not None:
            self._pacer.cancel()
        with self._guard:
            self._begin_no_more()
        self._left = len(self._threads)
        for _ in self._threads:
            self._permits.put(None)
        if self._threads:
            await self._all_ended.wait()
        for thread in self._threads:
            thread.join()


class TaskListeners(_InAnyOrder):
    """Runs a coroutine function as the listener, on the loop, in up to `count` tasks at once."""

    def __init__(self, listener: Callable[[Any], Awaitable[Any]], count: int, report: Report, overdue: Overdue) -> None:
        super().__init__(listener, count, report, overdue)
        # Those that have not ended yet, and of these the ones that make calls.
        self._tasks: set[asyncio.Task[None]] = set()
        self._working: set[asyncio.Task[None]] = set()
        # Of these, the ones that let others have their turn, between two calls.
        self._resting = 0
        self._looks = False

    def put(self, owner: Any, calls: Iterable[Any]) -> None:
        """Hand over the arguments of calls to be run; never waits."""
        self._runs.append(Run(owner, calls))
        if not self._working:
            self._engage(1)
        self._look_soon()

    @property
    def calls_here(self) -> bool:
        """Return False: the calls run on the loop's thread, which never waits in `close`."""
        return False

    def _look_soon(self) -> None:
        if not self._looks and len(self._working) < self._count:
            self._looks = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Have more tasks take part, twice as many each time, while calls are left and the tasks at work wait in
        theirs: a task for a listener that never waits would cost more than the call.
        """
        self._looks = False
        self._drop_ended()
        if not self._runs or self._closing:
            return
        if not self._resting:
            self._engage(max(len(self._working), 1))
        self._look_soon()

    def _engage(self, count: int) -> None:
        for _ in range(min(count, self._count - len(self._working))):
            task = asyncio.ensure_future(self._work())
            self._tasks.add(task)
            self._working.add(task)
            task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._working.discard(task)

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        runs, slot, listener = self._runs, self._overdue.slot(), self._listener
        in_a_row, rest_s = 0, machine.monotonic() + REST_AFTER_S
        try:
            while runs:
                slot.run = run = runs[0]
                owner, done, failed = run.owner, run.done, run.failed
                # Others may take calls of it too, while this one waits in its own.
                for given in run.calls:
                    if owner.dropped:
                        break
                    slot.given = given
                    began_s = 0.0 if run.told else machine.monotonic()
                    try:
                        returned = await listener(given)
                        if returned is not None and returned is not False:
                            returned = await on_loop(returned)
                        (failed if returned is False else done).append(given)
                    except BaseException as e:
                        if passes_on(e):
                            # Perhaps the loop ends. If it does not, the call failed, and others take part again.
                            self._loop.call_later(CANCELLED_PAUSE_S, self._go_on, run, given)
                            raise
                        log_failure(given, e)
                        failed.append(given)
                    if began_s:
                        owner.counts.call((machine.monotonic() - began_s) * 1000)
                    if not run.told:
                        self._tell(run)
                    in_a_row += 1
                    if not in_a_row % LOOK_CALLS and machine.monotonic() >= rest_s:
                        slot.given = None
                        await self._rest()
                        rest_s = machine.monotonic() + REST_AFTER_S
                slot.given = None
                if runs and runs[0] is run:
                    runs.popleft()
        finally:
            self._overdue.slots.discard(slot)
            # At once: calls that are put from now on must not count on this task.
            self._working.discard(task)

    async def _rest(self) -> None:
        """Let others have their turn: a listener that never waits must not keep the loop to itself."""
        self._resting += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._resting -= 1

    def _soon(self, act: Callable[[], None]) -> None:
        self._loop.call_soon(act)

    def _go_on(self, run: Run, given: Any) -> None:
        if not self._closing:
            run.failed.append(given)
            self._tell(run)
            self._look_soon()

    async def close(self) -> None:
        """Begin no more calls; return when all calls that began have ended and were reported."""
        self._begin_no_more()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._take_outcomes()


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


# A call in order, by its puller.
Unit = tuple[Puller, Any]


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
    After `attempts_max` failures (below 0: never), and those that `is_rejected`, messages are handed to `give_up`; if
    it returns True they count as taken.
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
        is_rejected: Callable[[ReceivedMessage], bool] = lambda message: False,
    ) -> None:
        self._listener = listener
        self._coroutine = is_coroutine_function(listener)
        self._report = report
        self._suspend_s = suspend_ms / 1000
        self._attempts_max = attempts_max
        self._may_run = may_run
        self._give_up = give_up
        self._is_rejected = is_rejected
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(count)
        self._pool: DaemonThreads | None = None
        if not self._coroutine:
            self._pool = DaemonThreads(count, "rocketspark-ordered")
        self._queue_calls: dict[MessageQueue, QueueCalls] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def put(self, owner: Any, calls: Iterable[Any]) -> None:
        """Have the listener called with each of `calls`, which are its arguments; calls for one queue run one after the
        other, in this order. Returns at once.
        """
        queue = owner.queue
        queue_calls = self._queue_calls.get(queue)
        if queue_calls is None:
            queue_calls = self._queue_calls[queue] = QueueCalls(queue)
        queue_calls.units.extend(zip(repeat(owner), calls))
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
                    by_puller = groupby(done, itemgetter(0))
                    self._report([Outcome(puller, [unit[1] for unit in units], []) for puller, units in by_puller])
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
            if 0 <= self._attempts_max <= message.reconsume_times or self._is_rejected(message):
                spent += 1
            else:
                message.reconsume_times += 1
        # First of all, so that an error from here on does not lose it.
        queue_calls.units.appendleft(unit)
        if spent == len(messages) and await self._give_up(puller, messages):
            queue_calls.units.popleft()
            self._report([Outcome(puller, [given], [])])
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
