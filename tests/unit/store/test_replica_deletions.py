"""Topics deleted at the master: the copy's queues are the master's, whenever it hears of the deletion."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import HOST, send, small_settings
from tests.unit.store.test_compaction import TOPIC, copy, found
from tests.unit.store.test_compaction import opened as compacted
from tests.unit.store.test_replica import BORN, NOW_MS, log_of, stream, units_of

from rocketspark.protocol.message import sysflags
from rocketspark.store import Store
from rocketspark.store.settings import ManualClock

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


def put_of_kind(store: Store, topic: str, number: int, rng: random.Random, *, is_batch: bool) -> None:
    """One message, or several in one record where the topic's queues take that."""
    several = is_batch and rng.random() < 0.5
    stored = b"INNER_NUM\x01%d\x02" % rng.randrange(2, 5) if several else b""
    flag = sysflags.INNER_BATCH if several else 0
    store.append(topic.encode(), number % 2, b"b", stored, 0, None, None, None, NOW_MS + number, 0, flag, NOW_MS, BORN)


@pytest.mark.parametrize("seed", range(15))
def test_the_queues_are_of_the_master_s_kind_in_the_end(make_store: Any, tmp_path: Path, seed: int) -> None:
    """Settings come after the first messages: those of a batch had one offset together on whoever was elected."""
    rng = random.Random(seed)
    master, slave = make_store(tmp_path / "m"), make_store(tmp_path / "s")
    slave.become_replica()
    kinds: dict[str, bool] = {}
    told: dict[str, bool] = {}

    def settings_taken() -> None:
        for topic, is_batch in kinds.items():
            if told.get(topic) is not is_batch:
                slave.take_kind(topic, is_batch=is_batch)
        told.update(kinds)

    for number in range(300):
        topic = rng.choice("ABC")
        if topic not in kinds:
            kinds[topic] = rng.random() < 0.6
            if kinds[topic]:
                master.make_batch_topic(topic)
        put_of_kind(master, topic, number, rng, is_batch=kinds[topic])
        if rng.random() < 0.03 and (gone := rng.choice("AB")) in kinds:
            master.delete_topic(gone)
            del kinds[gone]
        if rng.random() < 0.1:
            stream(master, slave, rng, rng.randrange(1, 5000), chunk_max=500)
        if rng.random() < 0.05:
            taken(master, slave)
        if rng.random() < 0.1:
            settings_taken()
    stream(master, slave, rng, 1 << 30)
    for _ in range(2):
        taken(master, slave)
        settings_taken()
    assert units_of(slave) == units_of(master)
    slave.close()
    again = Store(small_settings(tmp_path / "s"), store_host=HOST, clock=ManualClock(NOW_MS))
    again.batch_topics = [topic for topic in kinds if kinds[topic]]
    again.open()
    assert units_of(again) == units_of(master)
    again.close()


def test_a_slave_has_what_came_before_a_topic_was_made_anew_with_batch_queues(make_store: Any, tmp_path: Path) -> None:
    rng = random.Random(1)
    master, slave = make_store(tmp_path / "m"), make_store(tmp_path / "s")
    slave.become_replica()
    for number in range(20):
        put_of_kind(master, "A", number, rng, is_batch=False)
    master.make_batch_topic("A")
    for number in range(20):
        put_of_kind(master, "A", number, rng, is_batch=True)
    stream(master, slave, rng, 1 << 30)
    slave.take_kind("A", is_batch=True)
    assert units_of(slave) == units_of(master)


@pytest.mark.parametrize("hears", [False, True])
def test_a_copy_s_compaction_log_is_of_the_topic_made_anew(tmp_path: Path, hears: bool) -> None:
    """It got the new messages before it heard of the deletion, or, of a master that notes none, hears nothing of it."""
    rng = random.Random(1)
    master, slave = compacted(tmp_path / "m"), compacted(tmp_path / "s")
    slave.become_replica()
    for life, count in (("old", 10), ("new", 12)):
        for number in range(count):
            body = f"{life}{number}".encode()
            send(master, TOPIC, 0, body, keys=f"{life}-{number}", now_ms=NOW_MS + number + (life == "new"))
        stream(master, slave, rng, 1 << 30)
        if life == "new" and hears:
            taken(master, slave)
        copy(slave)
        if life == "old":
            master.delete_topic(TOPIC)
    assert found(slave) == [(number, b"new%d" % number) for number in range(12)]
    master.close()
    slave.close()
