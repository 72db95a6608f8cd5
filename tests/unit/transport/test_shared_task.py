"""One task that many wait for: its outcome, waiters that give up, and what that costs."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest
from tests.unit.client.fake import in_loop

from rocketspark.errors import SendFailed
from rocketspark.transport.shared_task import end_tasks, outcome_of

pytestmark = pytest.mark.shows("60,000 small sends at once on one connection")


class Counting(asyncio.Future[str]):
    """Counts how often its callbacks are looked through."""

    looked = 0

    def remove_done_callback(self, act: Any, /) -> int:
        type(self).looked += 1
        return super().remove_done_callback(act)


@in_loop
async def test_all_get_the_outcome_and_who_gives_up_looks_through_no_others() -> None:
    shared = Counting()
    waiting = [asyncio.ensure_future(outcome_of(shared)) for _ in range(100)]
    await asyncio.sleep(0)
    for task in waiting[:50]:
        task.cancel()
    await asyncio.wait(waiting[:50])
    assert not shared.done()
    assert Counting.looked == 0
    shared.set_result("here")
    assert await asyncio.gather(*waiting[50:]) == ["here"] * 50
    assert await outcome_of(shared) == "here"


@in_loop
async def test_each_has_an_error_of_its_own_whose_traceback_does_not_grow() -> None:
    async def fail() -> None:
        raise SendFailed("t", OSError("gone"), attempts=1, brokers=("a",), cost_ms=1)

    shared = asyncio.ensure_future(fail())
    errors = await asyncio.gather(*(outcome_of(shared) for _ in range(9)), return_exceptions=True)
    assert len({id(error) for error in errors}) == 9
    for error in errors:
        assert isinstance(error, SendFailed)
        assert isinstance(error.__cause__, OSError)
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names == ["outcome_of", "fail"]


@in_loop
async def test_its_error_is_raised_and_nobody_need_hear_it() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = [asyncio.ensure_future(outcome_of(shared)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    shared.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await waiting[1]
    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    alone = asyncio.ensure_future(outcome_of(left))
    await asyncio.sleep(0)
    alone.cancel()
    await asyncio.sleep(0)
    left.set_exception(ValueError("unheard"))
    await asyncio.sleep(0)
    del left
    assert told == []


@in_loop
async def test_the_end_of_tasks_waits_for_what_they_still_do_and_passes_over_what_they_raise() -> None:
    done: list[str] = []

    async def lingers(error: Exception | None) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            done.append("closed")
            if error is not None:
                raise error

    tasks = [asyncio.ensure_future(lingers(error)) for error in (None, ValueError("odd"))]
    await asyncio.sleep(0)
    await end_tasks(None, *tasks)
    assert done == ["closed"] * 2
    assert all(task.done() for task in tasks)
    await end_tasks()
    await end_tasks(None)
