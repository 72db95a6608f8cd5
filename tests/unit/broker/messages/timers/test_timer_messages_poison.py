"""Timer messages with what cannot be delivered among the rest, and clocks that are set back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.broker.messages.timers.test_timer_messages import NOW, Clock, Rig, clock, rig

from rocketspark.broker import topic_names
from rocketspark.errors import RecordError
from rocketspark.protocol.message import record, record_layout
from rocketspark.store.timers.timer_files import TimerCheckpoint
from rocketspark.store.timers.timer_wheel import SLOT_COUNT

pytestmark = pytest.mark.shows("mended: odd messages sent to the timers' topic itself")

__all__ = ["clock", "rig"]


def rot(broker: Rig, number: int) -> int:
    """Two bits of a parked message's body flip."""
    ((position, _, _),) = broker.store.queue_units(topic_names.TIMER_TOPIC, 0, number, 1)
    broker.store.log.mapped_files.get(0).map[position + record_layout.FIXED_BYTES_V4] ^= 3
    return position


@pytest.mark.shows("mended: TIMER_ROLL_TIMES of 5,000 digits: others of its slot lost")
@pytest.mark.parametrize("text", ["9" * 5000, "²", "-1", "x"])
def test_a_count_of_rolls_that_is_none_counts_as_none(rig: Callable[..., Rig], text: str) -> None:
    broker = rig(roll_slots=4)
    for key in ("A", "B", "C"):
        more = {"TIMER_ROLL_TIMES": text} if key == "B" else {}
        broker.send(key=key, TIMER_DELAY_SEC=9, **more)
    for second in range(1, 14):
        broker.at(NOW + second * 1000)
    assert sorted(broker.keys()) == ["A", "B", "C"]
    assert broker.quarantine.entries() == []


@pytest.mark.shows(
    "mended: one rotten parked message: half no start, delay level stands still, timer wheel stands still",
)
@pytest.mark.parametrize("on_wheel", [False, True])
def test_a_rotten_message_is_set_aside_and_the_others_of_its_slot_come(rig: Callable[..., Rig], on_wheel: bool) -> None:
    broker = rig()
    for key in ("A", "B", "C"):
        broker.send(key=key, TIMER_DELAY_SEC=2)
    if on_wheel:
        broker.settle()
    position = rot(broker, 1)
    broker.at(NOW + 5000)
    assert broker.keys() == ["A", "C"]
    assert [e.name for e in broker.quarantine.entries()] == [f"timer-{position}"]
    with pytest.raises(RecordError):
        broker.quarantine.retry(f"timer-{position}")
    rot(broker, 1)
    broker.quarantine.retry(f"timer-{position}")
    assert broker.keys() == ["A", "C", "B"]
    assert broker.quarantine.entries() == []
    broker.at(NOW + 20_000)
    assert broker.keys() == ["A", "C", "B"]


