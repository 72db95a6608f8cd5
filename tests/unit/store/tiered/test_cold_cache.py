"""Stretches in memory: those of a queue that was dropped while they were read are not kept."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rocketspark.store.tiered.cold_cache import ColdCache
from rocketspark.store.tiered.queue_tier import ColdUnits

pytestmark = pytest.mark.shows("tiered storage: a topic made anew is not read from what was read of the one before")


class Dropping:
    """A tier whose only queue is dropped while a thread reads from it."""

    def __init__(self) -> None:
        self.found: Dropping | None = self
        self.cache: ColdCache | None = None
        self.drops = True

    def find(self, topic: str, queue_id: int) -> Dropping | None:
        return self.found

    def stretch(self, offset: int, count: int, size: int) -> ColdUnits:
        if self.drops:
            assert self.cache is not None
            self.found = Dropping()
            self.cache.forget(("T", 0))
        return ColdUnits(0, [(0, 3, 0)], memoryview(b"old"), 0)


@pytest.mark.parametrize(("drops", "kept"), [(True, 0), (False, 1)])
def test_what_was_read_of_a_dropped_queue_is_not_kept(drops: bool, kept: int) -> None:
    tier = Dropping()
    tier.drops = drops
    tier.cache = cache = ColdCache(cast(Any, tier), 1 << 20)
    cache.load(("T", 0), 0)
    assert (cache.count, cache.size) == (kept, 3 * kept)
