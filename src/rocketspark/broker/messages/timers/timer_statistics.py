"""Counts of timer messages: how many wait for each topic (timermetrics), and what came and went since the start."""

from __future__ import annotations

from collections.abc import Callable

from rocketspark.broker.statistics.histograms import DELAY_BOUNDS
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.errors import ConfigError
from rocketspark.model.histogram import Histogram
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.timers import TimerCount, TimerCounts

log = LimitedLog("rocketspark.broker")

SAVE_MS = 10_000


class TimerStatistics:
    """The counts of one broker's timer messages, by real topic. `clock`: returns the time in ms."""

    def __init__(self, file: JsonFile[TimerCounts], clock: Callable[[], int]) -> None:
        self._file = file
        self._clock = clock
        self._counts = TimerCounts()
        self._changed = False
        self._saved_ms = 0
        # Since the start.
        self.enqueued: dict[str, int] = {}
        self.dequeued: dict[str, int] = {}
        self.delays: dict[str, Histogram] = {}
        self._rates_from = (0, 0, 0)
        self.rates = (0.0, 0.0)

    def open(self) -> None:
        """Read what the last run counted."""
        try:
            self._counts = self._file.load() or TimerCounts()
        except ConfigError as e:
            # Counts must not keep the broker from starting.
            log.error("the counts of timer messages cannot be read and begin empty: %s", e)
        self._saved_ms = self._clock()

    def count(self, topic: str, change: int) -> None:
        """Change how many messages wait for a topic."""
        known = self._counts.counts.get(topic) or TimerCount()
        changed_ms = self._clock()
        self._counts.counts[topic] = TimerCount(count=known.count + change, changed_ms=changed_ms)
        self._counts.data_version.counter += 1
        self._counts.data_version.timestamp = changed_ms
        self._changed = True

    def table(self) -> TimerCounts:
        """Return how many messages wait for each topic, with a version."""
        return self._counts

    def take(self, counts: TimerCounts) -> None:
        """Replace the counts by the master's, on a slave; they are written soon."""
        if counts.data_version != self._counts.data_version:
            self._counts = counts
            self._changed = True

    def came(self, topic: str, delay_ms: int) -> None:
        """Count a message that was put on the wheel."""
        self.enqueued[topic] = self.enqueued.get(topic, 0) + 1
        self.delays.setdefault(topic, Histogram(DELAY_BOUNDS)).add(max(0, delay_ms) // 1000)

    def went(self, topic: str) -> None:
        """Count a message that was delivered."""
        self.dequeued[topic] = self.dequeued.get(topic, 0) + 1

    def forget_topic(self, topic: str) -> None:
        """Remove what was counted of a deleted topic; the rates leave it out too. What waits for it still counts."""
        from_ms, before_in, before_out = self._rates_from
        came, went = self.enqueued.pop(topic, 0), self.dequeued.pop(topic, 0)
        self._rates_from = from_ms, before_in - came, before_out - went
        self.delays.pop(topic, None)

    def waiting(self) -> dict[str, int]:
        """Return the number of waiting timer messages, by real topic."""
        return {topic: c.count for topic, c in self._counts.counts.items() if c.count}

    def measure(self, now: int) -> None:
        """Compute the rates (messages put on the wheel, and delivered) since the last call."""
        enqueued, dequeued = sum(self.enqueued.values()), sum(self.dequeued.values())
        from_ms, before_in, before_out = self._rates_from
        if now > from_ms:
            seconds = (now - from_ms) / 1000
            self.rates = (enqueued - before_in) / seconds, (dequeued - before_out) / seconds
        self._rates_from = now, enqueued, dequeued

    def save_at_times(self, now: int) -> None:
        """Write timermetrics if it changed and the last write is some seconds ago."""
        if not 0 <= now - self._saved_ms < SAVE_MS:  # The clock may have been set back.
            self.save(now)

    def save(self, now: int) -> None:
        """Write timermetrics if it changed."""
        if self._changed:
            self._saved_ms = now
            self._file.save(self._counts)
            self._changed = False
