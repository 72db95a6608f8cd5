"""The figures of queries under a bounded number of labels. Rule: numbers under one lock; nobody waits while holding it.

A query that ended keeps its label until a new one needs it: then its counts go to `other`, so that sums stay.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Literal, NamedTuple

from rocketspark.model.histogram import Histogram
from rocketspark.model.stream_progress import StreamProgress, StreamsProgress
from rocketspark.model.text import shown
from rocketspark.spark.metrics.progress_reports import Report
from rocketspark.tables.offset_ranges import Offsets

OTHER = "other"
CHARACTERS_MAX = 128


def label_of(name: str) -> str:
    """Return a name as the value of a label: cut to a bounded length, with other characters for those that UTF-8 cannot
    hold.
    """
    return shown(name, characters_max=CHARACTERS_MAX)


class BoundedLabels:
    """Gives names labels: the first `count_max` names get one of their own, and the others share the label `other`
    until a label is given back.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._labels: dict[str, str] = {}

    def take(self, name: str) -> str:
        """Return the label of a name: its own if it has one, or if one is free, else `other`."""
        if name not in self._labels and len(self._labels) < self._count_max:
            self._labels[name] = label_of(name)
        return self._labels.get(name, OTHER)

    def is_own(self, name: str) -> bool:
        """Tell whether a name has a label of its own."""
        return name in self._labels

    @property
    def is_full(self) -> bool:
        """Tell whether all labels are taken."""
        return len(self._labels) >= self._count_max

    def give_back(self, name: str) -> None:
        """Free the label of a name for another name."""
        self._labels.pop(name, None)


# In ms: from an empty micro-batch to one of an hour.
DURATION_BOUNDS_MS = (100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 120_000, 300_000, 900_000, 3_600_000)
# Runs whose end was never heard of, as when a connection broke, are forgotten beyond these.
RUNS_MAX = 1000
# Runs that are over, and running ones, whose progress is published; of the latter those heard of last.
ENDED_MAX, RUNNING_MAX = 50, 200
ERROR_CHARACTERS_MAX = 500
EVENTS = ("started", "progress", "idle", "terminated")

NO_REPORT = Report(0, 0, None, None, {}, 0, 0, 0, ())


