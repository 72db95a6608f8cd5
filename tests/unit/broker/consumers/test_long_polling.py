"""Held requests: who is woken when, what one that raises does to others, and what ends with its owner."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.live.support import run

from rocketspark.broker.consumers import long_polling as module
from rocketspark.broker.consumers.long_polling import OWNER_WEIGHT_MAX, LongPolling

pytestmark = pytest.mark.shows(
    "mended: 600 held pulls and one 4 MiB message; replies ignore writability; held pulls not freed on disconnect"
)


class Held:
    """One request: what it was asked, and after how many looks it is answered."""

    def __init__(self, looks: int = 1) -> None:
        self.looks = looks
        self.asked: list[bool] = []

    def __call__(self, final: bool) -> bool:
        self.asked.append(final)
        self.looks -= 1
        return final or self.looks <= 0


@pytest.mark.shows("mended: one raising retry drops the turn's other wake-ups")
def test_one_that_raises_is_dropped_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        held = LongPolling()
        first, last = Held(), Held()

        def broken(final: bool) -> bool:
            raise ValueError("no\nline")

        for retry in (first, broken, last):
            held.wait(("T", 0), 60, retry)
        other = Held()
        held.wait(("U", 0), 60, other)
        held.mark("T", 0)
        held.mark("U", 0)
        await asyncio.sleep(0)
        assert (first.asked, last.asked, other.asked) == ([False], [False], [False])
        assert held.waiting == 0

    run(main())
    (message,) = caplog.messages
    assert message.endswith("ValueError: no\\nline")


def test_many_are_looked_at_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKED_AT_MAX", 10)

    async def main() -> None:
        held = LongPolling()
        requests = [Held() for _ in range(25)]
        for request in requests:
            held.wait(("T", 0), 60, request)
        held.mark("T", 0)
        seen = []
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(sum(len(request.asked) for request in requests))
        assert seen == [10, 20, 25]
        assert held.waiting == 0

    run(main())


def test_again_looks_at_one_without_its_queue_growing() -> None:
    async def main() -> None:
        held = LongPolling()
        one, other = Held(), Held()
        waiter = held.wait(("T", 0), 60, one)
        held.wait(("T", 0), 60, other)
        held.again(waiter)
        await asyncio.sleep(0)
        assert (one.asked, other.asked) == ([False], [])
        # It is answered: no more looks.
        held.again(waiter)
        await asyncio.sleep(0)
        assert one.asked == [False]
        held.close()
        assert other.asked == [True]

    run(main())


def test_what_is_held_is_bounded_for_each_owner_and_ends_with_it() -> None:
    async def main() -> None:
        held = LongPolling()
        for number in range(OWNER_WEIGHT_MAX // 10):
            assert held.has_room("one", 10)
            held.wait(("T", number), 60, Held(), owner="one", weight=10)
        assert not held.has_room("one")
        assert held.has_room("other")
        staying = Held()
        held.wait(("T", 0), 60, staying, owner="other")
        held.drop_owner("one")
        assert held.waiting == 1
        assert held.has_room("one", OWNER_WEIGHT_MAX)
        held.mark("T", 0)
        await asyncio.sleep(0)
        assert staying.asked == [False]
        assert (held._owned, held.weights.of_owners, held.weights.total, held._waiting) == ({}, {}, 0, {})

    run(main())


def test_the_last_look_is_at_the_end_of_its_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        held = LongPolling()
        one = Held(looks=5)
        held.wait(("T", 0), 0.01, one)
        held.mark("T", 0)
        while held.waiting:
            await asyncio.sleep(0.001)
        assert one.asked == [False, True]

    run(main())
