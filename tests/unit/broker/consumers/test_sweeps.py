"""Sweeps and looks through tables that clients fill: some of them in one turn of the loop, with the whole outcome."""

from __future__ import annotations

import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from rocketspark.broker.consumers import consumer_offsets, rebalance_locks
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.consumers.rebalance_locks import RebalanceLocks
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.model import MessageQueue
from rocketspark.protocol.json import bodies


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", "b", n) for n in range(count)]


def test_locks_expire_in_steps_but_for_those_renewed_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance_locks, "LOOKED_AT_IN_TURN", 10)
    locks = RebalanceLocks(expiry_ms=100)
    for group in ("a", "b", "c"):
        locks.lock(group, "one", queues(25), 0)
    locks.lock("b", "one", queues(5), 50)
    steps = locks.expire_steps(101)
    next(steps)
    assert 0 < locks.count < 75
    # While others had their turn: one locks what is about to go, another gives all back.
    locks.lock("c", "two", queues(3), 101)
    locks.unlock("b", "one", queues(25)[20:])
    assert sum(1 for _ in steps) >= 5
    assert locks.count == 5 + 3
    assert locks.lock("b", "two", queues(25), 110) == queues(25)[5:]
    assert locks.lock("c", "one", queues(25), 110) == queues(25)[3:]
    list(locks.expire_steps(1000))
    assert (locks.count, locks._held) == (0, {})


def whole(steps: Generator[None, None, Any]) -> tuple[int, Any]:
    """How often it gave others a turn, and what it found."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as e:
            return turns, e.value
        turns += 1


@pytest.fixture
def offsets(tmp_path: Path) -> ConsumerOffsets:
    path = tmp_path / "consumerOffset.json"
    return ConsumerOffsets(JsonFile(path, bodies.OffsetTable, consumer_offsets.encode_offsets))


def test_topics_and_groups_are_found_in_steps(offsets: ConsumerOffsets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offsets, "PAIRS_IN_TURN", 16)
    drawn = random.Random(1)
    for _ in range(200):
        offsets.commit(f"g{drawn.randrange(9)}", f"t{drawn.randrange(30)}", 0, 1)
    for group in ("g1", "g8", "g", "none"):
        assert whole(offsets.topics_of_steps(group)) == ((len(offsets.table) - 1) // 16, offsets.topics_of(group))
    for topic in ("t1", "t29", "t", "none"):
        assert whole(offsets.groups_of_steps(topic))[1] == offsets.groups_of(topic)
    # What goes in between is no error.
    steps = offsets.topics_of_steps("g1")
    next(steps)
    offsets.delete_group("g1")
    whole(steps)


def test_offsets_of_many_queues_make_a_table_large(offsets: ConsumerOffsets) -> None:
    for queue_id in range(200):
        offsets.commit("g", "t", queue_id, 1)
    assert len(offsets.rows()) == 12
    offsets.table["wide@g"] = dict.fromkeys(range(65_536), 1)
    assert len(offsets.rows()) > consumer_offsets.SMALL_ROWS
