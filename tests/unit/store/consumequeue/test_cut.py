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


def test_the_files_behind_a_cut_go(make_store: Any, send: Any) -> None:
    store: Store = make_store()
    queue = store.consume_queues.make(b"t", 0)
    units = queue.mapped_files.size // queue.unit_bytes
    positions = [send(store, "t", 0, b"%d" % n)[0] for n in range(3 * units)]
    assert len(queue.mapped_files.starts) == 3
    store.consume_queues.cut(positions[2])
    assert (queue.mapped_files.starts, store.stored_range("t", 0)) == ([0], (0, 2))
