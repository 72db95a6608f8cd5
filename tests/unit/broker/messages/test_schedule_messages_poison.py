"""Delay levels with what cannot be delivered among the rest, under clocks that jump and after power cuts."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.stand_ins import like
from tests.unit.broker.messages import test_schedule_messages as schedule_rig
from tests.unit.broker.messages.test_schedule_messages import BORN, LEVELS_MS, NOW, Rig
from tests.unit.broker.offline import quarantine_in

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.messages import put_message as put_message_module
from rocketspark.broker.messages import schedule_messages as delays_module
from rocketspark.broker.messages import unpark_message
from rocketspark.broker.messages.put_message import FixedFields, pairs_of
from rocketspark.broker.messages.send_rules import MessageSettings
from rocketspark.broker.statistics.stats import Stats
from rocketspark.errors import RecordError, ServerError, StoreFull
from rocketspark.protocol.message import properties, record_layout

pytestmark = pytest.mark.shows(
    "model tests: sends, push, ordered, pull and assigning consumers, rebalance, thread listeners, "
    "transactions of clients and of the broker, delays, timers"
)

CRC_AT = record_layout.AT["crc"]


class Broker(Rig):
    """A rig that delivers as the broker does, and whose records can rot."""

    def __init__(self, root: Path, now_ms: list[int]) -> None:
        super().__init__(root, now_ms)
        self.root = root
        self.deliver = unpark_message.delivery(self.put_message, Stats("C", self.store.take_stored, 0))  # type: ignore[method-assign]

    def position(self, level: int, offset: int) -> int:
        ((position, _, _),) = self.store.queue_units(topic_names.SCHEDULE_TOPIC, level - 1, offset, 1)
        return position

    def rot(self, position: int, at: int = 88) -> None:
        """One bit of a record flips; twice makes it good again."""
        self.store.log.mapped_files.get(0).map[position + at] ^= 1

    def aside(self) -> list[str]:
        return [entry.name for entry in self.delays._quarantine.entries()]

    def wait_ms(self, level: int) -> int | None:
        """Work, then: ms until the level has more to do."""
        self.delays._deliver = self.deliver
        while (wait := self.delays._deliver_due(level)) == 0:
            pass
        self.delays._deliver = None
        return wait


class Clock(list[int]):
    """[ms]; set by hand."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock([NOW])
    monkeypatch.setattr(put_message_module, "machine", like(machine, time=lambda: made[0] / 1000))
    monkeypatch.setattr(delays_module, "now_ms", lambda: made[0])
    return made


@pytest.mark.shows(
    "mended: a flipped unit of the timers', half messages' and delay levels' queues: an acknowledged message "
    "is set aside for good"
)
def test_a_flipped_bit_of_a_unit_sets_nothing_aside(tmp_path: Path, now: Clock) -> None:
    rig = Broker(tmp_path, now)
    for key in "ABCDE":
        rig.park(key, 1)
    right = rig.position(1, 1)
    rig.store.close()
    with open(tmp_path / "consumequeue" / topic_names.SCHEDULE_TOPIC / "0" / f"{0:020d}", "r+b") as queue:
        queue.seek(20)
        queue.write((right ^ 1).to_bytes(8, "big"))
    rig = Broker(tmp_path, now)
    now[0] += 5000
    assert rig.wait_ms(1) is None
    assert dict(rig.delivered()) == {f"{key} 0": 1 for key in "ABCDE"}
    assert rig.aside() == []
    # What was set aside for its unit is found where the unit says now.
    name = rig.delays._quarantine.add("delay", topic_names.SCHEDULE_TOPIC, 0, 1, right ^ 1, "x").name
    rig.delays._deliver = rig.deliver
    rig.delays._quarantine.retry(name)
    assert dict(rig.delivered()) == {f"{key} 0": 1 + (key == "B") for key in "ABCDE"}


@pytest.mark.shows(
    "mended: one rotten parked message: half no start, delay level stands still, timer wheel stands still",
)
@pytest.mark.parametrize(
    "at", [88, record_layout.AT["position"] + 6, 5, CRC_AT], ids=["body", "position", "magic", "crc"]
)
def test_a_rotten_message_is_set_aside_and_the_others_come(tmp_path: Path, now: Clock, at: int) -> None:
    rig = Broker(tmp_path, now)
    for key in ("A", "B", "C"):
        rig.park(key, 1)
    position = rig.position(1, 1)
    rig.rot(position, at)
    now[0] += 1000
    assert rig.wait_ms(1) is None
    assert rig.delivered() == Counter({"A 0": 1, "C 0": 1})
    assert rig.aside() == [f"delay-{position}"]
    (entry,) = rig.delays._quarantine.entries()
    assert (entry.topic, entry.queue_id, entry.queue_offset, entry.attempts) == (topic_names.SCHEDULE_TOPIC, 0, 1, 1)
    # What is set aside outlives the process: it is written before the level's progress is.
    rig.store.flush_log()
    rig.delays.save()
    assert [e.name for e in quarantine_in(tmp_path).entries()] == rig.aside()
    assert saved(tmp_path) == {"1": 3}
    # Once it is good again it is delivered, once.
    rig.delays._deliver = rig.deliver
    with pytest.raises(RecordError):
        rig.delays._quarantine.retry(f"delay-{position}")
    rig.rot(position, at)
    rig.delays._quarantine.retry(f"delay-{position}")
    assert rig.delivered() == Counter({"A 0": 1, "B 0": 1, "C 0": 1})
    assert rig.aside() == []
    rig.store.close()


