"""Statistics of a broker: counters and their windows of a minute, an hour and a day.

Rule: sending pays nothing per message: the store is asked now and then for its new messages, pulls count per reply.
Names, keys and windows: BrokerStatsManager and StatsItem, 5.x.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark.broker import topic_names
from rocketspark.broker.statistics.histograms import SIZE_BOUNDS
from rocketspark.model.histogram import Histogram
from rocketspark.protocol.light_queues import topic_and_group

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
DLQ_PUT_NUMS = "DLQ_PUT_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"

MINUTE_EVERY_MS = 10_000
HOUR_EVERY_MS = 600_000
DAY_EVERY_MS = 3_600_000
# Snapshots kept per window: one more than its steps.
MINUTE_COUNT, HOUR_COUNT, DAY_COUNT = 7, 7, 25
TICKS_MAX = 601
# Counters looked at in one step: some 2 ms.
STEP_COUNT = 2000

# Upper bounds in ms of RocketMQ's table of put times; the last row is what takes longer.
PUT_TIME_BOUNDS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
PUT_TIME_NAMES = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
PUT_TIMES_KEPT = 4096


# (time, how often counted, sum) so far.
_Snapshot = tuple[int, int, int]


class Window(NamedTuple):
    """A counter in one window of time: the sum, the sum per second, and the sum per time it was counted."""

    sum: int
    tps: float
    avgpt: float


class StatsItem:
    """One counter, e.g. TOPIC_PUT_NUMS of a topic. `value`: the sum in all; `times`: how often something was added."""

    __slots__ = ("_day", "_hour", "_minute", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        # Lists: an empty deque takes 624 bytes, and there are tens of thousands of counters.
        self._minute: list[_Snapshot] = []
        self._hour: list[_Snapshot] = []
        self._day: list[_Snapshot] = []

    def add(self, value: int, times: int = 1) -> None:
        """Add to the sum `value`, and to the number of times."""
        self.value += value
        self.times += times

    def snap_minute(self, now_ms: int) -> None:
        """Take a snapshot for the window of a minute; called every 10 s."""
        self._snap(self._minute, now_ms, MINUTE_EVERY_MS, MINUTE_COUNT)

    def snap_hour(self, now_ms: int) -> None:
        """Take a snapshot for the window of an hour; called every 10 minutes."""
        self._snap(self._hour, now_ms, HOUR_EVERY_MS, HOUR_COUNT)

    def snap_day(self, now_ms: int) -> None:
        """Take a snapshot for the window of a day; called every hour."""
        self._snap(self._day, now_ms, DAY_EVERY_MS, DAY_COUNT)

    def _snap(self, window: list[_Snapshot], now_ms: int, every_ms: int, kept: int) -> None:
        if not window:
            # The first snapshot measures against nothing one step ago (rule: StatsItem, 5.x).
            window.append((now_ms - every_ms, 0, 0))
        window.append((now_ms, self.times, self.value))
        if len(window) > kept:
            del window[0]

    def minute(self) -> Window:
        """Return the last minute, in steps of 10 s."""
        return _window(self._minute)

    def hour(self) -> Window:
        """Return the last hour, in steps of 10 minutes."""
        return _window(self._hour)

    def day(self) -> Window:
        """Return the last day, in steps of an hour."""
        return _window(self._day)


def _window(window: list[_Snapshot]) -> Window:
    if not window:
        return Window(0, 0.0, 0.0)
    (first_ms, first_times, first), (last_ms, last_times, last) = window[0], window[-1]
    total, times, span_ms = last - first, last_times - first_times, last_ms - first_ms
    # A clock that was set back gives no rate, rather than a negative one.
    return Window(total, total * 1000 / span_ms if span_ms > 0 else 0.0, total / times if times > 0 else 0.0)


class TrafficStats(msgspec.Struct):
    """How many messages and bytes went one way, e.g. into a topic."""

    messages: int = 0
    bytes: int = 0
    # Sizes of the messages, where they are counted one by one.
    sizes: Histogram | None = None

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size


class PullStats(msgspec.Struct):
    """Totals of all pulls of the broker."""

    found: int = 0
    missed: int = 0
    messages: int = 0
    longest_ms: int = 0


class _Pulls:
    """The pulls of a group from one queue that are not added to the counters yet."""

    __slots__ = ("flow", "latency", "messages", "nums", "plain", "size", "sizes", "times", "took_ms")

    def __init__(
        self, nums: StatsItem, sizes: StatsItem, latency: StatsItem, flow: TrafficStats, *, plain: bool
    ) -> None:
        self.nums = nums
        self.sizes = sizes
        self.latency = latency
        self.flow = flow
        self.plain = plain
        self.times = self.messages = self.size = self.took_ms = 0


class _Tick(NamedTuple):
    now_ms: int
    stored: int
    found: int
    missed: int
    messages: int


class Stats:
    """All counters of one broker.

    `take_stored`: returns (topic, messages, bytes) stored since its last call; `tick` must be called each second.
    `light_apart`: pulls of light queues are counted by queue, and not all together (rule: LmqBrokerStatsManager).
    """

    def __init__(
        self,
        cluster: str,
        take_stored: Callable[[], Iterable[tuple[str, int, int]]],
        now_ms: int,
        *,
        light_apart: bool = False,
    ) -> None:
        self._take_stored = take_stored
        self._light_apart = light_apart
        self._items: dict[tuple[str, str], StatsItem] = {}
        self._next_minute = self._next_hour = self._next_day = now_ms
        self._ticks: deque[_Tick] = deque(maxlen=TICKS_MAX)
        self._today = _day_of(now_ms)
        self.started_ms = now_ms
        self.stored = TrafficStats()
        self.reads = PullStats()
        self.put_failures = 0
        # Totals without system topics, as they were at the start of today and of yesterday.
        self.put_mornings = [0, 0]
        self.get_mornings = [0, 0]
        self._put_plain = 0
        self._get_plain = 0
        # By topic: what entered in other ways than by a plain send, for the metrics.
        self.by_topic: dict[str, TrafficStats] = {}
        self.parked: dict[str, TrafficStats] = {}
        self.delivered: dict[str, TrafficStats] = {}
        self.prepared: dict[str, TrafficStats] = {}
        self.committed: dict[str, TrafficStats] = {}
        self.rolled_back: dict[str, int] = {}
        self.finished: dict[str, Histogram] = {}
        self.read: dict[tuple[str, str], TrafficStats] = {}
        # And by whether it came from a retry topic.
        self.popped: dict[tuple[str, str, bool], TrafficStats] = {}
        self.dead: dict[tuple[str, str], int] = {}
        # By topic, group, queue: pulls since the last `collect`; and those in which there were any.
        self._pulls: dict[tuple[str, str, int], _Pulls] = {}
        self._fresh_pulls: list[_Pulls] = []
        # Stored messages that are in no counter yet: by queue, and by topic.
        self._fresh_rows: list[tuple[str, int, int]] = []
        self._fresh_puts: dict[str, TrafficStats] = {}
        self._batched: dict[str, int] = {}
        self.put_times = [0] * len(PUT_TIME_NAMES)
        self.put_longest_ms = 0
        self._put_ms: deque[float] = deque(maxlen=PUT_TIMES_KEPT)
        self.put_was_timed: Callable[[float], None] = lambda took_ms: None
        self.topic_was_forgotten: Callable[[str], None] = lambda topic: None
        self._broker_put = self._item(BROKER_PUT_NUMS, cluster)
        self._broker_get = self._item(BROKER_GET_NUMS, cluster)

    # -- counting --------------------------------------------------------------------------------------------------

    def pulled(
        self,
        group: str,
        topic: str,
        queue_id: int,
        messages: int,
        size: int,
        took_ms: float,
        popped_of: str | None = None,
    ) -> None:
        """Count a pull that found messages; `size`: their bytes. It costs 0.2 us a reply: `collect` does the rest.
        `popped_of`: they were popped of this topic, in whose queue, or whose retry topic's, they are.
        """
        # Numbers below 0 are those of pops.
        key = (topic, group, queue_id if popped_of is None else ~queue_id)
        counted = self._pulls.get(key)
        if counted is None:
            counted = self._pulls[key] = self._counters_of(topic, group, queue_id, popped_of)
        if not counted.times:
            self._fresh_pulls.append(counted)
        counted.times += 1
        counted.messages += messages
        counted.size += size
        if took_ms >= 1:
            counted.took_ms += int(took_ms)
            self.reads.longest_ms = max(self.reads.longest_ms, int(took_ms))

    def _counters_of(self, topic: str, group: str, queue_id: int, popped_of: str | None) -> _Pulls:
        text = self._text(topic, group)
        flow = (
            self.read.setdefault((topic, group), TrafficStats())
            if popped_of is None
            else self.popped.setdefault((popped_of, group, topic != popped_of), TrafficStats())
        )
        return _Pulls(
            self._item(GROUP_GET_NUMS, text),
            self._item(GROUP_GET_SIZE, text),
            self._item(GROUP_GET_LATENCY, f"{queue_id}@{text}"),
            flow,
            plain=not topic_names.is_system_topic(topic),
        )

    def _text(self, topic: str, group: str) -> str:
        """Return the key of the counters of a topic and a group."""
        if not self._light_apart:
            prefix = topic_names.LIGHT_PREFIX
            topic, group = (prefix if name.startswith(prefix) else name for name in (topic, group))
        return f"{topic}@{group}"

    def missed(self) -> None:
        """Count a pull that found nothing."""
        self.reads.missed += 1

    def batched(self, topic: str, messages: int) -> None:
        """Count a batch that came in one send: all of its messages together count as one send."""
        self._batched[topic] = self._batched.get(topic, 0) + messages - 1

    def sent_back(self, group: str, topic: str, *, dead: bool) -> None:
        """Count a message of `topic` that a consumer sent back; `dead`: it became a dead letter."""
        self._item(SNDBCK_PUT_NUMS, self._text(topic, group)).add(1)
        if dead:
            self._item(DLQ_PUT_NUMS, f"{topic}@{group}").add(1)
            self.dead[topic, group] = self.dead.get((topic, group), 0) + 1

    def put_took(self, took_ms: float) -> None:
        """Count the time of a measured put."""
        self._put_ms.append(took_ms)
        self.put_was_timed(took_ms)
        whole = int(took_ms)
        self.put_longest_ms = max(self.put_longest_ms, whole)
        row = bisect_right(PUT_TIME_BOUNDS_MS, whole) if whole > 0 else 0
        self.put_times[row] += 1

    def put_percentile_ms(self, share: float) -> float:
        """Return the time in ms that `share` of the latest measured puts took at most; 0 without any."""
        if not self._put_ms:
            return 0.0
        ordered = sorted(self._put_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Count the stored and pulled messages, and take the snapshots that are due. `now_ms`: the time."""
        for _ in self.tick_steps(now_ms):
            pass

    def tick_steps(self, now_ms: int) -> Iterator[None]:
        """Do what `tick` does, yielding after each few ms, so that other requests go on."""
        yield from self._collect_steps()
        today = _day_of(now_ms)
        if today != self._today:
            self._today = today
            self.put_mornings = [self._put_plain, self.put_mornings[0]]
            self.get_mornings = [self._get_plain, self.get_mornings[0]]
        r = self.reads
        self._ticks.append(_Tick(now_ms, self.stored.messages, r.found, r.missed, r.messages))
        # Of a clock that was set back the next snapshots are an interval away, not hours.
        self._next_minute = min(self._next_minute, now_ms + MINUTE_EVERY_MS)
        self._next_hour = min(self._next_hour, now_ms + HOUR_EVERY_MS)
        self._next_day = min(self._next_day, now_ms + DAY_EVERY_MS)
        if now_ms >= self._next_minute:
            self._next_minute = now_ms + MINUTE_EVERY_MS
            yield from self._snap(lambda item: item.snap_minute(now_ms))
        if now_ms >= self._next_hour:
            self._next_hour = now_ms + HOUR_EVERY_MS
            yield from self._snap(lambda item: item.snap_hour(now_ms))
        if now_ms >= self._next_day:
            self._next_day = now_ms + DAY_EVERY_MS
            yield from self._snap(lambda item: item.snap_day(now_ms))

    def _snap(self, snap: Callable[[StatsItem], None]) -> Iterator[None]:
        for number, item in enumerate(list(self._items.values()), 1):
            snap(item)
            if number % STEP_COUNT == 0:
                yield

    def collect(self) -> None:
        """Count the messages stored and pulled since the last call."""
        for _ in self._collect_steps():
            pass

    def _collect_steps(self) -> Iterator[None]:
        self._fresh_rows += self._take_stored()
        yield
        yield from self._put_away()

    def _put_away(self) -> Iterator[None]:
        """Add each collected sum to its counters; a call that comes while another waits between steps finishes both."""
        done = 0
        while self._fresh_rows:
            topic, messages, size = self._fresh_rows.pop()
            flow = self._fresh_puts.get(topic)
            if flow is None:
                flow = self._fresh_puts[topic] = TrafficStats()
            flow.add(messages, size)
            done += 1
            if done % STEP_COUNT == 0:
                yield
        while self._fresh_puts:
            self._put_away_stored(*self._fresh_puts.popitem())
            done += 1
            if done % STEP_COUNT == 0:
                yield
        while self._fresh_pulls:
            self._put_away_pulls(self._fresh_pulls.pop())
            done += 1
            if done % STEP_COUNT == 0:
                yield

    def _put_away_stored(self, topic: str, flow: TrafficStats) -> None:
        times = max(1, flow.messages - self._batched.pop(topic, 0))
        self._item(TOPIC_PUT_NUMS, topic).add(flow.messages, times)
        self._item(TOPIC_PUT_SIZE, topic).add(flow.bytes, times)
        self._broker_put.add(flow.messages, times)
        self.by_topic.setdefault(topic, TrafficStats()).add(flow.messages, flow.bytes)
        self.stored.add(flow.messages, flow.bytes)
        # Nobody sent the dead letters (rule: AbstractSendMessageProcessor, 5.x).
        if not topic_names.is_system_topic(topic) and not topic.startswith(topic_names.DLQ_PREFIX):
            self._put_plain += flow.messages

    def _put_away_pulls(self, pulls: _Pulls) -> None:
        pulls.nums.add(pulls.messages, pulls.times)
        pulls.sizes.add(pulls.size, pulls.times)
        pulls.latency.add(pulls.took_ms, pulls.times)
        pulls.flow.add(pulls.messages, pulls.size)
        self.reads.found += pulls.times
        self.reads.messages += pulls.messages
        self._broker_get.add(pulls.messages, pulls.times)
        if pulls.plain:
            self._get_plain += pulls.messages
        pulls.times = pulls.messages = pulls.size = pulls.took_ms = 0

    # -- asking ----------------------------------------------------------------------------------------------------

    def item(self, name: str, key: str) -> StatsItem | None:
        """Return a counter by RocketMQ's names, None if nothing was ever counted under them."""
        return self._items.get((name, key))

    def consume_tps(self, group: str, topic: str) -> float:
        """Return messages per second that a group took from a topic in the last minute."""
        item = self._items.get((GROUP_GET_NUMS, self._text(topic, group)))
        return item.minute().tps if item is not None else 0.0

    def put_tps(self, topic: str) -> float:
        """Return messages per second that were stored in a topic in the last minute."""
        item = self._items.get((TOPIC_PUT_NUMS, topic))
        return item.minute().tps if item is not None else 0.0

    def put_today(self) -> int:
        """Return messages stored since the start, system topics left out."""
        return self._put_plain

    def get_today(self) -> int:
        """Return messages given to consumers since the start, system topics left out."""
        return self._get_plain

    def rates(self, pick: Callable[[_Tick], int]) -> list[float]:
        """Return a total's rate per second over the last 10, 60 and 600 s, as many of them as there are ticks for.

        `pick`: takes the total from a tick.
        """
        found = []
        for seconds in (10, 60, 600):
            if len(self._ticks) > seconds:
                first, last = self._ticks[-1 - seconds], self._ticks[-1]
                span_ms = last.now_ms - first.now_ms
                found.append((pick(last) - pick(first)) * 1000 / span_ms if span_ms > 0 else 0.0)
        return found

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a deleted topic."""
        for _ in self._put_away():
            pass
        # A look for the text first: to take all keys apart holds the loop, as there are tens of thousands.
        self._items = {k: v for k, v in self._items.items() if topic not in k[1] or _topic_of(*k) != topic}
        # Pops of its retry topics are counted with it.
        gone = {id(flow) for key, flow in self.popped.items() if key[0] == topic}
        self.popped = {k: v for k, v in self.popped.items() if k[0] != topic}
        self._pulls = {k: v for k, v in self._pulls.items() if k[0] != topic and id(v.flow) not in gone}
        self.read = {k: v for k, v in self.read.items() if k[0] != topic}
        self.dead = {k: v for k, v in self.dead.items() if k[0] != topic}
        for flows in (self.by_topic, self.parked, self.delivered, self.prepared, self.committed):
            flows.pop(topic, None)
        self.rolled_back.pop(topic, None)
        self.finished.pop(topic, None)
        self.topic_was_forgotten(topic)

    def forget_group(self, group: str) -> None:
        """Remove the counters of a deleted group (rule: BrokerStatsManager.onGroupDeleted, 5.x)."""
        for _ in self._put_away():
            pass
        self._items = {k: v for k, v in self._items.items() if not k[1].endswith(group) or _group_of(*k) != group}
        self._pulls = {k: v for k, v in self._pulls.items() if k[1] != group}
        self.read = {k: v for k, v in self.read.items() if k[1] != group}
        self.popped = {k: v for k, v in self.popped.items() if k[1] != group}
        self.dead = {k: v for k, v in self.dead.items() if k[1] != group}

    def _item(self, name: str, key: str) -> StatsItem:
        item = self._items.get((name, key))
        if item is None:
            item = self._items[name, key] = StatsItem()
        return item


def _topic_of(name: str, key: str) -> str | None:
    """Return the topic in a counter's key; None for one of the whole broker."""
    if name.startswith("BROKER_"):
        return None
    if name.startswith("TOPIC_"):
        return key
    return topic_and_group(key.partition("@")[2] if name == GROUP_GET_LATENCY else key)[0]


