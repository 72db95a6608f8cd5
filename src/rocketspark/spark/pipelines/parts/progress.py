"""The progress of a pipeline, and the way to stop it. Rule: progress on stderr; the first Ctrl-C or SIGTERM waits for
the running micro-batch, the second does not.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from rocketspark.model.text import shown
from rocketspark.spark.spark_features import reported_offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

EVERY_S = 1.0
POLL_S = 0.2
# Time for which a micro-batch may go on after a stop was asked for.
GRACE_S = 600.0

# Exit codes beside 1 (an error) and 2 (wrong usage).
EXIT_DONE = 0
EXIT_FOUND = 3  # It ran, and what it looked at is not in order (audit: something is missing).
EXIT_STOPPED = 130  # Stopped before a run with an end came to its end.


class Stop:
    """The request that a pipeline stop: `asked` tells whether it was made, and `wait` waits for it.

    A signal makes it in the midst of any line of the thread that waits: an Event's lock may be held there, a
    SimpleQueue has none.
    """

    def __init__(self) -> None:
        self._requests: SimpleQueue[None] = SimpleQueue()
        # True once a stop was asked for.
        self.asked = False

    def ask(self) -> None:
        """Ask the pipeline to stop after its current step."""
        self.asked = True
        self._requests.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait until a stop is asked for, or for so many seconds; return whether a stop was asked for."""
        try:
            self._requests.get(timeout=max(seconds, 0.0))
        except Empty:
            return False
        self._requests.put(None)  # Who else waits is to see it too.
        return True


class QueryOutcome(NamedTuple):
    """How a query ended: rows read, micro-batches that had rows, and whether it was asked to stop."""

    rows: int
    batches: int
    seconds: float
    stopped: bool


class Progress:
    """Prints a pipeline's progress on `out` (None: nowhere), at most one line each `every_s` seconds.

    `stop`: the request to stop; `rows`, `waiting`: the last values given to `update`; `hear`: called with a report of
    each step of a pipeline that has no streaming query.
    """

    def __init__(self, name: str, out: TextIO | None = None, *, every_s: float = EVERY_S) -> None:
        self.name = name
        self.stop = Stop()
        self.rows = 0
        self.waiting: int | None = None
        self.hear: Callable[[Mapping[str, Any]], None] = lambda report: None
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
            print(f"{self.name}: {shown(text, characters_max=2000)}", file=self._out, flush=True)

    def update(self, rows: int, *, lag: int | None = None, note: str = "", now: bool = False) -> None:
        """Note how many rows are done and how many still wait (`lag`), and what the pipeline does now (`note`); print
        it if it is time, or if `now`.
        """
        self.rows, self.waiting = rows, lag
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
        """While the block runs, such as a long Spark job, print the text that `note` returns whenever it changes."""
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

    def watch(self, query: StreamingQuery, *, told: Callable[[Any], None] | None = None) -> QueryOutcome:
        """Wait for a query's end as `watch_all` does, though no longer than GRACE_S once asked to stop.

        `told` is called once with the report of each micro-batch that held rows.
        """
        (tally,) = self.watch_all([query], told=told, grace_s=GRACE_S)
        return QueryOutcome(tally.rows, tally.batches, self.seconds, self.stop.asked)

    def watch_all(
        self,
        queries: Sequence[StreamingQuery],
        *,
        ended: Callable[[StreamingQuery], bool] | None = None,
        told: Callable[[Any], None] | None = None,
        grace_s: float = math.inf,
    ) -> list[Tally]:
        """Wait until all queries have ended, and print progress; when a stop is asked for, stop each query between two
        micro-batches, or after `grace_s`.

        `ended`: waits a moment for a query's end, as `has_ended`; `told`: called once with the report of each
        micro-batch that held rows. Raises the error that a query failed with.
        """
        tallies = [Tally() for _ in queries]
        running = list(zip(queries, tallies, strict=True))
        stop_s: float | None = None
        while running:
            if self.stop.asked and stop_s is None:
                stop_s = time.monotonic() + grace_s
                for tally in tallies:
                    tally.mark()
            for one in list(running):
                query, tally = one
                over = (ended or has_ended)(query)
                for report in (recent := query.recentProgress):
                    if tally.add(report) and report["numInputRows"] and told is not None:
                        told(report)
                tally.forget_all_but(recent)
                if over:
                    running.remove(one)
                elif stop_s is not None and (tally.is_between(query) or time.monotonic() >= stop_s):
                    query.stop()
            self._update_of(tallies, now=not running)
        return tallies

    def _update_of(self, tallies: Sequence[Tally], *, now: bool) -> None:
        """Print the sums of queries."""
        lags = [tally.lag for tally in tallies if tally.lag is not None]
        self.update(
            sum(tally.rows for tally in tallies),
            lag=sum(lags) if lags else None,
            note=f"{sum(tally.batches for tally in tallies):,} micro-batches",
            now=now,
        )