@pytest.mark.shows("mended: SEND_REPLY leading to a dead level and dead retries (the delivery loop's half)")
@pytest.mark.parametrize(
    "pairs",
    [
        {"REAL_TOPIC": "T", "REAL_QID": "abc"},
        {"REAL_TOPIC": "T", "REAL_QID": "²"},
        {"REAL_TOPIC": "T", "REAL_QID": "9" * 5000},
        {"REAL_TOPIC": "T", "REAL_QID": "-1"},
        {"REAL_TOPIC": "T" * 256},
        {"REAL_TOPIC": "../T"},
        {"REAL_TOPIC": topic_names.HALF_TOPIC},
        {"REAL_TOPIC": topic_names.SCHEDULE_TOPIC},
        {},
    ],
    ids=lambda pairs: "".join(pairs.values())[:12] or "none",
)
def test_what_may_go_nowhere_is_set_aside(tmp_path: Path, now: Clock, pairs: dict[str, str]) -> None:
    """However it came into the level's queue."""
    rig = Broker(tmp_path, now)
    rig.park("A", 1)
    stored = properties.encode({"UNIQ_KEY": "X", "MARK": "m"} | pairs).encode()
    rig.put_message.accept(
        topic_names.SCHEDULE_TOPIC, 0, b"x", stored, pairs_of(stored), FixedFields(0, 0, NOW, BORN), delayed=False
    )
    rig.park("B", 1)
    now[0] += 1000
    assert rig.wait_ms(1) is None
    assert rig.delivered() == Counter({"A 0": 1, "B 0": 1})
    assert len(rig.aside()) == 1
    rig.store.close()


