"""The queue of a message group is the one that Guava's consistentHash gives; vectors made with Guava 32.0.1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.model import MessageQueue
from rocketspark.model.allocation import consistent_hash
from rocketspark.model.text import string_hash
from rocketspark.proxy.producing.send import QueueChoice

pytestmark = pytest.mark.shows(
    "message groups: the queue that Guava's consistentHash gives over queues by broker and id",
)

BUCKETS = (1, 2, 3, 4, 5, 7, 8, 10, 16, 31, 64, 100, 255, 1000, 65536)
GROUPS = {
    "g": (0, 1, 1, 1, 1, 1, 1, 1, 12, 12, 12, 68, 223, 223, 39498),
    "group": (0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 80, 228, 391, 58202),
    "order-1": (0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 250, 489, 12831),
    "order-2": (0, 0, 2, 2, 2, 2, 2, 2, 11, 28, 46, 46, 184, 184, 51604),
    "a b": (0, 0, 2, 2, 2, 2, 2, 2, 2, 20, 35, 35, 35, 35, 5303),
    "ключ": (0, 1, 2, 2, 2, 5, 5, 5, 5, 5, 5, 5, 5, 958, 57673),
    "订单": (0, 1, 1, 1, 1, 1, 7, 7, 7, 7, 50, 50, 50, 50, 32997),
    "😀": (0, 1, 1, 1, 4, 4, 4, 4, 4, 17, 31, 31, 232, 748, 38160),
    "😀x": (0, 1, 2, 3, 3, 5, 5, 5, 5, 27, 27, 27, 27, 914, 10590),
    "user-1234567890": (0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 116, 894, 894),
    "0": (0, 0, 2, 2, 2, 2, 2, 2, 10, 10, 46, 46, 46, 46, 57088),
    "Aa": (0, 1, 1, 1, 4, 5, 5, 5, 14, 14, 14, 14, 234, 234, 48121),
    "BB": (0, 1, 1, 1, 4, 5, 5, 5, 14, 14, 14, 14, 234, 234, 48121),
    "é": (0, 0, 0, 0, 0, 6, 7, 7, 7, 18, 37, 37, 189, 894, 56342),
    "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz": (
        0,
        1,
        2,
        2,
        2,
        6,
        6,
        6,
        14,
        25,
        25,
        94,
        94,
        259,
        48878,
    ),
    "polygenelubricants": (0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 58, 58, 185, 185, 39408),
    "-": (0, 1, 1, 3, 3, 3, 3, 3, 3, 21, 62, 76, 147, 740, 46256),
    "": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
}
NUMBERS = {
    -2147483648: (0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 58, 58, 185, 185, 39408),
    -1: (0, 1, 2, 2, 2, 2, 7, 9, 10, 10, 10, 92, 248, 313, 18311),
    0: (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    2147483647: (0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 56, 56, 231, 231, 51833),
    892128508: (0, 0, 0, 0, 0, 0, 0, 0, 0, 19, 19, 96, 244, 954, 19221),
    155629808: (0, 1, 1, 1, 1, 6, 6, 6, 13, 23, 37, 37, 223, 223, 10799),
    1429008869: (0, 0, 2, 3, 3, 3, 3, 3, 12, 27, 27, 27, 27, 988, 31379),
    -1465154083: (0, 1, 1, 1, 4, 6, 6, 6, 6, 6, 6, 85, 85, 682, 54026),
    -138487339: (0, 0, 2, 2, 4, 4, 4, 4, 4, 4, 59, 59, 59, 486, 2207),
    -1242363800: (0, 1, 1, 1, 4, 4, 4, 4, 15, 26, 26, 26, 100, 792, 5793),
    26273138: (0, 0, 2, 3, 3, 3, 3, 3, 11, 11, 11, 11, 100, 371, 24966),
    655996946: (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 31, 31, 31, 662, 12600),
    -155886662: (0, 1, 1, 3, 4, 4, 4, 4, 11, 25, 38, 38, 38, 978, 40942),
    685382526: (0, 0, 0, 3, 4, 4, 4, 4, 4, 29, 31, 31, 188, 875, 36885),
}


@pytest.mark.parametrize("group", GROUPS)
def test_queue_of_group_as_guava(group: str) -> None:
    hashed = string_hash(group)
    assert tuple(consistent_hash(hashed, n) for n in BUCKETS) == GROUPS[group]


@pytest.mark.parametrize("number", NUMBERS)
def test_bucket_of_number_as_guava(number: int) -> None:
    assert tuple(consistent_hash(number, n) for n in BUCKETS) == NUMBERS[number]


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(1, 5000))
def test_one_queue_more_takes_only_from_others(value: int, buckets: int) -> None:
    before, after = consistent_hash(value, buckets), consistent_hash(value, buckets + 1)
    assert 0 <= before < buckets
    assert after in (before, buckets)


def queues(*names: str, count: int = 2) -> list[MessageQueue]:
    return [MessageQueue("T", name, i) for name in names for i in range(count)]


def test_round_robin_takes_every_queue_in_turn() -> None:
    choice, all_queues = QueueChoice(), queues("a", "b")
    seen = [choice.next("T", all_queues) for _ in range(8)]
    assert seen[:4] == seen[4:]
    assert sorted(seen[:4]) == all_queues


def test_round_robin_avoids_a_broker_that_did_not_answer() -> None:
    choice, all_queues = QueueChoice(), queues("a", "b")
    assert {choice.next("T", all_queues, avoid=("a",)).broker_name for _ in range(6)} == {"b"}
    assert choice.next("T", all_queues, avoid=("a", "b")) in all_queues


def test_a_group_stays_with_its_queue_also_if_its_broker_is_avoided() -> None:
    choice, all_queues = QueueChoice(), queues("a", "b", count=4)
    assert choice.of_group("order-1", all_queues) == all_queues[3]
    assert choice.of_group("订单", all_queues) == all_queues[7]
