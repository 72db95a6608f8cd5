"""Groups and light queues whose names hold an @: offsets, batches and counters of others are never taken for theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketspark.broker.consumers import readers_anew
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.consumers.readers_anew import ReadersAnew
from rocketspark.broker.pop.ordered import FILE_NAME, OrderedPops, OrderTable, encode_table
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.protocol.json.bodies import OffsetTable, ReadersTable

pytestmark = pytest.mark.shows(
    "light queues (LMQ): one message in many queues %LMQ%…, pulled like topics; limits, deletion"
)

# The first as RocketMQ-MQTT names its groups.
GROUPS = ("%LMQ%GID_x@@@y", "y", "%LMQ%y")
TOPICS = ("T", "%LMQ%a", "%LMQ%a@b")
PAIRS = [(topic, group) for topic in TOPICS for group in GROUPS]


def offsets(folder: Path) -> ConsumerOffsets:
    found = ConsumerOffsets(JsonFile(folder / "consumerOffset.json", OffsetTable))
    for number, (topic, group) in enumerate(PAIRS):
        found.commit(group, topic, 0, number + 1)
    return found


def left(found: ConsumerOffsets) -> list[tuple[str, str]]:
    return [(topic, group) for topic, group in PAIRS if found.get(group, topic, 0) is not None]


def test_offsets_stay_over_a_kill_and_the_deletion_of_others(tmp_path: Path) -> None:
    found = offsets(tmp_path)
    assert found.topics_by_group() == {group: list(TOPICS) for group in GROUPS}
    found.keep_within(lambda topic, queue_id: 5, TOPICS.__contains__)
    assert [found.get(group, topic, 0) for topic, group in PAIRS] == [1, 2, 3, 4, 5, 5, 5, 5, 5]
    found.delete_group("y")
    assert left(found) == [pair for pair in PAIRS if pair[1] != "y"]
    found.delete_topic("%LMQ%a")
    assert left(found) == [(topic, group) for topic in ("T", "%LMQ%a@b") for group in GROUPS if group != "y"]
    assert set(found.anew.readers) == {(group, "%LMQ%a", 0) for group in GROUPS if group != "y"}
    found.delete_light({"%LMQ%a@b", "T@%LMQ%GID_x@@"})
    assert left(found) == [("T", "%LMQ%GID_x@@@y"), ("T", "%LMQ%y")]


def test_readers_that_begin_anew_are_read_back(tmp_path: Path) -> None:
    def kept() -> ReadersAnew:
        return ReadersAnew(JsonFile(tmp_path / readers_anew.FILE_NAME, ReadersTable))

    found = kept()
    readers = [(group, topic, 0) for topic, group in PAIRS]
    found.add(readers)
    found.set(readers[0], 7)
    found.finish()
    assert set(kept().readers) == set(readers)
    assert kept().resets == {readers[0]: 7}


def test_batches_of_ordered_pops_stay_over_the_deletion_of_others(tmp_path: Path) -> None:
    pops = OrderedPops(JsonFile(tmp_path / FILE_NAME, OrderTable, encode_table))
    for topic, group in PAIRS:
        pops.given(topic, group, 0, [1], attempt_id=None, pop_time_ms=1, invisible_time_ms=1000)
    pops.keep_within(lambda topic, queue_id: 10 if topic in TOPICS else 0, lambda topic, queue_id, offset: 0)
    pops.clean(lambda topic: int(topic in TOPICS), GROUPS.__contains__, 10)
    assert list(pops.blocked()) == [(topic, group, 0) for topic, group in PAIRS]
    pops.delete_group("y")
    pops.delete_topic("%LMQ%a")
    assert list(pops.blocked()) == [(t, g, 0) for t, g in PAIRS if g != "y" and t != "%LMQ%a"]


def test_counters_stay_over_the_deletion_of_others() -> None:
    stored = [(topic, 1, 1) for topic in TOPICS]
    stats = Stats("Cluster", lambda: [stored.pop()] if stored else [], 0, light_apart=True)
    for topic, group in PAIRS:
        stats.pulled(group, topic, 0, 1, 1, 0)
        stats.sent_back(group, topic, dead=True)
    for _ in TOPICS:
        stats.tick(0)
    stats.forget_topic("%LMQ%a")
    names = [f"{topic}@{group}" for topic, group in PAIRS]
    known = [pair for pair, name in zip(PAIRS, names, strict=True) if stats.item("GROUP_GET_NUMS", name)]
    assert known == [pair for pair in PAIRS if pair[0] != "%LMQ%a"]
    assert [bool(stats.item("GROUP_GET_LATENCY", f"0@{name}")) for name in names] == [p in known for p in PAIRS]
    assert [bool(stats.item("TOPIC_PUT_NUMS", topic)) for topic in TOPICS] == [True, False, True]
