"""Ordered pops: the table against a simple reference, and its file as RocketMQ writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketspark.broker.pop import ordered
from rocketspark.broker.pop.ordered import BlockEnds, OrderedPops, OrderTable, encode_table
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.protocol.json import java_json

pytestmark = pytest.mark.shows(
    "ordered pops, `attemptId`, acks out of order, `consumerOrderInfo.json` to and from the Java broker",
    "In-order pops given back unseen count no attempt, also after a restart",
)

T, G, Q = "T", "G", 3


def table(root: Path) -> OrderedPops:
    return OrderedPops(JsonFile(root / "consumerOrderInfo.json", OrderTable, encode_table))


class NoFile(JsonFile[OrderTable]):
    def __init__(self) -> None:
        super().__init__(Path("/nowhere"), OrderTable)

    def load(self) -> None:
        return None


@dataclass
class Reference:
    """One queue of one group, as a dict of messages: what a group may have and when."""

    committed: int = 0
    given: dict[int, int] = field(default_factory=dict)  # offset -> visible again at
    acked: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    unseen: set[int] = field(default_factory=set)
    attempt: str | None = None
    popped_ms: int = -1

    def is_blocked(self, attempt: str | None, now_ms: int) -> bool:
        if attempt is not None and attempt == self.attempt:
            return False
        return any(now_ms < at for offset, at in self.given.items() if offset not in self.acked)

    def give(self, count: int, attempt: str | None, now_ms: int, invisible_ms: int) -> dict[int, int]:
        offsets = range(self.committed, self.committed + count)
        if self.popped_ms >= 0 and not (attempt is not None and attempt == self.attempt):
            times = {o: self.counts.get(o, 0) + (0 if o in self.unseen else 1) for o in offsets if o in self.given}
            self.counts = {o: n for o, n in times.items() if n}
        self.unseen = set()
        self.given = dict.fromkeys(offsets, now_ms + invisible_ms)
        self.acked = set()
        self.attempt, self.popped_ms = attempt, now_ms
        return self.counts

    def ack(self, offset: int, popped_ms: int) -> None:
        if popped_ms == self.popped_ms:
            self.acked.add(offset)
            left = [o for o in self.given if o not in self.acked]
            self.committed = left[0] if left else max(self.given) + 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pop"), st.integers(1, 4), st.sampled_from([None, "a", "b"])),
        st.tuples(st.just("ack"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("change"), st.integers(0, 5), st.integers(0, 30)),
        st.tuples(st.just("give back"), st.integers(0, 5), st.integers(0, 30)),
        st.tuples(st.just("time"), st.integers(1, 40), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(STEPS)
def test_the_table_does_what_a_simple_one_does(steps: list[tuple[str, int, object]]) -> None:
    pops, model, now_ms = OrderedPops(NoFile()), Reference(), 1000
    for what, number, other in steps:
        if what == "time":
            now_ms += number
        elif what == "pop":
            attempt = None if other is None else str(other)
            blocked = pops.blocked_until_ms(T, G, Q, attempt, 20) > now_ms
            assert blocked == model.is_blocked(attempt, now_ms)
            if blocked:
                continue
            now_ms += 1
            offsets = range(model.committed, model.committed + number)
            items = pops.given(T, G, Q, offsets, attempt_id=attempt, pop_time_ms=now_ms, invisible_time_ms=20)
            counts = model.give(number, attempt, now_ms, 20)
            assert items[:-1] == [f"0 qo{Q}%{o} {n}" for o, n in sorted(counts.items())]
            least = min(counts.values(), default=0) if len(counts) == len(offsets) else 0
            assert items[-1] == f"0 {Q} {least}"
        elif what == "ack" and model.given:
            popped_ms = model.popped_ms if other else model.popped_ms - 1
            offset = min(model.given) + number
            if offset not in model.given and other:
                with pytest.raises(KeyError):
                    pops.acknowledge(T, G, Q, offset, popped_ms)
                continue
            next_offset = pops.acknowledge(T, G, Q, offset, popped_ms)
            model.ack(offset, popped_ms)
            assert next_offset == (model.committed if other else None)
        elif what in ("change", "give back") and model.given:
            offset, unseen = min(model.given) + number, what == "give back"
            at_ms = now_ms + int(str(other))
            pops.change_next_visible(T, G, Q, offset, model.popped_ms, at_ms, unseen=unseen)
            if offset in model.given:
                model.given[offset] = at_ms
                model.unseen |= {offset} if unseen else set()
        assert pops.count(T, G, Q) == len(model.given.keys() - model.acked)
    again = java_json.decode(encode_table(OrderTable(table=pops.table)), OrderTable)
    assert again.table == pops.table


# Written by the 5.5.0 broker at its end, but for its line breaks.
JAVA = (
    b'{"orderInfoCount":2,"orderedConsumptionLevel":"QUEUE","table":{"Pops26@g26":{0:{"cm":1,"i":3600000,'
    b'"l":1795415201693,"o":[1,1,2],"oc":{1:2,2:2},"ot":{2:1795415231700},"popTime":1795415201693}},"Pops25@g25":{0:{'
    b'"a":"x","cm":0,"i":3600000,"l":1795415201475,"o":[1,1,2],"oc":{},"popTime":1795415201475}}}}'
)


def test_the_file_is_written_as_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "consumerOrderInfo.json").write_bytes(JAVA)
    pops = table(tmp_path)
    batch = pops.table["Pops26@g26"][0]
    assert batch.offsets() == [1, 2, 3]
    assert batch.unacknowledged() == [2, 3]
    assert batch.next_offset() == 2
    assert pops.blocked_until_ms("Pops25", "g25", 0, "x", 0) == 0
    assert pops.blocked_until_ms("Pops25", "g25", 0, "y", 0) == 1795415201475 + 3600000
    assert encode_table(OrderTable(table=pops.table)) == JAVA
    pops.forget("Pops26", "g26", 0)
    pops.save()
    assert set(table(tmp_path).table["Pops25@g25"]) == {0}
    assert not table(tmp_path).table["Pops26@g26"]


@pytest.mark.shows("offsets beyond the log's end after a power cut, ordered pops' batches too; at an election")
def test_a_batch_with_messages_beyond_its_queue_s_end_is_forgotten(tmp_path: Path) -> None:
    pops = table(tmp_path)
    for queue_id, last in ((0, 9), (1, 10)):
        pops.given("T", "G", queue_id, [8, last], attempt_id=None, pop_time_ms=1, invisible_time_ms=1000)
    pops.keep_within(lambda topic, queue_id: 10, lambda topic, queue_id, offset: 0)
    assert [pops.has_batch("T", "G", queue_id) for queue_id in (0, 1)] == [True, False]


def test_what_is_old_or_gone_is_forgotten(tmp_path: Path) -> None:
    pops = table(tmp_path)
    for topic, group, queue_id, at_ms in (
        ("T", "G", 0, 1000),
        ("T", "G", 4, 1000),
        ("T", "none", 0, 1000),
        ("none", "G", 0, 1000),
        ("old", "G", 0, 10),
    ):
        pops.given(topic, group, queue_id, [1], attempt_id=None, pop_time_ms=at_ms, invisible_time_ms=1)
    queues = {"T": 4, "old": 1}
    pops.clean(lambda topic: queues.get(topic, 0), {"G"}.__contains__, 24 * 3_600_000 + 100)
    assert {key: set(queues) for key, queues in pops.table.items()} == {"T@G": {0}}
    pops.delete_topic("T")
    assert pops.table == {}


def test_odd_entries_of_a_file_harm_nothing(tmp_path: Path) -> None:
    text = b'{"table":{"T@G":{0:{"popTime":5},1:{"o":[],"popTime":5},2:{"o":[3],"popTime":5,"i":0}},"odd":{}}}'
    (tmp_path / "consumerOrderInfo.json").write_bytes(text)
    pops = table(tmp_path)
    for queue_id in (0, 1):
        assert pops.blocked_until_ms("T", "G", queue_id, None, 10) == 0
        with pytest.raises(KeyError):
            pops.acknowledge("T", "G", queue_id, 3, 5)
    assert pops.blocked_until_ms("T", "G", 2, None, 10) == 15


@pytest.mark.shows("pops in order: a clock that is set back, also while the broker is down, blocks no queue for longer")
def test_a_clock_that_was_set_back_over_a_restart_blocks_no_queue_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    pops = OrderedPops(NoFile())
    pops.given(T, G, Q, range(3), attempt_id=None, pop_time_ms=10_000, invisible_time_ms=20)
    pops.given(T, G, Q + 1, range(1), attempt_id=None, pop_time_ms=900, invisible_time_ms=500)
    pops.change_next_visible(T, G, Q, 1, 10_000, 10_500)
    ends = BlockEnds(pops, lambda *queue: None, enabled=lambda: False)

    def blocked_from(now_ms: int) -> list[int]:
        """Until when both are blocked once a broker has started at this time."""
        monkeypatch.setattr(ordered, "now_ms", lambda: now_ms)
        ends.look_at_all()
        return [pops.blocked_until_ms(T, G, queue_id, None, 0) for queue_id in (Q, Q + 1)]

    assert blocked_from(11_000) == [10_500, 1400]
    assert blocked_from(1000) == [1500, 1400]
    # Of a later start nothing comes sooner.
    assert blocked_from(1100) == [1500, 1400]
    assert blocked_from(500) == [1000, 1000]
    # The messages are those of that pop all the same.
    assert pops.acknowledge(T, G, Q, 1, 10_000) == 0
    assert pops.blocked_until_ms(T, G, Q, None, 0) == 520


def test_a_clock_that_is_set_back_blocks_no_queue_for_longer() -> None:
    pops = OrderedPops(NoFile())
    pops.given(T, G, Q, range(3), attempt_id=None, pop_time_ms=10_000, invisible_time_ms=20)
    pops.given(T, G, Q + 1, range(1), attempt_id=None, pop_time_ms=10_000, invisible_time_ms=20)
    pops.acknowledge(T, G, Q + 1, 0, 10_000)
    pops.change_next_visible(T, G, Q, 1, 10_000, 10_500)
    assert pops.set_back(9000) == [(T, G, Q)]
    assert pops.blocked_until_ms(T, G, Q, None, 0) == 1500
    # The messages are those of that pop all the same.
    assert pops.acknowledge(T, G, Q, 1, 10_000) == 0
    assert pops.blocked_until_ms(T, G, Q, None, 0) == 1020
