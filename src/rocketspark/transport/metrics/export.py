"""Metrics that are sent at intervals: by OTLP, or as lines of the log. Rule: the loop only collects; what is made of it
and its way out are a thread's, one collection at a time, so that a collector that is away costs no memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec

from rocketspark import machine
from rocketspark.errors import RocketSparkError
from rocketspark.model.histogram import Histogram
from rocketspark.model.text import shown, shown_json
from rocketspark.transport.metrics.families import COUNTER, GAUGE, Collected, label_texts
from rocketspark.transport.metrics.settings import ExportSettings

log = logging.getLogger("rocketspark.metrics")

# At the end of the server: for what is being sent, then for the last values.
BEFORE_LAST_S = 1.0
LAST_S = 3.0
# Series that are gone are remembered for their return until there are so many more than now.
GONE_MAX = 1000
_UNITS = ("milliseconds", "seconds", "bytes")
# RocketMQ's names of these hold the unit, and that of the last is short.
_WITH_UNIT = ("rocketmq_storage_flush_behind_bytes", "rocketmq_storage_dispatch_behind_bytes")
_SHORT = {"rocketmq_finish_message_latency": "ms"}


class Point(NamedTuple):
    """A value of one series. `start_ns`: since when a counter or histogram counts."""

    kind: str
    name: str
    unit: str
    help: str
    labels: tuple[tuple[str, str], ...]
    value: float | Histogram
    start_ns: int

    @property
    def series(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return what makes it the same as one before."""
        return self.name, self.labels


class NotSent(RocketSparkError):
    """A collector did not take metrics; the text says why."""


class NotAllTaken(NotSent):
    """A collector took a request, but not all values in it, which it wants no more."""


class Sink(Protocol):
    """Where points go. All but `cancel` is called in the exporter's thread."""

    # What is said of it in the log.
    name: str

    def send(self, points: list[Point], now_ns: int, timeout_s: float) -> None:
        """Send at most as many points as the settings say. Raises NotSent."""

    def cancel(self) -> None:
        """Let a `send` in the thread end at once."""

    def close(self) -> None:
        """Give back what it holds."""


def named(kind: str, name: str) -> tuple[str, str]:
    """Return a metric's name and unit in OpenTelemetry, whose exporter for Prometheus puts the unit into the name."""
    if kind == COUNTER:
        return f"{name}_total", ""
    stem, _, unit = name.rpartition("_")
    if unit not in _UNITS:
        return name, ""
    return (name, unit) if name in _WITH_UNIT else (stem, _SHORT.get(stem, unit))


class Series:
    """Makes points of collections. `delta`: counters and histograms tell what was added since they were last sent."""

    def __init__(self, delta: bool, start_ns: int) -> None:
        self._delta, self._start_ns = delta, start_ns
        self._since_ns = start_ns
        # With delta: what was sent of each, and those of the last collection.
        self._sent: dict[object, float | Histogram] = {}
        self._there: set[object] = set()

    def points(self, found: Collected) -> Iterator[tuple[Point, float | Histogram]]:
        """Yield each point with the whole value that it stands for."""
        self._there = set()
        for kind, of_prometheus, help_text, rows in found.families:
            name, unit = named(kind, of_prometheus)
            for row, value in rows:
                texts = found.labels | row
                labels = sorted(texts)
                pairs = tuple(zip(labels, label_texts(texts, labels), strict=True))
                point = Point(kind, name, unit, help_text, pairs, value, self._start_ns)
                if not self._delta or kind == GAUGE:
                    yield point, value
                    continue
                self._there.add(point.series)
                added = _added(value, self._sent.get(point.series))
                if added is not None:
                    yield point._replace(value=added, start_ns=self._since_ns), value

    def sent(self, points: Iterable[tuple[Point, float | Histogram]]) -> None:
        """Note points that were taken."""
        if self._delta:
            self._sent |= {point.series: value for point, value in points if point.kind != GAUGE}

    def ended(self, now_ns: int) -> None:
        """Note that all points of a collection were taken."""
        self._since_ns = now_ns
        if len(self._sent) > 2 * len(self._there) + GONE_MAX:
            self._sent = {series: value for series, value in self._sent.items() if series in self._there}


def _added(value: Any, before: Any) -> float | Histogram | None:
    """Return what a value has more than before, all of it where it has less, None for nothing."""
    if isinstance(value, Histogram):
        if before is not None and all(a >= b for a, b in zip(value.counts, before.counts, strict=True)):
            value = value.without(before)
        return value if value.count else None
    added: float = value if before is None or value < before else value - before
    return added or None


