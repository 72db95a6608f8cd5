"""Timer messages by a clock set by hand: due, rolled, recalled, restarted, killed at any moment."""

from __future__ import annotations

import asyncio
import random
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.golden_stores import unpack
from tests.support.stand_ins import like
from tests.unit.broker.offline import quarantine_in, records_in, rules_in

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.messages import put_message as put_message_module
from rocketspark.broker.messages import send_rules
from rocketspark.broker.messages.put_message import FixedFields, PutMessage, pairs_of
from rocketspark.broker.messages.schedule_messages import ScheduleMessages
from rocketspark.broker.messages.timers.timer_messages import NEVER_MS, TimerMessages
from rocketspark.broker.messages.timers.timer_rules import TimerRules
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.errors import ServerError
from rocketspark.protocol.json import bodies
from rocketspark.protocol.message import properties, record
from rocketspark.protocol.timers import TimerCounts
from rocketspark.store import Store, StoreSettings
from rocketspark.store.timers.timer_files import TimerCheckpoint, TimerFiles, read_checkpoint

pytestmark = pytest.mark.shows("timer messages, rolling, recall, in RocketMQ's files")

NOW = 1_795_214_512_000
DAY_MS = 86_400_000
BORN = bytes.fromhex("7f0000010000c001")
MARKS = {"MSG_REGION": "R", "TRACE_ON": "true", "CLUSTER": "C"}


class Clock:
    """Stands still until it is set; the intake of a test takes its time from here."""

    def __init__(self) -> None:
        self.now_ms = NOW

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(put_message_module, "machine", like(machine, time=lambda: made.now_ms / 1000))
    return made


class Rig:
    """A store, its intake and its timers."""

    def __init__(self, root: Path, clock: Clock, **options: Any) -> None:
        self.root, self.clock, self.options = root, clock, options
        sizes = options.get("sizes") or {"log_file_bytes": 1 << 20, "queue_file_units": 1000}
        self.store = Store(StoreSettings(root=str(root), index_slots=100, index_entries=400, **sizes))
        self.store.open()
        config = root / "config"
        self.stats = stats = Stats("C", self.store.take_stored, clock())
        self.quarantine = quarantine_in(root)
        file = JsonFile(config / "delayOffset.json", bodies.DelayOffsetTable)
        delays = ScheduleMessages(self.store, (1000, 5000), file, self.quarantine)
        self.rules = TimerRules(
            broker_name="broker-a",
            enabled=True,
            precision_ms=options.get("precision_ms", 1000),
            delay_max_ms=options.get("delay_max_ms", 3 * DAY_MS),
        )
        self.put_message = PutMessage(
            self.store, rules_in(self.store, marks=MARKS), LongPolling(), delays, stats, timer_rules=self.rules
        )
        files = TimerFiles(
            str(root),
            precision_ms=options.get("precision_ms", 1000),
            log_file_bytes=options.get("log_bytes", 104_000),
            roll_slots=options.get("roll_slots", 172_800),
        )
        self.counts_file = JsonFile(config / "timermetrics", TimerCounts)
        self.timers = TimerMessages(
            self.store, self.put_message, files, self.counts_file, stats, self.quarantine, clock=clock
        )
        self.timers.open()

    def send(self, topic: str = "T", queue_id: int = 0, key: str = "", **pairs: Any) -> dict[bytes, bytes]:
        """Accept one message; returns its properties as the broker completed them."""
        texts = {"UNIQ_KEY": key or "K"} | {k: str(v) for k, v in pairs.items()}
        stored = properties.encode(texts).encode()
        given = pairs_of(stored)
        self.put_message.accept(
            topic, queue_id, (key or "body").encode(), stored, given, FixedFields(0, 0, self.clock(), BORN)
        )
        return given

    def recall(self, out_ms: int, key: str, topic: str = "T") -> None:
        handle = self.rules.recalled(topic, self.rules.handle(topic, out_ms, key), self.clock())
        self.send(handle.topic, 0, key, TIMER_DEL_UNIQKEY=key, TIMER_DELIVER_MS=handle.deliver_ms, TAGS="_RECALL_TAG_")

    def settle(self) -> float | None:
        """Work until there is nothing to do now; returns s until there is."""
        while (wait_s := self.timers.work()) == 0.0 or self.timers._files.misfit:
            # The remaking of a wheel waits for a flush.
            if wait_s:
                self.store.flush_log()
        return wait_s

    def at(self, now_ms: int) -> Rig:
        self.clock.now_ms = now_ms
        self.settle()
        return self

    def records(self, topic: str = "T", queue_id: int = 0) -> list[record.Record]:
        return records_in(self.store, topic, queue_id)

    def keys(self, topic: str = "T", queue_id: int = 0) -> list[str]:
        return [pairs_of(r.properties)[b"UNIQ_KEY"].decode() for r in self.records(topic, queue_id)]

    def checkpoint(self) -> None:
        self.store.flush_log()
        self.timers.finish()

    def stop(self) -> None:
        self.checkpoint()
        self.timers.close()
        self.store.close()

    def restarted(self, **changes: Any) -> Rig:
        self.stop()
        return Rig(self.root, self.clock, **self.options | changes)

    def killed(self, **changes: Any) -> Rig:
        """What a process finds after this one was killed now."""
        root = self.root.with_name(self.root.name + "x")
        subprocess.run(["cp", "-a", "--sparse=always", self.root, root], check=True)
        (root / "lock").unlink(missing_ok=True)
        self.timers.close()
        self.store.close()
        return Rig(root, self.clock, **self.options | changes)


