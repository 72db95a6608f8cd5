"""Sends under way: bounds, the first failure, and the end of those that are left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.unit.client.fake import in_loop

from rocketspark.errors import ServerError
from rocketspark.spark.write.sends_in_flight import SendsInFlight


class Sends(SendsInFlight):
    """Starts what it is given as a send of `size`."""

    def begin(self, size: int, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def send() -> None:
            try:
                await work
            except Exception as e:
                self.fail(e)
            finally:
                self.leave(size)

        return self.start(size, send())


@in_loop
async def test_count_and_bytes_are_bounded_and_a_larger_send_goes_alone() -> None:
    sends = Sends(3, 100)
    under_way: list[int] = []
    seen: list[list[int]] = []

    async def send(size: int) -> None:
        under_way.append(size)
        seen.append(list(under_way))
        for _ in range(5):
            await asyncio.sleep(0)
        under_way.remove(size)

    for size in (10, 20, 30, 40, 60, 500, 1, 2):
        await sends.room(size)
        sends.begin(size, send(size))
    await sends.settle()
    assert under_way == []
    assert max(map(len, seen)) == 3
    assert all(sum(sizes) <= 100 or sizes == [500] for sizes in seen)
    assert len(seen) == 8


@in_loop
async def test_the_first_failure_is_raised_wherever_one_waits() -> None:
    sends = Sends(2, 100)

    async def fail(code: int, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        raise ServerError(code, "refused")

    for number in range(2):
        await sends.room(1)
        sends.begin(1, fail(number, number))
    with pytest.raises(ServerError, match="code 0"):
        await sends.room(1)
    with pytest.raises(ServerError, match="code 0"):
        await sends.settle()
    await sends.end()
    with pytest.raises(ServerError, match="code 0"):
        await sends.room(1)


@in_loop
async def test_a_failure_is_known_before_the_task_is_done() -> None:
    """So what waits for its end does not overtake it."""
    sends = Sends(2, 100)
    known: list[bool] = []

    async def fail() -> None:
        raise ServerError(1, "refused")

    async def follow(before: asyncio.Task[None]) -> None:
        while not before.done():
            await asyncio.sleep(0)
        known.append(sends.failed is not None)

    sends.begin(1, follow(sends.begin(1, fail())))
    with pytest.raises(ServerError):
        await sends.settle()
    await sends.end()
    assert known in ([True], [])


@in_loop
async def test_the_end_cancels_what_is_under_way_or_was_never_begun() -> None:
    sends = Sends(2, 100)
    ended: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hang")

    begun = sends.begin(1, hang())
    await asyncio.sleep(0)
    unbegun = sends.start(1, hang())
    await sends.end()
    assert (begun.cancelled(), unbegun.cancelled(), ended) == (True, True, ["hang"])
    await sends.settle()
