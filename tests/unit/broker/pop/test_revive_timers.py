"""What comes again is looked for by one timer, however often it has to be soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.stand_ins import like
from tests.unit.broker.pop.rig import Rig

from rocketspark.broker.pop import revive


class Loop:
    """Keeps the timers that were set. `now_s`: its time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer())
        return self.timers[-1]


class Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def test_one_timer_is_left_when_a_message_was_given_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    loop: Any = Loop()
    monkeypatch.setattr(revive, "asyncio", like(asyncio, get_running_loop=lambda: loop))
    work = rig.revive
    work._arm(60.0)
    for _ in range(3):
        work._soon()
        loop.now_s += 1
    assert [timer.cancelled for timer in loop.timers] == [True, False]
    work.stop()
    assert all(timer.cancelled for timer in loop.timers)
