"""Waiting pops: who is woken, in which order, and that no message stays while somebody waits for it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
import weakref
from collections.abc import Callable, Iterable
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.stand_ins import like

from rocketspark import machine
from rocketspark.broker.consumers.long_polling import LongPolling, request_weight
from rocketspark.broker.pop import waiting_pops as waiting_pops_module
from rocketspark.broker.pop.waiting_pops import WaitingPop, WaitingPops
from rocketspark.protocol.headers import PopHeader, Request

pytestmark = pytest.mark.shows(
    "waiting pops: limits, wake-ups by messages, acks and the end of a block; connections that end",
)

T, G = "T", "G"


def waiting_pops(arrivals: LongPolling, *, most: int = 100_000, notifies: bool = False) -> WaitingPops:
    return WaitingPops(
        arrivals,
        lambda topic, group: [f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}"],
        of_queue_max=lambda: most,
        all_max=lambda: most,
        notifies=notifies,
    )


RETRIES = {98: f"%RETRY%{G}+{T}", 99: f"%RETRY%{G}_{T}"}


class Rig:
    """Queues of messages that waiting requests take one of each, 98 and 99 those of the two retry topics.

    As a pop reads: it takes what it likes first, and counts what is left only as far as it looked.
    """

    def __init__(self, likes: Iterable[int] = (0,), *, notifies: bool = False) -> None:
        self.arrivals = LongPolling()
        self.waiting = waiting_pops(self.arrivals, notifies=notifies)
        self.queues: dict[int, int] = {}
        self.given: list[tuple[int, str]] = []
        self.likes = itertools.cycle(likes)
        self.tries = 0

    def retry_of(self, name: int, queue_id: int) -> Callable[[bool], int | None]:
        def retry(final: bool) -> int | None:
            self.tries += 1
            like = next(self.likes)
            plain = [queue for queue in self.queues if queue not in RETRIES and queue_id in (-1, queue)]
            first, second = ([98], [99]) if like & 1 else ([99], [98])
            # Messages first, or one of the retry topics; the other one only where there is nothing else.
            for looked in ([first, plain], [second]) if like & 2 else ([plain], [first], [second]):
                for number, queues in enumerate(looked):
                    queue = next((queue for queue in queues if self.queues.get(queue)), None)
                    if queue is not None:
                        self.queues[queue] -= 1
                        self.given.append((name, "message"))
                        return sum(self.queues.get(queue, 0) for queues in looked[number:] for queue in queues)
            if final:
                self.given.append((name, "nothing"))
                return 0
            return None

        return retry

    def wait(self, name: int, queue_id: int = -1, owner: str = "o", timeout_ms: int = 100_000) -> WaitingPop:
        return self.waiting.wait(T, G, queue_id, timeout_ms, self.retry_of(name, queue_id), owner=owner)

    def arrive(self, queue_id: int) -> None:
        self.queues[queue_id] = self.queues.get(queue_id, 0) + 1
        self.arrivals.mark(RETRIES.get(queue_id, T), 0 if queue_id in RETRIES else queue_id)


async def woken(waiting: WaitingPops) -> None:
    """Come back when nobody is to be woken any more."""
    while waiting._scheduled:
        await asyncio.sleep(0)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([-1, -1, 0, 1])),
        st.tuples(st.just("arrive"), st.sampled_from([0, 1, 2, 98, 99])),
        st.tuples(st.just("gone"), st.integers(0, 3)),
        st.tuples(st.just("turn"), st.just(0)),
        # One whose connection takes nothing for a while; one that goes on by itself.
        st.tuples(st.sampled_from(["aside", "back", "again"]), st.integers(0, 3)),
    ),
    max_size=40,
)


@pytest.mark.shows("a message stayed while a pop waited for it; property tests are the same everywhere")
@settings(max_examples=150)
@example([("wait", 0), ("wait", 0), ("arrive", 99), ("arrive", 99)], [0], False)
# One of each retry topic; and both twice, taken in turns.
@example([("wait", 0), ("wait", 0), ("arrive", 98), ("arrive", 99)], [0], False)
@example([*[("wait", 0)] * 4, *[("arrive", 98), ("arrive", 99)] * 2], [0, 1], False)
@example([("wait", 0), ("aside", 0), ("arrive", 0), ("arrive", 0), ("wait", 0), ("turn", 0), ("back", 0)], [0], False)
@example([("wait", 0), ("wait", 1), ("arrive", 0), ("arrive", 1)], [0], True)
@example([*[("wait", 0)] * 3, ("again", 0), ("again", 1), *[("arrive", 0)] * 3], [0], True)
@given(STEPS, st.lists(st.integers(0, 3), min_size=1, max_size=5), st.booleans())
def test_no_message_stays_while_somebody_waits_for_it(
    steps: list[tuple[str, int]], likes: list[int], slow: bool
) -> None:
    async def main() -> None:
        rig = Rig(likes)
        waits: dict[int, tuple[int, str]] = {}
        held: dict[int, WaitingPop] = {}
        aside: set[int] = set()
        for number, (what, value) in enumerate(steps):
            if what == "wait":
                # As a pop does that looks first.
                if rig.retry_of(number, value)(False) is None:
                    owner = str(number % 4)
                    waits[number] = value, owner
                    held[number] = rig.wait(number, value, owner)
            elif what == "arrive":
                rig.arrive(value)
            elif what == "gone":
                rig.waiting.drop_owner(str(value))
                waits = {n: w for n, w in waits.items() if w[1] != str(value)}
            elif what == "turn":
                await turns()
            elif held:
                number = list(held)[value % len(held)]
                if what == "aside":
                    rig.waiting.leave_line(held[number])
                    aside.add(number)
                elif what == "back":
                    rig.waiting.enter_again(held[number])
                    aside.discard(number)
                else:
                    rig.waiting.again(held[number])
        await woken(rig.waiting)
        answered = {name for name, _ in rig.given}
        left = {n: w for n, w in waits.items() if n not in answered}
        assert rig.waiting.total == len(left)
        for queue_id in (waits[name][0] for name in left.keys() - aside):
            for queue, count in rig.queues.items():
                assert not count or (queue_id not in (-1, queue) and queue not in RETRIES)
        assert len(rig.given) == len(answered)
        for name in left:
            rig.waiting.drop_owner(waits[name][1])
        assert rig.waiting.total == 0
        assert not rig.arrivals.listeners
        assert not rig.waiting._counts

    # A turn has time for one, or for all.
    clock = like(machine, perf_counter=itertools.count().__next__) if slow else machine
    with mock.patch.object(waiting_pops_module, "machine", clock):
        asyncio.run(main())


def test_the_first_is_woken_first_or_the_last() -> None:
    async def main(notifies: bool) -> list[int]:
        rig = Rig(notifies=notifies)
        for name in range(3):
            rig.wait(name)
        for _ in range(2):
            rig.arrive(0)
            await turns()
        return [name for name, _ in rig.given]

    assert asyncio.run(main(False)) == [0, 1]
    assert asyncio.run(main(True)) == [2, 1]


def test_a_burst_wakes_as_many_as_it_has_messages() -> None:
    async def main() -> None:
        rig = Rig()
        for name in range(10):
            rig.wait(name)
        for queue_id in (0, 1, 0, 2):
            rig.arrive(queue_id)
        await turns()
        assert [name for name, _ in rig.given] == [0, 1, 2, 3]
        assert rig.waiting.count(T, G, -1) == 6
        # Nobody tried in vain but one.
        assert rig.tries <= 6

    asyncio.run(main())


def test_thousands_that_wait_cost_a_message_little() -> None:
    async def main() -> None:
        rig = Rig()
        began = time.perf_counter()
        for name in range(20_000):
            rig.wait(name, owner=f"o{name % 100}")
        for _ in range(1000):
            rig.arrive(0)
            await turns(2)
        assert len(rig.given) == 1000
        # Some 0.3 s; looking at all of them for each message would take minutes.
        assert time.perf_counter() - began < 60
        for number in range(100):
            rig.waiting.drop_owner(f"o{number}")
        assert rig.waiting.total == 0

    asyncio.run(main())


def test_one_that_fails_hurts_no_other() -> None:
    async def main() -> None:
        rig = Rig()

        def broken(final: bool) -> int | None:
            raise ZeroDivisionError

        def gone(final: bool) -> int | None:
            rig.waiting.drop(left)
            return None

        rig.waiting.wait(T, G, -1, 100_000, broken, owner="o")
        left = rig.waiting.wait(T, G, -1, 100_000, gone, owner="p")
        rig.wait(1)
        rig.arrive(0)
        await turns()
        assert rig.given == [(1, "message")]
        assert rig.waiting.total == 0

    asyncio.run(main())


def test_one_that_goes_on_by_itself_is_tried_alone() -> None:
    async def main() -> None:
        rig = Rig()
        rig.wait(1)
        waiter = rig.wait(2)
        # Nobody tells of it: what kept the second one was its filter, say.
        rig.queues[0] = 1
        rig.waiting.again(waiter)
        await turns()
        assert (rig.given, rig.tries) == ([(2, "message")], 1)
        rig.waiting.drop_owner("o")

    asyncio.run(main())


def test_whose_time_is_over_is_told_once() -> None:
    async def main() -> None:
        rig = Rig()
        rig.wait(1, timeout_ms=10)
        while not rig.given:
            await asyncio.sleep(0.001)
        assert rig.given == [(1, "nothing")]
        rig.arrive(0)
        await turns()
        assert len(rig.given) == 1

    asyncio.run(main())


def test_what_waits_is_weighed_with_held_pulls_and_leaves_nothing_when_it_goes() -> None:
    """Without the collector of cycles: what a waiter wants is gone with it, answered, dropped or timed out."""

    class Filter:
        """Something large."""

    async def main() -> None:
        arrivals = LongPolling()
        pops, notified = waiting_pops(arrivals), waiting_pops(arrivals, notifies=True)
        numbers = {"queue_id": -1, "count_max": 1, "invisible_time_ms": 1, "poll_time_ms": 1, "init_mode": 0}
        header = PopHeader(group=G, topic=T, attempt_id="a" * 1024, **numbers)
        asked = Request(code=200050, ext=header, language="x" * 1024, remark="y" * 1024)
        weight = request_weight(asked, range(32_000), "x" * 640)
        assert weight == 1014
        kept: list[weakref.ref[Filter]] = []

        def hold(table: WaitingPops, owner: str, timeout_ms: int = 60_000) -> None:
            wanted = Filter()
            kept.append(weakref.ref(wanted))

            def retry(final: bool) -> int | None:
                assert wanted is not None
                return 0 if final or waiter is None else None

            waiter = table.wait(T, G, -1, timeout_ms, retry, owner=owner, weight=weight)

        while pops.has_room(T, G, -1, "one", weight):
            hold(pops, "one")
            hold(notified, "one") if notified.has_room(T, G, -1, "one", weight) else None
        assert arrivals.weights.of_owners == {"one": weight * 9}
        assert not arrivals.has_room("one", weight)
        assert arrivals.has_room("other", weight)
        pops.drop_owner("one")
        notified.drop_owner("one")
        hold(pops, "other", timeout_ms=1)
        hold(pops, "other")
        hold(notified, "other")
        while pops.total > 1:
            await asyncio.sleep(0.001)
        pops.answer_all()
        notified.answer_all()
        assert (arrivals.weights.total, arrivals.weights.of_owners) == (0, {})
        assert len(kept) == 12
        assert [ref for ref in kept if ref() is not None] == []

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
