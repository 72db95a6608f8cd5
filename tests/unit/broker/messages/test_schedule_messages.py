"""Delayed messages by a clock set by hand, killed at any record: each comes once."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.stand_ins import like
from tests.unit.broker.offline import quarantine_in, records_in, rules_in

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.messages import put_message as put_message_module
from rocketspark.broker.messages import schedule_messages as delays_module
from rocketspark.broker.messages.put_message import FixedFields, PutMessage, pairs_of
from rocketspark.broker.messages.schedule_messages import ScheduleMessages, encode_delay_offsets
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.protocol.json import bodies
from rocketspark.protocol.message import properties, record
from rocketspark.store import Store, StoreSettings

NOW = 1_795_214_512_000
BORN = bytes.fromhex("7f0000010000c001")
LEVELS_MS = (1000, 3000)


class Killed(BaseException):
    """The process ends here."""


class Rig:
    """A store and its delays; `left`: how many deliveries until it is killed."""

    def __init__(self, root: Path, now_ms: list[int], left: int | None = None) -> None:
        self.now_ms, self.left = now_ms, left
        self.store = Store(
            StoreSettings(
                root=str(root),
                log_file_bytes=1 << 18,
                queue_file_units=1000,
                index_slots=100,
                index_entries=400,
                delay_ms=LEVELS_MS,
            )
        )
        self.store.open()
        file = JsonFile(root / "config/delayOffset.json", bodies.DelayOffsetTable, encode_delay_offsets)
        self.delays = ScheduleMessages(self.store, LEVELS_MS, file, quarantine_in(root))
        stats = Stats("C", self.store.take_stored, 0)
        rules = rules_in(self.store, marks={"MARK": "m"})
        self.put_message = PutMessage(self.store, rules, LongPolling(), self.delays, stats)
        self.delays._find_delivered()

    def park(self, key: str, level: int, times: int = 0) -> None:
        stored = properties.encode({"UNIQ_KEY": key, "DELAY": str(level)}).encode()
        body = f"{key} {times}".encode()
        self.put_message.accept("T", 0, body, stored, pairs_of(stored), FixedFields(0, 0, NOW, BORN, times))

    def deliver(self, parked: record.Record) -> None:
        if self.left == 0:
            raise Killed
        if self.left is not None:
            self.left -= 1
        stored = bytes(parked.properties)
        times = parked.reconsume_times
        self.put_message.accept(
            "T",
            0,
            parked.body,
            stored,
            pairs_of(stored),
            FixedFields(0, 0, parked.born_time_ms, BORN, times),
            delayed=False,
        )

    def work(self) -> None:
        """What the timers of the loop would do now; there is none here."""
        self.delays._deliver = self.deliver
        for level in (1, 2):
            while self.delays._deliver_due(level) == 0:
                pass
        self.delays._deliver = None

    def delivered(self) -> Counter[str]:
        return Counter(r.body.decode() for r in records_in(self.store))


# What happens one after another: a message (its key, level and how often it was consumed), time going by, a save.
STEPS = st.lists(
    st.tuples(st.just("park"), st.integers(0, 3), st.integers(1, 2), st.integers(0, 1))
    | st.tuples(st.just("pass"), st.sampled_from([1, 500, 1500, 4000]), st.just(0), st.just(0))
    | st.tuples(st.just("save"), st.just(0), st.just(0), st.just(0)),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(STEPS, st.lists(st.integers(0, 12), max_size=3))
def test_each_comes_once_wherever_the_broker_is_killed(
    steps: list[tuple[str, int, int, int]], kills: list[int]
) -> None:
    now_ms = [NOW]
    wanted: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(put_message_module, "machine", like(machine, time=lambda: now_ms[0] / 1000))
        patch.setattr(delays_module, "now_ms", lambda: now_ms[0])
        lives = iter([*kills, None])
        rig = Rig(Path(folder), now_ms, next(lives))
        for what, number, level, times in [*steps, ("pass", 10_000, 0, 0)]:
            if what == "park":
                rig.park(f"K{number}", level, times)
                wanted[f"K{number} {times}"] += 1
            elif what == "save":
                rig.delays.save()
            else:
                now_ms[0] += number
            while True:
                try:
                    rig.work()
                    break
                except Killed:
                    rig.store.close()
                    rig = Rig(Path(folder), now_ms, next(lives))
        assert rig.delivered() == wanted
        assert rig.store.queue_range(topic_names.SCHEDULE_TOPIC, 2) == (0, 0)
        rig.store.close()


def test_messages_that_were_not_parked_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with the same id that came directly is no delivery."""
    now_ms = [NOW]
    monkeypatch.setattr(put_message_module, "machine", like(machine, time=lambda: now_ms[0] / 1000))
    monkeypatch.setattr(delays_module, "now_ms", lambda: now_ms[0])
    rig = Rig(tmp_path, now_ms, left=0)
    rig.park("K", 1)
    now_ms[0] += 1000
    stored = properties.encode({"UNIQ_KEY": "K"}).encode()
    rig.put_message.accept("T", 0, b"K direct", stored, pairs_of(stored), FixedFields(0, 0, NOW, BORN))
    with pytest.raises(Killed):
        rig.work()
    rig.store.close()
    rig = Rig(tmp_path, now_ms)
    rig.work()
    assert rig.delivered() == Counter({"K direct": 1, "K 0": 1})
    assert rig.delays._delivered is None
    rig.store.close()


def test_an_offset_beyond_the_end_passes_over_nothing_that_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a log that lost its end: what is parked then takes the places of what is gone."""
    now_ms = [NOW]
    monkeypatch.setattr(put_message_module, "machine", like(machine, time=lambda: now_ms[0] / 1000))
    monkeypatch.setattr(delays_module, "now_ms", lambda: now_ms[0])
    rig = Rig(tmp_path, now_ms)
    rig.delays._offsets[1] = 5
    rig.work()
    rig.park("K", 1)
    now_ms[0] += 1000
    rig.work()
    assert rig.delivered() == Counter({"K 0": 1})
    rig.store.close()
