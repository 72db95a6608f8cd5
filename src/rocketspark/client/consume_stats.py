"""Consume statistics: how fast a consumer reads and consumes, by topic. Rule: ConsumerStatsManager, 5.x: rates over the
last minute, and how many messages failed in the last hour.
"""

from __future__ import annotations

from collections import deque

import msgspec

from rocketspark import machine

SAMPLE_S = 10.0
MINUTE_S = 60.0
HOUR_S = 3600.0


class TopicCounts(msgspec.Struct):
    """Sums of one topic since the consumer began: of pulls that found messages (how many, how long, how many messages),
    of timed listener calls (how many, how long), and of messages that the listener took or failed on.
    """

    pulls: int = 0
    pulls_ms: float = 0
    pulled: int = 0
    calls: int = 0
    calls_ms: float = 0
    taken: int = 0
    failed: int = 0

    def pull(self, ms: float, count: int) -> None:
        """Count one pull that found messages."""
        self.pulls += 1
        self.pulls_ms += ms
        self.pulled += count

    def call(self, ms: float, calls: int = 1) -> None:
        """Count calls of the listener. Without a lock: concurrent threads may lose a count, which does no harm."""
        self.calls += calls
        self.calls_ms += ms


class ConsumeStats:
    """The sums of one consumer's topics, now and at earlier samples."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicCounts] = {}
        self._samples: deque[tuple[float, dict[str, TopicCounts]]] = deque(maxlen=int(HOUR_S / SAMPLE_S))
        self._began_s = machine.monotonic()

    def of(self, topic: str) -> TopicCounts:
        """Return the sums of a topic, to be added to."""
        return self._topics.setdefault(topic, TopicCounts())

    def sample(self) -> None:
        """Take a sample; called every 10 s."""
        copies = {topic: msgspec.structs.replace(counts) for topic, counts in self._topics.items()}
        self._samples.append((machine.monotonic(), copies))

    def _before(self, topic: str, span_s: float) -> tuple[float, TopicCounts]:
        now_s = machine.monotonic()
        for at_s, counts in self._samples:
            if now_s - at_s <= span_s:
                if now_s - self._began_s <= span_s:
                    break
                return max(now_s - at_s, 1), counts.get(topic) or TopicCounts()
        return max(min(now_s - self._began_s, span_s), 1), TopicCounts()

    def status(self, topic: str) -> dict[str, float]:
        """Return the statistics under RocketMQ's names; mean times in ms, rates per second."""
        now = self.of(topic)
        span_s, before = self._before(topic, MINUTE_S)
        pulls, calls = now.pulls - before.pulls, now.calls - before.calls
        return {
            "pullRT": (now.pulls_ms - before.pulls_ms) / pulls if pulls else 0.0,
            "pullTPS": (now.pulled - before.pulled) / span_s,
            "consumeRT": (now.calls_ms - before.calls_ms) / calls if calls else 0.0,
            "consumeOKTPS": (now.taken - before.taken) / span_s,
            "consumeFailedTPS": (now.failed - before.failed) / span_s,
            "consumeFailedMsgs": now.failed - self._before(topic, HOUR_S)[1].failed,
        }
