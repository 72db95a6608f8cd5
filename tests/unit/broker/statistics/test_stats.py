"""Counters and windows by a clock of the test's own; numbers of captured replies recomputed."""

from __future__ import annotations

from datetime import datetime

import pytest

from rocketspark.broker.statistics.stats import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    DLQ_PUT_NUMS,
    GROUP_GET_LATENCY,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    Stats,
    StatsItem,
    Window,
)

pytestmark = pytest.mark.shows("statistics: as mqadmin shows them")

NOON_MS = int(datetime(2026, 11, 20, 12).timestamp() * 1000)
SECOND = 1000
HOUR = 3_600_000


class Store:
    """What a store says was stored, told once."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int]] = []

    def take(self) -> list[tuple[str, int, int]]:
        taken, self.rows = self.rows, []
        return taken


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def stats(store: Store) -> Stats:
    return Stats("Cluster", store.take, NOON_MS)


def test_windows_of_captured_replies() -> None:
    """TOPIC_PUT_NUMS and GROUP_GET_NUMS as a 5.5.0 broker answered them."""
    put = StatsItem()
    put.snap_minute(0)
    for step in range(1, 7):
        if step == 3:
            put.add(1)
        put.snap_minute(step * 10_000 + (1 if step == 6 else 0))
    put_window = put.minute()
    # The snapshots at 0 and 60.001 s: the first of all was pushed out.
    assert put_window == Window(1, 0.01666638889351844, 1.0)
    assert put.hour() == put.day() == Window(0, 0.0, 0.0)
    got = StatsItem()
    got.add(3)
    got.add(4)
    got.snap_minute(50_000)
    assert got.minute() == Window(7, 0.7, 3.5)


def test_a_window_forgets_what_is_older() -> None:
    item = StatsItem()
    item.add(100)
    for step in range(8):
        item.snap_minute(step * 10_000)
    assert item.minute() == Window(0, 0.0, 0.0)
    assert item.value == 100


def test_a_clock_set_back_gives_no_negative_rate() -> None:
    item = StatsItem()
    item.snap_minute(100_000)
    item.add(5)
    item.snap_minute(50_000)
    assert item.minute() == Window(5, 0.0, 5.0)


def test_what_was_stored_is_counted_by_topic(stats: Stats, store: Store) -> None:
    store.rows = [("A", 2, 200), ("A", 1, 100), ("B", 5, 50)]
    stats.tick(NOON_MS)
    assert _minute(stats, TOPIC_PUT_NUMS, "A") == Window(3, 0.3, 1.0)
    assert _minute(stats, TOPIC_PUT_SIZE, "A") == Window(300, 30.0, 100.0)
    assert _minute(stats, TOPIC_PUT_NUMS, "B") == Window(5, 0.5, 1.0)
    assert _minute(stats, BROKER_PUT_NUMS, "Cluster") == Window(8, 0.8, 1.0)
    assert stats.item(TOPIC_PUT_NUMS, "C") is None
    assert (stats.stored.messages, stats.stored.bytes) == (8, 350)


def test_a_batch_counts_as_one_time(stats: Stats, store: Store) -> None:
    store.rows = [("A", 11, 1100)]
    stats.batched("A", 10)
    stats.tick(NOON_MS)
    assert _minute(stats, TOPIC_PUT_NUMS, "A") == Window(11, 1.1, 5.5)


def test_pulls_count_by_group(stats: Stats) -> None:
    stats.pulled("G", "A", 0, 30, 3000, 0.2)
    stats.pulled("G", "A", 1, 2, 200, 7.9)
    stats.pulled("H", "A", 0, 1, 100, 0.0)
    stats.missed()
    stats.tick(NOON_MS)
    assert _minute(stats, GROUP_GET_NUMS, "A@G") == Window(32, 3.2, 16.0)
    assert _minute(stats, GROUP_GET_SIZE, "A@G") == Window(3200, 320.0, 1600.0)
    assert _minute(stats, GROUP_GET_LATENCY, "1@A@G") == Window(7, 0.7, 7.0)
    assert _minute(stats, GROUP_GET_LATENCY, "0@A@G") == Window(0, 0.0, 0.0)
    assert _minute(stats, BROKER_GET_NUMS, "Cluster") == Window(33, 3.3, 11.0)
    assert stats.consume_tps("G", "A") == 3.2
    assert stats.consume_tps("G", "B") == 0.0
    assert (stats.reads.found, stats.reads.missed, stats.reads.messages, stats.reads.longest_ms) == (3, 1, 33, 7)


def test_pops_count_by_their_topic_and_whether_they_are_retries(stats: Stats) -> None:
    stats.pulled("G", "T", 0, 2, 20, 0)
    stats.pulled("G", "T", 0, 3, 30, 0, "T")
    stats.pulled("G", "%RETRY%G_T", 0, 1, 10, 0, "T")
    stats.collect()
    assert {key: (flow.messages, flow.bytes) for key, flow in stats.read.items()} == {("T", "G"): (2, 20)}
    popped = {("T", "G", False): (3, 30), ("T", "G", True): (1, 10)}
    assert {key: (flow.messages, flow.bytes) for key, flow in stats.popped.items()} == popped
    # A topic that is made anew begins anew, its retries too.
    stats.forget_topic("T")
    assert (stats.read, stats.popped) == ({}, {})
    stats.pulled("G", "%RETRY%G_T", 0, 1, 10, 0, "T")
    stats.collect()
    assert [flow.messages for flow in stats.popped.values()] == [1]


def test_a_tick_in_steps_counts_as_one_at_once(stats: Stats, store: Store) -> None:
    """10,000 topics; what happens between the steps is counted once too, then or with the next tick."""
    names = [f"t{n}" for n in range(10_000)]
    store.rows = [(name, 2, 20) for name in names] + [(name, 1, 10) for name in names]
    stats.batched("t7", 2)
    for name in names:
        stats.pulled("G", name, 0, 3, 30, 0)
    steps = stats.tick_steps(NOON_MS)
    for number, _ in enumerate(steps):
        stats.pulled("G", "t5", 0, 1, 1, 0)
        if number == 3:
            # Somebody asks meanwhile.
            store.rows = [("t5", 4, 40)]
            stats.collect()
            assert (stats.stored.messages, stats.stored.bytes) == (30_004, 300_040)
    assert number > 20
    store.rows = []
    stats.collect()
    stats.tick(NOON_MS + 10 * SECOND)
    for name in names:
        more = 4 if name == "t5" else 0
        assert stats.item(TOPIC_PUT_NUMS, name).value == 3 + more  # type: ignore[union-attr]
        more = number + 1 if name == "t5" else 0
        assert stats.item(GROUP_GET_NUMS, f"{name}@G").value == 3 + more  # type: ignore[union-attr]
    assert _minute(stats, TOPIC_PUT_NUMS, "t7").avgpt == 1.5
    assert stats.reads.found == 10_000 + number + 1
    assert stats.item(BROKER_GET_NUMS, "Cluster").value == 30_000 + number + 1  # type: ignore[union-attr]
    assert stats.get_today() == 30_000 + number + 1
    assert stats.put_today() == 30_004


def test_sent_back_and_dead(stats: Stats) -> None:
    stats.sent_back("G", "A", dead=False)
    stats.sent_back("G", "A", dead=True)
    stats.tick(NOON_MS)
    assert _minute(stats, SNDBCK_PUT_NUMS, "A@G").sum == 2
    assert _minute(stats, DLQ_PUT_NUMS, "A@G").sum == 1
    assert stats.dead == {("A", "G"): 1}


def test_snapshots_come_every_10_s_10_minutes_and_hour(stats: Stats, store: Store) -> None:
    """A counter that is there from the start; ticks come each second."""
    for second in range(7201):
        if second % 10 == 0:
            store.rows = [("A", 1, 10)]
        stats.tick(NOON_MS + second * SECOND)
    item = stats.item(TOPIC_PUT_NUMS, "A")
    assert item is not None
    assert item.minute() == Window(6, 0.1, 1.0)
    assert item.hour() == Window(360, 0.1, 1.0)
    # From an hour before the start, as the first snapshot measures.
    assert item.day() == Window(721, 721 * 1000 / (3 * HOUR), 1.0)


def test_rate_of_a_topic(stats: Stats, store: Store) -> None:
    assert stats.put_tps("A") == 0.0
    store.rows = [("A", 30, 1)]
    stats.tick(NOON_MS)
    assert stats.put_tps("A") == 3.0


def test_rates_of_the_whole_broker(stats: Stats, store: Store) -> None:
    stats.tick(NOON_MS)
    assert stats.rates(lambda t: t.stored) == []
    for second in range(1, 61):
        store.rows = [("A", second, 1)]
        stats.pulled("G", "A", 0, 2, 2, 0)
        stats.tick(NOON_MS + second * SECOND)
    assert stats.rates(lambda t: t.stored) == [sum(range(51, 61)) / 10, sum(range(61)) / 60]
    assert stats.rates(lambda t: t.found) == [1.0, 1.0]
    assert stats.rates(lambda t: t.messages) == [2.0, 2.0]


def test_mornings_move_at_midnight_without_system_topics_and_dead_letters(stats: Stats, store: Store) -> None:
    store.rows = [("A", 4, 1), ("SCHEDULE_TOPIC_XXXX", 9, 1), ("%DLQ%G", 2, 1)]
    stats.pulled("G", "A", 0, 3, 1, 0)
    stats.pulled("G", "BenchmarkTest", 0, 8, 1, 0)
    stats.tick(NOON_MS + HOUR)
    assert (stats.put_today(), stats.get_today()) == (4, 3)
    assert (stats.put_mornings, stats.get_mornings) == ([0, 0], [0, 0])
    stats.tick(NOON_MS + 12 * HOUR)
    assert (stats.put_mornings, stats.get_mornings) == ([4, 0], [3, 0])
    store.rows = [("A", 1, 1)]
    stats.tick(NOON_MS + 36 * HOUR)
    assert (stats.put_mornings, stats.get_mornings) == ([5, 4], [3, 3])
    assert stats.put_today() == 5


def test_timed_puts_fall_into_rocketmqs_rows(stats: Stats) -> None:
    for took_ms in (0.4, 0.9, 1.0, 10.5, 11, 51, 20_000):
        stats.put_took(took_ms)
    assert stats.put_times == [2, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert stats.put_longest_ms == 20_000
    assert stats.put_percentile_ms(0.5) == 10.5
    assert stats.put_percentile_ms(0.99) == 20_000


def test_a_deleted_topic_takes_its_counters_along(stats: Stats, store: Store) -> None:
    for topic in ("A", "AB"):
        store.rows.append((topic, 1, 1))
        stats.pulled("G", topic, 0, 1, 1, 0)
        stats.sent_back("G", topic, dead=True)
    stats.tick(NOON_MS)
    stats.forget_topic("A")
    keys = ((TOPIC_PUT_NUMS, ""), (GROUP_GET_NUMS, "@G"), (SNDBCK_PUT_NUMS, "@G"))
    assert [stats.item(name, "A" + rest) for name, rest in keys] == [None, None, None]
    assert stats.item(GROUP_GET_LATENCY, "0@A@G") is None
    assert all(stats.item(name, "AB" + rest) for name, rest in keys)
    assert stats.item(GROUP_GET_LATENCY, "0@AB@G")
    assert list(stats.by_topic) == ["AB"]
    assert list(stats.read) == [("AB", "G")]
    # It counts anew, and the broker's own sums go on.
    stats.pulled("G", "A", 0, 5, 1, 0)
    stats.tick(NOON_MS + 10 * SECOND)
    assert _minute(stats, GROUP_GET_NUMS, "A@G").sum == 5
    assert stats.item(BROKER_GET_NUMS, "Cluster").value == 7  # type: ignore[union-attr]


def test_a_topic_takes_along_what_waits_to_be_counted(stats: Stats, store: Store) -> None:
    """The deletion comes while a tick is between two of its steps."""
    store.rows.append(("A", 1, 1))
    steps = stats.tick_steps(NOON_MS)
    next(steps)
    stats.forget_topic("A")
    for _ in steps:
        pass
    assert (stats.item(TOPIC_PUT_NUMS, "A"), stats.by_topic) == (None, {})
    assert stats.item(BROKER_PUT_NUMS, "Cluster").value == 1  # type: ignore[union-attr]


def test_rates_go_on_after_the_clock_was_set_back(stats: Stats, store: Store) -> None:
    for second in range(120):
        store.rows.append(("A", 10, 10))
        stats.tick(NOON_MS + second * SECOND)
    assert stats.put_tps("A") == 10
    for second in range(90):
        stats.tick(NOON_MS - HOUR + second * SECOND)
    assert stats.put_tps("A") == 0
    for second in range(90, 180):
        store.rows.append(("A", 5, 5))
        stats.tick(NOON_MS - HOUR + second * SECOND)
    assert stats.put_tps("A") == 5


def test_a_deleted_group_takes_its_counters_along(stats: Stats) -> None:
    for group in ("G", "GB"):
        stats.pulled(group, "A", 0, 1, 1, 0)
        stats.pulled(group, "A", 0, 1, 1, 0, "A")
        stats.sent_back(group, "A", dead=True)
    stats.forget_group("G")
    names = ((GROUP_GET_NUMS, "A@"), (GROUP_GET_LATENCY, "0@A@"), (SNDBCK_PUT_NUMS, "A@"), (DLQ_PUT_NUMS, "A@"))
    assert [stats.item(name, f"{of}G") for name, of in names] == [None] * 4
    assert all(stats.item(name, f"{of}GB") for name, of in names)
    assert [[*stats.read], [*stats.popped], [*stats.dead]] == [[("A", "GB")], [("A", "GB", False)], [("A", "GB")]]
    # What it reads later counts anew, and the broker's own sum goes on.
    stats.pulled("G", "A", 0, 5, 1, 0)
    stats.tick(NOON_MS)
    assert _minute(stats, GROUP_GET_NUMS, "A@G").sum == 5
    assert stats.item(BROKER_GET_NUMS, "Cluster").value == 9  # type: ignore[union-attr]


def _minute(stats: Stats, name: str, key: str) -> Window:
    item = stats.item(name, key)
    assert item is not None, (name, key)
    return item.minute()


@pytest.mark.shows("enableLmqStats: pulls of light queues are counted all together, or by queue")
@pytest.mark.parametrize("apart", [False, True])
def test_light_queues_are_counted_together_unless_they_are_to_be_apart(apart: bool) -> None:
    stats = Stats("Cluster", Store().take, NOON_MS, light_apart=apart)
    for number in range(3):
        stats.pulled("readers", f"%LMQ%{number}", 0, 2, 100, 5.0)
    stats.pulled("%LMQ%readers", "plain", 0, 2, 100, 5.0)
    stats.sent_back("readers", "%LMQ%1", dead=False)
    stats.collect()

    def total(name: str, key: str) -> int | None:
        item = stats.item(name, key)
        return None if item is None else item.value

    together = [("GROUP_GET_NUMS", "%LMQ%@readers", 6), ("SNDBCK_PUT_NUMS", "%LMQ%@readers", 1)]
    together += [("GROUP_GET_SIZE", "plain@%LMQ%", 100), ("GROUP_GET_LATENCY", "0@%LMQ%@readers", 15)]
    alone = [("GROUP_GET_NUMS", "%LMQ%1@readers", 2), ("SNDBCK_PUT_NUMS", "%LMQ%1@readers", 1)]
    alone += [("GROUP_GET_SIZE", "plain@%LMQ%readers", 100), ("GROUP_GET_LATENCY", "0@%LMQ%1@readers", 5)]
    assert [(name, key, total(name, key)) for name, key, _ in (alone if apart else together)] == (
        alone if apart else together
    )
    assert [total(name, key) for name, key, _ in (together if apart else alone)] == [None] * 4
