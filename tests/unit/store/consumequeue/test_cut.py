"""Queues lose what lies at or after a physical offset, as the log is cut there, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from rocketspark.store import Store


@pytest.mark.parametrize("kept", range(6))
def test_the_units_at_and_behind_a_cut_go(make_store: Any, send: Any, kept: int) -> None:
    store: Store = make_store()
    positions = [send(store, "t", 0, b"%d" % n)[0] for n in range(5)]
    store.consume_queues.cut([*positions, store.written_position][kept])
    assert store.stored_range("t", 0) == (0, kept)
    queue = store.consume_queues.find("t", 0)
    assert queue is not None
    assert [queue.unit(offset)[0] for offset in range(kept)] == positions[:kept]