def has_ended(query: StreamingQuery) -> bool:
    """Wait a moment for a query's end, and tell whether it came. Raises the error that the query failed with."""
    return bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]


def stderr_progress(name: str) -> Progress:
    """Return a Progress that prints on stderr. `name`: the pipeline's."""
    return Progress(name, sys.stderr)


class Tally:
    """The sums of a query's progress reports, of which each counts once: `rows`, `batches` that had rows, and `lag`,
    the newest.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self.lag: int | None = None
        self.seen = self._marked = 0
        self._reports: set[tuple[Any, Any]] = set()

    def add(self, report: Any) -> bool:
        """Count a report (a StreamingQueryProgress), unless it was counted; return whether it is new."""
        if (key := _key(report)) in self._reports:
            return False
        self._reports.add(key)
        self.seen += 1
        self.rows += report["numInputRows"]
        self.batches += report["numInputRows"] > 0
        lags = [lag_of(s["endOffset"], s["latestOffset"]) for s in report["sources"]]
        known = [lag for lag in lags if lag is not None]
        self.lag = sum(known) if known else None
        return True

    def forget_all_but(self, recent: Sequence[Any]) -> None:
        """Keep in mind only these of the counted reports: Spark tells of no others again."""
        self._reports.intersection_update(map(_key, recent))

    def mark(self) -> None:
        """Remember how many reports there are at the moment at which a stop is asked for."""
        self._marked = self.seen

    def is_between(self, query: StreamingQuery) -> bool:
        """Tell whether a query may be stopped: it has ended a micro-batch since `mark`, or is in none."""
        return self.seen > self._marked or not query.status["isTriggerActive"]


def _key(report: Any) -> tuple[Any, Any]:
    return report["batchId"], report["timestamp"]


def step_report(
    number: int,
    rows: int = 0,
    steps_s: Mapping[str, float] | None = None,
    *,
    start: Mapping[str, Any] | None = None,
    end: Mapping[str, Any] | None = None,
    latest: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a report on a pipeline's step in the form of a streaming query's progress report.

    `steps_s`: how long the parts of the step took, by Spark's names for them; None: the step only looked for messages.
    `start`, `end`, `latest`: offsets of a topic's stream.
    """
    timed = {name: round(seconds * 1000) for name, seconds in (steps_s or {}).items()}
    whole = {"triggerExecution": sum(timed.values())} if timed else {}
    source = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    return {
        "batchId": number,
        "numInputRows": rows,
        "durationMs": timed | whole,
        "sources": [] if end is None else [source],
        "sink": {"numOutputRows": rows},
    }


def lag_of(end: Any, latest: Any) -> int | None:
    """Return how many messages lie between two offsets of a stream, each JSON or its values; None if one is unknown."""
    ends, newest = (leaves(reported_offset(o) if isinstance(o, str) else o) for o in (end, latest))
    if not newest:
        return None
    return sum(max(0, offset - ends.get(place, 0)) for place, offset in newest.items())


def leaves(table: Any, place: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    """Return the numbers in a stream's offset by the names that lead to each: topic, broker and queue id."""
    if isinstance(table, int):
        return {place: table}
    if not isinstance(table, Mapping):
        return {}
    # Keys that begin with @ hold no queue.
    return {
        leaf: offset
        for name, inner in table.items()
        if not name.startswith("@")
        for leaf, offset in leaves(inner, (*place, name)).items()
    }
