"""Calls that are made again while a server is away. Rule: only an error that may pass by itself is tried again; once
the bounds of a rule are reached, the last error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from rocketspark import machine
from rocketspark.errors import RocketSparkError

T = TypeVar("T")


def is_retriable(error: BaseException) -> bool:
    """Tell whether an error says of itself that trying again may help."""
    return isinstance(error, RocketSparkError) and error.retriable


class RetryRule(NamedTuple):
    """The rule for trying again.

    Work is given up after `attempts_max` attempts and once `budget_s` has passed since it began or last got on; where
    both are set, only when both are reached; without either, never. `pauses_s`: before the second attempt, the third
    and so on; the last one repeats.
    """

    attempts_max: int | None = None
    budget_s: float | None = None
    pauses_s: tuple[float, ...] = (0.2,)
    may_pass: Callable[[Exception], bool] = is_retriable


class Retries:
    """The attempts of one piece of work."""

    def __init__(self, rule: RetryRule, *, clock_s: Callable[[], float] = lambda: machine.monotonic()) -> None:
        self._rule = rule
        self._clock_s = clock_s
        self.failed = 0
        self._since_s = clock_s()

    def progressed(self) -> None:
        """Note that the work made progress: its attempts and its time count from now."""
        self.failed = 0
        self._since_s = self._clock_s()

    def pause_s(self, error: Exception) -> float:
        """Count a failed attempt; return how many seconds to wait before the next one. Raises `error` if there is to be
        none.
        """
        rule = self._rule
        self.failed += 1
        reached = []
        if rule.attempts_max is not None:
            reached.append(self.failed >= rule.attempts_max)
        if rule.budget_s is not None:
            reached.append(self._clock_s() - self._since_s >= rule.budget_s)
        if not rule.may_pass(error) or (reached and all(reached)):
            raise error
        return rule.pauses_s[min(self.failed, len(rule.pauses_s)) - 1]


async def again(
    call: Callable[[], Awaitable[T]],
    rule: RetryRule,
    *,
    between: Callable[[Exception], Awaitable[object]] | None = None,
) -> T:
    """Make a call; while it fails, make it again as `rule` says. `between` is called with the error before each
    pause.
    """
    retries = Retries(rule)
    while True:
        try:
            return await call()
        except Exception as e:
            pause_s = retries.pause_s(e)
            if between is not None:
                await between(e)
        await asyncio.sleep(pause_s)