@pytest.fixture
def rig(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**options: Any) -> Rig:
        made.append(Rig(tmp_path / "store", clock, **options))
        return made[-1]

    yield make
    for one in made:
        one.store.close()


def texts(stored: record.Record) -> dict[str, str]:
    return properties.decode(stored.properties.decode())


# (properties, ms after NOW + 250 at which the message is due, or None: at once)
DUE: list[tuple[dict[str, Any], int | None]] = [
    ({"TIMER_DELAY_SEC": 1}, 1000),
    ({"TIMER_DELAY_SEC": 3}, 3000),
    ({"TIMER_DELAY_MS": 1}, 1),
    ({"TIMER_DELAY_MS": 749}, 749),
    ({"TIMER_DELAY_MS": 750}, 750),
    ({"TIMER_DELAY_MS": 751}, 751),
    ({"TIMER_DELAY_SEC": 2 * 86_400 - 1}, 172_799_000),
    ({"TIMER_DELAY_SEC": 2 * 86_400 + 1}, 172_801_000),
    ({"TIMER_DELAY_SEC": 3 * 86_400}, 259_200_000),
    ({"TIMER_DELIVER_MS": NOW + 5250}, 5000),
    ({"TIMER_DELIVER_MS": NOW + 5000}, 4750),
    ({"TIMER_DELAY_SEC": 2, "TIMER_DELAY_MS": 9000, "TIMER_DELIVER_MS": NOW}, 2000),
    ({"TIMER_DELAY_MS": 9000, "TIMER_DELIVER_MS": NOW}, 9000),
    ({"TIMER_DELAY_SEC": 0}, None),
    ({"TIMER_DELAY_MS": -5}, None),
    ({"TIMER_DELIVER_MS": NOW + 250}, None),
    ({"TIMER_DELIVER_MS": 1}, None),
]


@pytest.mark.parametrize(("pairs", "after_ms"), DUE)
def test_a_message_is_delivered_in_its_second_and_not_before(
    rig: Callable[..., Rig], clock: Clock, pairs: dict[str, Any], after_ms: int | None
) -> None:
    broker = rig()
    clock.now_ms = NOW + 250
    broker.send(queue_id=3, **pairs, TAGS="A")
    if after_ms is None:
        assert {k: v for k, v in texts(broker.records(queue_id=3)[0]).items() if k not in MARKS} == {
            "UNIQ_KEY": "K",
            "TAGS": "A",
        } | {k: str(v) for k, v in pairs.items()}
        assert broker.records(topic_names.TIMER_TOPIC) == []
        return
    asked_ms = NOW + 250 + after_ms
    out_ms = (asked_ms - 1) // 1000 * 1000
    (parked,) = broker.records(topic_names.TIMER_TOPIC)
    expected = {k: str(v) for k, v in pairs.items()} | {
        **MARKS,
        "UNIQ_KEY": "K",
        "TAGS": "A",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
        "TIMER_OUT_MS": str(out_ms),
    }
    assert texts(parked) == expected
    while (wait_s := broker.settle()) is not None:
        assert broker.records(queue_id=3) == []
        clock.now_ms += int(wait_s * 1000) - 1
        broker.settle()
        assert broker.records(queue_id=3) == []
        clock.now_ms += 1
    assert clock.now_ms == out_ms + 1000
    assert asked_ms <= clock.now_ms < asked_ms + 1000
    (delivered,) = broker.records(queue_id=3)
    found = texts(delivered)
    rolled = after_ms > 2 * DAY_MS
    if rolled:
        expected["TIMER_ROLL_TIMES"] = "1"
    # A rolled one entered the wheel anew when its first slot was over.
    first_slot_ms = NOW + (DAY_MS if after_ms < 2 * DAY_MS + 57_600_000 else 2 * DAY_MS)
    assert int(found.pop("TIMER_ENQUEUE_MS")) == (first_slot_ms + 1000 if rolled else NOW)
    assert found == expected | {"TIMER_DEQUEUE_MS": str(clock.now_ms)}
    assert (delivered.body, delivered.born_time_ms, delivered.born_host) == (b"body", NOW + 250, BORN)
    assert broker.timers.statistics.waiting() == {}


