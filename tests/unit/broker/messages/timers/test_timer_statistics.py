"""Counts of timer messages: when they are written, and what a deleted topic takes along."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketspark.broker.messages.timers.timer_statistics import SAVE_MS, TimerStatistics
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.protocol.timers import TimerCounts

pytestmark = pytest.mark.shows("Prometheus metrics, histograms and timers too")


def test_counts_are_written_though_the_clock_was_set_back(tmp_path: Path) -> None:
    path, now = tmp_path / "timermetrics", [10_000_000]
    made = TimerStatistics(JsonFile(path, TimerCounts), lambda: now[0])
    made.open()
    made.count("T", 1)
    made.save_at_times(now[0] + SAVE_MS - 1)
    assert not path.exists()
    made.save_at_times(now[0] - 3_600_000)
    assert path.exists()


def test_a_deleted_topic_leaves_the_rates_of_the_others(tmp_path: Path) -> None:
    made = TimerStatistics(JsonFile(tmp_path / "timermetrics", TimerCounts), lambda: 0)
    for topic in ("T", "T", "other"):
        made.came(topic, 1000)
    made.went("T")
    made.measure(1000)
    made.forget_topic("T")
    made.came("other", 1000)
    made.measure(2000)
    assert made.rates == (1.0, 0.0)
    assert (made.enqueued, made.dequeued, made.delays.keys()) == ({"other": 2}, {}, {"other"})