@pytest.mark.shows("mended: TIMER_ROLL_TIMES of 5,000 digits: others of its slot lost")
def test_an_error_nobody_thought_of_loses_nothing_of_a_slot(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = rig()
    for key in ("A", "B", "C"):
        broker.send(key=key, TIMER_DELAY_SEC=2)
    put_back = broker.timers._delivery.put_back

    def broken(stored: record.Record, *args: object, **options: bool) -> None:
        if stored.body == b"B":
            raise KeyError("x")
        put_back(stored, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.timers._delivery, "put_back", broken)
    broker.at(NOW + 5000)
    assert broker.keys() == ["A", "C"]
    (entry,) = broker.quarantine.entries()
    assert entry.reason == "KeyError: 'x'"
    monkeypatch.undo()
    broker.quarantine.retry(entry.name)
    assert broker.keys() == ["A", "C", "B"]


@pytest.mark.shows(
    "mended: a flipped unit of the timers', half messages' and delay levels' queues: an acknowledged message "
    "is set aside for good"
)
def test_a_flipped_bit_of_a_queue_s_unit_sets_nothing_aside(rig: Callable[..., Rig]) -> None:
    broker = rig()
    broker.send(key="on", TIMER_DELAY_SEC=5)
    broker.settle()
    broker.checkpoint()
    for key in "ABCDE":
        broker.send(key=key, TIMER_DELAY_SEC=5)
    flip_unit_after(broker, 2)
    broker = rig()
    broker.at(NOW + 9000)
    assert sorted(broker.keys()) == [*"ABCDE", "on"]
    assert broker.quarantine.entries() == []
    assert broker.store.mender.mended == 1


@pytest.mark.shows("mended: a torn config/timermetrics without .bak: no start")
def test_torn_counts_do_not_keep_the_broker_from_starting(rig: Callable[..., Rig]) -> None:
    broker = rig()
    broker.send(key="A", TIMER_DELAY_SEC=5)
    broker.settle()
    broker.stop()
    (broker.root / "config/timermetrics").write_bytes(b'{"torn":')
    (broker.root / "config/timermetrics.bak").unlink(missing_ok=True)
    broker = rig()
    broker.at(NOW + 9000)
    assert broker.keys() == ["A"]


@pytest.mark.shows(
    "mended: a flipped unit of the timers', half messages' and delay levels' queues: an acknowledged message "
    "is set aside for good"
)
def test_what_was_set_aside_for_its_unit_is_found_where_the_unit_says_now(rig: Callable[..., Rig]) -> None:
    broker = rig()
    for key in ("A", "B"):
        broker.send(key=key, TIMER_DELAY_SEC=5)
    broker.at(NOW + 9000)
    ((right, _, _),) = broker.store.queue_units(topic_names.TIMER_TOPIC, 0, 1, 1)
    ((other, _, _),) = broker.store.queue_units(topic_names.TIMER_TOPIC, 0, 0, 1)
    for wrong in (right + 1024, other):
        name = broker.quarantine.add("timer", topic_names.TIMER_TOPIC, 0, 1, wrong, "x").name
        broker.quarantine.retry(name)
        assert broker.keys()[-1] == "B"


def flip_unit_after(broker: Rig, offset: int) -> None:
    """Stop the store as it is; then a bit of a unit of the timers' queue flips."""
    broker.store.flush_log()
    broker.store.flush_queues()
    broker.store.flush_indexes()
    broker.store.write_checkpoint()
    broker.timers.close()
    broker.store.close()
    queue = broker.root / "consumequeue" / topic_names.TIMER_TOPIC / "0" / f"{0:020d}"
    with open(queue, "r+b") as file:
        file.seek(offset * 20 + 6)
        flipped = file.read(1)[0] ^ 4
        file.seek(offset * 20 + 6)
        file.write(bytes([flipped]))


UNIT, SLOT = 52, 32
WHEEL, LOG = "timerwheel", f"timerlog/{0:020d}"


def slot_at(out_ms: int) -> int:
    return out_ms // 1000 % SLOT_COUNT * SLOT


# (file, byte, bit): of the newest of 20 units of a slot, of its unit 10, of the slot itself.
FLIPS = [
    (LOG, 19 * UNIT + 3, 0),
    (LOG, 19 * UNIT + 11, 0),
    (LOG, 0 * UNIT + 11, 0),
    (LOG, 10 * UNIT + 3, 2),
    (LOG, 10 * UNIT + 7, 5),
    (LOG, 10 * UNIT + 13, 2),
    (LOG, 10 * UNIT + 15, 1),
    (LOG, 10 * UNIT + 15, 2),
    (LOG, 10 * UNIT + 21, 5),
    (LOG, 19 * UNIT + 26, 3),
    (LOG, 24 * UNIT + 3, 2),
    (WHEEL, slot_at(NOW + 4000) + 6, 0),
    (WHEEL, slot_at(NOW + 4000) + 15, 0),
    (WHEEL, slot_at(NOW + 4000) + 16, 7),
    (WHEEL, slot_at(NOW + 4000) + 22, 4),
    (WHEEL, slot_at(NOW + 4000) + 23, 0),
    (WHEEL, slot_at(NOW + 4000) + 27, 0),
]


@pytest.mark.shows("mended: a flipped bit in the timer log or wheel, or a zeroed wheel, loses a slot without a line")
@pytest.mark.parametrize("precision_ms", [1000, 100])
@pytest.mark.parametrize(("name", "byte", "bit"), FLIPS)
def test_a_flipped_bit_in_log_or_wheel_loses_no_message(
    rig: Callable[..., Rig], name: str, byte: int, bit: int, precision_ms: int
) -> None:
    broker = with_a_full_slot(rig)
    broker.stop()
    with open(broker.root / name, "r+b") as file:
        file.seek(byte)
        flipped = file.read(1)[0] ^ 1 << bit
        file.seek(byte)
        file.write(bytes([flipped]))
    delivers_all(rig(precision_ms=precision_ms))


@pytest.mark.shows("mended: a flipped bit in the timer log or wheel, or a zeroed wheel, loses a slot without a line")
@pytest.mark.parametrize("part", ["page", "whole"])
def test_a_zeroed_wheel_loses_no_message(rig: Callable[..., Rig], part: str) -> None:
    broker = with_a_full_slot(rig)
    broker.send(key="far", TIMER_DELAY_SEC=86_400)
    broker.settle()
    broker.stop()
    at = slot_at(NOW + 4000)
    with open(broker.root / WHEEL, "r+b") as wheel:
        wheel.seek(at - at % 4096 if part == "page" else 0)
        wheel.write(bytes(4096) if part == "page" else bytes(SLOT_COUNT * SLOT))
    broker = rig()
    delivers_all(broker)
    broker.at(NOW + 90_000_000)
    assert broker.keys()[-1] == "far"


def with_a_full_slot(rig: Callable[..., Rig]) -> Rig:
    broker = rig()
    for n in range(20):
        broker.send(key=f"K{n}", TIMER_DELAY_MS=5000)
    for n in range(5):
        broker.send(key=f"L{n}", TIMER_DELAY_MS=9000)
    broker.settle()
    return broker


def delivers_all(broker: Rig) -> None:
    expected = [f"K{n}" for n in range(20)]
    broker.at(NOW + 4000)
    assert broker.keys() == []
    broker.at(NOW + 7000)
    assert sorted(broker.keys()) == sorted(expected)
    broker.at(NOW + 30_000)
    assert sorted(broker.keys()) == sorted(expected + [f"L{n}" for n in range(5)])
    assert broker.quarantine.entries() == []


@pytest.mark.shows("mended: timer messages after a clock was set back came at once")
@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("killed", [False, True])
def test_after_a_clock_was_set_back_nothing_comes_early_or_twice(
    rig: Callable[..., Rig], clock: Clock, restarts: int, killed: bool
) -> None:
    broker = rig()
    broker.send(key="before", TIMER_DELAY_SEC=1)
    broker.at(NOW + 3000)
    broker.send(key="ahead", TIMER_DELAY_SEC=600)
    broker.at(NOW + 3_600_000)
    assert broker.keys() == ["before", "ahead"]
    broker.checkpoint()
    clock.now_ms = NOW + 10_000
    for _ in range(restarts):
        broker = broker.killed() if killed else broker.restarted()
    broker.send(key="later", TIMER_DELAY_SEC=590)
    broker.at(NOW + 60_000)
    if killed:
        broker = broker.killed()
        broker.settle()
    assert broker.keys() == ["before", "ahead"]
    broker.at(NOW + 599_999)
    assert broker.keys() == ["before", "ahead"]
    broker.at(NOW + 601_000)
    assert broker.keys() == ["before", "ahead", "later"]
    broker.stop()


@pytest.mark.shows("mended: who followed a master whose clock was ahead delivered timers at once, recalled ones too")
@pytest.mark.parametrize("killed", [False, True])
def test_who_follows_a_broker_whose_clock_was_ahead_delivers_nothing_early_or_twice(
    rig: Callable[..., Rig], killed: bool
) -> None:
    """It never delivered by itself, so its wheel is empty."""
    broker = rig()
    broker.send(key="theirs", TIMER_DELAY_SEC=600)
    assert broker.timers.take_checkpoint(TimerCheckpoint(NOW + 3_600_000, queue_offset=1, master_queue_offset=1))
    broker.timers.open()
    broker.send(key="later", TIMER_DELAY_SEC=10)
    broker.recall(int(broker.send(key="recalled", TIMER_DELAY_SEC=20)[b"TIMER_OUT_MS"]), "recalled")
    broker.at(NOW + 9999)
    assert broker.keys() == []
    for seconds in (12, 15, 700, 4000) if killed else ():
        broker.checkpoint()
        broker = broker.killed().at(NOW + seconds * 1000)
        assert broker.keys() == ["later"]
    broker.at(NOW + 4_000_000)
    assert broker.keys() == ["later"]
    broker.stop()
