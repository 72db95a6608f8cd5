"""Average allocation: the shares RocketMQ's own strategy gives."""

from __future__ import annotations

import pytest

from rocketspark.client.assign import average
from rocketspark.model import MessageQueue

QUEUES = [MessageQueue("t", "b", i) for i in range(8)]

SHARES = [
    (8, 1, [[0, 1, 2, 3, 4, 5, 6, 7]]),
    (8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
    (7, 3, [[0, 1, 2], [3, 4], [5, 6]]),
    (8, 5, [[0, 1], [2, 3], [4, 5], [6], [7]]),
    (2, 4, [[0], [1], [], []]),
    (0, 2, [[], []]),
]


@pytest.mark.parametrize(("queue_count", "member_count", "shares"), SHARES)
def test_shares(queue_count: int, member_count: int, shares: list[list[int]]) -> None:
    members = [f"m{i}" for i in range(member_count)]
    got = [[q.queue_id for q in average(m, QUEUES[:queue_count], members)] for m in members]
    assert got == shares


def test_who_is_no_member_gets_none() -> None:
    assert average("x", QUEUES, ["a", "b"]) == []
