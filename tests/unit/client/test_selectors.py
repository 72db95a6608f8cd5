"""Queue selectors: Java's hash codes, machine rooms, wrong results."""

from __future__ import annotations

import pytest

from rocketspark.client.selectors import by_hash, by_machine_room, by_random, select
from rocketspark.errors import UsageError
from rocketspark.model import Message, MessageQueue

pytestmark = pytest.mark.shows(
    "sends: sync, asyncio, futures, one-way; to a queue, by selector, by sharding key in order; batches with "
    "`split`; one budget; system topics refused"
)

QUEUES = [MessageQueue("t", b, i) for b in ("near@a", "far@b") for i in range(4)]
MESSAGE = Message(topic="t", body=b"x")


@pytest.mark.parametrize(
    ("argument", "hash_code"),
    # What Java's hashCode of a String, an Integer and a Long gives.
    [
        ("order-1", -1207111310),
        ("x", 120),
        (7, 7),
        (-7, -7),
        (1 << 33, 2),
        (5 - (1 << 40), -251),
        ((1 << 63) - 1, 1 << 31),
        (-(1 << 31), 1 << 31),
    ],
)
def test_by_hash(argument: object, hash_code: int) -> None:
    assert by_hash(QUEUES, MESSAGE, argument) == QUEUES[abs(hash_code) % 8]


def test_by_hash_refuses_what_has_no_java_hash() -> None:
    for argument in (1.5, None, 1 << 63, b"x"):
        with pytest.raises(UsageError, match="whole number"):
            by_hash(QUEUES, MESSAGE, argument)


def test_by_random_and_room() -> None:
    assert {by_random(QUEUES, MESSAGE, None) for _ in range(400)} == set(QUEUES)
    near = by_machine_room("near", "next")
    assert {near(QUEUES, MESSAGE, None) for _ in range(200)} == set(QUEUES[:4])
    assert {by_machine_room("none")(QUEUES, MESSAGE, None) for _ in range(400)} == set(QUEUES)


def test_a_selector_must_choose_a_queue_of_the_topic() -> None:
    assert select(lambda queues, message, argument: queues[argument], QUEUES, MESSAGE, 5) == QUEUES[5]
    for wrong in (None, 3, MessageQueue("u", "near@a", 0)):
        with pytest.raises(UsageError, match="selector returned"):
            select(lambda queues, message, argument: argument, QUEUES, MESSAGE, wrong)
