"""Logical queues: their offsets, which have gaps, counted and cut into the dense ones of their parts."""

from __future__ import annotations

import pytest

from rocketspark.model import MessageQueue
from rocketspark.model.text import LONG_MAX
from rocketspark.tables.offset_ranges import EACH_TOPIC, OffsetRange
from rocketspark.tables.queue_bounds import OffsetBounds, QueuePart, cut, is_of_other_store, of_parts, part_at

pytestmark = pytest.mark.shows("logical queues of static topics as ranges of their parts, for Spark's reads")

Q = MessageQueue("t", "__syslo__global__", 0)
A, B, C = (MessageQueue("t", name, n) for n, name in enumerate("abc"))


def held(oldest: int, following: int, **more: int) -> OffsetBounds:
    return OffsetBounds(oldest, following, made_at=more.get("made_at", 0), store_number=more.get("store", 0))


# Five messages of a, none of b, three of c from its own offset 7 on.
PARTS = (
    QueuePart(A, 10, 0, 5, held(0, 5, made_at=1, store=11)),
    QueuePart(B, 100, 0, 0, held(0, 0, made_at=2, store=12)),
    QueuePart(C, 200, 7, 10, held(0, 10, made_at=3, store=13)),
)
BOUNDS = of_parts(PARTS)


def test_offsets_are_counted_without_gaps() -> None:
    assert (BOUNDS.oldest, BOUNDS.next, BOUNDS.of_master) == (10, 203, True)
    rows = {0: 0, 9: 9, 10: 10, 14: 14, 15: 15, 99: 15, 100: 15, 150: 15, 200: 15, 201: 16, 203: 18, 209: 24}
    assert {offset: BOUNDS.rows_before(offset) for offset in rows} == rows
    back = {0: 0, 9: 9, 10: 10, 14: 14, 15: 200, 16: 201, 18: 203, 24: 209}
    assert {count: BOUNDS.offset_after(count) for count in back} == back
    assert [BOUNDS.past_gap(at) for at in (3, 14, 15, 100, 199, 200, 202)] == [3, 14, 200, 200, 200, 200, 202]
    assert [BOUNDS.before_gap(at) for at in (12, 15, 100, 200, 201)] == [12, 15, 15, 15, 201]
    # Those of a broker's own queue are what they are.
    plain = held(3, 9)
    assert (plain.rows_before(5), plain.offset_after(5), plain.past_gap(5), plain.before_gap(5)) == (5, 5, 5, 5)


def test_the_oldest_message_is_in_the_first_part_that_has_one() -> None:
    first, second, third = PARTS
    for low, oldest in ((2, 12), (5, 200)):
        assert of_parts((first._replace(held=held(low, 5)), second, third)).oldest == oldest
    gone = first._replace(held=held(5, 5)), second, third._replace(held=held(10, 10))
    assert (of_parts(gone).oldest, of_parts(gone).next) == (203, 203)
    # Of one whose broker is away all may be there.
    assert of_parts((first._replace(held=None), second, third)).oldest == 10


def test_a_range_is_cut_into_those_of_parts() -> None:
    def pieces(first: int, end: int) -> list[tuple[int, int]]:
        return [(r.first, r.end) for r in cut(OffsetRange(Q, first, end), PARTS)]

    assert pieces(10, 203) == [(10, 15), (200, 203)]
    assert pieces(12, 150) == [(12, 15)]
    assert pieces(15, 200) == []
    # The last part may have got more since.
    assert pieces(202, 300) == [(202, 300)]
    assert [part_at(PARTS, at).queue for at in (10, 14, 200, 300)] == [A, A, C, C]


def test_stores_are_told_apart_by_what_was_read_of_them() -> None:
    read = list(BOUNDS.read_of(Q, 201))
    assert [(own, at) for own, _, at in read] == [(A, 5), (B, 0), (C, 8)]
    assert [(own, at) for own, _, at in BOUNDS.read_of(Q, 12)] == [(A, 2)]
    assert [own for own, _, _ in BOUNDS.read_of(Q, LONG_MAX)] == [A, B, C]
    made = {(EACH_TOPIC, "a"): 11, (EACH_TOPIC, "c"): 99}
    assert not is_of_other_store(Q, BOUNDS, made, 150)
    assert is_of_other_store(Q, BOUNDS, made, 201)
    known = BOUNDS.with_replicas(Q, {"c"})
    assert [known.replicated, *(part.held and part.held.replicated for part in known.parts)] == [
        True,
        False,
        False,
        True,
    ]
