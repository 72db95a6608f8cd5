"""Progress lines, sums over a query's reports, stopping."""

from __future__ import annotations

import io
import json
import os
import signal
from typing import Any

import pytest

from rocketspark.spark.pipelines.progress import Progress, StopAsked, Tally, lag_of


def report(batch: int, rows: int, end: Any = None, latest: Any = None, at: str = "t") -> dict[str, Any]:
    sources = [{"endOffset": end, "latestOffset": latest}]
    return {"batchId": batch, "timestamp": f"{at}{batch}", "numInputRows": rows, "sources": sources}


def test_each_report_counts_once() -> None:
    tally = Tally()
    for _ in range(2):
        tally.add(report(0, 10))
        tally.add(report(1, 5, {"t": {"b": {"0": 3}}}, {"t": {"b": {"0": 10, "1": 2}}}))
    tally.add(report(2, 0, at="idle"))
    assert (tally.rows, tally.batches, tally.seen, tally.lag) == (15, 2, 3, None)


def test_lag() -> None:
    end, latest = {"t": {"b": {"0": 3}}, "@start": {"t": {"b": {"0": 99}}}}, {"t": {"b": {"0": 10, "1": 2}}}
    assert lag_of(json.dumps(end), json.dumps(latest)) == lag_of(end, latest) == 9
    assert lag_of({"t": {"b": {"0": 12}}}, {"t": {"b": {"0": 10}}}) == 0
    assert lag_of(5, 7) == 2
    assert lag_of(end, None) is None
    assert lag_of("null", "null") is None


def test_lines_tell_what_changed() -> None:
    out = io.StringIO()
    progress = Progress("copy", out, every_s=0)
    progress.update(1200, lag=34)
    progress.update(1200, lag=34)
    progress.update(1300, note="hour 7")
    texts = [line.partition(" (")[0] for line in out.getvalue().splitlines()]
    assert texts == ["copy: 1,200 rows, 34 to go", "copy: 1,300 rows, hour 7"]


def test_no_more_lines_than_asked_for() -> None:
    out = io.StringIO()
    progress = Progress("copy", out, every_s=3600)
    progress.update(1)
    assert out.getvalue() == ""
    progress.update(2, now=True)
    assert out.getvalue().startswith("copy: 2 rows (")


def test_the_first_signal_asks_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    progress = Progress("copy", io.StringIO())
    guarded = progress.guard(lambda rows, batch: seen.append(batch))
    seen: list[int] = []
    with progress.signals():
        guarded(None, 1)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGTERM)
        assert progress.stop.asked
        with pytest.raises(StopAsked):
            guarded(None, 2)  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert seen == [1]
    assert signal.getsignal(signal.SIGTERM) is before
