"""The power goes: the log loses its end, and what is noted beside it of pops promises nothing of what went then."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.pop.rig import GROUP, NOW, RETRY, REVIVE, REVIVE_GROUP, TOPIC, Clock, Rig

from rocketspark.store import Store

pytestmark = pytest.mark.shows(
    "the progress of second deliveries of pops is noted once the disk has these: a power cut passes over none"
)


def test_a_second_delivery_that_the_power_took_comes_again(rig: Rig) -> None:
    rig.pop()
    while not rig.revive_records():
        rig.at(rig.clock.now_ms + 1000)
    rig.save()
    while not rig.keys():
        rig.at(rig.clock.now_ms + 1000)
    assert rig.keys() == ["K0", "K1", "K2", "K3"]
    rig.offsets.save()
    again = rig.without_power()
    assert again.keys() == []
    assert again.pops.count(TOPIC, GROUP, 0) == 4
    assert again.at(NOW + 60_000).keys() == ["K0", "K1", "K2", "K3"]
    # What the disk has is done, and comes no more.
    again.save()
    again.settle()
    assert again.offsets.of(REVIVE_GROUP, REVIVE)
    again.offsets.save()
    last = again.without_power()
    assert last.pops.count(TOPIC, GROUP, 0) == 0
    assert last.at(NOW + 120_000).keys() == ["K0", "K1", "K2", "K3"]


def test_what_is_set_aside_is_on_the_disk_before_the_progress_beyond_it(rig: Rig) -> None:
    popped = rig.pop()
    rig.ack(*(handle for _, handle in popped[1:]))
    position = rig.store.queue_units(TOPIC, 0, 0, 1)[0][0]
    path = rig.root / "commitlog" / "00000000000000000000"
    with path.open("r+b") as file:
        file.seek(position + 4)
        file.write(b"\0\0\0\0")
    rig.at(NOW + 20_000)
    assert [entry.kind for entry in rig.quarantine.entries()] == ["pop"]
    rig.store.flush_log()
    rig.settle()
    assert rig.offsets.of(REVIVE_GROUP, REVIVE)
    rig.offsets.save()
    again = rig.killed()
    assert [(entry.kind, entry.topic, entry.queue_offset) for entry in again.quarantine.entries()] == [
        ("pop", TOPIC, 0)
    ]


def test_what_was_taken_over_from_a_former_name_is_on_the_disk_before_it_counts_as_done(rig: Rig, clock: Clock) -> None:
    rig.pop()
    while not rig.revive_records():
        rig.at(rig.clock.now_ms + 1000)
    rig.save()
    # The cluster has another name from here on.
    rig.changes["cluster_name"] = "Other"
    renamed = rig.killed()
    assert len(renamed.records("rmq_sys_REVIVE_LOG_Other", 1)) == 1
    renamed.offsets.save()
    again = renamed.without_power()
    assert again.at(NOW + 60_000).keys(RETRY) == ["K0", "K1", "K2", "K3"]


def test_a_slave_that_acts_leaves_it_to_its_master_to_take_over_from_a_former_name(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.pop()
    while not rig.revive_records():
        rig.at(rig.clock.now_ms + 1000)
    rig.save()
    rig.changes["cluster_name"] = "Other"
    opened = Store.open
    with monkeypatch.context() as copies:
        copies.setattr(Store, "open", lambda store: (opened(store), store.become_replica()))
        acting = rig.killed()
    assert acting.records("rmq_sys_REVIVE_LOG_Other", 1) == []
    acting.offsets.save()
    assert len(acting.killed().records("rmq_sys_REVIVE_LOG_Other", 1)) == 1


@pytest.mark.shows("offsets set by hand are not undone by pops of before where the power takes the log's end")
def test_an_offset_set_by_hand_is_not_undone_by_a_pop_before_it(rig: Rig) -> None:
    """As a clone of another group's offsets does, or a group made anew."""
    rig.ack(*(handle for _, handle in rig.pop()))
    rig.save()
    assert rig.offsets.get(GROUP, TOPIC, 0) == 4
    rig.send("late")
    rig.pops.forget(TOPIC, GROUP, 0)
    rig.offsets.commit(GROUP, TOPIC, 0, 1)
    asyncio.run(rig.offsets.saved())
    again = rig.without_power()
    assert again.offsets.get(GROUP, TOPIC, 0) == 1
    assert [key for key, _ in again.pop()] == ["K1", "K2", "K3", "late"]


def test_progress_beyond_the_queue_counts_not_what_comes_there(rig: Rig) -> None:
    """A Java broker notes its progress before the log is on the disk."""
    rig.pop(1)
    while not rig.revive_records():
        rig.at(rig.clock.now_ms + 1000)
    rig.at(NOW + 20_000).save()
    assert rig.offsets.of(REVIVE_GROUP, REVIVE) == {1: 0}
    rig.offsets.commit(REVIVE_GROUP, REVIVE, 1, 1)
    rig.offsets.save()
    rig = rig.killed()
    rig.pop(1, queue_id=0)
    while len(rig.revive_records()) < 2:
        rig.at(rig.clock.now_ms + 1000)
    assert len(rig.records(REVIVE, 1)) == 2
    rig.store.flush_log()
    rig.timers.finish()
    rig.offsets.changes += 1
    rig.offsets.save()
    rig = rig.killed()
    assert rig.at(rig.clock.now_ms + 60_000).keys() == ["K0", "K1"]
