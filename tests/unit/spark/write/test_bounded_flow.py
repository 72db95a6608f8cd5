"""What a writing task holds: one item read ahead, in its order, with its error in its place; and sends under way, with
their bounds, the first failure and the end of those that are left.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.client.fake import in_loop

from rocketspark.errors import ServerError
from rocketspark.spark.write.bounded_flow import ReadAhead, SendsInFlight

pytestmark = pytest.mark.shows(
    "one frame for pipelines and writers",
    "exactly once at 250 k rows/s end to end on our broker",
    "batch writes: room prepared ahead, one write of the log file, rows read while others are sent",
)

THREAD = "rocketspark-read-ahead"


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == THREAD]


@settings(max_examples=60, deadline=None)
@given(items=st.lists(st.one_of(st.none(), st.integers()), max_size=20), fails=st.booleans(), pauses=st.booleans())
def test_items_come_in_order_and_the_error_last(items: list[int | None], fails: bool, pauses: bool) -> None:
    def source() -> Iterator[int | None]:
        yield from items
        if fails:
            raise KeyError("gone")

    async def run() -> list[int | None]:
        ahead, found = ReadAhead(source()), []
        try:
            async for item in ahead:
                found.append(item)
                if pauses:
                    await asyncio.sleep(0)
        except KeyError:
            assert fails
        else:
            assert not fails
        finally:
            ahead.close()
        return found

    assert asyncio.run(run()) == items
    for thread in threads():
        thread.join(10)
    assert threads() == []


def test_one_item_is_taken_ahead() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for number in range(10):
            taken.append(number)
            yield number

    async def run() -> None:
        ahead = ReadAhead(source())
        for number in range(3):
            assert await anext(ahead) == number
            while len(taken) < number + 2:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            assert taken == list(range(number + 2))
        ahead.close()

    asyncio.run(run())


def test_a_failure_goes_before_an_item_that_takes_long() -> None:
    released = threading.Event()

    def source() -> Iterator[int]:
        released.wait(60)
        yield 1

    async def run() -> None:
        ahead = ReadAhead(source())
        asyncio.get_running_loop().call_soon(ahead.fail, ValueError("first"))
        with pytest.raises(ValueError, match="first"):
            await anext(ahead)
        ahead.fail(ValueError("second"))
        ahead.close()

    asyncio.run(run())
    released.set()
    for thread in threads():
        thread.join(10)
    assert threads() == []


def test_a_source_that_goes_on_after_the_loop_ended_harms_nobody() -> None:
    released, ended = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        released.wait(60)
        ended.set()
        yield 1

    async def run() -> None:
        ReadAhead(source()).close()

    asyncio.run(run())
    released.set()
    assert ended.wait(10)
    for thread in threads():
        thread.join(10)
    assert threads() == []


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
