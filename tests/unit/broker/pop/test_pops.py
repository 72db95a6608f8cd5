"""Pops in the store by a clock set by hand: acknowledged, changed, delivered again, stopped, killed."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.pop import rig as rig_module
from tests.unit.broker.pop.rig import GROUP, NOW, RETRY, REVIVE, REVIVE_GROUP, TOPIC, Clock, Rig
from tests.unit.store.conftest import expire

from rocketspark.broker import topic_names
from rocketspark.broker.messages.put_message import pairs_of
from rocketspark.broker.pop.check_points import LATE_MS
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.pop_records import CheckPointKey, CheckPointRecord
from rocketspark.protocol.message import record, record_layout
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.store import recovery
from rocketspark.store.timers.timer_files import TimerFiles
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows(
    "check points and acknowledgements in the log as RocketMQ's (file mode), byte for byte; those of one turn "
    "in one record; wholly acknowledged ones never leave the timer wheel",
    "delivered again 1-2 s after their time (at once what was given back: an invisible time changed to 1 ms): "
    "retry topics of both forms, attempts, what is gone, unreadable, without topic or group; bad records set "
    "aside",
    "handles renewed; a client that ends or vanishes frees its push messages",
)


def test_what_is_not_acknowledged_comes_again_and_nothing_else(rig: Rig) -> None:
    popped = rig.pop()
    assert [key for key, _ in popped] == ["K0", "K1", "K2", "K3"]
    assert rig.pops.count(TOPIC, GROUP, 0) == 4
    assert rig.ack(popped[1][1], popped[2][1]) == [None, None]
    assert rig.pops.count(TOPIC, GROUP, 0) == 2
    rig.at(NOW + 10_000)
    assert rig.keys() == []
    rig.at(NOW + 12_000)
    assert rig.keys() == ["K0", "K3"]
    assert rig.revived == [(RETRY, GROUP)] * 2
    assert rig.pops.count(TOPIC, GROUP, 0) == 0
    assert [r.reconsume_times for r in rig.records(RETRY)] == [1, 1]
    pairs = pairs_of(rig.records(RETRY)[0].properties)
    assert (pairs[b"1ST_POP_TIME"], pairs[b"ORIGIN_GROUP"]) == (b"%d" % NOW, b"G")
    assert rig.at(NOW + 60_000).keys() == ["K0", "K3"]


def test_the_records_are_those_of_rocketmq(rig: Rig) -> None:
    popped = rig.pop(3)
    rig.ack(popped[0][1])
    rig.ack(popped[1][1], popped[2][1])
    stored = rig.records("rmq_sys_wheel_timer")
    assert [r.body.decode() for r in stored] == [
        '{"bm":0,"bn":"broker-a","c":"G","d":[0,1,2],"it":10000,"n":3,"pt":1795214512000,"q":0,'
        '"reviveTime":1795214522000,"ro":0,"so":0,"sp":false,"t":"T"}',
        '{"ao":0,"bn":"broker-a","c":"G","pt":1795214512000,"q":0,"so":0,"t":"T"}',
        '{"ao":-1,"aol":[1,2],"bn":"broker-a","c":"G","pt":1795214512000,"q":0,"so":0,"t":"T"}',
    ]
    first, second, third = [pairs_of(r.properties) for r in stored]
    assert first == {
        b"TAGS": b"ck",
        b"TIMER_DELIVER_MS": b"1795214521000",
        b"UNIQ_KEY": b"T@0@0@G@1795214512000@broker-a@ck",
        b"TIMER_OUT_MS": b"1795214520000",
        b"REAL_TOPIC": REVIVE.encode(),
        b"REAL_QID": b"1",
    }
    assert (second[b"TAGS"], second[b"UNIQ_KEY"]) == (b"ack", b"T@0@0@G@1795214512000@broker-a@ack")
    assert (third[b"TAGS"], third[b"UNIQ_KEY"]) == (b"bAck", b"T@0@-1@G@1795214512000@broker-a@ack")
    assert second[b"TIMER_DELIVER_MS"] == third[b"TIMER_DELIVER_MS"] == b"1795214522000"


def test_a_pop_acknowledged_wholly_never_leaves_the_wheel(rig: Rig) -> None:
    popped = rig.pop()
    rig.ack(*(handle for _, handle in popped))
    rig.at(NOW + 30_000)
    assert rig.revive_records() == []
    assert rig.keys() == []


def test_what_is_delivered_again_has_its_own_invisible_time_and_attempts(rig: Rig) -> None:
    rig.pop(1)
    rig.at(NOW + 12_000)
    again = rig.pop(topic=RETRY)
    assert [key for key, _ in again] == ["K0"]
    rig.at(NOW + 24_000)
    assert [r.reconsume_times for r in rig.records(RETRY)] == [1, 2]
    assert rig.offsets.get(GROUP, RETRY, 0) == 0
    assert rig.pops.next_offset(RETRY, GROUP, 0) == 1
    (last,) = rig.pop(topic=RETRY)
    rig.ack(last[1])
    assert rig.at(NOW + 60_000).keys() == ["K0", "K0"]


def test_a_changed_invisible_time_counts_from_then_on(rig: Rig) -> None:
    ((_, handle),) = rig.pop(1)
    rig.at(NOW + 5000)
    changed = rig.change(handle, 20_000)
    assert changed == (NOW + 5000, 20_000, 1)
    assert rig.pops.count(TOPIC, GROUP, 0) == 1
    assert rig.at(NOW + 25_000).keys() == []
    assert rig.at(NOW + 27_000).keys() == ["K0"]
    # The old handle is worth nothing, nor is one of what was delivered again.
    assert rig.ack(handle) == [None]
    assert rig.change(handle, 1000).pop_time_ms == NOW + 27_000
    assert rig.at(NOW + 60_000).keys() == ["K0"]


def test_what_is_given_back_comes_again_at_once_and_no_other_time_does(rig: Rig) -> None:
    handles = [handle for _, handle in rig.pop()]
    clock = rig.clock
    clock.now_ms = NOW + 5000
    for handle, invisible_ms in zip(handles, (0, 1, 2, 1000), strict=True):
        rig.change(handle, invisible_ms)
    came = {}
    for after_ms in (0, 1, 999, 1000, 1001, 1002, 1999, 2000):
        clock.now_ms = NOW + 5000 + after_ms
        rig.settle()
        came[after_ms] = "".join(sorted(rig.keys())).replace("K", "")
    assert came == {0: "", 1: "1", 999: "1", 1000: "01", 1001: "01", 1002: "012", 1999: "012", 2000: "0123"}
    # Its acknowledgement by the handle before it is worth nothing, and does no harm.
    assert rig.ack(handles[1]) == [None]
    assert rig.pop(topic=RETRY)[0][0] == "K1"


@pytest.mark.shows(
    "mended: topic made anew: what was in flight of the one before came again as messages of the new one",
)
@pytest.mark.parametrize("how", ["", "stopped", "killed"])
def test_what_was_popped_of_a_topic_that_is_deleted_brings_nothing_of_the_next_of_its_name(rig: Rig, how: str) -> None:
    rig.pop()
    rig.at(NOW + 2000)
    rig.pops.forget(TOPIC, GROUP, 0)
    rig.pops.delete_topic(TOPIC)
    rig.offsets.delete_topic(TOPIC)
    rig.store.delete_topic(TOPIC)
    rig.send("new")
    if how:
        rig = rig.restarted() if how == "stopped" else rig.killed()
    assert rig.pops.count(TOPIC, GROUP, 0) == 0
    assert [key for key, _ in rig.pop()] == ["new"]
    rig.at(NOW + 12_000)
    assert rig.keys() == []
    assert rig.at(NOW + 30_000).keys() == ["new"]
    assert len(rig.pops.check_points) == 0


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_what_is_given_back_just_before_the_end_comes_once(rig: Rig, how: str) -> None:
    ((_, handle),) = rig.pop(1)
    rig.change(handle, 1)
    rig = rig.restarted() if how == "stopped" else rig.killed()
    assert rig.at(NOW + 2000).keys() == ["K0"]
    rig = rig.restarted() if how == "stopped" else rig.killed()
    assert rig.at(NOW + 30_000).keys() == ["K0"]


def test_revive_works_soon_after_something_is_given_back_and_not_more_often(rig: Rig) -> None:
    async def life() -> list[float]:
        loop = asyncio.get_running_loop()
        rig.revive.start()
        async with asyncio.timeout(30):
            while rig.revive._timer.when() < loop.time() + 0.5:  # type: ignore[union-attr]
                await asyncio.sleep(0)
        turns = []
        for _ in range(3):
            turns.append(rig.revive._timer.when() - loop.time())  # type: ignore[union-attr]
            rig.pops.given_back()
        rig.revive.stop()
        rig.pops.given_back()
        assert rig.revive._timer is None
        return turns

    first, second, third = asyncio.run(life())
    assert first > 0.5
    assert third <= second <= 0.02


def test_a_time_changed_in_the_millisecond_of_the_pop_is_another_check_point(rig: Rig) -> None:
    ((_, handle),) = rig.pop(1)
    assert rig.change(handle, 20_000) == (NOW + 1, 20_000, 1)
    assert rig.at(NOW + 23_000).keys() == ["K0"]


def test_an_acknowledgement_counts_until_the_second_delivery(rig: Rig) -> None:
    (_, first), (_, second) = rig.pop(2)
    rig.at(NOW + 10_500)
    rig.ack(first)
    rig.at(NOW + 13_000)
    assert rig.keys() == ["K1"]
    assert rig.ack(first, second) == [None, None]
    assert rig.at(NOW + 30_000).keys() == ["K1"]


def test_the_offset_is_committed_once_the_check_point_is_on_the_disk(rig: Rig) -> None:
    rig.pop(2)
    assert rig.offsets.get(GROUP, TOPIC, 0) is None
    assert rig.pops.next_offset(TOPIC, GROUP, 0) == 2
    rig.store.flush_log()
    rig.pop(1)
    assert rig.offsets.get(GROUP, TOPIC, 0) == 2
    assert rig.pops.next_offset(TOPIC, GROUP, 0) == 3
    rig.pops.forget(TOPIC, GROUP, 0)
    rig.store.flush_log()
    rig.pops.offsets.commit_flushed()
    assert rig.offsets.get(GROUP, TOPIC, 0) == 2
    assert rig.pops.next_offset(TOPIC, GROUP, 0) is None


@pytest.mark.parametrize("how", ["stopped", "killed", "killed after a save"])
@pytest.mark.parametrize("when", [0, 3000, 9500, 10_500, 11_500, 13_000])
def test_a_restart_loses_nothing_and_brings_nothing_again(rig: Rig, how: str, when: int) -> None:
    popped = rig.pop()
    rig.ack(popped[0][1], popped[3][1])
    rig.send("K4")
    rig.at(NOW + 2000)
    if how == "killed after a save":
        rig.save()
    ((_, late),) = rig.pop(invisible_ms=10_000)
    rig.at(NOW + 2000 + when)
    rig.ack(late)
    rig = rig.restarted() if how == "stopped" else rig.killed()
    assert rig.pop() == []
    rig.at(NOW + 40_000)
    expected = ["K1", "K2"] + (["K4"] if when > 11_000 else [])
    assert rig.keys() == expected
    assert rig.pops.count(TOPIC, GROUP, 0) == 0
    assert len(rig.pops.check_points) == 0
    rig = rig.killed()
    assert rig.at(NOW + 80_000).keys() == expected


def test_the_progress_of_the_revive_group_is_the_last_record_that_is_done(rig: Rig) -> None:
    for _ in range(3):
        rig.pop(1)
    rig.at(NOW + 12_000).save()
    assert [rig.offsets.get(REVIVE_GROUP, REVIVE, queue_id) for queue_id in range(4)] == [None, 0, 0, 0]


def test_nothing_is_popped_where_nothing_can_be_stored(rig: Rig) -> None:
    ((_, handle),) = rig.pop(1)
    rig.service.stop()
    with pytest.raises(ServerError, match="no master"):
        rig.pop(1)
    (error,) = rig.ack(handle)
    assert error is not None
    assert "no master" in error.remark


@pytest.mark.parametrize(
    ("body", "why"),
    [(b"{", "no check point"), (b'{"t":"T"}', "no group"), (b'{"t":"T","c":"G","n":99}', "99 messages")],
)
def test_a_bad_record_hurts_only_itself(rig: Rig, body: bytes, why: str) -> None:
    rig.pop(1)
    pairs = {b"TAGS": b"ck", b"UNIQ_KEY": b"X"}
    rig.put_message.accept_own(REVIVE, 1, body, pairs, rig.clock())
    rig.put_message.accept_own(REVIVE, 1, b"{}", pairs | {b"TAGS": b"odd"}, rig.clock())
    rig.put_message.accept_own(REVIVE, 1, b'{"ao":1,"t":"T","c":"nobody"}', pairs | {b"TAGS": b"ack"}, rig.clock())
    rig.at(NOW + 12_000)
    assert rig.keys() == ["K0"]
    first, second = rig.quarantine.entries()
    assert why in first.reason
    assert "neither a check point" in second.reason
    assert {(e.kind, e.topic, e.queue_id) for e in (first, second)} == {("pop", REVIVE, 1)}
    rig.save()
    assert rig.offsets.get(REVIVE_GROUP, REVIVE, 1) == 3


def test_a_message_that_cannot_be_read_is_set_aside_and_the_others_come(rig: Rig) -> None:
    rig.pop()
    # One that went while it was looked at has no place in the log.
    (point,) = rig.pops.check_points
    rig.revive._set_aside(point, 99, ValueError("gone"))
    (entry,) = rig.quarantine.entries()
    assert entry.physical_offset == -1
    rig.quarantine.discard(entry.name)
    damaged = rig.records(TOPIC)[1]
    view = rig.store.log.mapped_files.get(0).view
    place = damaged.position + bytes(view[damaged.position : damaged.position + damaged.size]).index(b"K1")
    view[place] ^= 3  # Of one bit alone its checksum would tell which.
    rig.at(NOW + 13_000)
    assert rig.keys() == ["K0", "K2", "K3"]
    (entry,) = rig.quarantine.entries()
    assert (entry.kind, entry.topic, entry.queue_offset, entry.group) == ("pop", TOPIC, 1, GROUP)
    view[place] ^= 3
    rig.quarantine.retry(entry.name)
    assert rig.keys() == ["K0", "K2", "K3", "K1"]


@pytest.mark.parametrize("gone", ["topic", "group"])
def test_what_nobody_can_get_any_more_is_dropped(rig: Rig, gone: str) -> None:
    rig.pop()
    if gone == "topic":
        rig.topics.delete(TOPIC)
    else:
        rig.settings.auto_create_group = False
        rig.groups.delete(GROUP)
    rig.at(NOW + 20_000)
    assert rig.keys() == []
    assert len(rig.pops.check_points) == 0


def test_what_is_removed_from_the_log_is_passed_over(rig: Rig) -> None:
    rig.pop()
    rig.store.consume_queues.find(TOPIC, 0).min = 2  # type: ignore[union-attr, misc]
    rig.at(NOW + 20_000)
    assert rig.keys() == ["K2", "K3"]


def test_a_retry_topic_that_cannot_be_made_now_is_tried_later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise ServerError(ResponseCode.SYSTEM_BUSY, "too many topics")

    (_, _), (_, second) = rig.pop(2)
    rig.ack(second)
    with monkeypatch.context() as patched:
        patched.setattr(rig.topics, "ensure", refuse)
        rig.at(NOW + 13_000)
        assert rig.keys() == []
        (again,) = list(rig.pops.check_points)
        assert (again.record.offsets, again.record.re_puts, again.record.invisible_time_ms) == ((0,), 1, 20_000)
        rig = rig.killed()
        patched.setattr(rig.topics, "ensure", refuse)
        rig.at(NOW + 23_000)
        (again,) = list(rig.pops.check_points)
        assert (again.record.re_puts, again.record.invisible_time_ms) == (2, 40_000)
    assert rig.at(NOW + 45_000).keys() == ["K0"]


def test_the_second_form_of_retry_topics(tmp_path: Path, clock: Clock) -> None:
    rig = Rig(tmp_path, clock, retry_topics_v2=True)
    rig.send("K0")
    rig.pop(1)
    rig.at(NOW + 12_000)
    assert rig.keys("%RETRY%G+T") == ["K0"]
    config = rig.topics.get("%RETRY%G+T")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
    assert rig.offsets.get(GROUP, "%RETRY%G+T", 0) == 0


def test_a_suspended_message_comes_without_another_attempt(rig: Rig) -> None:
    ((_, handle),) = rig.pop(1)
    rig.pops.change_invisible_time(TOPIC, GROUP, 0, handle, 0, 2000, lambda end, error: None, suspended=True)
    rig.pops.write_acks()
    rig.at(NOW + 5000)
    assert [r.reconsume_times for r in rig.records(RETRY)] == [0]


def test_a_reset_offset_is_not_undone_by_a_pop_before_it(rig: Rig) -> None:
    rig.pop()
    rig.offsets.reset(GROUP, TOPIC, 0, 1)
    rig.store.flush_log()
    rig.pops.offsets.commit_flushed()
    assert rig.offsets.get(GROUP, TOPIC, 0) == 1


def test_who_becomes_master_again_goes_on_where_the_log_says(rig: Rig) -> None:
    rig.pop(2)
    rig.pops.skip(TOPIC, GROUP, 0, 4)
    assert rig.pops.next_offset(TOPIC, GROUP, 0) == 4
    rig.service.stop()
    rig.service.begin()
    assert rig.pops.next_offset(TOPIC, GROUP, 0) is None
    rig.store.flush_log()
    rig.pops.offsets.commit_flushed()
    assert rig.offsets.get(GROUP, TOPIC, 0) == 2


def test_acknowledgements_that_cannot_be_stored_are_told_and_count_for_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **named: object) -> None:
        raise ServerError(ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full")

    ((_, handle),) = rig.pop(1)
    with monkeypatch.context() as patched:
        patched.setattr(rig.put_message, "accept_own", full)
        (error,) = rig.ack(handle)
    assert error is not None
    assert rig.pops.count(TOPIC, GROUP, 0) == 1
    assert rig.at(NOW + 12_000).keys() == ["K0"]


@pytest.mark.parametrize("when_s", [5, 30, 55])
def test_what_waited_longer_than_the_wheel_reaches_does_not_come_once_acknowledged(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, when_s: int
) -> None:
    monkeypatch.setattr(rig_module, "TimerFiles", partial(TimerFiles, roll_slots=20))
    rig = Rig(tmp_path, clock)
    rig.send("K0")
    rig.send("K1")
    (_, first), (_, second) = rig.pop(invisible_ms=60_000)
    rig.at(NOW + when_s * 1000)
    rig.ack(first)
    rig.ack(second)
    rig.at(NOW + 70_000)
    assert rig.keys() == []
    assert rig.pops.count(TOPIC, GROUP, 0) == 0


def test_a_message_is_not_lost_where_not_even_its_check_point_can_be_put_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*args: object) -> None:
        raise ServerError(ResponseCode.SYSTEM_BUSY, "too many topics")

    def full(*args: object) -> None:
        raise ServerError(ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full")

    rig.pop(1)
    rig.at(NOW + 10_000)
    with monkeypatch.context() as patched:
        patched.setattr(rig.revive, "_ensure", busy)
        patched.setattr(rig.put_message, "accept_own", full)
        rig.clock.now_ms += 2000
        for _ in range(3):
            rig.revive.work()
        assert rig.keys() == []
        patched.undo()
        patched.setattr(rig.revive, "_ensure", busy)
        rig.at(NOW + 13_000)
        assert rig.pops.count(TOPIC, GROUP, 0) == 1
    assert rig.at(NOW + 30_000).keys() == ["K0"]
    assert rig.pops.count(TOPIC, GROUP, 0) == 0


def test_a_message_suspended_twice_is_not_taken_as_delivered_after_a_kill(rig: Rig) -> None:
    def suspend(handle: ReceiptHandle, topic: str) -> None:
        rig.pops.change_invisible_time(topic, GROUP, 0, handle, 0, 0, lambda end, error: None, suspended=True)
        rig.pops.write_acks()

    rig.send("K4", queue_id=1)
    ((_, handle),) = rig.pop(1)
    suspend(handle, TOPIC)
    # This one has records of the same second in its revive queue that are not done.
    rig.pop(queue_id=1, invisible_ms=1500)
    rig.clock.now_ms += 1100
    rig.settle()
    assert rig.keys() == ["K0"]
    ((_, handle),) = rig.pop(topic=RETRY)
    suspend(handle, RETRY)
    rig.settle()
    rig.save()
    rig = rig.killed()
    rig.at(NOW + 20_000)
    assert rig.keys() == ["K0", "K0", "K4"]


def test_an_acknowledgement_that_fails_oddly_is_told_and_keeps_nobody_waiting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, first),) = rig.pop(1)
    ((_, second),) = rig.pop(1)
    with monkeypatch.context() as patched:
        patched.setattr(rig.pops.check_points, "read_all", lambda queue_id: [].pop())
        assert [error is not None and error.code for error in rig.ack(first, second)] == [1, 1]
    assert rig.at(NOW + 30_000).keys() == []
    assert rig.pops.count(TOPIC, GROUP, 0) == 0


@pytest.mark.shows("acting master: what is due stays for the master, or leaves with enableRemoteEscape")
def test_a_check_point_of_another_broker_is_kept_and_no_message_here_is_taken_for_its(rig: Rig) -> None:
    body = CheckPointRecord(CheckPointKey(TOPIC, GROUP, 0, 1, NOW, "broker-b"), 1000, (1,)).encode()
    rig.put_message.accept_own(REVIVE, 1, body, {b"TAGS": b"ck", b"UNIQ_KEY": b"X"}, rig.clock())
    rig.at(NOW + 5000)
    assert rig.keys() == []
    (kept,) = list(rig.pops.check_points)
    assert (kept.record.key.broker_name, kept.record.re_puts) == ("broker-b", 1)


def foreign_check_point(rig: Rig, *offsets: int) -> None:
    key = CheckPointKey(TOPIC, GROUP, 0, offsets[0], rig.clock(), "broker-b")
    body = CheckPointRecord(key, 1000, offsets).encode()
    rig.put_message.accept_own(REVIVE, 1, body, {b"TAGS": b"ck", b"UNIQ_KEY": b"X"}, rig.clock())


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_check_point_of_another_broker_outlives_the_topic_of_its_name_here(rig: Rig, how: str) -> None:
    foreign_check_point(rig, 1)
    rig.at(NOW + 5000)
    rig.pops.delete_topic(TOPIC)
    rig.offsets.delete_topic(TOPIC)
    rig.store.delete_topic(TOPIC)
    rig.save()
    rig = rig.restarted() if how == "stopped" else rig.killed()
    assert {p.record.key.broker_name for p in rig.pops.check_points} == {"broker-b"}


def test_a_check_point_of_another_broker_moves_no_offset_here_after_a_kill(rig: Rig) -> None:
    for number in range(10):
        rig.send(f"M{number}")
    rig.save()
    rig.at(NOW + 2000)
    foreign_check_point(rig, 5, 6)
    rig.at(NOW + 3000)
    rig.store.flush_log()
    rig = rig.killed()
    assert rig.offsets.get(GROUP, TOPIC, 0) is None


@pytest.mark.shows(
    "a check point that left by enableRemoteEscape",
    "mended: if the first message of a pop could not be read when its time was over, the others were not delivered"
    " again, and that one not before its check point was given up",
)
@pytest.mark.parametrize("acked", [0, 1])
def test_what_another_broker_gave_out_is_delivered_here_as_soon_as_that_can_be_asked(rig: Rig, acked: int) -> None:
    """Its acting master sent the check point here (enableRemoteEscape): else nobody would deliver its messages."""

    class Others:
        """Broker b, away at first: it has the messages 0 to 2, another one is removed."""

        def __init__(self) -> None:
            self.is_away = True
            self.asked: list[tuple[str, int, int, int]] = []

        async def ask(self, broker_name: str, code: int, header: Any) -> Reply:
            self.asked.append((broker_name, code, header.queue_id, header.queue_offset))
            if self.is_away:
                raise ServerError(1, "no NameServer knows its address")
            if header.queue_offset == 3:
                return Reply(ResponseCode.PULL_OFFSET_MOVED, None, b"", b"", "b")
            number = header.queue_offset
            body = record.encode(
                topic=TOPIC.encode(),
                queue_id=header.queue_id,
                queue_offset=number,
                position=1 << 40,
                body=b"b%d" % number,
                properties=b"UNIQ_KEY\x01B%d\x02" % number,
            )
            return Reply(ResponseCode.SUCCESS, None, b"", body, "b")

    async def main() -> None:
        others = rig.revive.messages.others = Others()
        key = CheckPointKey(TOPIC, GROUP, 7, 0, NOW, "broker-b")
        body = CheckPointRecord(key, 1000, (0, 1, 2, 3), acked=acked).encode()
        rig.put_message.accept_own(REVIVE, 1, body, {b"TAGS": b"ck", b"UNIQ_KEY": b"X"}, rig.clock())

        await rig.pass_until(NOW + 5000)
        assert rig.keys() == []
        assert {p.record.key.broker_name for p in rig.pops.check_points} == {"broker-b"}
        others.is_away = False
        await rig.pass_until(NOW + 40_000)
        assert sorted(rig.keys()) == [f"B{number}" for number in range(acked, 3)]
        assert {r.reconsume_times for r in rig.records(RETRY)} == {1}
        assert len(rig.pops.check_points) == 0
        assert set(others.asked) == {("broker-b", 11, 7, offset) for offset in range(acked, 4)}
        assert not rig.revive.messages._asked

    asyncio.run(main())


@pytest.mark.shows("a damaged check point of a pop")
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("what", ["a bit", "a bit of its checksum", "its body", "its tag", "its topic"])
@pytest.mark.parametrize("came", [False, True])
def test_a_damaged_check_point_holds_no_message_back(
    rig: Rig, what: str, restarted: bool, came: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit is put right by the checksum; of what is lost more a broker that runs still knows what it gave out."""
    ((_, first), _) = rig.pop(2)
    (point,) = list(rig.pops.check_points)
    position, topic = point.position, topic_names.TIMER_TOPIC
    if came:
        rig.at(NOW + 9000)
        ((position, _, _),) = rig.store.queue_units(REVIVE, point.revive_queue_id, 0, 1)
        topic = REVIVE
    assert rig.ack(first) == [None]
    stored = rig.store.record_at(position)
    found = record.decode(stored)
    whole = bytes(stored)
    assert found.topic == topic.encode()
    if what == "its body":
        stored[(at := whole.index(found.body)) : at + len(found.body)] = bytes(len(found.body))
    else:
        at = {
            "a bit": whole.index(found.body) + 20,
            "a bit of its checksum": record_layout.only("crc").size - 1,
            "its tag": whole.index(b"TAGS\x01ck") + 5,
            "its topic": whole.index(found.topic) if came else whole.index(b"REAL_TOPIC") + 12,
        }[what]
        stored[at] ^= 1
    if restarted:
        # Of what a start looks at itself a damaged record is passed over: this one is older.
        monkeypatch.setattr(recovery, "VERIFY_BYTES", 1)
        rig.send("last", "other")
        rig = rig.restarted()
    rig.at(NOW + 10_000 + 3 * LATE_MS)
    # What nothing tells of any more after a start is set aside.
    lost = restarted and "bit" not in what and not (what == "its topic" and came)
    assert rig.keys() == ([] if lost else ["K1"])
    if not restarted:
        assert rig.pops.count(TOPIC, GROUP, 0) == 0


