"""The lag asked of brokers, with brokers that answer as a test says."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from rocketspark.errors import NotSent, RouteNotFound, ServerError
from rocketspark.model import MessageQueue
from rocketspark.spark.metrics import lag_watch
from rocketspark.spark.metrics.lag_watch import LagWatch, TopicLag
from rocketspark.tables.queue_bounds import OffsetBounds

Q = [MessageQueue("t", "a", n) for n in range(3)]
NOW_S = 1000.0


class Brokers:
    """Queues that hold messages whose store time is their offset in seconds."""

    def __init__(self, bounds: dict[MessageQueue, OffsetBounds]) -> None:
        self.held = bounds
        self.away: set[MessageQueue] = set()
        self.wrong: dict[str, Exception] = {}
        self.looks: list[dict[MessageQueue, int]] = []
        self.closed = 0

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        (topic,) = topics
        if topic in self.wrong:
            raise self.wrong[topic]
        return [queue for queue in self.held if queue.topic == topic]

    def bounds(self, queues: Iterable[MessageQueue], *, if_there: bool) -> dict[MessageQueue, OffsetBounds]:
        wanted = set(queues)
        if "bounds" in self.wrong and any(queue.topic == "refused" for queue in wanted):
            raise self.wrong["bounds"]
        return {queue: found for queue, found in self.held.items() if queue in wanted - self.away}

    def stored_ms(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        self.looks.append(dict(offsets))
        if "stored" in self.wrong:
            raise self.wrong["stored"]
        return {queue: offset * 1000.0 for queue, offset in offsets.items()}

    def close(self) -> None:
        self.closed += 1


def watch_of(brokers: Any, **more: Any) -> LagWatch:
    return LagWatch(list, lambda: brokers, interval_s=1, now_s=lambda: NOW_S, **more)


def bounds(*pairs: tuple[int, int]) -> dict[MessageQueue, OffsetBounds]:
    return {queue: OffsetBounds(*pair) for queue, pair in zip(Q, pairs, strict=False)}


def test_messages_and_the_age_of_the_oldest_that_is_there() -> None:
    brokers = Brokers(bounds((0, 100), (40, 50), (7, 9)))
    watch = watch_of(brokers)
    # Of queue 1 some expired; queue 2 is new to the query.
    watch.look([("q", {Q[0]: 90, Q[1]: 30})])
    assert watch.lags() == {("q", "t"): TopicLag(10 + 10 + 2, NOW_S - 7)}
    assert watch.asked_s() == {("q", "t"): NOW_S}
    assert brokers.looks == [{Q[0]: 90, Q[1]: 40, Q[2]: 7}]
    # What was looked at is not looked at again.
    watch.look([("q", {Q[0]: 90, Q[1]: 50, Q[2]: 9}), ("other", {Q[0]: 95, Q[1]: 50, Q[2]: 9})])
    assert brokers.looks[1:] == [{Q[0]: 95}]
    assert watch.lags() == {("q", "t"): TopicLag(10, NOW_S - 90), ("other", "t"): TopicLag(5, NOW_S - 95)}
    watch.look([("q", dict(zip(Q, (100, 50, 9), strict=True)))])
    assert watch.lags() == {("q", "t"): TopicLag(0, 0.0)}


def test_two_queries_at_two_places_of_a_queue_and_two_under_one_label() -> None:
    brokers = Brokers(bounds((0, 100)))
    watch = watch_of(brokers)
    watch.look([("a", {Q[0]: 10}), ("b", {Q[0]: 20}), ("b", {Q[0]: 20})])
    assert watch.lags() == {("a", "t"): TopicLag(90, NOW_S - 10), ("b", "t"): TopicLag(160, NOW_S - 20)}
    assert sorted(look[Q[0]] for look in brokers.looks) == [10, 20]


def test_a_clock_before_the_brokers_is_no_negative_age() -> None:
    watch = watch_of(Brokers(bounds((0, 5000))))
    watch.look([("q", {Q[0]: 4000})])
    assert watch.lags() == {("q", "t"): TopicLag(1000, 0.0)}


def test_a_queue_that_does_not_answer_leaves_the_topic_out() -> None:
    brokers = Brokers(bounds((0, 10), (0, 10)))
    watch = watch_of(brokers)
    watch.look([("q", {Q[0]: 1, Q[1]: 1})])
    brokers.away = {Q[1]}
    watch.look([("q", {Q[0]: 1, Q[1]: 1})])
    assert watch.lags() == {}
    assert watch.errors == {"broker_away": 1}
    assert watch.asked_s() == {("q", "t"): NOW_S}, "when it was known last stays"
    # A queue that the query reads and no route names: its broker is away.
    brokers.away = set()
    watch.look([("q", {Q[0]: 1, MessageQueue("t", "gone", 0): 5})])
    assert watch.lags() == {}
    assert watch.errors == {"broker_away": 2}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RouteNotFound("t"), "no_topic"),
        (NotSent("nobody"), "no_answer"),
        (ServerError(16, "no permission"), "refused"),
        (RuntimeError("what"), "other"),
    ],
)
def test_errors_are_counted_by_reason_and_the_next_look_asks_again(error: Exception, reason: str) -> None:
    brokers = Brokers(bounds((0, 10)))
    brokers.wrong["t"] = error
    watch = watch_of(brokers)
    watch.look([("q", {Q[0]: 1})])
    assert (watch.lags(), watch.errors) == ({}, {reason: 1})
    del brokers.wrong["t"]
    watch.look([("q", {Q[0]: 1})])
    assert watch.lags() == {("q", "t"): TopicLag(9, NOW_S - 1)}


def test_one_topic_that_is_refused_takes_no_other_with_it() -> None:
    other = MessageQueue("refused", "a", 0)
    brokers = Brokers({**bounds((0, 10)), other: OffsetBounds(0, 5)})
    brokers.wrong["bounds"] = ServerError(16, "no permission")
    watch = watch_of(brokers)
    watch.look([("q", {Q[0]: 1, other: 1})])
    assert watch.lags() == {("q", "t"): TopicLag(9, NOW_S - 1)}
    assert watch.errors == {"refused": 1}


def test_without_store_times_messages_are_known() -> None:
    brokers = Brokers(bounds((0, 10)))
    brokers.wrong["stored"] = ServerError(26, "no such group")
    watch = watch_of(brokers)
    watch.look([("q", {Q[0]: 1})])
    assert watch.lags() == {("q", "t"): TopicLag(9, None)}
    assert watch.errors == {"refused": 1}


def test_looks_and_queues_are_bounded_the_longest_backlogs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_watch, "LOOKS_MAX", 1)
    monkeypatch.setattr(lag_watch, "QUEUES_MAX", 3)
    brokers = Brokers({**bounds((0, 10), (0, 90), (0, 20)), MessageQueue("u", "a", 0): OffsetBounds(0, 5)})
    watch = watch_of(brokers)
    watch.look([("q", {**dict.fromkeys(Q, 5), MessageQueue("u", "a", 0): 0})])
    assert brokers.looks == [{Q[1]: 5}]
    assert watch.lags() == {("q", "t"): TopicLag(105, NOW_S - 5)}
    assert watch.errors == {"too_many_queues": 1}


@pytest.mark.shows(
    "mended: metrics of `dedupe` had neither messages nor lag: its offsets hold the time too; one topic of "
    "more than 4,096 queues hid the lag of all after it"
)
def test_a_topic_of_too_many_queues_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_watch, "QUEUES_MAX", 2)
    small = MessageQueue("u", "a", 0)
    watch = watch_of(Brokers({**bounds((0, 10), (0, 90), (0, 20)), small: OffsetBounds(0, 5)}))
    watch.look([("q", {**dict.fromkeys(Q, 5), small: 0})])
    assert list(watch.lags()) == [("q", "u")]
    assert watch.errors == {"too_many_queues": 1}


def test_figures_of_a_watch_that_hangs_get_stale() -> None:
    at = [0.0]
    watch = watch_of(Brokers(bounds((0, 10))), monotonic_s=lambda: at[0])
    watch.look([("q", {Q[0]: 1})])
    at[0] = lag_watch.STALE_S
    assert watch.lags()
    at[0] += 1
    assert watch.lags() == {}
    assert math.isfinite(at[0])


def test_it_asks_once_somebody_reads_and_stops_without_waiting_for_an_answer() -> None:
    asked, answer = threading.Event(), threading.Event()

    class Hangs(Brokers):
        def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
            asked.set()
            answer.wait(60)
            return []

    positions: list[Any] = []
    watch = LagWatch(lambda: positions, lambda: Hangs({}), interval_s=1)
    watch.start()
    assert not asked.is_set()
    positions.append(("q", {Q[0]: 1}))
    watch.notify()
    assert asked.wait(60)
    watch.stop()
    answer.set()
