"""Half messages that cannot be read, counted or encoded anew: the others are checked, and what can end ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.messages.transactions.test_transactions import BORN, COMMIT, ROLLBACK, Rig, check_round

from rocketspark.broker import topic_names
from rocketspark.broker.messages import put_message as put_message_module
from rocketspark.broker.messages.put_message import FixedFields, pairs_of
from rocketspark.broker.messages.timers.timer_rules import TimerRules
from rocketspark.broker.messages.transactions import half_messages, transaction_checks, transactions
from rocketspark.broker.messages.transactions.half_messages import CheckLimits
from rocketspark.errors import RecordError, ServerError
from rocketspark.protocol.headers import EndTransactionHeader
from rocketspark.protocol.message import properties, record

pytestmark = pytest.mark.shows(
    "mended: a commit by the handle of an older copy while the newest cannot be read: acknowledged, not "
    "delivered; marks that rot, delayed commits"
)


def alone(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    """Run a test on a loop."""

    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def prepare(rig: Rig, key: str, **pairs: str) -> record.Record:
    text = "".join(f"{k}\x01{v}\x02" for k, v in {"UNIQ_KEY": key, "PGROUP": "P", "TRAN_MSG": "true", **pairs}.items())
    stored = text.encode()
    position, _, _ = rig.transactions.prepare(
        "T", 0, key.encode(), stored, pairs_of(stored), FixedFields(0, 4, 0, BORN)
    )
    return rig.at(position)


def rot(rig: Rig, position: int) -> None:
    rig.store.log.mapped_files.get(0).map[position + 88] ^= 1


@pytest.mark.shows(
    'mended: CHECK_IMMUNITY_TIME_IN_SECONDS / TRANSACTION_CHECK_TIMES "²", 5,000 digits: no start after a kill'
)
@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "1e3", "", " 7", "9" * 19])
def test_numbers_that_are_none_count_as_not_given(text: str) -> None:
    pairs = {"CHECK_IMMUNITY_TIME_IN_SECONDS": text, "TRANSACTION_CHECK_TIMES": text}
    half = half_messages.half_message(0, 0, 0, pairs)
    assert (half.immunity_ms, half.checks) == (0, 0)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_makes_a_half_message(text: str) -> None:
    pairs = {"CHECK_IMMUNITY_TIME_IN_SECONDS": text, "TRANSACTION_CHECK_TIMES": text}
    half = half_messages.half_message(0, 0, 0, pairs)
    assert half.immunity_ms >= 0 <= half.checks


@pytest.mark.shows(
    'mended: CHECK_IMMUNITY_TIME_IN_SECONDS / TRANSACTION_CHECK_TIMES "²", 5,000 digits: no start after a kill'
)
@alone
async def test_a_broker_starts_whatever_its_half_messages_say(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    prepare(rig, "A", CHECK_IMMUNITY_TIME_IN_SECONDS="²", TRANSACTION_CHECK_TIMES="9" * 5000)
    prepare(rig, "B")
    rig.kill()
    rig = Rig(tmp_path)
    assert list(rig.open) == ["A", "B"]
    check_round(rig)
    assert rig.producer.asked == ["A", "B"]
    rig.transactions.stop()
    rig.kill()


@pytest.mark.shows(
    "mended: a flipped unit of the timers', half messages' and delay levels' queues: an acknowledged message "
    "is set aside for good"
)
@alone
async def test_a_flipped_bit_of_a_half_message_s_unit_refuses_no_commit(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    halves = [prepare(rig, key) for key in "ABCD"]
    rig.store.flush_log()
    rig.store.close()
    with open(tmp_path / "consumequeue" / topic_names.HALF_TOPIC / "0" / f"{0:020d}", "r+b") as queue:
        queue.seek(20)
        queue.write((halves[1].position ^ 1).to_bytes(8, "big"))
    rig = Rig(tmp_path)
    assert list(rig.open) == list("ABCD")
    assert rig.quarantine.entries() == []
    rig.end(halves[1], COMMIT)
    assert rig.delivered() == Counter({"B": 1})
    rig.transactions.stop()
    rig.kill()


@pytest.mark.shows(
    "mended: one half message near 32 KB or with 0x01: nobody's transactions checked; cannot be committed",
)
@alone
async def test_one_without_room_for_a_count_is_asked_about_and_ends(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    prepare(rig, "A")
    size = 32_767 - len(prepare(rig, "probe", F="x").properties) + 1
    full = prepare(rig, "probe", F="x" * size)
    assert len(full.properties) == 32_767
    prepare(rig, "B")
    check_round(rig)
    assert sorted(rig.producer.asked) == ["A", "B", "probe"]
    assert rig.open["probe"].checks == 1
    rig.end(full, COMMIT)
    assert rig.delivered() == Counter({"probe": 1})
    assert rig.quarantine.entries() == []
    rig.transactions.stop()
    rig.kill()


@pytest.mark.shows(
    "mended: one half message near 32 KB or with 0x01: nobody's transactions checked; cannot be committed",
)
@alone
async def test_a_value_with_a_control_character_is_checked_and_committed_as_it_is(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    half = prepare(rig, "A", F="a\x01b")
    prepare(rig, "B")
    check_round(rig)
    assert rig.producer.asked == ["A", "B"]
    rig.end(half, COMMIT)
    assert rig.delivered() == Counter({"A": 1})
    ((position, _, _),) = rig.store.queue_units("T", 0, 0, 1)
    assert pairs_of(rig.at(position).properties)[b"F"] == b"a\x01b"
    rig.transactions.stop()
    rig.kill()


@alone
async def test_one_that_rots_is_set_aside_and_checked_again_once_it_is_mended(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    bad = prepare(rig, "bad")
    prepare(rig, "good")
    rot(rig, bad.position)
    check_round(rig)
    assert rig.producer.asked == ["good"]
    (entry,) = rig.quarantine.entries()
    assert (entry.name, entry.queue_offset) == (f"half-{bad.position}", bad.queue_offset)
    with pytest.raises(ServerError, match="Find prepared transaction message failed"):
        rig.end(bad, COMMIT)
    with pytest.raises(RecordError):
        rig.quarantine.retry(entry.name)
    rot(rig, bad.position)
    rig.quarantine.retry(entry.name)
    assert rig.quarantine.entries() == []
    check_round(rig)
    assert rig.producer.asked == ["good", "good", "bad"]
    rig.end(bad, COMMIT)
    assert rig.delivered() == Counter({"bad": 1})
    rig.transactions.stop()
    rig.kill()


@pytest.mark.shows(
    "mended: one rotten parked message: half no start, delay level stands still, timer wheel stands still",
)
@alone
async def test_a_rotten_one_is_no_reason_not_to_start(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    bad, _ = prepare(rig, "bad"), prepare(rig, "good")
    rot(rig, bad.position)
    rig.transactions._open.clear()
    list(rig.transactions._recovered())
    assert list(rig.open) == ["good"]
    assert [e.name for e in rig.quarantine.entries()] == [f"half-{bad.position}"]
    rig.transactions.stop()
    rig.kill()


@alone
async def test_an_error_nobody_thought_of_sets_one_aside_and_its_end_is_taken(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    odd = prepare(rig, "odd")
    prepare(rig, "good")
    ask = rig.transactions._ask

    def broken(peer: Any, key: str, half: record.Record) -> None:
        if key == "odd":
            raise KeyError(key)
        ask(peer, key, half)

    rig.transactions._ask = broken  # type: ignore[method-assign]
    for _ in range(3):
        check_round(rig)
    assert rig.producer.asked == ["good"] * 3
    assert len(rig.quarantine.entries()) == 1
    rig.end(odd, COMMIT)
    assert rig.quarantine.entries() == []
    assert rig.delivered() == Counter({"odd": 1})
    rig.transactions.stop()
    rig.kill()


@pytest.mark.shows("mended: END_TRANSACTION takes any physical offset")
@alone
async def test_a_record_hidden_in_a_body_is_no_half_message(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    own = prepare(rig, "K")
    at = rig.store.written_position + 88
    forged = record.encode(
        topic=topic_names.HALF_TOPIC.encode(),
        queue_id=0,
        queue_offset=own.queue_offset,
        position=at,
        body=b"forged",
        properties=properties.encode(
            {"UNIQ_KEY": "K", "PGROUP": "P", "REAL_TOPIC": "L" * 260, "REAL_QID": "0"}
        ).encode(),
    )
    stored = properties.encode({"UNIQ_KEY": "X", "MSG_REGION": "R"}).encode()
    rig.put_message.accept("T", 0, forged, stored, pairs_of(stored), FixedFields(0, 0, 0, BORN))
    with pytest.raises(ServerError, match="Find prepared transaction message failed"):
        rig.end(rig.at(at), COMMIT)
    with pytest.raises(ServerError, match="no half message"):
        rig.transactions.resume(at)
    rig.end(own, COMMIT)
    assert rig.transactions.open_count == 0
    rig.transactions.stop()
    rig.kill()


@pytest.mark.shows("mended: transaction progress saved before the commit's flush")
@alone
async def test_progress_is_noted_after_the_ends_it_stands_for_are_on_the_disk(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.end(prepare(rig, "K"), COMMIT)
    rig.transactions._op_messages.write()
    for _ in range(3):
        rig.transactions._commit_progress()
        assert rig.offsets.get(half_messages.GROUP, topic_names.HALF_TOPIC, 0) is None
    rig.store.flush_log()
    check_round(rig)
    assert rig.offsets.get(half_messages.GROUP, topic_names.HALF_TOPIC, 0) == 1
    assert rig.offsets.get(half_messages.GROUP, topic_names.OP_HALF_TOPIC, 0) == 1
    rig.transactions.stop()
    rig.kill()


@pytest.mark.shows("mended: a transaction given up, then rolled back, then committed")
@alone
async def test_one_that_was_given_up_and_then_rolled_back_is_committed_no_more(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.transactions.set_limits(CheckLimits(timeout_ms=0, interval_ms=1_000_000, checks_max=0, reserved_ms=1_000_000))
    half = prepare(rig, "K")
    check_round(rig)
    assert rig.transactions.open_count == 0
    rig.end(half, ROLLBACK)
    with pytest.raises(ServerError, match="was rolled back"):
        rig.end(half, COMMIT)
    assert rig.delivered() == Counter()
    rig.transactions.stop()
    rig.kill()
    rig = Rig(tmp_path)
    assert rig.transactions.open_count == 0
    with pytest.raises(ServerError, match="was rolled back"):
        rig.end(half, COMMIT)
    assert rig.delivered() == Counter()
    rig.kill()


def checked_once(rig: Rig, half: record.Record) -> record.Record:
    """The newer copy that a check makes of a half message."""
    check_round(rig)
    rig.transactions._op_messages.write()
    return rig.at(rig.open[half.body.decode()].position)


@alone
async def test_one_whose_newest_copy_rots_is_committed_by_its_first_handle(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first = prepare(rig, "K")
    newest = checked_once(rig, first)
    rot(rig, newest.position)
    check_round(rig)
    assert [entry.name for entry in rig.quarantine.entries()] == [f"half-{newest.position}"]
    with pytest.raises(ServerError, match="Find prepared transaction message failed"):
        rig.end(newest, COMMIT)
    assert rig.delivered() == Counter()
    for _ in range(2):
        rig.end(first, COMMIT)
        assert rig.delivered() == Counter({"K": 1})
    assert rig.quarantine.entries() == []
    rig.transactions.stop()
    rig.kill()
    rig = Rig(tmp_path)
    assert rig.transactions.open_count == 0
    rig.kill()


@pytest.mark.parametrize("part", ["record", "unit"])
def test_one_that_no_start_can_read_is_committed_by_its_first_handle(tmp_path: Path, part: str) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        first = prepare(rig, "K")
        newest = checked_once(rig, first)
        if part == "record":
            rot(rig, newest.position)
        else:
            unit_of(rig, newest.queue_offset)[6] ^= 1
        rig.transactions._open.clear()
        list(rig.transactions._recovered())
        assert rig.transactions.open_count == 0
        assert [entry.queue_offset for entry in rig.quarantine.entries()] == [newest.queue_offset]
        rig.end(first, COMMIT)
        rig.end(first, COMMIT)
        assert rig.delivered() == Counter({"K": 1})
        assert rig.quarantine.entries() == []
        rig.transactions.stop()
        rig.kill()

    asyncio.run(main())


def unit_of(rig: Rig, queue_offset: int) -> memoryview:
    """The unit of a half message in its queue."""
    queue = rig.store.consume_queues.find(topic_names.HALF_TOPIC, 0)
    assert queue is not None
    view, at, _ = queue.place(queue_offset, 1)
    return view[at : at + 20]


@alone
async def test_a_commit_of_what_was_forgotten_or_rolled_back_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first = prepare(rig, "K")
    rot(rig, checked_once(rig, first).position)
    check_round(rig)
    (entry,) = rig.quarantine.entries()
    rig.quarantine.drop(entry.name)
    rolled_back = prepare(rig, "R")
    rig.end(rolled_back, ROLLBACK)
    rig.end(rolled_back, ROLLBACK)
    for half in (first, rolled_back):
        with pytest.raises(ServerError, match="Find prepared transaction message failed"):
            rig.end(half, COMMIT)
    assert rig.delivered() == Counter()
    rig.transactions.stop()
    rig.kill()


@alone
async def test_one_whose_unit_was_wrong_is_tried_again_where_the_queue_says_now(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    half = prepare(rig, "K")
    unit_of(rig, half.queue_offset)[6] ^= 1
    rig.transactions._open.clear()
    list(rig.transactions._recovered())
    (entry,) = rig.quarantine.entries()
    with pytest.raises(RecordError):
        rig.quarantine.retry(entry.name)
    unit_of(rig, half.queue_offset)[6] ^= 1
    rig.quarantine.retry(entry.name)
    rig.end(half, COMMIT)
    assert rig.delivered() == Counter({"K": 1})
    assert rig.quarantine.entries() == []
    rig.transactions.stop()
    rig.kill()


@alone
async def test_an_older_copy_whose_mark_rots_is_not_open_again_after_the_commit(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first = prepare(rig, "K")
    newest = checked_once(rig, first)
    (mark,) = rig.marks()
    rig.end(newest, COMMIT)
    rig.transactions.stop()
    rig.store.log.mapped_files.get(0).map[mark.position + 88] ^= 1
    rig.transactions._open.clear()
    list(rig.transactions._recovered())
    assert rig.transactions.open_count == 0
    rig.kill()


@alone
async def test_a_commit_that_waits_for_its_time_was_committed(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.transactions.set_limits(CheckLimits(timeout_ms=0, interval_ms=1_000_000, checks_max=0, reserved_ms=1_000_000))
    half = prepare(rig, "K", DELAY="1")
    check_round(rig)
    assert rig.transactions.open_count == 0
    for _ in range(3):
        rig.end(half, COMMIT)
    assert rig.store.queue_range(topic_names.SCHEDULE_TOPIC, 0) == (0, 1)
    rig.transactions.stop()
    rig.kill()


@alone
async def test_a_commit_that_was_delivered_later_ends_no_other_at_the_beginning_of_the_log(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first = prepare(rig, "first")
    assert first.position == 0
    # A delayed commit that was delivered, which states no half message.
    stored = properties.encode({"UNIQ_KEY": "other", "DELAY": "1"}).encode()
    rig.put_message.accept("T", 0, b"other", stored, pairs_of(stored), FixedFields(0, COMMIT, 0, BORN), delayed=False)
    rig.kill()
    rig = Rig(tmp_path)
    assert list(rig.open) == ["first"]
    rig.kill()


@pytest.mark.shows("mended: half messages of two groups or topics with one unique id: one transaction lost")
@alone
async def test_half_messages_of_two_groups_or_topics_with_one_id_end_apart(tmp_path: Path) -> None:
    def prepare_in(group: str, topic: str) -> record.Record:
        stored = f"UNIQ_KEY\x01SAME\x02PGROUP\x01{group}\x02TRAN_MSG\x01true\x02".encode()
        body = f"{group} {topic}".encode()
        position, _, _ = rig.transactions.prepare(topic, 0, body, stored, pairs_of(stored), FixedFields(0, 4, 0, BORN))
        return rig.at(position)

    def end(half: record.Record, outcome: int) -> None:
        group = half.body.decode().split()[0]
        header = EndTransactionHeader(
            producer_group=group, half_offset=half.queue_offset, physical_offset=half.position, outcome=outcome
        )
        rig.transactions.end(header)

    rig = Rig(tmp_path)
    billing, shipping, other, both = (
        prepare_in(*place) for place in (("billing", "T"), ("shipping", "T"), ("billing", "U"), ("shipping", "U"))
    )
    assert rig.transactions.open_count == 4
    # The same one again, as its producer had no answer.
    prepare_in("billing", "T")
    assert rig.transactions.open_count == 4
    end(billing, COMMIT)
    end(shipping, ROLLBACK)
    with pytest.raises(ServerError, match="rolled back or is lost"):
        end(shipping, COMMIT)
    rig.transactions.stop()
    rig.kill()
    rig = Rig(tmp_path)
    assert rig.transactions.open_count == 2
    end(other, COMMIT)
    end(both, COMMIT)
    end(billing, COMMIT)
    assert rig.delivered() == Counter({"billing T": 1})
    assert rig.store.queue_range("U", 0) == (0, 2)
    rig.transactions.stop()
    rig.kill()


@pytest.mark.shows("mended: a half message that came while the clock was ahead is not checked")
@alone
async def test_one_that_came_while_the_clock_was_ahead_is_checked_when_it_is_right_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.transactions.set_limits(
        CheckLimits(timeout_ms=60_000, interval_ms=1_000_000, checks_max=15, reserved_ms=1_000_000_000)
    )
    now = transactions.now_ms()
    with mock.patch.object(transactions, "now_ms", return_value=now + 86_400_000):
        prepare(rig, "K")
    for ms, asked in ((0, []), (59_999, []), (60_000, ["K"])):
        with mock.patch.object(transaction_checks, "now_ms", lambda ms=ms: now + ms):
            check_round(rig)
        assert rig.producer.asked == asked
    rig.transactions.stop()
    rig.kill()


@pytest.mark.shows("mended: a half message with a delivery time that its commit cannot be stored with")
@alone
async def test_a_time_that_a_commit_could_not_be_stored_with_is_refused_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rules = TimerRules(broker_name="broker-a", enabled=True, precision_ms=1000, delay_max_ms=86_400_000)
    with mock.patch.object(rig.put_message, "_timer_rules", rules):
        for more in (
            {"TIMER_DELAY_SEC": "999999"},
            {"TIMER_DELIVER_MS": "x"},
            {"TIMER_DELAY_SEC": "9", "F": "x" * 32_500},
        ):
            with pytest.raises(ServerError):
                prepare(rig, "K", **more)
        assert rig.transactions.open_count == 0
        half = prepare(rig, "K", TIMER_DELAY_SEC="9")
        rig.end(half, COMMIT)
        # One without an id gets one, when it is stored.
        stored = b"PGROUP\x01P\x02TRAN_MSG\x01true\x02TIMER_DELAY_SEC\x019\x02"
        with mock.patch.object(put_message_module.unique_ids, "next", side_effect=["ONE", "TWO"]):
            rig.transactions.prepare("T", 0, b"x", stored, pairs_of(stored), FixedFields(0, 4, 0, BORN))
        assert list(rig.open) == ["ONE"]
        rig.end_open({"ONE": COMMIT})
    assert rig.store.queue_range(topic_names.TIMER_TOPIC, 0) == (0, 2)
    assert rig.transactions.open_count == 0
    rig.transactions.stop()
    rig.kill()


@pytest.mark.shows("mended: a half message that was given up, committed twice before readers see it: delivered twice")
@alone
async def test_a_commit_counts_before_readers_see_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.transactions.set_limits(CheckLimits(timeout_ms=0, interval_ms=1_000_000, checks_max=0, reserved_ms=1_000_000))
    given_up = prepare(rig, "given up")
    check_round(rig)
    newest = rig.transactions._half_messages.newest
    copy = newest(topic_names.CHECK_MAX_TOPIC, half_messages.TransactionKey("given up", "P", "T"))
    assert copy is not None
    halves = [given_up, prepare(rig, "open")]
    rig.store.show_flushed(rig.store.flush_log())
    for half in halves:
        rig.end(half, COMMIT)
        rig.end(half, COMMIT)  # Again: the answer was lost.
    with pytest.raises(ServerError, match="was ended"):
        rig.transactions.resume(copy.position)
    assert rig.store.stored_range("T", 0) == (0, 2)
    assert rig.store.queue_range("T", 0) == (0, 0)
    rig.transactions.stop()
    rig.kill()
