"""Bounds of what is in flight: counts, bytes, turns, deadlines."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.unit.client.fake import in_loop

from rocketspark.client.producer.send_path import InFlightLimit
from rocketspark.errors import ConfigError, TooManyInFlight

pytestmark = pytest.mark.shows("bounds of what is in flight, by count and bytes")


def soon() -> float:
    return time.monotonic() + 0.02


async def enter(room: InFlightLimit, size: int, end_s: float) -> None:
    """Wait for room as a send does."""
    if room.try_enter(size):
        return
    turn = room.take_place(size)
    try:
        async with asyncio.timeout(end_s - time.monotonic()):
            await asyncio.shield(turn)
    except BaseException as e:
        if room.give_up(turn):
            room.leave(size)
        if isinstance(e, TimeoutError):
            raise room.full() from None
        raise


@in_loop
async def test_count_and_bytes_are_bounded() -> None:
    room = InFlightLimit(2, 100)
    assert room.try_enter(60)
    assert not room.try_enter(41)
    assert room.try_enter(40)
    assert not room.try_enter(0)
    with pytest.raises(TooManyInFlight, match="2 requests of 100 bytes are in flight"):
        await enter(room, 1, soon())
    room.leave(60)
    assert room.try_enter(60)


@in_loop
async def test_one_that_is_larger_than_all_goes_alone() -> None:
    room = InFlightLimit(9, 100)
    assert room.try_enter(500)
    assert not room.try_enter(1)
    room.leave(500)
    assert room.try_enter(1)
    assert not room.try_enter(500)


@in_loop
async def test_who_waits_goes_in_turn() -> None:
    room = InFlightLimit(1, 1 << 20)
    assert room.try_enter(1)
    order: list[int] = []

    async def one(number: int) -> None:
        await enter(room, 1, time.monotonic() + 10)
        order.append(number)
        room.leave(1)

    tasks = [asyncio.ensure_future(one(n)) for n in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.sleep(0)
    # Somebody waits: who comes now may not overtake.
    assert not room.try_enter(1)
    room.leave(1)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 3, 4]
    assert room.count == 0


@in_loop
async def test_who_is_cancelled_as_his_turn_comes_gives_it_back() -> None:
    room = InFlightLimit(1, 1 << 20)
    assert room.try_enter(1)
    waiting = asyncio.ensure_future(enter(room, 1, time.monotonic() + 10))
    await asyncio.sleep(0)
    room.leave(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert room.count == 0


@in_loop
async def test_a_large_one_that_gives_up_lets_others_pass() -> None:
    room = InFlightLimit(9, 100)
    assert room.try_enter(50)
    large = asyncio.ensure_future(enter(room, 80, soon()))
    await asyncio.sleep(0)
    small = asyncio.ensure_future(enter(room, 10, time.monotonic() + 10))
    with pytest.raises(TooManyInFlight):
        await large
    await small
    assert room.count == 2


@pytest.mark.shows("60,000 small sends at once on one connection")
@in_loop
async def test_all_who_give_up_at_once_are_told_so() -> None:
    room = InFlightLimit(1, 100)
    assert room.try_enter(1)
    end_s = soon()
    told = await asyncio.gather(*(enter(room, 1, end_s) for _ in range(20)), return_exceptions=True)
    assert [type(error) for error in told] == [TooManyInFlight] * 20
    waiting = [asyncio.ensure_future(enter(room, 1, time.monotonic() + 60)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    assert [type(e) for e in await asyncio.gather(*waiting, return_exceptions=True)] == [asyncio.CancelledError] * 20
    room.leave(1)
    assert (room.count, room.try_enter(100)) == (0, True)


def test_bounds_that_cannot_be() -> None:
    with pytest.raises(ConfigError):
        InFlightLimit(0, 1)
