"""Who waits for replicas: the rules of how many, and a model of the waiting with a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker.replication.waits import (
    ALL_IN_SYNC,
    NOBODY,
    NOT_ENOUGH,
    Mode,
    ReplicaWaits,
    acks_wanted,
    in_sync_members,
)
from rocketspark.broker.settings import BrokerSettings

pytestmark = pytest.mark.shows(
    "how many copies a send needs; thousands waiting, each told once, the first deadline first",
)

C, A, K = Mode.CLASSIC, Mode.ACTING_MASTER, Mode.CONTROLLER


@pytest.mark.parametrize(
    ("mode", "wanted", "least", "auto", "everyone", "in_sync", "set_size", "result"),
    [
        # Classic: what is set, whoever is there.
        (C, 1, 1, False, False, 1, 1, NOBODY),
        (C, 0, 1, False, False, 1, 1, NOBODY),
        (C, 2, 1, False, False, 1, 1, 2),
        (C, 3, 2, True, True, 1, 1, 3),
        # Acting master: no more than are close, or as many as are.
        (A, 2, 1, False, False, 2, 1, 2),
        (A, 2, 1, False, False, 1, 1, NOT_ENOUGH),
        (A, 2, 1, True, False, 1, 1, NOBODY),
        (A, 3, 2, True, False, 2, 1, 2),
        (A, 3, 2, True, False, 1, 1, NOT_ENOUGH),
        (A, 3, 1, True, False, 5, 1, 3),
        # Controller: the set must be large enough.
        (K, 2, 1, False, False, 1, 1, 2),
        (K, 2, 2, False, False, 1, 1, NOT_ENOUGH),
        (K, 2, 2, False, True, 1, 2, ALL_IN_SYNC),
        (K, 2, 1, False, True, 1, 1, NOBODY),
        (K, 2, 2, False, True, 1, 1, NOT_ENOUGH),
        (K, 1, 1, False, False, 1, 3, NOBODY),
    ],
)
def test_how_many_copies_a_send_needs(
    mode: Mode,
    wanted: int,
    least: int,
    auto: bool,
    everyone: bool,
    in_sync: int,
    set_size: int,
    result: int,
) -> None:
    settings = BrokerSettings(
        in_sync_replicas=wanted,
        in_sync_replicas_min=least,
        auto_in_sync_replicas=auto,
        all_ack_in_sync_set=everyone,
    )
    assert acks_wanted(settings, mode, in_sync_count=in_sync, sync_set_size=set_size) == result


def test_members_that_are_alive_and_close() -> None:
    assert [in_sync_members(3, 0, 0), in_sync_members(3, 1, 1), in_sync_members(2, 4, 0)] == [1, 2, 2]
    # A NameServer that just started knows nobody; one that dropped a slave that hangs is right.
    assert [in_sync_members(1, 1, 1), in_sync_members(1, 2, 1), in_sync_members(1, 1, 0)] == [2, 2, 1]


class Clock(asyncio.AbstractEventLoop):
    """The times of a loop, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self.now_s

    def get_debug(self) -> bool:
        return False

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self)
        self.timers.append((when, callback, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def go_to(self, at_s: float) -> None:
        while due := [t for t in self.timers if t[0] <= at_s and not t[2].cancelled()]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now_s = max(self.now_s, first[0])
            first[1]()
        self.now_s = at_s


def waits_of(clock: Clock, settings: BrokerSettings | None = None) -> ReplicaWaits:
    waits = ReplicaWaits(settings or BrokerSettings(slave_timeout_ms=1000))
    waits._loop = clock
    return waits


SLAVES = {"b": 2, "c": 3, "d": 4}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([1, 2, 3, 4, ALL_IN_SYNC, frozenset({2}), frozenset({2, 4})])),
        st.tuples(st.just("ack"), st.tuples(st.sampled_from(sorted(SLAVES)), st.integers(0, 12))),
        st.tuples(st.just("leave"), st.sampled_from(sorted(SLAVES))),
        st.tuples(st.just("members"), st.frozensets(st.sampled_from([1, 2, 3, 4]))),
        st.tuples(st.just("time"), st.integers(1, 700)),
    ),
    max_size=40,
)