REFUSED: list[tuple[dict[str, Any], int]] = [
    ({"TIMER_DELAY_SEC": 259_201}, 13),
    ({"TIMER_DELAY_MS": 259_200_001}, 13),
    ({"TIMER_DELIVER_MS": NOW + 259_200_001}, 13),
    ({"TIMER_DELAY_SEC": "soon"}, 13),
    ({"TIMER_DELAY_MS": "1.5"}, 13),
    ({"TIMER_DELIVER_MS": "9" * 30}, 13),
    ({"TIMER_DELIVER_MS": NOW, "TIMER_DEL_UNIQKEY": "K"}, 13),
    ({"TIMER_DELAY_SEC": 5, "p": "x" * 32_500}, 13),
]


@pytest.mark.parametrize(("pairs", "code"), REFUSED)
def test_what_cannot_be_kept_is_refused(rig: Callable[..., Rig], pairs: dict[str, Any], code: int) -> None:
    broker = rig()
    with pytest.raises(ServerError) as refused:
        broker.send(**pairs)
    assert refused.value.code == code
    assert broker.store.queues() == {}


def test_turned_off_they_are_refused() -> None:
    rules = TimerRules(broker_name="b", enabled=False, precision_ms=1000, delay_max_ms=1000)
    with pytest.raises(ServerError) as refused:
        rules.out_ms({b"TIMER_DELAY_SEC": b"1"}, NOW)
    assert (refused.value.code, refused.value.remark) == (
        1,
        "accurate timer message is not enabled, timerWheelEnable is false",
    )


def test_a_delay_level_goes_before_a_time(rig: Callable[..., Rig]) -> None:
    broker = rig()
    broker.send(TIMER_DELAY_SEC=5, DELAY=2, TIMER_DELIVER_MS=7)
    broker.send(TIMER_DELAY_SEC=5, DELAY=0)
    (by_level,) = broker.records(topic_names.SCHEDULE_TOPIC, 1)
    assert not {k for k in texts(by_level) if k.startswith("TIMER")}
    assert len(broker.records(topic_names.TIMER_TOPIC)) == 1


def test_a_slot_is_delivered_in_the_order_of_sending(rig: Callable[..., Rig]) -> None:
    broker = rig(log_bytes=4096)
    for n in range(1000):
        broker.send(key=f"K{n}", TIMER_DELIVER_MS=NOW + 5000 + n % 3 * 1000)
    broker.at(NOW + 5000)
    assert broker.keys() == [f"K{n}" for n in range(0, 1000, 3)]
    broker.at(NOW + 7000)
    assert broker.keys()[334:] == [f"K{n}" for n in range(1, 1000, 3)] + [f"K{n}" for n in range(2, 1000, 3)]
    assert broker.timers.statistics.waiting() == {}


def test_a_long_delay_is_rolled_on_step_by_step(rig: Callable[..., Rig], clock: Clock) -> None:
    broker = rig(roll_slots=6)
    broker.send(key="far", TIMER_DELAY_SEC=20)
    broker.send(key="gone", TIMER_DELAY_SEC=20)
    broker.settle()
    for second in range(1, 20):
        broker.at(NOW + second * 1000)
        if second == 3:
            broker.recall(NOW + 19_000, "gone")
            broker.settle()
        assert broker.keys() == []
    broker.at(NOW + 20_000)
    assert broker.keys() == ["far"]
    rolls = [texts(r).get("TIMER_ROLL_TIMES") for r in broker.records(topic_names.TIMER_TOPIC) if b"far" in r.body]
    assert rolls == [None, *map(str, range(1, len(rolls)))]
    assert texts(broker.records()[0])["TIMER_ROLL_TIMES"] == rolls[-1]
    assert len(rolls) >= 3
    assert broker.timers.statistics.waiting() == {}