def _group_of(name: str, key: str) -> str | None:
    """Return the group in a counter's key; None for one of no group."""
    if name.startswith(("BROKER_", "TOPIC_")):
        return None
    return topic_and_group(key.partition("@")[2] if name == GROUP_GET_LATENCY else key)[1]


def _day_of(now_ms: int) -> int:
    return datetime.fromtimestamp(now_ms / 1000).toordinal()


def count(table: dict[str, TrafficStats], topic: str, size: int) -> None:
    """Add one message of `size` bytes to a topic's row in a table of traffic."""
    flow = table.get(topic)
    if flow is None:
        flow = table[topic] = TrafficStats()
    flow.messages += 1
    flow.bytes += size
    if flow.sizes is None:
        flow.sizes = Histogram(SIZE_BOUNDS)
    flow.sizes.add(size)


def count_all(table: dict[str, TrafficStats], topic: str, sizes: NDArray[np.int64]) -> None:
    """Add messages of these sizes, in bytes, to a topic's row in a table of traffic."""
    flow = table.get(topic)
    if flow is None:
        flow = table[topic] = TrafficStats()
    flow.messages += len(sizes)
    flow.bytes += int(sizes.sum())
    if flow.sizes is None:
        flow.sizes = Histogram(SIZE_BOUNDS)
    flow.sizes.add_all(sizes)
