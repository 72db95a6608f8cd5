"""Asks brokers how far queries are behind. Rule: a thread of its own asks, at most once in an interval; a lag that
brokers do not tell is absent, and counted as an error.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from rocketspark.errors import RocketSparkError, RouteNotFound, ServerError, TransportError
from rocketspark.model import MessageQueue
from rocketspark.model.limited_log import LimitedLog
from rocketspark.tables.offset_ranges import Offsets
from rocketspark.tables.queue_bounds import OffsetBounds

log = LimitedLog("rocketspark.spark")

# Queues asked in one interval, and messages looked at for their store time: the longest backlogs first.
QUEUES_MAX = 4096
LOOKS_MAX = 512
# Figures of a watch that got no further are absent after so many intervals, and so many seconds at least.
STALE_INTERVALS, STALE_S = 3, 60.0
STOP_S = 2.0
REASONS = ("broker_away", "no_answer", "no_topic", "other", "refused", "too_many_queues")


class Brokers(Protocol):
    """What is asked of a cluster here; ClusterQueries answers it."""

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]: ...
    def bounds(self, queues: Iterable[MessageQueue], *, if_there: bool) -> dict[MessageQueue, OffsetBounds]: ...
    def stored_ms(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]: ...
    def close(self) -> None: ...


class TopicLag(NamedTuple):
    """How far a query is behind in a topic: the number of messages not read yet, and in `seconds` the age of the oldest
    of these; None if that is not known.
    """

    messages: int
    seconds: float | None


Key = tuple[str, str]


class LagWatch:
    """Asks brokers how far queries are behind. `positions`: returns the label and the offsets of each query; `errors`:
    counts of errors, by reason.
    """

    def __init__(
        self,
        positions: Callable[[], list[tuple[str, Offsets]]],
        open_brokers: Callable[[], Brokers],
        *,
        interval_s: float,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._positions = positions
        self._open = open_brokers
        self._interval_s = interval_s
        self._now_s, self._monotonic_s = now_s, monotonic_s
        self._brokers: Brokers | None = None
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rocketspark-lag", daemon=True)
        # The store time of what is looked at: it stays the same.
        self._stored: dict[tuple[MessageQueue, int], float] = {}
        self._lags: dict[Key, TopicLag] = {}
        self._lags_at_s = -math.inf
        self._asked_s: dict[Key, float] = {}
        self.errors: Counter[str] = Counter()

    def start(self) -> None:
        """Start the thread. It asks brokers whenever a query has reported its offsets, but no more often than the
        interval says.
        """
        self._thread.start()

    def notify(self) -> None:
        """Tell the thread that queries have reported their offsets."""
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread; a question that is under way is not waited for long."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def lags(self) -> dict[Key, TopicLag]:
        """Return the lag by query and topic, as brokers last reported it; nothing if that is long ago."""
        limit_s = max(STALE_S, STALE_INTERVALS * self._interval_s)
        return self._lags if self._monotonic_s() - self._lags_at_s <= limit_s else {}

    def asked_s(self) -> dict[Key, float]:
        """Return by query and topic when brokers last told the lag, in seconds since 1970."""
        return self._asked_s

    def _watch(self) -> None:
        while not self._stopped.is_set():
            positions = self._positions()
            if not positions:
                self._lags, self._asked_s = {}, {}
                self._wake.wait()
                self._wake.clear()
                continue
            self.look(positions)
            self._stopped.wait(self._interval_s)
        self._close()

    def look(self, positions: list[tuple[str, Offsets]]) -> None:
        """Ask the brokers once for the lag of queries, given by label and offsets, and keep the answers."""
        try:
            found = self._found(positions)
        except Exception as e:
            # Of a kind that nobody thought of: the next look begins anew.
            found = {}
            self._wrong(e)
            self._close()
        now_s = self._now_s()
        wanted = {(label, queue.topic) for label, offsets in positions for queue in offsets}
        asked = {key: at_s for key, at_s in self._asked_s.items() if key in wanted}
        self._asked_s = asked | dict.fromkeys(found, now_s)
        self._lags, self._lags_at_s = found, self._monotonic_s()

    def _found(self, positions: list[tuple[str, Offsets]]) -> dict[Key, TopicLag]:
        if self._brokers is None:
            self._brokers = self._open()
        brokers = self._brokers
        topics = self._topics(brokers, positions)
        bounds = self._bounds(brokers, topics)
        away: set[Key] = set()
        unread_by: list[tuple[Key, dict[tuple[MessageQueue, int], int]]] = []
        for label, offsets in positions:
            for topic in {queue.topic for queue in offsets} & topics.keys():
                own = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
                wanted = topics[topic] | own.keys()
                if wanted - bounds.keys():
                    away.add((label, topic))
                else:
                    unread_by.append(((label, topic), unread(own, {queue: bounds[queue] for queue in wanted})))
        if away:
            self.errors["broker_away"] += 1
        looked = self._look_at(brokers, {place: count for _, places in unread_by for place, count in places.items()})
        now_ms = self._now_s() * 1000
        found: dict[Key, TopicLag] = {}
        for key, places in unread_by:
            if key not in away:
                lag = lag_of(places, looked, now_ms)
                found[key] = merged(found[key], lag) if key in found else lag
        return found

    def _topics(self, brokers: Brokers, positions: list[tuple[str, Offsets]]) -> dict[str, set[MessageQueue]]:
        """Return the queues of the topics now, those that a query reads and no route names too."""
        found: dict[str, set[MessageQueue]] = {}
        asked = 0
        for topic in sorted({queue.topic for _, offsets in positions for queue in offsets}):
            if self._stopped.is_set():
                break
            try:
                queues = set(brokers.queues([topic]))
            except RocketSparkError as e:
                self._wrong(e)
                if isinstance(e, TransportError):
                    break  # No NameServer answers: for the next topic none would either.
                continue
            if asked + len(queues) > QUEUES_MAX:
                # Others may be small.
                self.errors["too_many_queues"] += 1
                continue
            asked += len(queues)
            found[topic] = queues
        return found

    def _bounds(self, brokers: Brokers, topics: dict[str, set[MessageQueue]]) -> dict[MessageQueue, OffsetBounds]:
        try:
            return brokers.bounds([queue for queues in topics.values() for queue in sorted(queues)], if_there=True)
        except ServerError:
            # One that is refused takes no other with it.
            found: dict[MessageQueue, OffsetBounds] = {}
            for topic, queues in list(topics.items()):
                try:
                    found |= brokers.bounds(sorted(queues), if_there=True)
                except RocketSparkError as e:
                    self._wrong(e)
                    del topics[topic]
            return found

    def _look_at(
        self, brokers: Brokers, places: dict[tuple[MessageQueue, int], int]
    ) -> dict[tuple[MessageQueue, int], float | None]:
        """Return the store time of the messages at some places, None where the broker did not tell it; the largest
        backlogs' only, if they are many.
        """
        known = {place: self._stored[place] for place in places if place in self._stored}
        new = sorted(places.keys() - known.keys(), key=lambda place: (-places[place], place))[:LOOKS_MAX]
        found: dict[tuple[MessageQueue, int], float | None] = dict.fromkeys(new)
        left = new
        while left and not self._stopped.is_set():
            # Two queries may be at two places of one queue.
            turn = dict(reversed(left))
            try:
                answered = brokers.stored_ms(turn)
            except RocketSparkError as e:
                self._wrong(e)
                break
            found.update({(queue, turn[queue]): at_ms for queue, at_ms in answered.items()})
            left = [(queue, offset) for queue, offset in left if turn[queue] != offset]
        self._stored = known | {place: at for place, at in found.items() if at is not None and math.isfinite(at)}
        return found | known

    def _wrong(self, error: Exception) -> None:
        self.errors[reason_of(error)] += 1
        log.warning("the lag of queries is not known: %s", error)

    def _close(self) -> None:
        brokers, self._brokers = self._brokers, None
        try:
            if brokers is not None:
                brokers.close()
        except Exception as e:
            log.warning("connections of the lag's watch did not close: %s", e)


def unread(positions: Offsets, bounds: Mapping[MessageQueue, OffsetBounds]) -> dict[tuple[MessageQueue, int], int]:
    """Return how many messages of each queue a query has not read, by the queue and the offset of the first of them.

    `positions`: the query's offsets; a queue that is not among them will be read from its oldest message. `bounds`:
    what the queues hold.
    """
    found = {}
    for queue, held in bounds.items():
        begin = held.past_gap(max(positions.get(queue, held.oldest), held.oldest))
        if count := max(held.rows_before(held.next) - held.rows_before(begin), 0):
            found[queue, begin] = count
    return found


def lag_of(
    places: Mapping[tuple[MessageQueue, int], int],
    stored_ms: Mapping[tuple[MessageQueue, int], float | None],
    now_ms: float,
) -> TopicLag:
    """Return the lag of a query in a topic. `places`: the result of `unread`; `stored_ms`: the store times of the
    messages at some of these places, None where a broker did not tell; the lag in seconds is that of the oldest.
    """
    messages = sum(places.values())
    if not messages:
        return TopicLag(0, 0.0)
    looked = [stored_ms[place] for place in places if place in stored_ms]
    times = [at for at in looked if at is not None and math.isfinite(at)]
    if not times or any(at is None for at in looked):
        return TopicLag(messages, None)
    return TopicLag(messages, max(0.0, now_ms - min(times)) / 1000)


def merged(one: TopicLag, other: TopicLag) -> TopicLag:
    """Return the lag of two queries that share a label: the sum of messages, and the longer time."""
    known = None if one.seconds is None or other.seconds is None else max(one.seconds, other.seconds)
    return TopicLag(one.messages + other.messages, known)


def reason_of(error: Exception) -> str:
    """Return a word for the kind of an error, one of a few, so that it can be a label."""
    if isinstance(error, RouteNotFound):
        return "no_topic"
    if isinstance(error, TransportError):
        return "no_answer"
    if isinstance(error, ServerError):
        return "refused"
    return "other"
