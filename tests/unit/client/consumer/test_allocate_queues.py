"""Shares of queues: what the official strategies give, and that every queue has one owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.client.consumer.allocate_queues import (
    Strategy,
    average,
    average_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
    machine_room_nearby,
    strategy_of,
)
from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue

pytestmark = pytest.mark.shows(
    "rebalance: strategies; members that join, leave and are killed under load; locks for order",
)

QUEUES = [MessageQueue("TopicTest", broker, i) for broker in ("r1@a", "r2@b") for i in range(5)]
MEMBERS = ["10.0.0.1@c0", "10.0.0.1@c1", "10.0.0.2@c2"]
NEARBY = machine_room_nearby(
    lambda broker: broker.split("@")[0], lambda client: "r1" if client.startswith("10.0.0.1") else "r3"
)
# What the classes of the official client 5.5.0 gave for these lists: room number and queue id.
OFFICIAL: list[tuple[Strategy, list[str]]] = [
    (average, ["10 11 12 13", "14 20 21", "22 23 24"]),
    (average_by_circle, ["10 13 21 24", "11 14 22", "12 20 23"]),
    (consistent_hash(), ["10 13 22", "11 20", "12 14 21 23 24"]),
    (NEARBY, ["10 11 12 20 21", "13 14 22 23", "24"]),
    (by_machine_room(["r1"]), ["10 13", "11 14", "12"]),
]


@pytest.mark.parametrize(("strategy", "shares"), OFFICIAL)
def test_the_official_shares(strategy: Strategy, shares: list[str]) -> None:
    for member, expected in zip(MEMBERS, shares, strict=True):
        share = strategy(member, QUEUES, MEMBERS)
        assert " ".join(f"{q.broker_name[1]}{q.queue_id}" for q in share) == expected
    assert strategy("stranger", QUEUES, MEMBERS) == []


def test_by_config() -> None:
    assert by_config(QUEUES[2:4])("anybody", QUEUES, MEMBERS) == QUEUES[2:4]
    assert by_config([MessageQueue("other", "r1@a", 0)])("anybody", QUEUES, MEMBERS) == []


def test_names() -> None:
    assert strategy_of("average") is average
    assert strategy_of(average_by_circle) is average_by_circle
    for wrong in ("mean", 5):
        with pytest.raises(ConfigError, match="average_by_circle"):
            strategy_of(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        consistent_hash(0)


@given(
    st.sampled_from([average, average_by_circle, consistent_hash(3), NEARBY]),
    st.lists(st.integers(0, 40), min_size=0, max_size=40, unique=True),
    st.lists(st.text("abc123.@", min_size=1, max_size=12), min_size=1, max_size=12, unique=True),
)
def test_every_queue_has_one_owner(strategy: Strategy, ids: list[int], members: list[str]) -> None:
    queues = [MessageQueue("t", f"r{i % 3}@b", i) for i in sorted(ids)]
    members = sorted(members)
    shares = [queue for member in members for queue in strategy(member, queues, members)]
    assert sorted(shares) == sorted(queues)


@given(st.integers(0, 60), st.integers(1, 20))
def test_averages_differ_by_one_at_most(queue_count: int, member_count: int) -> None:
    queues = [MessageQueue("t", "b", i) for i in range(queue_count)]
    members = [f"{i:03}" for i in range(member_count)]
    for strategy in (average, average_by_circle):
        sizes = [len(strategy(member, queues, members)) for member in members]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == queue_count
