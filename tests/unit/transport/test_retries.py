"""Calls made again: which errors, how often, for how long, with what pauses."""

from __future__ import annotations

import asyncio

import pytest

from rocketspark.errors import ConfigError, NotSent, RocketSparkError, RouteNotFound, ServerError
from rocketspark.transport.retries import Retries, RetryRule, again, is_retriable

pytestmark = pytest.mark.shows("one frame for pipelines and writers")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


AWAY = NotSent("no connection", address="a")


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (AWAY, True),
        (RouteNotFound("t"), True),
        (ServerError(2, "busy", retriable=True), True),
        (ServerError(13, "illegal"), False),
        (ConfigError("wrong"), False),
        (OSError("no"), False),
    ],
)
def test_errors_that_may_pass(error: Exception, may: bool) -> None:
    assert is_retriable(error) is may
    retries = Retries(RetryRule(attempts_max=2))
    if may:
        assert retries.pause_s(error) == 0.2
        return
    with pytest.raises(type(error)):
        retries.pause_s(error)


def test_pauses_follow_one_another_and_the_last_repeats() -> None:
    retries = Retries(RetryRule(pauses_s=(0, 0.1, 5)))
    assert [retries.pause_s(AWAY) for _ in range(5)] == [0, 0.1, 5, 5, 5]
    assert retries.failed == 5


def test_the_last_attempt_raises_its_error() -> None:
    retries = Retries(RetryRule(attempts_max=3))
    retries.pause_s(AWAY)
    retries.pause_s(AWAY)
    last = NotSent("still away", address="a")
    with pytest.raises(NotSent) as caught:
        retries.pause_s(last)
    assert caught.value is last


def test_a_budget_ends_and_begins_anew_with_progress() -> None:
    clock = Clock()
    retries = Retries(RetryRule(budget_s=30), clock_s=clock)
    clock.now_s += 29
    retries.pause_s(AWAY)
    retries.progressed()
    clock.now_s += 29
    retries.pause_s(AWAY)
    clock.now_s += 1
    with pytest.raises(NotSent):
        retries.pause_s(AWAY)


def test_of_two_bounds_both_must_be_reached() -> None:
    clock = Clock()
    retries = Retries(RetryRule(attempts_max=2, budget_s=30), clock_s=clock)
    for _ in range(5):
        retries.pause_s(AWAY)
    clock.now_s += 30
    with pytest.raises(NotSent):
        retries.pause_s(AWAY)
    retries.progressed()
    clock.now_s += 30
    retries.pause_s(AWAY)


def test_a_call_is_made_again_until_it_works() -> None:
    seen: list[str] = []

    async def call() -> int:
        seen.append("call")
        if len(seen) < 4:
            raise AWAY
        return 7

    async def between(error: Exception) -> None:
        seen.append(type(error).__name__)

    assert asyncio.run(again(call, RetryRule(attempts_max=3, pauses_s=(0,)), between=between)) == 7
    assert seen == ["call", "NotSent", "call", "NotSent", "call"]


def test_a_call_that_cannot_work_is_made_once() -> None:
    seen: list[str] = []

    async def call() -> None:
        seen.append("call")
        raise ConfigError("wrong")

    with pytest.raises(RocketSparkError, match="wrong"):
        asyncio.run(again(call, RetryRule()))
    assert seen == ["call"]