class Exporter:
    """Sends what `collect` returns at intervals, and once more at its end. `sink`: where to."""

    def __init__(self, settings: ExportSettings, collect: Callable[[], Collected], sink: Sink) -> None:
        self._settings, self._collect, self._sink = settings, collect, sink
        self._series = Series(settings.metrics_delta, machine.time_ns())
        self._thread = ThreadPoolExecutor(1, "rocketspark-metrics")
        self._task: asyncio.Task[None] | None = None
        self._sending: asyncio.Future[None] | None = None
        self._away = False

    def start(self) -> None:
        """Begin to send, the first time after an interval."""
        log.info("metrics go to %s every %g s", self._sink.name, self._settings.interval_s)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop, interval_s = asyncio.get_running_loop(), self._settings.interval_s
        at = loop.time()
        while True:
            # Times that a slow collector took are left out.
            at = max(at + interval_s, loop.time())
            await asyncio.sleep(at - loop.time())
            await self._round(self._settings.metrics_timeout_ms / 1000)

    async def _round(self, timeout_s: float) -> None:
        """Collect and send once."""
        try:
            found, now_ns = self._collect(), machine.time_ns()
        except Exception:
            log.exception("metrics could not be collected")
            return
        loop = asyncio.get_running_loop()
        self._sending = loop.run_in_executor(self._thread, self._send, found, now_ns, timeout_s)
        try:
            await asyncio.shield(self._sending)
        except NotSent as e:
            if not self._away:
                log.warning(
                    "%s takes no metrics: %s; it is tried again every %g s",
                    self._sink.name,
                    shown(e),
                    self._settings.interval_s,
                )
            self._away = True
        except Exception:
            log.exception("metrics could not be sent")
        else:
            if self._away:
                log.info("%s takes metrics again", self._sink.name)
            self._away = False

    def _send(self, found: Collected, now_ns: int, timeout_s: float) -> None:
        """Send a collection, in the thread. Raises NotSent."""
        end_s = machine.monotonic() + timeout_s
        pairs, trouble = self._series.points(found), None
        while batch := list(islice(pairs, self._settings.metrics_points_max)):
            left_s = end_s - machine.monotonic()
            if left_s <= 0:
                raise NotSent("the time for all its requests was over")
            try:
                self._sink.send([point for point, _ in batch], now_ns, left_s)
            except NotAllTaken as e:
                trouble = trouble or e
            self._series.sent(batch)
        self._series.ended(now_ns)
        if trouble is not None:
            raise trouble

    async def close(self) -> None:
        """Send the last values, within 5 s (LAST_S, and twice BEFORE_LAST_S); may be called again."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        hangs = False
        if self._sending is not None:
            # A call that is cancelled may have been taken, and a delta in it would count twice.
            hangs = not await self._ended(BEFORE_LAST_S)
            if hangs:
                self._sink.cancel()
                hangs = not await self._ended(BEFORE_LAST_S)
        if not hangs:
            await self._round(min(LAST_S, self._settings.metrics_timeout_ms / 1000))
        self._sink.close()
        self._thread.shutdown(wait=not hangs)

    async def _ended(self, timeout_s: float) -> bool:
        """Wait for what the thread sends; return whether it is done."""
        done, _ = await asyncio.wait([self._sending] if self._sending else [], timeout=timeout_s)
        for each in done:
            each.exception()  # It was said, or is of no interest any more.
        return bool(done)


class LogLines:
    """Writes points as lines of JSON into the log."""

    name = "the log"

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def send(self, points: list[Point], now_ns: int, timeout_s: float) -> None:
        """Write a line for each."""
        for point in points:
            self._note(line(point, now_ns))

    def cancel(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is held."""


def line(point: Point, now_ns: int) -> str:
    """Return a point as JSON; times are ms of the epoch."""
    found: dict[str, Any] = {"metric": point.name, "kind": point.kind}
    if point.unit:
        found["unit"] = point.unit
    found["labels"] = dict(point.labels)
    value = point.value
    if isinstance(value, Histogram):
        buckets = {bound: int(count) for bound, count in value.buckets()}
        found |= {"count": value.count, "sum": value.total, "buckets": buckets}
    else:
        found["value"] = value
    if point.kind != GAUGE:
        found["since_ms"] = point.start_ns // 1_000_000
    found["time_ms"] = now_ns // 1_000_000
    return shown_json(msgspec.json.encode(found))
