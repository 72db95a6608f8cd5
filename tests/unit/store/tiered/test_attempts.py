"""The order in which the queues and segments of a tier are tried, where some fail."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rocketspark.errors import StoreUnwritable
from rocketspark.store.tiered.attempts import Attempts
from rocketspark.store.tiered.flat_file import FlatFile
from rocketspark.store.tiered.layout import SegmentKind, base_of

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


@pytest.mark.shows(
    "mended: second tier: a segment that could not be removed kept those behind it, of the same queue, for as long"
)
def test_segments_behind_those_that_cannot_be_removed_go() -> None:
    broken, gone = {0, 10, 20, 30}, set[int]()

    class Segments:
        def remove(self, key: str) -> None:
            base = base_of(key.rpartition("/")[2])
            assert base is not None
            if base in broken:
                raise StoreUnwritable(f"{key} is not to be changed", retriable=True)
            gone.add(base)

    flat = FlatFile(cast(Any, Segments()), "C", "P", SegmentKind.COMMIT_LOG, 10)
    flat.take_over(dict.fromkeys(range(0, 80, 10), 10), {})
    for _ in range(3):
        with pytest.raises(StoreUnwritable):
            flat.expire_below(70)
    assert (flat.start, gone) == (70, {40, 50, 60})
    broken.clear()
    flat.expire_below(70)
    assert gone == set(range(0, 70, 10))
