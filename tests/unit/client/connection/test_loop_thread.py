"""Threads that wait for the loop of the clients: each that is woken wakes the next, and none is ever forgotten."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.client.connection.loop_thread import GATHERED_CALLS, LoopThread, WakeChain

pytestmark = pytest.mark.shows(
    "threads that send on one producer wake one another, and meet the loop together; one that is interrupted holds up "
    "no other"
)


class Timers:
    """A loop that has timers only, which run when the test says so."""

    def __init__(self) -> None:
        self.due: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self.due.append((act, arguments))

    def run(self) -> None:
        due, self.due = self.due, []
        self.now_s += 0.002
        for act, arguments in due:
            act(*arguments)


def held() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


class Ended:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def chain_of(timers: Timers) -> tuple[WakeChain, Ended]:
    over = Ended()
    return WakeChain(cast(Any, timers), over), over


def test_each_that_is_woken_wakes_the_next() -> None:
    chain, over = chain_of(Timers())
    locks = [held() for _ in range(3)]
    for lock in locks:
        chain.wake(lock)
    for woken in (1, 2, 3):
        assert [lock.locked() for lock in locks] == [False] * woken + [True] * (3 - woken)
        assert (chain.goes_on, over.times) == (True, 0)
        chain.pass_on()
    assert (chain.goes_on, over.times) == (False, 1)


def test_where_each_step_takes_long_all_are_woken_at_once_for_a_while() -> None:
    timers = Timers()
    chain, over = chain_of(timers)
    locks = [held() for _ in range(100)]
    for lock in locks:
        chain.wake(lock)
    # Not where it is quick, however many wait.
    for _ in range(60):
        chain.pass_on()
    timers.run()
    assert sum(lock.locked() for lock in locks) == 39
    for _ in range(5):
        chain.pass_on()
    timers.run()
    assert not any(lock.locked() for lock in locks)
    assert (chain.goes_on, over.times) == (False, 1)
    late = held()
    chain.wake(late)
    assert (late.locked(), chain.goes_on) == (False, False)
    timers.run()
    for _ in range(2):
        chain.wake(late := held())
    assert (late.locked(), chain.goes_on) == (True, True)


@given(st.lists(st.sampled_from(["wake", "wake", "woken", "interrupted", "look"]), max_size=30), st.booleans())
def test_every_thread_is_woken_once_whoever_is_interrupted(events: list[str], ends: bool) -> None:
    """Of those that were woken some pass on, some never do; a lock that is released twice raises."""
    timers = Timers()
    chain, over = chain_of(timers)
    locks: list[_thread.LockType] = []
    done = 0

    def woken() -> int:
        return sum(not lock.locked() for lock in locks)

    for event in events:
        if event == "wake":
            locks.append(held())
            chain.wake(locks[-1])
        elif event == "look":
            timers.run()
        elif done < woken():
            done += 1
            if event == "woken":
                chain.pass_on()
        assert [lock.locked() for lock in locks] == sorted(lock.locked() for lock in locks), "one overtook another"
        assert woken() == len(locks) or (timers.due and chain.goes_on), "nobody wakes those that wait"
        # What calls wait for comes.
        assert timers.due or not chain.gathers
    if ends:
        chain.end()
        assert woken() == len(locks)
        late = held()
        chain.wake(late)
        assert not late.locked()
        return
    ended = over.times
    gathers = chain.gathers
    for _ in range(3):
        timers.run()
    assert (woken(), chain.gathers, timers.due) == (len(locks), False, [])
    assert over.times > ended or not gathers, "calls that waited for the chain's end are forgotten"


class Call:
    """A call of a thread, which notes that it ran."""

    def __init__(self, ran: list[int], number: int, act: Callable[[], None]) -> None:
        self._ran, self._number, self._act = ran, number, act
        self.error: BaseException | None = None

    def run(self, loop: Any) -> None:
        self._act()
        self._ran.append(self._number)

    def refuse(self, error: BaseException) -> None:
        self.error = error


@pytest.mark.parametrize("count", [1, GATHERED_CALLS + 5])
def test_calls_are_taken_though_a_woken_thread_passes_nothing_on(count: int) -> None:
    loop = LoopThread.acquire()
    try:
        ran: list[int] = []
        began, every = threading.Event(), threading.Event()

        def stuck() -> None:
            # Nobody waits for these: the chain stops at the first.
            loop.wakes.wake(held())
            loop.wakes.wake(held())
            began.set()

        loop.put(Call(ran, -1, stuck))
        assert began.wait(60)
        for number in range(count):
            loop.put(Call(ran, number, every.set if number == count - 1 else lambda: None))
        assert every.wait(60)
        loop.call(_nothing())
        assert ran == [-1, *range(count)]
    finally:
        loop.release()


async def _nothing() -> None:
    pass