def test_a_full_disk_sets_nothing_aside(tmp_path: Path, now: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Broker(tmp_path, now)
    rig.park("A", 1)
    now[0] += 1000
    append = rig.put_message._append

    def full(*args: Any, **options: Any) -> Any:
        raise StoreFull("no room")

    monkeypatch.setattr(rig.put_message, "_append", full)
    for _ in range(3):
        with pytest.raises(ServerError, match="full"):
            rig.wait_ms(1)
    assert rig.aside() == []
    monkeypatch.setattr(rig.put_message, "_append", append)
    rig.wait_ms(1)
    assert rig.delivered() == Counter({"A 0": 1})
    rig.store.close()


@pytest.mark.shows("mended: maxMessageSize lowered blocks a delay level")
def test_a_lower_limit_of_bodies_holds_nothing_back(tmp_path: Path, now: Clock) -> None:
    rig = Broker(tmp_path, now)
    rig.park("A" * 3000, 1)
    rig.park("B", 1)
    rig.put_message.rules.configure(MessageSettings(1000, {"MARK": "m"}))
    rig.store.limit_bodies(1000)
    now[0] += 1000
    rig.wait_ms(1)
    assert rig.delivered() == Counter({"A" * 3000 + " 0": 1, "B 0": 1})
    with pytest.raises(ServerError, match="limit is 1000"):
        rig.park("C" * 3000, 1)
    rig.store.close()


@pytest.mark.shows(
    "mended: a clock that ran ahead holds back delay levels and retries; put forward, a due message waits out its timer"
)
def test_a_clock_that_was_ahead_once_holds_no_level_back(tmp_path: Path, now: Clock) -> None:
    rig = Broker(tmp_path, now)
    stored = properties.encode({"UNIQ_KEY": "X"}).encode()
    now[0] += 3_600_000
    rig.put_message.accept("other", 0, b"", stored, pairs_of(stored), FixedFields(0, 0, NOW, BORN))
    rig.park("ahead", 1)
    now[0] = NOW
    rig.park("A", 1)
    # That which was parked by the clock that was ahead waits no longer than its level's delay, and is not early.
    assert rig.wait_ms(1) == 1000
    now[0] += 999
    assert (rig.wait_ms(1), rig.delivered()) == (1, Counter())
    now[0] += 1
    assert rig.wait_ms(1) is None
    assert rig.delivered() == Counter({"ahead 0": 1, "A 0": 1})
    rig.store.close()
    # Over a start as well.
    rig = Broker(tmp_path, now)
    rig.park("B", 1)
    assert rig.wait_ms(1) == 1000
    now[0] += 1000
    assert rig.wait_ms(1) is None
    assert rig.delivered() == Counter({"ahead 0": 1, "A 0": 1, "B 0": 1})
    rig.store.close()


@pytest.mark.shows("delay levels that are gone")
def test_what_waits_in_a_level_that_is_gone_comes_at_its_time_and_is_told(
    tmp_path: Path, now: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Broker(tmp_path, now)
    last = len(schedule_rig.LEVELS_MS)
    for key in "AB":
        rig.park(key, last)
    rig.store.close()
    monkeypatch.setattr(schedule_rig, "LEVELS_MS", schedule_rig.LEVELS_MS[:-1])
    rig = Broker(tmp_path, now)

    async def begin() -> None:
        rig.delays.start(rig.deliver)
        rig.delays.stop()

    asyncio.run(begin())
    assert f"delay level {last} is gone from messageDelayLevel: the 2 messages" in caplog.text
    assert rig.delays.progress() == {last: (0, 2)}
    # What is sent to it now goes to the highest that there is.
    rig.park("C", last)
    wait = rig.wait_ms(last)
    assert wait is not None
    now[0] += wait - 1
    assert (rig.wait_ms(last), rig.delivered()) == (1, Counter())
    now[0] += 1
    assert (rig.wait_ms(last), rig.wait_ms(last - 1)) == (None, None)
    assert rig.delivered() == Counter({"A 0": 1, "B 0": 1, "C 0": 1})
    assert rig.delays._levels() == list(range(1, last))
    rig.store.close()


@pytest.mark.shows(
    "mended: a clock that ran ahead holds back delay levels and retries; put forward, a due message waits out its timer"
)
def test_what_was_delivered_before_a_kill_is_known_though_the_clock_was_set_back(tmp_path: Path, now: Clock) -> None:
    rig = Broker(tmp_path, now)
    now[0] += 3_600_000
    rig.park("ahead", 1)
    now[0] = NOW
    rig.wait_ms(1)
    now[0] += 1000
    rig.wait_ms(1)
    assert rig.delivered() == Counter({"ahead 0": 1})
    rig.store.close()
    rig = Broker(tmp_path, now)
    rig.wait_ms(1)
    now[0] += 1000
    rig.wait_ms(1)
    assert rig.delivered() == Counter({"ahead 0": 1})
    rig.store.close()


@pytest.mark.shows(
    "mended: a clock that ran ahead holds back delay levels and retries; put forward, a due message waits out its timer"
)
def test_a_level_is_looked_at_every_second_whatever_its_delay(
    tmp_path: Path, now: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a clock that is put forward is seen."""
    armed: list[float] = []

    class Loop:
        def call_later(self, delay_s: float, *args: Any) -> None:
            armed.append(delay_s)

    monkeypatch.setattr(delays_module, "asyncio", like(asyncio, get_running_loop=Loop))
    rig = Broker(tmp_path, now)
    rig.delays._deliver = rig.deliver
    rig.park("A", 2)
    assert armed == [1.0]
    rig.delays._run(2)
    now[0] += 2500
    rig.delays._run(2)
    assert armed == [1.0, 1.0, 0.5]
    rig.store.close()


def test_an_error_nobody_thought_of_ends_no_level(
    tmp_path: Path, now: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    armed: list[float] = []

    class Loop:
        def call_later(self, delay_s: float, *args: Any) -> None:
            armed.append(delay_s)

    monkeypatch.setattr(delays_module, "asyncio", like(asyncio, get_running_loop=Loop))
    rig = Broker(tmp_path, now)
    rig.delays._deliver = rig.deliver
    rig.park("A", 1)

    def broken(*args: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(rig.store, "queue_units", broken)
    rig.delays._run(1)
    assert armed == [1.0, 1.0]
    assert "delay level 1: tried again" in caplog.text
    rig.store.close()


def saved(root: Path) -> dict[str, int]:
    text = (root / "config/delayOffset.json").read_text() if (root / "config/delayOffset.json").exists() else "{}"
    found: dict[str, int] = json.loads(text.replace("{1:", '{"1":').replace(",2:", ',"2":')).get("offsetTable", {})
    return found


@pytest.mark.shows("mended: power cut after delayOffset.json was synced and before the delivered record")
def test_progress_is_saved_after_what_it_stands_for_is_on_the_disk(tmp_path: Path, now: Clock) -> None:
    rig = Broker(tmp_path, now)
    rig.park("A", 1)
    rig.store.flush_log()
    now[0] += 1000
    rig.wait_ms(1)
    for _ in range(3):
        rig.delays.save()
        assert saved(tmp_path) == {}
    rig.store.flush_log()
    rig.delays.save()
    assert saved(tmp_path) == {"1": 1}
    # What came since the note was made waits for the next.
    rig.park("B", 1)
    now[0] += 1000
    rig.wait_ms(1)
    rig.delays.save()
    rig.park("C", 1)
    now[0] += 1000
    rig.wait_ms(1)
    rig.store.flush_log()
    rig.delays.save()
    assert saved(tmp_path) == {"1": 2}
    rig.delays.finish()
    assert saved(tmp_path) == {"1": 3}
    rig.store.close()


class DelaysMachine(RuleBasedStateMachine):
    """Delays beside a model: each good message comes once and in time, poison is set aside, whatever is done between.

    A power cut takes away what was not flushed; a message whose parking it took was never acknowledged.
    """

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.now: list[int] = [NOW]
        self.patch.setattr(put_message_module, "machine", like(machine, time=lambda: self.now[0] / 1000))
        self.patch.setattr(delays_module, "now_ms", lambda: self.now[0])
        self.folder = tempfile.TemporaryDirectory()
        self.lives = 0
        self.rig = Broker(Path(self.folder.name) / "0", self.now)
        self.count = 0
        self.rotten: list[int] = []
        # Text of a body: (physical offset it was parked at, whether it can be delivered).
        self.parked: dict[str, tuple[int, bool]] = {}

    def last(self, level: int) -> int:
        return self.rig.position(level, self.rig.store.queue_range(topic_names.SCHEDULE_TOPIC, level - 1)[1] - 1)

    @rule(level=st.integers(1, 2), poison=st.sampled_from(["", "", "", "body", "nowhere"]))
    def park(self, level: int, poison: str) -> None:
        self.count += 1
        key = f"K{self.count}"
        if poison == "nowhere":
            stored = properties.encode({"UNIQ_KEY": key, "MARK": "m", "REAL_TOPIC": "T", "REAL_QID": "²"}).encode()
            self.rig.put_message.accept(
                topic_names.SCHEDULE_TOPIC,
                level - 1,
                b"x",
                stored,
                pairs_of(stored),
                FixedFields(0, 0, NOW, BORN),
                delayed=False,
            )
        else:
            self.rig.park(key, level)
        position = self.last(level)
        if poison == "body":
            self.rotten.append(position)
            self.rig.rot(position)
        self.parked[f"{key} 0"] = position, not poison

    @rule(ms=st.sampled_from([1, 500, 1500, 4000]))
    def pass_time(self, ms: int) -> None:
        self.now[0] += ms
        self.work()

    def work(self) -> None:
        for level in (1, 2):
            wait = self.rig.wait_ms(level)
            assert wait is None or 0 < wait <= LEVELS_MS[level - 1]

    @rule()
    def flush(self) -> None:
        self.rig.store.flush_log()

    @rule()
    def save(self) -> None:
        self.rig.delays.save()

    @precondition(lambda self: self.lives < 3)
    @rule(power=st.booleans())
    def cut(self, power: bool) -> None:
        """The process is killed, or the power is cut."""
        flushed = self.rig.store.flushed_position
        # What rots lies in the older part of the log, which a start does not read.
        self.turn_rotten()
        self.rig.store.flush_queues()
        self.lives += 1
        root = self.rig.root.with_name(str(self.lives))
        shutil.copytree(self.rig.root, root)
        (root / "lock").unlink(missing_ok=True)
        if power:
            for log_file in (root / "commitlog").iterdir():
                content = log_file.read_bytes()
                log_file.write_bytes(content[:flushed] + bytes(len(content) - flushed))
            self.parked = {k: v for k, v in self.parked.items() if v[0] < flushed}
            self.rotten = [position for position in self.rotten if position < flushed]
        self.rig.store.close()
        self.rig = Broker(root, self.now)
        self.turn_rotten()

    def turn_rotten(self) -> None:
        for position in self.rotten:
            self.rig.rot(position)

    @invariant()
    def nothing_comes_twice(self) -> None:
        if hasattr(self, "rig"):
            assert all(n == 1 for n in self.rig.delivered().values())

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        try:
            self.now[0] += 10_000
            self.work()
            assert self.rig.delivered() == Counter({k: 1 for k, (_, good) in self.parked.items() if good})
            poison = {f"delay-{position}" for position, good in self.parked.values() if not good}
            assert poison <= set(self.rig.aside())
        finally:
            self.rig.store.close()
            self.patch.undo()
            self.folder.cleanup()


TestDelays = DelaysMachine.TestCase
TestDelays.settings = settings(max_examples=6, stateful_step_count=15, deadline=None)
