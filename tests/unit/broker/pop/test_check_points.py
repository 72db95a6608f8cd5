"""Check points in memory: counted while open, and what is kept in mind of those that are done."""

from __future__ import annotations

import pytest

from rocketspark.broker.pop.check_points import CheckPoint, CheckPoints, GoneMessages, LateCheckPoints
from rocketspark.protocol.json.pop_records import CheckPointKey, CheckPointRecord

RECORD = CheckPointRecord(CheckPointKey("T", "G", 0, 10, 1000, "b"), 500, (10, 11, 13))


def watched(
    position: int = 70, revive_offset: int = -1, record: CheckPointRecord = RECORD
) -> tuple[CheckPoints, CheckPoint]:
    points, point = CheckPoints(), CheckPoint(record, 3, position, revive_offset)
    points.rolled_ms = 600
    points.add(point)
    return points, point


def test_what_is_acknowledged_is_counted_once_and_may_be_taken_back_until_it_is_stored() -> None:
    points, point = watched()
    assert point.bits_of([13, 9, 12, 14, 10]) == 0b101
    points.acknowledge(point, 0b1001)
    points.acknowledge(point, 0b0001)
    assert (points.count("T", "G", 0), point.open_offsets) == (2, (11, 13))
    points.stored_acks(point, 0b0001, 71)
    points.acknowledge(point, 0b0010)
    points.take_back(point, 0b0111)
    assert (points.count("T", "G", 0), point.open_offsets) == (2, (11, 13))
    points.remove(point)
    points.remove(point)
    points.take_back(point, 0b0110)
    assert (points.count("T", "G", 0), points.count("T", "G", 1), len(points)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("position", "revive_offset", "known"),
    [(0, -1, False), (70, -1, False), (-1, -1, True), (70, 0, True), (-1, 5, True)],
)
def test_whose_record_may_still_come_is_kept_in_mind(position: int, revive_offset: int, known: bool) -> None:
    points, point = watched(position, revive_offset)
    points.remove(point)
    assert points.was_done(RECORD) is known
    assert not points.was_done(RECORD._replace(re_puts=1))


@pytest.mark.parametrize(
    ("revive_offset", "came_out", "invisible_ms", "asked", "unneeded"),
    [
        (-1, False, 599, [3], {70, 71, 0}),
        (-1, False, 600, [3], set()),
        (-1, True, 500, [], set()),
        (0, False, 500, [], set()),
    ],
)
def test_records_of_what_is_done_before_its_time_need_not_come_out(
    revive_offset: int, came_out: bool, invisible_ms: int, asked: list[int], unneeded: set[int]
) -> None:
    points, point = watched(70, revive_offset, RECORD._replace(invisible_time_ms=invisible_ms))
    read: list[int] = []
    points.read_all = read.append
    points.stored_acks(point, 0b001, 71)
    points.stored_acks(point, 0b010, 0)
    assert (read, point.is_done) == ([], False)
    points.stored_acks(point, 0b100, -1, came_out=came_out)
    assert (read, point.is_done) == (asked, True)
    assert {at for at in range(-1, 80) if points.is_unneeded(at)} == unneeded
    assert not any(points.is_unneeded(at) for at in range(-1, 80))


def test_what_retention_removed_is_done_when_its_time_is_over() -> None:
    points, point = watched()
    low, position = 13, 100
    gone = GoneMessages(points, lambda topic, queue_id: low, lambda: position)
    assert not gone.look(1500)
    assert not point.is_done
    low, position = 14, 200
    gone.look(1499)
    assert not point.is_done
    # Nothing more was removed; now its time is over.
    gone.look(1500)
    assert point.is_done
    assert points.was_done(RECORD)


@pytest.mark.shows(
    "mended: second tier: pops of messages that were gone stayed in flight until the next file went, where the tier was"
    " not open at the first look"
)
def test_what_is_gone_is_looked_for_again_once_it_is_known_where_the_queue_begins() -> None:
    points, point = watched()
    low: int | None = None
    gone = GoneMessages(points, lambda topic, queue_id: low, lambda: 100)
    gone.look(1500)
    low = 14
    gone.look(11_499)
    assert not point.is_done
    gone.look(11_500)
    assert point.is_done


def test_a_deleted_topic_takes_its_own_along() -> None:
    points, point = watched()
    other = CheckPoint(RECORD._replace(key=RECORD.key._replace(topic="U")), 3, 90)
    points.add(other)
    points.delete_topic("T")
    assert (point.is_done, other.is_done, list(points)) == (True, False, [other])
    assert points.was_done(RECORD)
    assert not points.was_done(other.record)


def test_what_is_late_is_put_again_in_pieces_once_a_round() -> None:
    points, late = CheckPoints(), list[CheckPoint]()
    for number in range(2001):
        points.add(CheckPoint(RECORD._replace(key=RECORD.key._replace(pop_time_ms=number)), 3, number))
    looked = LateCheckPoints(points, late.append)
    looked.wheel_ms = lambda: 200_000
    assert looked.look(200_000)
    assert len(late) == 2000
    assert not looked.look(200_000)
    assert {point.position for point in late} == set(range(2001))
    assert len(late) == 2001
    # The next round begins a minute later.
    looked.look(259_999)
    assert len(late) == 2001
    looked.look(260_000)
    assert len(late) == 4001