def test_a_check_point_that_leaves_its_broker_is_not_written_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left: list[str] = []

    class Door:
        def leave(self, kept: record.Record, topic: str, *args: Any, **options: Any) -> None:
            left.append(topic)

    rig.pop(1)
    rig.put_message.door = Door()
    monkeypatch.setattr(rig.put_message, "accept_own", None)
    rig.at(NOW + 10_000 + 3 * LATE_MS)
    assert left == [REVIVE]
    assert "popped" not in caplog.text


@pytest.mark.shows(
    "mended: a slave that acts delivered no popped message any more once it could not ask for one of another broker"
)
def test_a_slave_that_acts_waits_for_messages_of_another_broker_alone(rig: Rig) -> None:
    left: list[str] = []

    class Door:
        def leave(self, kept: record.Record, topic: str, *args: Any, **options: Any) -> None:
            left.append(kept.body.decode())

    class Others:
        is_away = True

        async def ask(self, broker_name: str, code: int, header: Any) -> Reply:
            if self.is_away:
                raise ServerError(1, "no NameServer knows its address")
            body = record.encode(
                topic=TOPIC.encode(), queue_id=0, queue_offset=0, position=1 << 40, body=b"B", properties=b""
            )
            return Reply(ResponseCode.SUCCESS, None, b"", body, "b")

    async def main() -> None:
        others = rig.revive.messages.others = Others()
        for delay_ms, name in ((0, "broker-b"), (2000, rig.settings.broker_name)):
            key = CheckPointKey(TOPIC, GROUP, 0, 0, NOW + delay_ms, name)
            body = CheckPointRecord(key, 1000, (0,)).encode()
            rig.put_message.accept_own(REVIVE, 1, body, {b"TAGS": b"ck", b"UNIQ_KEY": name.encode()}, rig.clock())
        rig.at(NOW)
        rig.put_message.door = Door()
        rig.store.become_replica()
        end = rig.store.written_position

        await rig.pass_until(NOW + 10_000)
        assert left == ["K0"]
        others.is_away = False
        await rig.pass_until(NOW + 30_000)
        assert (left, rig.store.written_position) == (["K0", "B"], end)
        assert len(rig.pops.check_points) == 0

    asyncio.run(main())


@pytest.mark.shows("popped messages that retention takes")
def test_what_retention_takes_is_in_flight_no_more_once_its_time_is_over(tmp_path: Path, clock: Clock) -> None:
    broker = Rig(tmp_path, clock)
    for n in range(20):
        broker.send(f"K{n}")
    broker.pop(10, invisible_ms=4000)
    broker.pop(5, invisible_ms=60_000)
    for _ in range(700):
        broker.send("x" * 1000, "other")
    broker.store.flush_log()
    assert expire(broker.store, 1 << 60) == 1
    assert broker.store.stored_range(TOPIC, 0) == (20, 20)
    assert broker.pops.count(TOPIC, GROUP, 0) == 15
    broker.at(broker.clock() + 3000)
    assert broker.pops.count(TOPIC, GROUP, 0) == 15
    broker.at(broker.clock() + 2000)
    assert broker.pops.count(TOPIC, GROUP, 0) == 5
    broker.at(broker.clock() + 58_000)
    assert broker.pops.count(TOPIC, GROUP, 0) == 0
    assert broker.keys() == []
