"""Runs a consumer's listener: in threads, or as coroutines on the loop. Rule: never more at once than allowed.

Listeners that are quick are run one after another by one thread, since a hop per message costs more than they do;
the slower they are, the more threads take part.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from rocketspark.client.fetcher import Fetcher
from rocketspark.model import ReceivedMessage

log = logging.getLogger("rocketspark.client")

PACE_S = 0.002
QUICK_PER_PACE = 4


class Unit(NamedTuple):
    """Messages of one queue that the listener gets in one call."""

    fetcher: Fetcher
    messages: list[ReceivedMessage]


# What became of units: True done, False failed, None not begun since the queue was given up.
Outcomes = list[tuple[Unit, bool | None]]
Listener = Callable[[Any], Any]


class Listeners(Protocol):
    """What both ways of running a listener have in common."""

    def put(self, units: list[Unit]) -> None:
        """Have units run; never waits."""

    async def close(self) -> None:
        """Begin no more, and return when all that began has ended and was reported."""


class ThreadListeners:
    """Runs a plain function in up to `count` threads. `report` is called on the loop."""

    def __init__(self, listener: Listener, count: int, single: bool, report: Callable[[Outcomes], None]) -> None:
        self._listener = listener
        self._count = count
        self._single = single
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._units: deque[Unit] = deque()
        self._guard = threading.Lock()
        self._permits = threading.Semaphore(0)
        self._active = 0
        self._finished = 0
        self._seen = 0
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._outcomes: deque[tuple[Unit, bool | None]] = deque()
        self._told = False
        self._left = 0
        self._all_ended = asyncio.Event()
        self._pacer: asyncio.TimerHandle | None = None

    def put(self, units: list[Unit]) -> None:
        """Have units run; never waits."""
        self._units.extend(units)
        if not self._active:
            self._activate(1)
        if self._pacer is None and self._count > 1:
            self._seen = self._finished
            self._pacer = self._loop.call_later(PACE_S, self._pace)

    def _activate(self, count: int) -> None:
        with self._guard:
            count = min(count, self._count - self._active)
            self._active += count
        while len(self._threads) < self._active:
            number = len(self._threads) + 1
            thread = threading.Thread(target=self._work, name=f"rocketspark-listener-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        for _ in range(count):
            self._permits.release()

    def _pace(self) -> None:
        """More threads take part while units wait and those at work are slow."""
        self._pacer = None
        if not self._units or self._closing:
            return
        finished, self._seen = self._finished - self._seen, self._finished
        if finished < QUICK_PER_PACE * max(self._active, 1):
            self._activate(max(self._active, 1))
        self._pacer = self._loop.call_later(PACE_S, self._pace)

    def _work(self) -> None:
        units, outcomes, listener, single = self._units, self._outcomes, self._listener, self._single
        while True:
            self._permits.acquire()
            while True:
                try:
                    unit = units.popleft()
                except IndexError:
                    with self._guard:
                        if units:
                            continue
                        self._active -= 1
                    break
                done: bool | None = None
                if not unit.fetcher.dropped:
                    try:
                        done = listener(unit.messages[0] if single else unit.messages) is not False
                    except BaseException as e:
                        _log_failure(unit, e)
                        done = False
                outcomes.append((unit, done))
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
        taken: Outcomes = []
        while self._outcomes:
            taken.append(self._outcomes.popleft())
        self._report(taken)

    def _thread_ended(self) -> None:
        self._left -= 1
        if not self._left:
            self._all_ended.set()

    async def close(self) -> None:
        """Begin no more, and return when all that began has ended and was reported."""
        self._closing = True
        if self._pacer is not None:
            self._pacer.cancel()
        self._units.clear()
        self._left = len(self._threads)
        for _ in self._threads:
            self._permits.release()
        if self._threads:
            await self._all_ended.wait()
        for thread in self._threads:
            thread.join()


class TaskListeners:
    """Runs a coroutine function, up to `count` at once, on the loop."""

    def __init__(
        self, listener: Callable[[Any], Awaitable[Any]], count: int, single: bool, report: Callable[[Outcomes], None]
    ) -> None:
        self._listener = listener
        self._count = count
        self._single = single
        self._report = report
        self._units: deque[Unit] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, units: list[Unit]) -> None:
        """Have units run; never waits."""
        self._units.extend(units)
        for _ in range(min(self._count - len(self._tasks), len(self._units))):
            task = asyncio.ensure_future(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        done_in_a_row = 0
        while self._units:
            unit = self._units.popleft()
            if unit.fetcher.dropped:
                self._report([(unit, None)])
                continue
            try:
                done = await self._listener(unit.messages[0] if self._single else unit.messages) is not False
            except Exception as e:
                _log_failure(unit, e)
                done = False
            self._report([(unit, done)])
            done_in_a_row += 1
            if done_in_a_row % 32 == 0:
                # A listener that never waits must not keep the loop to itself.
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Begin no more, and return when all that began has ended and was reported."""
        self._units.clear()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _log_failure(unit: Unit, error: BaseException) -> None:
    first = unit.messages[0]
    log.warning(
        "the listener failed on message %s of topic %s (attempt %d); it will be delivered again",
        first.message_id,
        first.topic,
        first.reconsume_times + 1,
        exc_info=error,
    )
