"""Offsets by time: exact whatever the broker guessed."""

from __future__ import annotations

import asyncio
import bisect
import math

from hypothesis import given
from hypothesis import strategies as st

from rocketspark.spark.plan.offsets_by_time import first_at_or_after


def find(times: list[int], oldest: int, time_ms: int, guess: int) -> tuple[int, int]:
    """What is found in a queue that holds `times` from `oldest` on, and how many questions it took."""
    asked = []

    async def stored_ms(offset: int) -> float:
        asked.append(offset)
        assert oldest <= offset < oldest + len(times)
        return times[offset - oldest]

    return asyncio.run(first_at_or_after(time_ms, oldest, oldest + len(times), guess, stored_ms)), len(asked)


@given(st.lists(st.integers(0, 9)).map(sorted), st.integers(0, 5), st.integers(-1, 10), st.integers(-3, 30))
def test_it_is_the_first_at_or_after_whatever_the_guess(
    times: list[int], oldest: int, time_ms: int, guess: int
) -> None:
    assert find(times, oldest, time_ms, guess)[0] == oldest + bisect.bisect_left(times, time_ms)


@given(st.lists(st.integers(0, 9)).map(sorted), st.integers(-1, 10))
def test_a_right_guess_takes_two_questions_at_most(times: list[int], time_ms: int) -> None:
    right = bisect.bisect_left(times, time_ms)
    assert find(times, 0, time_ms, right) in [(right, n) for n in range(3)]


def test_what_was_deleted_meanwhile_is_before_and_what_is_not_there_yet_after() -> None:
    async def stored_ms(offset: int) -> float:
        return -math.inf if offset < 4 else 50 if offset < 8 else math.inf

    assert asyncio.run(first_at_or_after(20, 0, 10, 0, stored_ms)) == 4
    assert asyncio.run(first_at_or_after(60, 0, 10, 10, stored_ms)) == 8