def test_a_recalled_message_is_not_delivered(rig: Callable[..., Rig], clock: Clock) -> None:
    broker = rig()
    for key in ("a", "b", "c"):
        assert broker.send(key=key, TIMER_DELAY_SEC=10)[b"TIMER_OUT_MS"] == b"%d" % (NOW + 9000)
    broker.at(NOW + 2000)
    assert broker.timers.statistics.waiting() == {"T": 3}
    broker.recall(NOW + 9000, "b")
    broker.at(NOW + 2001)
    assert broker.timers.statistics.waiting() == {"T": 2}
    # In the last millisecond at which it is taken.
    clock.now_ms = NOW + 9000
    broker.recall(NOW + 9000, "c")
    broker.at(NOW + 10_000)
    assert broker.keys() == ["a"]
    assert broker.timers.statistics.waiting() == {}
    with pytest.raises(ServerError) as late:
        broker.recall(NOW + 9000, "a")
    assert (late.value.code, late.value.remark) == (604, "recall failed, timestamp invalid")


def test_what_is_put_on_the_wheel_and_delivered_is_counted(rig: Callable[..., Rig]) -> None:
    broker = rig()
    broker.send(key="a", TIMER_DELAY_SEC=10)
    broker.at(NOW + 10_000)
    (delivered,) = broker.records()
    statistics = broker.timers.statistics
    assert (statistics.enqueued, statistics.dequeued) == ({"T": 1}, {"T": 1})
    assert statistics.delays["T"].total == 9
    flow = broker.stats.delivered["T"]
    assert (flow.messages, flow.bytes) == (1, len(broker.store.record_at(delivered.position) or b""))


def test_a_recall_takes_nothing_back_of_another_topic(rig: Callable[..., Rig]) -> None:
    broker = rig()
    broker.send(key="a", TIMER_DELAY_SEC=10)
    broker.recall(NOW + 9000, "a", topic="U")
    broker.at(NOW + 12_000)
    assert broker.keys() == ["a"]


def test_a_restart_keeps_what_waits_and_delivers_what_became_due(
    rig: Callable[..., Rig], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = rig()
    for n in range(1, 6):
        broker.send(key=f"K{n}", TIMER_DELAY_SEC=n * 10)
    broker.at(NOW + 10_000)
    broker = broker.restarted()
    assert "beyond the queue's end" not in caplog.text
    assert broker.keys() == ["K1"]
    assert broker.timers.statistics.waiting() == {"T": 4}
    broker.at(NOW + 20_000)
    broker.stop()
    clock.now_ms = NOW + 45_500
    broker = rig()
    assert broker.settle() == 4.5
    assert broker.keys() == ["K1", "K2", "K3", "K4"]
    broker.stop()
    clock.now_ms = NOW + 13 * DAY_MS
    broker = rig()
    broker.send(key="new", TIMER_DELAY_SEC=2)
    assert broker.settle() == 2
    assert broker.keys()[4:] == ["K5"]


@pytest.mark.shows("`config/timercheck` of any content")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(4096),
        random.Random(1).randbytes(4096),
        random.Random(2).randbytes(56),
        random.Random(3).randbytes(20),
        struct.pack(">7q", NOW + 365 * DAY_MS, 1 << 40, 1 << 40, 1 << 40, 0, NOW, 1),
        struct.pack(">7q", NOW + 365 * DAY_MS, 0, 0, 0, 0, 0, 0).ljust(4096, b"\0"),
        struct.pack(">7q", 0, 52 * 5, 7, 0, 0, 0, 0).ljust(4096, b"\0"),
        struct.pack(">7q", 0, 1, 0, 0, 0, 0, 0).ljust(4096, b"\0"),
    ],
    ids=["empty", "zeros", "random", "random, short", "random, cut", "huge", "a later time", "a later offset", "odd"],
)
def test_whatever_stands_in_timercheck_each_is_delivered_once(rig: Callable[..., Rig], content: bytes) -> None:
    broker = rig()
    for n in range(5):
        broker.send(key=f"K{n}", TIMER_DELAY_SEC=n * 10 + 5)
    broker.at(NOW + 10_000).stop()
    (broker.root / "config/timercheck").write_bytes(content)
    broker = rig().at(NOW + 60_000)
    assert broker.keys() == [f"K{n}" for n in range(5)]


