"""The order in which the queues of a tier are tried, where some fail."""

from __future__ import annotations

import pytest

from rocketspark.errors import StoreUnwritable
from rocketspark.store.tiered.attempts import Attempts

pytestmark = pytest.mark.shows(
    "mended: second tier: where all queues had failed once, three that went on failing kept all others from being"
    " copied, and removed, for as long"
)
QUEUES = [(f"t{number}", 0) for number in range(9)]


def tried(attempts: Attempts, broken: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Make a round; return the queues that were done."""
    done = []
    attempts.begin()
    for queue in attempts.order(QUEUES):
        if attempts.is_over:
            break
        with attempts.at(queue):
            if queue in broken:
                raise StoreUnwritable("it is not to be changed", retriable=True)
            done.append(queue)
    return done


def test_queues_that_go_on_failing_let_those_go_first_that_failed_before_them() -> None:
    attempts = Attempts()
    for _ in range(4):
        assert tried(attempts, QUEUES) == []
    assert set(attempts.failed) == set(QUEUES)
    broken = QUEUES[:3]
    done = {queue for _ in range(3) for queue in tried(attempts, broken)}
    assert done == set(QUEUES) - set(broken)
    assert list(attempts.failed) == broken
    assert attempts.order(QUEUES[1:]) == [*QUEUES[3:], *QUEUES[1:3]]
