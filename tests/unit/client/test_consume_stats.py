"""Rates of consuming, at times of the test's own."""

from __future__ import annotations

import pytest
from tests.support.stand_ins import like

from rocketspark import machine
from rocketspark.client import consume_stats
from rocketspark.client.consume_stats import ConsumeStats


def test_over_the_last_minute_and_failures_over_the_last_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(consume_stats, "machine", like(machine, monotonic=lambda: now_s))
    made = ConsumeStats()
    counts = made.of("t")
    assert set(made.status("t").values()) == {0}
    counts.pull(20, 30)
    counts.call(6, 3)
    counts.taken += 20
    counts.failed += 10
    now_s += 10
    made.sample()
    assert made.status("t") == {
        "pullRT": 20,
        "pullTPS": 3,
        "consumeRT": 2,
        "consumeOKTPS": 2,
        "consumeFailedTPS": 1,
        "consumeFailedMsgs": 10,
    }
    for _ in range(9):
        now_s += 10
        made.sample()
    counts.taken += 60
    assert made.status("t") == {
        "pullRT": 0,
        "pullTPS": 0,
        "consumeRT": 0,
        "consumeOKTPS": 1,
        "consumeFailedTPS": 0,
        "consumeFailedMsgs": 10,
    }
    for _ in range(360):
        now_s += 10
        made.sample()
    assert made.status("t")["consumeFailedMsgs"] == 0