def test_a_recall_that_was_stored_before_a_kill_is_obeyed(rig: Callable[..., Rig], clock: Clock) -> None:
    broker = rig()
    broker.send(key="a", TIMER_DELAY_SEC=10)
    broker.send(key="b", TIMER_DELAY_SEC=10)
    clock.now_ms = NOW + 5000
    broker.recall(NOW + 9000, "a")
    clock.now_ms = NOW + 3_600_000
    # Nothing of the three was on the wheel when it was killed.
    broker = broker.killed()
    broker.settle()
    assert broker.keys() == ["b"]


@pytest.mark.parametrize("pieces", range(1, 8))
def test_a_kill_in_the_middle_of_a_slot_delivers_each_once(rig: Callable[..., Rig], clock: Clock, pieces: int) -> None:
    broker = rig(log_bytes=1 << 20)
    sent = [f"K{n // 2}" for n in range(1000)]
    for n, key in enumerate(sent):
        # Twice the same id, as a producer that had no answer sends it: two messages.
        broker.send(key=key, queue_id=n % 2, TIMER_DELAY_SEC=10)
    broker.settle()
    broker.checkpoint()
    clock.now_ms = NOW + 10_000
    for _ in range(pieces):
        assert broker.timers.work() == 0.0
    broker = broker.killed()
    before = len(broker.keys()) + len(broker.keys(queue_id=1))
    broker.settle()
    assert Counter(broker.keys() + broker.keys(queue_id=1)) == Counter(sent)
    assert broker.keys() == sent[::2]
    assert before == min(1000, max(0, pieces - 3) * 256)


@pytest.mark.shows("took over and killed while it reads the timers' queue")
@pytest.mark.parametrize("pieces", range(1, 5))
def test_a_slave_that_took_over_and_is_killed_while_it_reads_delivers_nothing_again(
    rig: Callable[..., Rig], clock: Clock, pieces: int
) -> None:
    """Its wheel is made from the queue; up to which message the master before had read stays known meanwhile."""
    broker = rig(log_bytes=1 << 20)
    sent = [f"K{n}" for n in range(1000)]
    broker.send(key="waits", TIMER_DELAY_SEC=5000)
    for key in sent:
        broker.send(key=key, TIMER_DELAY_SEC=10)
    broker.at(NOW + 11_000)
    # Long after, so that the deliveries are no more looked for.
    broker.at(NOW + 100_000).checkpoint()
    broker.timers.queue_was_cut()
    assert broker.timers.checkpoint()[1:4] == (0, 0, 1001)
    broker.timers.close()
    broker.timers.open()
    for _ in range(pieces):
        broker.timers.work()
    broker.checkpoint()
    broker = broker.killed()
    broker.settle()
    assert broker.keys() == sent


def test_what_was_read_is_noted_as_soon_as_the_log_is_on_the_disk(rig: Callable[..., Rig]) -> None:
    broker = rig()
    broker.send(TIMER_DELAY_SEC=60)
    broker.settle()

    async def saved() -> None:
        for flushed in (False, True):
            assert broker.timers.checkpoint().queue_offset == 0
            broker.timers.save()
            if not flushed:
                broker.store.flush_log()
        assert broker.timers._flushing is not None
        await broker.timers._flushing

    asyncio.run(saved())
    assert broker.timers.checkpoint().queue_offset == 1


def test_what_waits_for_a_topic_is_found_on_the_wheel_and_before_it(rig: Callable[..., Rig]) -> None:
    broker = rig()
    broker.send(key="on the wheel", TIMER_DELAY_SEC=60)
    broker.send("other", key="another's", TIMER_DELAY_SEC=60)
    broker.settle()
    broker.send(key="before it", TIMER_DELAY_SEC=60)
    assert [pairs[b"UNIQ_KEY"] for _, pairs in broker.timers.waiting("T")] == [b"on the wheel", b"before it"]


def test_a_message_that_comes_too_late_for_its_slot_is_delivered_at_once(rig: Callable[..., Rig], clock: Clock) -> None:
    broker = rig()
    broker.send(key="first", TIMER_DELAY_SEC=1)
    broker.at(NOW + 5000)
    clock.now_ms = NOW + 5999
    broker.send(key="late", TIMER_DELAY_MS=1)
    broker.timers._read_ms = NOW + 6000
    broker.at(NOW + 6001)
    assert broker.keys() == ["first", "late"]
    assert texts(broker.records()[1])["TIMER_ENQUEUE_MS"] == str(NEVER_MS)