class QueryCounts:
    """What all streaming queries with one label did since this process began to count: rows, batches, failures, times.
    The numbers never fall, also when a query ends.
    """

    def __init__(self) -> None:
        self.rows = self.output_rows = self.batches = self.bytes = self.bad_rows = 0
        self.starts = self.stopped = self.failed = 0
        self.durations = Histogram(DURATION_BOUNDS_MS)
        self.steps_s: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()

    def add(self, other: QueryCounts) -> None:
        """Add the counts of another label to these."""
        for name in ("rows", "output_rows", "batches", "bytes", "bad_rows", "starts", "stopped", "failed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.durations.counts = [a + b for a, b in zip(self.durations.counts, other.durations.counts, strict=True)]
        self.durations.total += other.durations.total
        for step, seconds in other.steps_s.items():
            self.steps_s[step] += seconds
        self.messages.update(other.messages)


class Run:
    """One run of a query, from its start to its end. `key`: the name whose label the run is counted under; `seen_s`:
    when it was last heard of.
    """

    def __init__(self, key: str, seen_s: float, run_id: str, query_id: str) -> None:
        self.key, self.run_id, self.query_id = key, run_id, query_id
        self.started_s = self.seen_s = seen_s
        self.report = NO_REPORT
        self.positions: Offsets = {}
        self.rows = self.bad_rows = 0
        # The last report of a micro-batch, and when it came.
        self.batch: Report | None = None
        self.batch_at_s: float | None = None

    def heard(self, report: Report, now_s: float) -> None:
        """Note a report."""
        self.report, self.seen_s = report, now_s
        self.positions = report.positions() or self.positions
        self.rows += report.rows
        self.bad_rows += report.bad_rows
        if _is_batch(report):
            self.batch, self.batch_at_s = report, now_s

    def progress(self, state: Literal["running", "stopped", "failed"], error: str = "") -> StreamProgress:
        """Return what is published of the run."""
        batch = self.batch or NO_REPORT
        offsets: dict[str, dict[str, dict[str, int]]] = {}
        for queue, offset in self.positions.items():
            offsets.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
        return StreamProgress(
            name=label_of(self.key),
            query_id=self.query_id,
            run_id=self.run_id,
            state=state,
            error=shown(error.strip().partition("\n")[0], characters_max=ERROR_CHARACTERS_MAX),
            started_s=self.started_s,
            seen_s=self.seen_s,
            batch_id=self.report.batch_id,
            batch_rows=batch.rows,
            batch_s=batch.duration_s,
            batch_at_s=self.batch_at_s,
            rows=self.rows,
            bad_rows=self.bad_rows,
            rows_per_s=self.report.rows_per_s if state == "running" else 0.0,
            offsets=offsets,
        )


class Gauges(NamedTuple):
    """The present values of the running queries that share a label."""

    running: int
    seen_s: float
    batch_id: int | None
    state_rows: int
    state_bytes: int
    reported_lag: dict[str, int]


class QueryFigures:
    """Gathers all that the listener hears of queries; its methods may be called from any thread. `heard`: called after
    each report.
    """

    def __init__(
        self, *, queries_max: int, topics_max: int, heard: Callable[[], None] = lambda: None, now_s: Callable[[], float]
    ) -> None:
        self._lock = threading.Lock()
        self._labels = BoundedLabels(queries_max)
        self._topics = BoundedLabels(topics_max)
        self._runs: dict[str, Run] = {}
        self._ended: deque[str] = deque(maxlen=RUNS_MAX)
        self._over: deque[tuple[str, StreamProgress]] = deque(maxlen=ENDED_MAX)
        # Keys of queries that have ended, the first that did first.
        self._idle: dict[str, None] = {}
        self._counts: dict[str, QueryCounts] = {}
        self._listener_errors: Counter[str] = Counter()
        self._heard = heard
        self._now_s = now_s

    def started(self, run_id: str, query_id: str, name: str | None) -> None:
        """Note that a run of a query began."""
        with self._lock:
            self._run(run_id, query_id, name)

    def progressed(self, run_id: str, query_id: str, name: str | None, report: Report) -> None:
        """Count a progress report of a run."""
        with self._lock:
            run = self._run(run_id, query_id, name)
            counts = self._counts_of(run.key if run is not None else _key(query_id, name))
            counts.rows += report.rows
            counts.output_rows += report.output_rows
            counts.bytes += report.bytes
            counts.bad_rows += report.bad_rows
            if report.duration_s is not None and _is_batch(report):
                counts.batches += 1
                counts.durations.add(report.duration_s * 1000)
                counts.steps_s.update(report.steps_s)
            for source in report.sources:
                for topic, count in source.messages().items():
                    counts.messages[self._topics.take(topic)] += count
            if run is not None:
                run.heard(report, self._now_s())
        self._heard()

    def idled(self, run_id: str) -> None:
        """Note that a run waits for messages."""
        with self._lock:
            if (run := self._runs.get(run_id)) is not None:
                run.seen_s = self._now_s()

    def ended(self, run_id: str, query_id: str, *, failed: bool, error: str = "") -> None:
        """Note that a run of a query is over. `failed`: it ended with an error, whose text is `error`."""
        with self._lock:
            if run_id in self._ended:
                return
            run = self._run(run_id, query_id, None)
            assert run is not None
            counts = self._counts_of(run.key)
            counts.failed += failed
            counts.stopped += not failed
            del self._runs[run_id]
            self._ended.append(run_id)
            run.seen_s = self._now_s()
            self._over.append((run.key, run.progress("failed" if failed else "stopped", error)))
            if all(other.key != run.key for other in self._runs.values()):
                self._idle.pop(run.key, None)
                self._idle[run.key] = None

    def listener_failed(self, event: str) -> None:
        """Count an event of a kind (started, progress, …) that the listener could not count."""
        with self._lock:
            self._listener_errors[event] += 1

    def _run(self, run_id: str, query_id: str, name: str | None) -> Run | None:
        """Return a run, noted now if it is new; None if it has ended: reports may come late."""
        if run_id in self._ended:
            return None
        run = self._runs.get(run_id)
        if run is None:
            while len(self._runs) >= RUNS_MAX:
                del self._runs[min(self._runs, key=lambda each: self._runs[each].seen_s)]
            run = self._runs[run_id] = Run(_key(query_id, name), self._now_s(), run_id, query_id)
            self._idle.pop(run.key, None)
            self._make_room(run.key)
            self._counts_of(run.key).starts += 1
        return run

    def _make_room(self, key: str) -> None:
        if self._labels.is_full and not self._labels.is_own(key) and self._idle:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            if self._labels.is_own(oldest):
                gone = self._counts.pop(self._labels.take(oldest), None)
                self._labels.give_back(oldest)
                if gone is not None:
                    self._counts.setdefault(OTHER, QueryCounts()).add(gone)

    def _counts_of(self, key: str) -> QueryCounts:
        return self._counts.setdefault(self._labels.take(key), QueryCounts())

    def positions(self) -> list[tuple[str, Offsets]]:
        """Return the label and the offsets of each running query that reads RocketMQ and has reported its offsets."""
        with self._lock:
            return [(self._labels.take(run.key), dict(run.positions)) for run in self._runs.values() if run.positions]

    def progress(self) -> StreamsProgress:
        """Return what is published of the queries: those that run, and the last run of others that ended."""
        with self._lock:
            latest = sorted(self._runs.values(), key=lambda run: -run.seen_s)[:RUNNING_MAX]
            found = [run.progress("running") for run in latest]
            names = {run.key for run in self._runs.values()}
            for key, over in reversed(self._over):
                if key not in names:
                    names.add(key)
                    found.append(over)
            return StreamsProgress(said_s=self._now_s(), streams=sorted(found, key=lambda each: each.name))

    def topic_label(self, topic: str) -> str:
        """Return the label of a topic, which is `other` for topics beyond the bound."""
        with self._lock:
            return self._topics.take(topic)

    def counts(self) -> dict[str, QueryCounts]:
        """Return a copy of the counts by label."""
        with self._lock:
            copies: dict[str, QueryCounts] = {}
            for label, counts in self._counts.items():
                copies[label] = QueryCounts()
                copies[label].add(counts)
            return copies

    def listener_errors(self) -> dict[str, int]:
        """Return how many events could not be counted, by kind."""
        with self._lock:
            return dict(self._listener_errors)

    def gauges(self) -> dict[str, Gauges]:
        """Return the present values of running queries, by label."""
        with self._lock:
            found: dict[str, Gauges] = {}
            for run in self._runs.values():
                label, report = self._labels.take(run.key), run.report
                before = found.get(label, Gauges(0, 0.0, None, 0, 0, {}))
                lag = Counter(before.reported_lag)
                for source in report.sources:
                    for topic, count in source.lag().items():
                        lag[self._topics.take(topic)] += count
                found[label] = Gauges(
                    before.running + 1,
                    max(before.seen_s, run.seen_s),
                    report.batch_id if before.running == 0 else None,
                    before.state_rows + report.state_rows,
                    before.state_bytes + report.state_bytes,
                    dict(lag),
                )
            return found


def wall_s() -> float:
    """Return the seconds since 1970."""
    return time.time()


def _key(query_id: str, name: str | None) -> str:
    return label_of(name) if name else f"query-{query_id[:8]}"


def _is_batch(report: Report) -> bool:
    """Tell whether a micro-batch ran: a trigger that found nothing is reported every 10 s, and ran none."""
    return report.rows > 0 or "addBatch" in report.steps_s
