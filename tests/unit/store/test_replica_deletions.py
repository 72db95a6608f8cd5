"""Topics deleted at the master: the copy's queues are the master's, whenever it hears of the deletion."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.test_replica import BORN, NOW_MS, log_of, stream, units_of

from rocketspark.store import Store

pytestmark = pytest.mark.shows(
    "topics deleted at the master, the quarantine and offsets set by hand reach slaves of ours",
)


def put(store: Store, topic: str, number: int) -> None:
    store.append(
        topic.encode(), number % 2, b"b" * (number % 97), b"", 0, None, None, None, NOW_MS + number, 0, 0, NOW_MS, BORN
    )


def taken(master: Store, slave: Store) -> None:
    slave.take_deletions(master.deleted_topics())


@pytest.mark.parametrize("seed", range(40))
def test_the_queues_are_the_master_s_in_the_end(make_store: Any, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    master, slave = make_store(tmp_path / "m"), make_store(tmp_path / "s")
    slave.become_replica()
    for number in range(300):
        put(master, rng.choice("ABC"), number)
        if rng.random() < 0.03:
            master.delete_topic(rng.choice("AB"))
        if rng.random() < 0.1:
            stream(master, slave, rng, rng.randrange(1, 5000), chunk_max=500)
        if rng.random() < 0.05:
            taken(master, slave)
    # What is not taken before the end is taken after it, once or again.
    if rng.random() < 0.5:
        taken(master, slave)
    stream(master, slave, rng, 1 << 30)
    taken(master, slave)
    taken(master, slave)
    assert log_of(slave) == log_of(master)
    assert units_of(slave) == units_of(master)
    assert slave.deleted_topics() == master.deleted_topics()
    slave.close()
    again = make_store(tmp_path / "s")
    assert units_of(again) == units_of(master)
    assert again.deleted_topics() == master.deleted_topics()


def test_what_is_received_later_of_a_deleted_topic_is_in_no_queue(make_store: Any, tmp_path: Path) -> None:
    rng = random.Random(1)
    master, slave = make_store(tmp_path / "m"), make_store(tmp_path / "s")
    slave.become_replica()
    for number in range(20):
        put(master, "A", number)
    stream(master, slave, rng, 700, chunk_max=100)
    assert slave.queue_range("A", 0) != (0, 0)
    master.delete_topic("A")
    taken(master, slave)
    assert "A" not in slave.queues()
    stream(master, slave, rng, 1 << 30)
    assert "A" not in slave.queues()
    put(master, "A", 0)
    stream(master, slave, rng, 1 << 30)
    assert slave.queue_range("A", 0) == master.queue_range("A", 0) == (0, 1)


def test_a_topic_made_again_before_the_copy_hears_keeps_its_new_messages(make_store: Any, tmp_path: Path) -> None:
    rng = random.Random(1)
    master, slave = make_store(tmp_path / "m"), make_store(tmp_path / "s")
    slave.become_replica()
    for number in range(20):
        put(master, "A", number)
    master.delete_topic("A")
    put(master, "A", 0)
    stream(master, slave, rng, 1 << 30)
    taken(master, slave)
    assert units_of(slave) == units_of(master)
    assert slave.queue_range("A", 0) == (0, 1)
    before = units_of(slave)
    taken(master, slave)
    assert units_of(slave) == before


def test_a_deletion_beyond_its_log_is_none_of_the_log_that_a_new_master_writes(make_store: Any, tmp_path: Path) -> None:
    """Its slaves, and it itself after a restart, would leave the new topic's messages out of all queues."""
    rng = random.Random(1)
    master, slave = make_store(tmp_path / "m"), make_store(tmp_path / "s")
    slave.become_replica()
    for number in range(10):
        put(master, "A", number)
    stream(master, slave, rng, 700, chunk_max=100)
    end = slave.written_position
    master.delete_topic("A")
    taken(master, slave)
    slave.become_master()
    assert slave.deleted_topics() == {"A": end} != master.deleted_topics()
    put(slave, "A", 0)
    third = make_store(tmp_path / "t")
    third.become_replica()
    taken(slave, third)
    stream(slave, third, rng, 1 << 30)
    assert units_of(third) == units_of(slave)
    assert slave.queue_range("A", 0) == (0, 1)
