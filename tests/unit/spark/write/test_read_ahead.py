"""An iterator read in a thread: its items in order, its error in its place, one item ahead, and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketspark.spark.write.read_ahead import ReadAhead

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
