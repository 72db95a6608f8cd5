"""The progress of a pipeline, and the way to stop it. Rule: progress on stderr; the first Ctrl-C or SIGTERM waits for
the running micro-batch, the second does not.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

EVERY_S = 1.0
POLL_S = 0.2

# Exit codes beside 1 (an error) and 2 (wrong usage).
EXIT_DONE = 0
EXIT_FOUND = 3  # It ran, and what it looked at is not in order (audit: something is missing).
EXIT_STOPPED = 130  # Stopped before a run with an end came to its end.


class Stop:
    """The request to stop a pipeline: look at `asked`, or `wait` for it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def asked(self) -> bool:
        """Tell whether a stop is asked for."""
        return self._event.is_set()

    def ask(self) -> None:
        """Ask the pipeline to stop after its current step."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until a stop is asked for; return whether it is."""
        return self._event.wait(seconds)


class StopAsked(Exception):
    """Raised in place of a micro-batch that is not to begin."""


class QueryOutcome(NamedTuple):
    """The outcome of a query: rows read, micro-batches that held any, and whether it was asked to stop."""

    rows: int
    batches: int
    seconds: float
    stopped: bool


class Progress:
    """Prints progress on `out`, at most one line each `every_s` seconds; with out=None none. `stop`: the request to
    stop.
    """

    def __init__(self, name: str, out: TextIO | None = None, *, every_s: float = EVERY_S) -> None:
        self.name = name
        self.stop = Stop()
        self._out = out
        self._every_s = every_s
        self._began_s = self._printed_s = time.monotonic()
        self._printed_rows = 0
        self._line = ""

    @property
    def seconds(self) -> float:
        """Return the seconds since the pipeline began."""
        return time.monotonic() - self._began_s

    def say(self, text: str) -> None:
        """Print a line now."""
        if self._out is not None:
            print(f"{self.name}: {text}", file=self._out, flush=True)

    def update(self, rows: int, *, lag: int | None = None, note: str = "", now: bool = False) -> None:
        """Note the rows so far, how many wait still, and the current step; print it if it is time, or `now`."""
        since_s = time.monotonic() - self._printed_s
        if since_s < self._every_s and not now:
            return
        rate = (rows - self._printed_rows) / max(since_s, 1e-9)
        waiting = "" if lag is None else f", {lag:,} to go"
        line = f"{rows:,} rows{waiting}{', ' + note if note else ''}"
        if line != self._line:
            self.say(f"{line} ({max(rate, 0):,.0f} rows/s)")
        self._line, self._printed_s, self._printed_rows = line, time.monotonic(), rows

    @contextmanager
    def signals(self) -> Iterator[None]:
        """While the block runs, let Ctrl-C and SIGTERM ask to stop; a second one is a KeyboardInterrupt."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            if self.stop.asked:
                raise KeyboardInterrupt
            self.stop.ask()
            self.say("stopping after the running micro-batch (once more: at once)")

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def heartbeat(self, note: Callable[[], str]) -> Iterator[None]:
        """While the block runs (a long Spark job), print the text of `note`, each time that it changed."""
        over = threading.Event()

        def beat() -> None:
            before = ""
            while not over.wait(self._every_s):
                if (text := note()) != before:
                    before = text
                    self.say(text)

        thread = threading.Thread(target=beat, name=f"{self.name}-progress", daemon=True)
        if self._out is not None:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if self._out is not None:
                thread.join()

    def guard(self, function: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Wrap `function` for foreachBatch, so that it begins no micro-batch once a stop is asked for (not over
        Connect).
        """

        def call(rows: DataFrame, batch_id: int) -> None:
            if self.stop.asked:
                raise StopAsked
            function(rows, batch_id)

        return call

    def watch(
        self,
        query: StreamingQuery,
        *,
        guarded: bool = False,
        grace_s: float = 600,
        told: Callable[[Any], None] | None = None,
    ) -> QueryOutcome:
        """Wait for a query's end, printing progress; when asked to stop, stop it once its micro-batch is over.

        guarded: its foreachBatch function went through `guard`, so that it ends by itself rather than in the midst of
        the next micro-batch. `told` is called once with the report of each micro-batch that held rows. Raises what the
        query failed with.
        """
        tally = Tally()
        waited_s = 0.0
        at_ask: int | None = None
        while True:
            try:
                ended = bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]
            except Exception as e:
                if not self.stop.asked or StopAsked.__name__ not in str(e):
                    raise
                ended = True
            for p in query.recentProgress:
                if tally.add(p) and p["numInputRows"] and told is not None:
                    told(p)
            self.update(tally.rows, lag=tally.lag, note=f"{tally.batches:,} micro-batches", now=ended)
            if ended:
                break
            if self.stop.asked:
                at_ask = tally.seen if at_ask is None else at_ask
                waited_s += POLL_S
                over = not query.status["isTriggerActive"] or (tally.seen > at_ask and not guarded)
                if over or waited_s > grace_s:
                    query.stop()
                    break
        return QueryOutcome(tally.rows, tally.batches, self.seconds, self.stop.asked)


SILENT = Progress("")


def stderr_progress(name: str) -> Progress:
    """Return a Progress on stderr."""
    return Progress(name, sys.stderr)


class Tally:
    """Sums of a query's progress reports: `rows`, `batches` with rows, `lag`; each report counts once."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self.seen = 0
        self.lag: int | None = None
        self._reports: set[tuple[Any, Any]] = set()

    def add(self, report: Any) -> bool:
        """Count a report (a StreamingQueryProgress), unless it was counted; return whether it is new."""
        key = (report["batchId"], report["timestamp"])
        if key in self._reports:
            return False
        self._reports.add(key)
        self.seen += 1
        self.rows += report["numInputRows"]
        self.batches += report["numInputRows"] > 0
        lags = [lag_of(s["endOffset"], s["latestOffset"]) for s in report["sources"]]
        known = [lag for lag in lags if lag is not None]
        self.lag = sum(known) if known else None
        return True


def lag_of(end: Any, latest: Any) -> int | None:
    """Return the messages between two offsets of a stream, JSON or its values; None where either is unknown."""
    ends, newest = (_leaves(json.loads(o) if isinstance(o, str) else o) for o in (end, latest))
    if not newest:
        return None
    return sum(max(0, offset - ends.get(place, 0)) for place, offset in newest.items())


def _leaves(table: Any, place: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    if isinstance(table, int):
        return {place: table}
    if not isinstance(table, Mapping):
        return {}
    # Keys that begin with @ hold no queue.
    return {
        leaf: offset
        for name, inner in table.items()
        if not name.startswith("@")
        for leaf, offset in _leaves(inner, (*place, name)).items()
    }