def test_a_store_that_refuses_is_asked_again_and_nothing_is_lost(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = rig()
    for n in range(5):
        broker.send(key=f"K{n}", TIMER_DELAY_SEC=1)
    broker.settle()
    accept, answers = broker.put_message.accept, iter([None, None, 14, 14, None, 13, None])

    def refusing(*args: Any, **options: Any) -> Any:
        if (code := next(answers)) is not None:
            raise ServerError(code, "no")
        return accept(*args, **options)

    monkeypatch.setattr(broker.put_message, "accept", refusing)
    broker.clock.now_ms = NOW + 1000
    assert (broker.settle(), broker.keys()) == (1.0, ["K0", "K1"])
    assert (broker.settle(), broker.keys()) == (1.0, ["K0", "K1"])
    # One that can never be stored does not hold up the others.
    assert (broker.settle(), broker.keys()) == (None, ["K0", "K1", "K2", "K4"])


WRONG: list[dict[str, Any]] = [
    {},
    {"TIMER_OUT_MS": "x"},
    {"TIMER_OUT_MS": "-5"},
    {"TIMER_OUT_MS": "9" * 40},
    {"TIMER_OUT_MS": NOW, "REAL_QID": "-1"},
    {"TIMER_OUT_MS": NOW, "REAL_QID": "99999999999"},
    {"TIMER_OUT_MS": NOW, "REAL_TOPIC": "../outside"},
    {"TIMER_OUT_MS": NOW, "REAL_TOPIC": topic_names.TIMER_TOPIC},
    {"TIMER_OUT_MS": NOW, "REAL_TOPIC": topic_names.OP_HALF_TOPIC},
    {"TIMER_OUT_MS": NOW, "REAL_TOPIC": ""},
]


def test_what_is_no_timer_message_is_passed_over(rig: Callable[..., Rig]) -> None:
    broker = rig()
    for pairs in WRONG:
        broker.send(topic_names.TIMER_TOPIC, key="junk", **{"REAL_TOPIC": "T", "REAL_QID": "0"} | pairs)
    broker.send(topic_names.TIMER_TOPIC, key="mine", TIMER_OUT_MS=NOW, REAL_TOPIC="T", REAL_QID="1")
    broker.send(key="good", TIMER_DELAY_SEC=1)
    broker.at(NOW + 1000)
    assert (broker.keys(), broker.keys(queue_id=1)) == (["good"], ["mine"])
    assert broker.store.queues().keys() == {"T", topic_names.TIMER_TOPIC}


def golden(name: str, where: Path, *without: str) -> Path:
    return unpack(name, where, lambda file: not any(part in file for part in without))


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("store", ()),
        ("store_unclean", ()),
        ("store", ("timerwheel/", "/timerwheel")),
        ("store", ("timercheck",)),
        ("store_unclean", ("timercheck", "timerlog", "/timerwheel")),
    ],
)
def test_pending_messages_of_the_official_broker_are_delivered_and_no_others(
    tmp_path: Path, clock: Clock, name: str, without: tuple[str, ...]
) -> None:
    root = golden(name, tmp_path, *(f"store/{w}" if w == "timerlog" else w for w in without))
    if "/timerwheel" in without:
        (root / "timerwheel").unlink(missing_ok=True)
    clock.now_ms = NOW + 600_000
    sizes = {"log_file_bytes": 131_072, "queue_file_units": 100}
    broker = Rig(root, clock, sizes=sizes)
    before = {
        (topic, q): broker.store.queue_range(topic, q)[1] for topic, qs in broker.store.queues().items() for q in qs
    }
    assert broker.settle() == 3001.0
    assert {key: broker.store.queue_range(*key)[1] for key in before} == before
    broker.at(NOW + 3_600_999)
    assert len(broker.records("S_Timer")) == 1
    broker.at(NOW + 3_601_000)
    delivered = broker.records("S_Timer")[1]
    assert texts(delivered) == {
        "CLUSTER": "DefaultCluster",
        "KEYS": "timer-3600",
        "MSG_REGION": "DefaultRegion",
        "REAL_QID": "0",
        "REAL_TOPIC": "S_Timer",
        "TAGS": "TagTimer",
        "TIMER_DELAY_SEC": "3600",
        "TIMER_DEQUEUE_MS": str(NOW + 3_601_000),
        "TIMER_ENQUEUE_MS": str(NOW if "timerlog" not in without else NOW + 600_000),
        "TIMER_OUT_MS": str(NOW + 3_600_000),
        "TRACE_ON": "true",
        "UNIQ_KEY": "FD0000000000000000000000000000021CE030946E0966B7A9CC0232",
        "WAIT": "true",
    }
    before["S_Timer", 0] += 1
    assert {key: broker.store.queue_range(*key)[1] for key in before} == before
    broker.stop()
    if not without:
        counts = JsonFile(root / "config/timermetrics", TimerCounts).load()
        assert counts is not None
        assert {topic: c.count for topic, c in counts.counts.items()} == {
            "S_Timer": 0,
            "rmq_sys_REVIVE_LOG_DefaultCluster": 0,
        }
        assert counts.data_version.counter == 16
        checkpoint = read_checkpoint(str(root / "config/timercheck"))
        assert checkpoint[:4] == (NOW + 3_601_000, 416, 8, 8)
        assert struct.unpack(">q", (root / "config/timercheck").read_bytes()[:8]) == (NOW + 3_601_000,)


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 12_000)),
    st.tuples(st.just("send"), st.integers(0, 60_000)),
    st.tuples(st.just("recall"), st.integers(0, 40)),
    st.tuples(st.just("wait"), st.integers(1, 9000)),
    st.tuples(st.just("work"), st.integers(1, 4)),
    st.tuples(st.just("checkpoint"), st.just(0)),
    st.tuples(st.just("kill"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_each_is_delivered_once_in_its_time_and_the_recalled_never(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(put_message_module, "machine", like(machine, time=lambda: clock.now_ms / 1000))
        broker = Rig(tmp_path_factory.mktemp("timers") / "store", clock, roll_slots=15)
        due: dict[str, int] = {}
        slots: dict[str, int] = {}
        recalled: set[str] = set()
        for what, number in steps:
            if what == "send":
                key = f"K{len(due)}"
                due[key] = clock() + number
                slots[key] = int(broker.send(key=key, TIMER_DELAY_MS=number).get(b"TIMER_OUT_MS", b"0"))
            elif what == "recall" and f"K{number}" in due:
                key = f"K{number}"
                if slots[key] + 1 > clock() and key not in recalled:
                    broker.recall(slots[key], key)
                    recalled.add(key)
            elif what == "wait":
                clock.now_ms += number
            elif what == "work":
                for _ in range(number):
                    broker.timers.work()
            elif what == "checkpoint":
                broker.checkpoint()
            elif what == "kill":
                broker = broker.killed()
            elif what == "restart":
                broker = broker.restarted()
        broker.settle()
        late = broker.clock()
        assert all(r.store_time_ms >= due[k] for r, k in zip(broker.records(), broker.keys(), strict=True))
        assert Counter(broker.keys()) == Counter(
            k for k in due if k not in recalled and (slots[k] == 0 or slots[k] + 1000 <= late)
        )
        while (wait_s := broker.settle()) is not None:
            clock.now_ms += int(wait_s * 1000) or 1
        assert Counter(broker.keys()) == Counter(k for k in due if k not in recalled)
        broker.stop()


def test_what_came_by_a_clock_that_was_set_back_is_delivered_though_a_kill_and_the_clock_come_before_a_save(
    rig: Callable[..., Rig], clock: Clock
) -> None:
    """By the checkpoint its slot was done, by the timer log the message was on the wheel: it never came."""
    broker = rig()
    broker.send(key="K1", TIMER_DELAY_MS=5000)
    broker.at(NOW + 20_000).checkpoint()
    clock.now_ms = NOW
    broker.settle()
    broker.send(key="K2", TIMER_DELAY_MS=3000)
    broker.settle()
    clock.now_ms = NOW + 30_000
    broker = broker.killed()
    broker.settle()
    assert broker.keys() == ["K1", "K2"]
    broker.stop()


def test_what_another_broker_delivered_meanwhile_is_not_delivered_again(rig: Callable[..., Rig], clock: Clock) -> None:
    """A slave that acted for this broker had it on its wheel, though this one's own checkpoint is older."""
    broker = rig()
    broker.send(key="K0", TIMER_DELAY_MS=60_000)
    broker.at(NOW + 1000).checkpoint()
    broker.send(key="K1", TIMER_DELAY_MS=2000)
    broker.settle()
    clock.now_ms = NOW + 11_000
    broker = broker.killed()
    assert broker.timers.take_checkpoint(TimerCheckpoint(NOW + 10_000, queue_offset=2, master_queue_offset=2))
    broker.timers.open()
    broker.send(key="K2", TIMER_DELAY_MS=2000)
    broker.settle()
    broker.at(NOW + 70_000)
    assert broker.keys() == ["K2", "K0"]
    broker.stop()


@pytest.mark.parametrize("works", [0, 1, 2, 4])
@pytest.mark.parametrize("is_saved", [True, False], ids=["in the checkpoint", "after the checkpoint"])
def test_what_a_slave_that_acted_never_had_is_delivered_alone(
    rig: Callable[..., Rig], clock: Clock, works: int, is_saved: bool
) -> None:
    """What the slave had delivered came again with it, also after one restart more, or what it lacked never came."""
    broker = rig(roll_slots=15)
    broker.send(key="theirs", TIMER_DELAY_MS=12_000)
    broker.send(key="theirs too", TIMER_DELAY_MS=6000)
    due = {f"K{number}": 2000 + 2000 * number for number in range(6)}
    for key, delay_ms in due.items():
        broker.send(key=key, TIMER_DELAY_MS=delay_ms)
    broker.recall(int(broker.send(key="recalled", TIMER_DELAY_MS=9000)[b"TIMER_OUT_MS"]), "recalled")
    broker.send(key="rolled", TIMER_DELAY_MS=20_000)
    broker.at(NOW + 5500)
    if is_saved:
        broker.checkpoint()
    broker = broker.killed()
    assert broker.timers.take_checkpoint(TimerCheckpoint(NOW + 14_000, queue_offset=2, master_queue_offset=2))
    broker.timers.open()
    clock.now_ms = NOW + 15_000
    for _ in range(2):
        for _ in range(works):
            broker.timers.work()
        broker.checkpoint()
        broker = broker.killed()
    while (wait_s := broker.settle()) is not None:
        clock.now_ms += int(wait_s * 1000) or 1
    assert Counter(broker.keys()) == Counter([*due, "rolled"])
    broker.stop()


def test_who_writes_to_the_timers_topic_makes_no_more_queues_than_parked_messages_may(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_rules, "STRAY_QUEUES_MAX", 3)
    broker = rig()
    for number in range(10):
        out = {"TIMER_OUT_MS": NOW, "REAL_TOPIC": f"X{number % 2}", "REAL_QID": number}
        broker.send(topic_names.TIMER_TOPIC, key=f"K{number}", **out)
    broker.at(NOW + 5000)
    assert sum(len(ids) for topic, ids in broker.store.queues().items() if topic.startswith("X")) == 3
    assert len(broker.quarantine.entries()) == 7
    broker.stop()


def test_what_is_recalled_stays_so_when_the_broker_was_away_for_over_half_a_wheel(
    rig: Callable[..., Rig], clock: Clock
) -> None:
    """It waited in a slot from which it is rolled on, and got none any more: it was delivered without a look.

    What waited in the slot of its time comes.
    """
    broker = rig(precision_ms=100, roll_slots=10)
    broker.send(key="due", TIMER_DELAY_MS=500)
    out = {}
    for key in ("kept", "recalled"):
        out[key] = int(broker.send(key=key, TIMER_DELAY_MS=36_000_000)[b"TIMER_OUT_MS"])
    broker.recall(out["recalled"], "recalled")
    broker.recall(out["kept"], "kept", topic="other")
    broker.settle()
    clock.now_ms = NOW + 3 * DAY_MS
    broker = broker.restarted()
    while (wait_s := broker.settle()) is not None:
        clock.now_ms += int(wait_s * 1000) or 1
    assert broker.keys() == ["due", "kept"]
    broker.stop()


def test_a_recall_that_was_rolled_on_counts_in_a_slot_that_is_not_done_however_old(
    rig: Callable[..., Rig], clock: Clock
) -> None:
    """By a clock set back it is far ahead of what it recalls; set forward by a day, it got no slot any more."""
    broker = rig(precision_ms=100, roll_slots=10)
    out_ms = int(broker.send(key="recalled", TIMER_DELAY_MS=900)[b"TIMER_OUT_MS"])
    broker.settle()
    clock.now_ms = NOW - 7_200_000
    broker.settle()
    broker.recall(out_ms, "recalled")
    broker.settle()
    broker.at(NOW + 3 * DAY_MS)
    assert broker.keys() == []
    broker.stop()