@given(STEPS)
def test_each_is_told_once_when_enough_hold_it_or_at_its_deadline(steps: list[Any]) -> None:
    clock = Clock()
    waits = waits_of(clock)
    waits.set_members(frozenset({1}), 1)
    acks: dict[str, int] = {}
    members: frozenset[int] = frozenset({1})
    told: dict[int, list[tuple[bool, float]]] = {}
    wishes: list[tuple[Any, float]] = []
    expected: dict[int, tuple[bool, float]] = {}

    def holds(position: int, wanted: Any) -> bool:
        if isinstance(wanted, frozenset) or wanted == ALL_IN_SYNC:
            needed = (members if wanted == ALL_IN_SYNC else wanted) - {1}
            if wanted == ALL_IN_SYNC and len(members) <= 1:
                return True
            return all(acks.get(name, -1) >= position for name, number in SLAVES.items() if number in needed)
        return 1 + sum(ack >= position for ack in acks.values()) >= wanted

    def settle() -> None:
        for number, (wanted, begun_s) in enumerate(wishes):
            if number not in expected:
                if clock.now_s >= begun_s + 1.0:
                    expected[number] = (False, begun_s + 1.0)
                elif holds(number + 1, wanted):
                    expected[number] = (True, clock.now_s)

    for what, value in steps:
        if what == "send":
            number = len(wishes)
            told[number] = []
            wishes.append((value, clock.now_s))
            waits.reached(number + 1, value, lambda enough, number=number: told[number].append((enough, clock.now_s)))
            settle()
        elif what == "ack":
            acks[value[0]] = value[1]
            waits.acked(value[0], value[1], SLAVES[value[0]])
            settle()
        elif what == "leave":
            acks.pop(value, None)
            waits.left(value)
        elif what == "members":
            members = value
            waits.set_members(value, 1)
            settle()
        else:
            clock.go_to(clock.now_s + value / 1000)
            settle()
        assert told == {number: [expected[number]] if number in expected else [] for number in told}
    assert waits.waiting_count == len(wishes) - len(expected)
    waits.give_up()
    assert all(len(answers) == 1 for answers in told.values())
    assert waits.waiting_count == 0


def test_a_shorter_timeout_set_while_others_wait_ends_first() -> None:
    clock, settings = Clock(), BrokerSettings(slave_timeout_ms=1000)
    waits = waits_of(clock, settings)
    told: list[tuple[str, float]] = []
    waits.reached(1, 2, lambda enough: told.append(("long", clock.now_s)))
    settings.slave_timeout_ms = 100
    waits.reached(2, 2, lambda enough: told.append(("short", clock.now_s)))
    clock.go_to(5.0)
    assert told == [("short", 0.1), ("long", 1.0)]
    assert waits.timeouts_count == 2


def test_one_that_fails_when_told_keeps_nobody_waiting() -> None:
    clock = Clock()
    waits = waits_of(clock)
    told = []

    def fail(enough: bool) -> None:
        raise RuntimeError("its connection is gone")

    waits.reached(1, 2, fail)
    waits.reached(2, 2, told.append)
    waits.acked("b", 2)
    assert told == [True]


def test_thousands_wait_and_are_told_in_order() -> None:
    clock = Clock()
    waits = waits_of(clock)
    told: list[int] = []
    for position in range(1, 50_001):
        waits.reached(position, 2, lambda enough, position=position: told.append(position))
    # One timer serves them all.
    assert len(clock.timers) == 1
    for position in range(100, 50_001, 100):
        waits.acked("b", position)
        assert len(told) == position
    assert told == list(range(1, 50_001))


def test_up_to_where_every_replica_in_sync_holds_the_log() -> None:
    waits = ReplicaWaits(BrokerSettings())
    assert waits.held_by_all() == 1 << 62
    waits.acked("a", 70, 2)
    waits.acked("b", 50, 3)
    assert waits.held_by_all() == 50
    waits.set_members(frozenset({1, 2, 3}), own_id=1)
    assert waits.held_by_all() == 50
    # Until it leaves the set it may be elected.
    waits.left("b")
    assert waits.held_by_all() == -1
    waits.set_members(frozenset({1, 2}), own_id=1)
    assert waits.held_by_all() == 70
