"""Old files go whole, oldest first; offsets, reads, keys and recovery follow."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rocketspark.protocol import record
from rocketspark.store import Found
from rocketspark.store.retention import expired


@pytest.mark.parametrize(
    ("times", "before_ms", "count_max", "gone"),
    [
        ([10, 20, 30], 9, 9, []),
        ([10, 20, 30], 19, 9, []),
        ([10, 20, 30], 20, 9, [0]),
        ([10, 20, 30], 99, 9, [0, 100]),
        ([10, 20, 30], 99, 1, [0]),
        ([10, -1], 99, 9, []),
        ([10], 99, 9, []),
    ],
)
def test_the_plan(times: list[int], before_ms: int, count_max: int, gone: list[int]) -> None:
    assert expired([100 * i for i in range(len(times))], times, before_ms, count_max) == gone


def test_expiry(make_store: Any, send: Any) -> None:
    store = make_store()
    places = [send(store, "t", 0, b"x" * 400, keys=f"k{i}", now_ms=1000 + i) for i in range(300)]
    send(store, "quiet", 0, b"")
    root = Path(store.settings.root)
    assert store.expire(2000) == 0  # nothing goes before it is on the disk
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
    kept = view = store.record_at(places[0][0])
    before = bytes(kept)
    assert store.expire(1100) == 3
    oldest = store.min_position
    assert oldest == 3 * 16384
    first = next(i for i, p in enumerate(places) if p[0] >= oldest)
    for _ in range(2):
        assert store.queue_range("t", 0) == (first, 300)
        assert store.read("t", 0, 0, 5, 1000).status is Found.OFFSET_TOO_SMALL
        read = store.read("t", 0, first, 1000, 1 << 20)
        assert [r.queue_offset for v in read.records for r in record.decode_all(v)] == list(range(first, 300))
        assert store.record_at(places[0][0]) is None
        assert store.query("t", "k0", 5, 0, 1 << 60) == []
        assert len(store.query("t", f"k{first}", 5, 0, 1 << 60)) == 1
        assert store.offset_at_time("t", 0, 0) == first
        assert len(list((root / "consumequeue/t/0").iterdir())) == 6 - first // 50
        store.close()
        store = make_store()
    # A slice handed out before stays readable.
    assert bytes(view) == before
    # From the log alone: the queue begins at its offset.
    store.close()
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    shutil.rmtree(root / "consumequeue")
    store = make_store()
    assert store.queue_range("t", 0) == (first, 300)
    assert send(store, "t", 0, b"on")[1] == 300
    read = store.read("t", 0, first, 1000, 1 << 20)
    assert read.count == 301 - first
    assert store.expire(10**15) > 0
    assert store.queue_range("quiet", 0)[1] == 1
