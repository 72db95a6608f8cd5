"""Turns the figures of queries into Prometheus metrics, and serves them from a thread of its own, which touches nothing
of Spark.

Rule: the names that Prometheus shows stand here alone; this module is loaded only where metrics are served.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from rocketspark.model.histogram import Histogram
from rocketspark.spark.metrics.lag_watch import REASONS, LagWatch, TopicLag, merged
from rocketspark.spark.metrics.query_figures import EVENTS, QueryFigures
from rocketspark.transport.metrics.server import MetricsServer

PREFIX = "rocketspark_stream_"
# From 0 on: what appears with its first count is no increase.
_NO_EVENTS = dict.fromkeys(EVENTS, 0)
_NO_REASONS = dict.fromkeys(REASONS, 0)
Rows = Iterable[tuple[tuple[str, ...], float]]


def families(figures: QueryFigures, lag: LagWatch | None) -> list[Metric]:
    """Return the metrics of all streaming queries. `lag`: what asks brokers for the queries' lag; None leaves its
    metrics out.
    """
    found = [*_counters(figures), *_gauges(figures)]
    return found if lag is None else found + _lag(figures, lag)


def _family(kind: Any, name: str, text: str, labels: tuple[str, ...], rows: Rows) -> Metric:
    family: Metric = kind(name, text, labels=labels)
    for values, count in rows:
        family.add_metric(values, count)  # type: ignore[attr-defined]
    return family


# A counter gets `_total` behind its name.
_counter, _gauge = partial(_family, CounterMetricFamily), partial(_family, GaugeMetricFamily)


def _counters(figures: QueryFigures) -> list[Metric]:
    counts = sorted(figures.counts().items())
    durations = HistogramMetricFamily(
        PREFIX + "batch_duration_seconds", "How long micro-batches took.", labels=["query"]
    )
    for query, each in counts:
        durations.add_metric([query], _seconds(each.durations), each.durations.total / 1000)

    def of_query(name: str, text: str, field: str) -> Metric:
        return _counter(PREFIX + name, text, ("query",), (((query,), getattr(each, field)) for query, each in counts))

    return [
        of_query("rows", "Rows that queries read.", "rows"),
        of_query("output_rows", "Rows that sinks said they took.", "output_rows"),
        of_query("bytes", "Bytes read, where observed metrics or sources tell them.", "bytes"),
        of_query("bad_rows", "Rows whose body could not be decoded, where observed metrics tell them.", "bad_rows"),
        of_query("batches", "Micro-batches that ran.", "batches"),
        of_query("starts", "Runs of queries that began.", "starts"),
        _counter(
            PREFIX + "ends",
            "Runs of queries that ended: failed, or stopped (by hand, or at their end).",
            ("query", "outcome"),
            (
                ((query, outcome), count)
                for query, each in counts
                for outcome, count in (("failed", each.failed), ("stopped", each.stopped))
            ),
        ),
        durations,
        _counter(
            PREFIX + "step_seconds",
            "Time that micro-batches spent in each step.",
            ("query", "step"),
            (((query, step), seconds) for query, each in counts for step, seconds in sorted(each.steps_s.items())),
        ),
        _counter(
            PREFIX + "messages",
            "Messages that queries passed in a topic, those that a filter left out too.",
            ("query", "topic"),
            (((query, topic), count) for query, each in counts for topic, count in sorted(each.messages.items())),
        ),
        _counter(
            PREFIX + "listener_errors",
            "Events of queries that could not be counted.",
            ("event",),
            (((event,), count) for event, count in sorted((_NO_EVENTS | figures.listener_errors()).items())),
        ),
    ]


def _gauges(figures: QueryFigures) -> list[Metric]:
    gauges = figures.gauges()
    now = sorted(gauges.items())
    running = dict.fromkeys(figures.counts(), 0) | {query: each.running for query, each in now}
    return [
        _gauge(
            PREFIX + "running", "Runs that are under way.", ("query",), (((q,), n) for q, n in sorted(running.items()))
        ),
        _gauge(
            PREFIX + "last_progress_timestamp_seconds",
            "When a running query was heard of last.",
            ("query",),
            (((query,), each.seen_s) for query, each in now),
        ),
        _gauge(
            PREFIX + "batch_id",
            "The last micro-batch of a running query.",
            ("query",),
            (((query,), each.batch_id) for query, each in now if each.batch_id is not None),
        ),
        _gauge(
            PREFIX + "state_rows", "Rows of state.", ("query",), (((query,), each.state_rows) for query, each in now)
        ),
        _gauge(PREFIX + "state_bytes", "Bytes of state.", ("query",), (((q,), each.state_bytes) for q, each in now)),
        _gauge(
            PREFIX + "reported_lag_messages",
            "Messages that waited at the last micro-batch, as Spark says (4.2 and later).",
            ("query", "topic"),
            (((query, topic), n) for query, each in now for topic, n in sorted(each.reported_lag.items())),
        ),
    ]


def _lag(figures: QueryFigures, lag: LagWatch) -> list[Metric]:
    lags: dict[tuple[str, str], TopicLag] = {}
    for (query, topic), each in lag.lags().items():
        key = query, figures.topic_label(topic)
        lags[key] = merged(lags[key], each) if key in lags else each
    asked: dict[tuple[str, str], float] = {}
    for (query, topic), at_s in lag.asked_s().items():
        key = query, figures.topic_label(topic)
        asked[key] = min(at_s, asked.get(key, at_s))
    labels = ("query", "topic")
    seconds = {key: each.seconds for key, each in lags.items()}
    return [
        _gauge(
            PREFIX + "lag_messages",
            "Messages that brokers hold and a query has not read.",
            labels,
            ((key, each.messages) for key, each in sorted(lags.items())),
        ),
        _gauge(
            PREFIX + "lag_seconds",
            "Age of the oldest message that a query has not read, by its store time.",
            labels,
            ((key, age) for key, age in sorted(seconds.items()) if age is not None),
        ),
        _gauge(
            PREFIX + "lag_asked_timestamp_seconds",
            "When brokers answered last about a query's topic.",
            labels,
            sorted(asked.items()),
        ),
        _counter(
            PREFIX + "lag_errors",
            "Times that brokers did not tell a lag, by reason.",
            ("reason",),
            (((reason,), count) for reason, count in sorted((_NO_REASONS | dict(lag.errors)).items())),
        ),
    ]


def pipeline_families(name: str, rows: int, waiting: int | None, seconds: float) -> list[Metric]:
    """Return the metrics of a pipeline's progress, the same that its command prints. `waiting`: messages not read yet;
    `seconds`: since its begin.
    """
    prefix, labels = "rocketspark_pipeline_", ("pipeline",)
    known: Mapping[str, int] = {} if waiting is None else {name: waiting}
    return [
        _gauge(prefix + "rows", "Rows that the running step has done.", labels, [((name,), rows)]),
        _gauge(prefix + "waiting_rows", "Rows that wait still.", labels, (((n,), count) for n, count in known.items())),
        _gauge(prefix + "running_seconds", "Time since the command began.", labels, [((name,), seconds)]),
    ]


def _seconds(durations: Histogram) -> list[tuple[str, float]]:
    """Return the buckets of a histogram in ms, with bounds in seconds."""
    below, found = 0, []
    for bound_ms, count in zip(durations.bounds, durations.counts, strict=False):
        below += count
        found.append((str(bound_ms / 1000), float(below)))
    return [*found, ("+Inf", float(durations.count))]


STOP_S = 5.0


class ScrapeThread:
    """A thread that serves metrics to Prometheus; `port` is the port that it listens on. `documents`: what makes the
    JSON at further paths.
    """

    def __init__(
        self, collect: Callable[[], list[Metric]], documents: Mapping[str, Callable[[], bytes]] | None = None
    ) -> None:
        self._server = MetricsServer(collect, documents=documents)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self.port = 0

    def start(self, host: str, port: int) -> None:
        """Begin to listen. Raises ConfigError if the port cannot be had."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(host, port, ready)), name="rocketspark-metrics", daemon=True
        )
        self._thread.start()
        ready.result()

    async def _serve(self, host: str, port: int, ready: Future[None]) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._server.start(host, port, "the metrics' port")
        except BaseException as e:
            ready.set_exception(e)
            return
        self.port = self._server.port
        ready.set_result(None)
        try:
            await self._end.wait()
        finally:
            await self._server.close()

    def stop(self) -> None:
        """Stop listening; the port is free then."""
        loop, end, thread = self._loop, self._end, self._thread
        if loop is None or end is None or thread is None or not thread.is_alive():
            return
        loop.call_soon_threadsafe(end.set)
        thread.join(STOP_S)
