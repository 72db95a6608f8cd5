"""Progress lines, sums over a query's reports, stopping."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from typing import Any

import pytest

from rocketspark.spark.pipelines.parts.progress import Progress, Stop, Tally, lag_of

pytestmark = pytest.mark.shows(
    "frame: progress, `--json`, stop and start, one-line errors",
    "one frame for pipelines and writers",
)


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


@pytest.mark.shows("mended: Ctrl-C just as a pipeline began or ended to wait left it waiting for ever")
@pytest.mark.parametrize("step", range(12))
def test_a_stop_may_be_asked_for_by_a_signal_in_the_midst_of_a_wait(step: int) -> None:
    """A signal's handler runs between two lines of the thread that waits: here at each line and call in turn."""
    stop, left, told = Stop(), [step], []

    def interrupt(frame: Any, event: str, argument: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            stop.ask()
        return interrupt

    def wait() -> None:
        sys.settrace(interrupt)
        told.append(stop.wait(0.01))
        sys.settrace(None)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    # One that came behind the wait is seen by the next.
    assert (left[0] >= 0, stop.asked, stop.wait(0)) in ((False, True, True), (True, False, False))


@pytest.mark.shows("mended: a pipeline with `--interval` keeps something of each micro-batch until it ends")
def test_of_a_long_query_only_recent_reports_are_kept() -> None:
    class Long(Query):
        def awaitTermination(self, seconds: float) -> bool:
            self.recentProgress = self.recentProgress[-3:]
            self.last, batch = self.last - 1, self.last
            self.recentProgress.append(report(1000 - batch, self.rows))
            return batch == 0

    (tally,) = Progress("copy").watch_all([Long(1000)])  # type: ignore[list-item]
    assert (tally.rows, tally.seen, len(tally._reports)) == (10_010, 1001, 4)


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
    with progress.signals():
        assert not progress.stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert progress.stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


class Query:
    """A StreamingQuery that makes a report each time it is waited for; it ends after `last`, or once stopped."""

    def __init__(self, last: int, rows: int = 10, *, active: bool = True) -> None:
        self.last, self.rows = last, rows
        self.recentProgress: list[dict[str, Any]] = []
        self.status = {"isTriggerActive": active}
        self.stopped = False
        self.waited: list[float] = []

    def awaitTermination(self, seconds: float) -> bool:
        self.waited.append(seconds)
        if self.stopped or len(self.recentProgress) == self.last:
            return True
        self.recentProgress.append(report(len(self.recentProgress), self.rows))
        return False

    def stop(self) -> None:
        self.stopped = True


def test_a_query_is_watched_to_its_end() -> None:
    told: list[int] = []
    outcome = Progress("copy").watch(Query(3), told=lambda r: told.append(r["batchId"]))  # type: ignore[arg-type]
    assert (outcome.rows, outcome.batches, outcome.stopped, told) == (30, 3, False, [0, 1, 2])


def test_a_query_asked_to_stop_ends_its_micro_batch_first() -> None:
    progress = Progress("copy")
    busy = Query(100)
    told: list[int] = []

    def ask(told_of: dict[str, Any]) -> None:
        told.append(told_of["batchId"])
        if told_of["batchId"] == 1:
            progress.stop.ask()

    outcome = progress.watch(busy, told=ask)  # type: ignore[arg-type]
    assert busy.stopped
    assert (outcome.rows, outcome.stopped, told) == (30, True, [0, 1, 2])


def test_of_several_queries_one_between_micro_batches_stops_at_once() -> None:
    progress = Progress("copy")
    progress.stop.ask()
    idle, busy, ended = Query(100, 0, active=False), Query(100), Query(0)
    found = progress.watch_all([idle, busy, ended])  # type: ignore[list-item]
    assert [q.stopped for q in (idle, busy, ended)] == [True, True, False]
    assert [tally.rows for tally in found] == [0, 10, 0]


def test_the_error_of_a_query_is_raised() -> None:
    def fail(query: Any) -> bool:
        raise RuntimeError("sink a: no such table")

    with pytest.raises(RuntimeError, match="sink a"):
        Progress("copy").watch_all([Query(1)], ended=fail)  # type: ignore[list-item]
