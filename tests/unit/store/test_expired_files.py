"""Old files go whole, oldest first; offsets, reads, keys and recovery follow."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import expire

from rocketspark.protocol.message import record
from rocketspark.store import GetStatus
from rocketspark.store.expired_files import expired


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
    assert expire(store, 2000) == 0  # nothing goes before it is on the disk
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
    kept = view = store.record_at(places[0][0])
    before = bytes(kept)
    assert expire(store, 1100) == 3
    oldest = store.min_position
    assert oldest == 3 * 16384
    first = next(i for i, p in enumerate(places) if p[0] >= oldest)
    for _ in range(2):
        assert store.queue_range("t", 0) == (first, 300)
        assert store.read("t", 0, 0, 5, 1000).status is GetStatus.OFFSET_TOO_SMALL
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
    assert expire(store, 10**15) > 0
    assert store.queue_range("quiet", 0)[1] == 1


@pytest.mark.parametrize("count", [2, 50, 51])
@pytest.mark.parametrize("lost", ["queue", "newest file"])
def test_a_queue_whose_files_are_lost_too_goes_on_at_its_offset(
    count: int, lost: str, make_store: Any, send: Any
) -> None:
    """Its messages were removed before, so that what was noted of its end is all that is known."""
    store = make_store()
    for i in range(count):
        send(store, "t", 0, b"old", now_ms=1000 + i)
    for _ in range(100):
        send(store, "other", 0, b"x" * 400, now_ms=2000)
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
    while store.min_position < store.consume_queues.inventory.ends["t", 0].position:
        send(store, "other", 0, b"x" * 400, now_ms=2001)
        store.flush_log(), store.flush_queues()
        expire(store, 3000)
    folder = Path(store.settings.root) / "consumequeue" / "t" / "0"
    store.close()
    if lost == "queue":
        shutil.rmtree(folder)
    else:
        max(folder.iterdir()).unlink()
    for last in (count, count + 1):
        store = make_store()
        assert store.queue_range("t", 0) == (count, last)
        assert send(store, "t", 0, b"new")[1] == last
        read = store.read("t", 0, count, 32, 1 << 20)
        assert [r.queue_offset for v in read.records for r in record.decode_all(v)] == list(range(count, last + 1))
        store.close()


@pytest.mark.shows("mended: silent loss while a broker removes old files: the store's half")
@pytest.mark.parametrize("codes", [None, frozenset((7,)), frozenset(range(100, 140))])
def test_oldest_offsets_rise_before_a_file_goes(codes: Any, make_store: Any, send: Any) -> None:
    store = make_store()
    places = [send(store, f"t{i % 130}", 0, b"x" * 400, now_ms=1000 + i) for i in range(520)]
    store.flush_log()
    # Those of other queues are read from their files when they are asked for.
    assert store.queue_range("t0", 0) == (0, 4)
    gone = 0
    for remove in store.expire_steps(1300, 10):
        if remove is not None:
            remove()
            gone += 1
        if not gone:
            continue
        for topic in range(130):
            low, high = store.queue_range(f"t{topic}", 0)
            assert [places[topic + 130 * n][0] >= store.min_position for n in range(low, high)] == [True] * (high - low)
            assert not low or store.read(f"t{topic}", 0, low - 1, 9, 9999, codes).status is GetStatus.OFFSET_TOO_SMALL
    assert gone > 5
    assert store.queue_range("t0", 0)[0] > 0


@pytest.mark.shows("mended: silent loss while a broker removes old files: the store's half")
@pytest.mark.parametrize("codes", [None, frozenset((7,)), frozenset((8,)), frozenset(range(100))])
@pytest.mark.parametrize("gap", [1, 5])
def test_a_read_ends_before_a_hole_and_then_tells_of_it(gap: int, codes: Any, make_store: Any) -> None:
    store = make_store()

    def put(count: int) -> None:
        for i in range(count):
            store.append(b"t", 0, b"x", b"", 7 + i % 2, None, None, None, 1000, 0, 0, 0, bytes(8))

    put(6)
    store.consume_queues.find("t", 0).fill_to(6 + gap)
    put(6)
    got, at, told = [], 0, []
    while at < 12 + gap:
        read = store.read("t", 0, at, 4, 1 << 20, codes)
        if read.status is GetStatus.REMOVED:
            told.append((at, read.next_offset, read.records))
        got += [r.queue_offset for piece in read.records for r in record.decode_all(piece)]
        at = read.next_offset
    assert told == [(6, 6 + gap, [])]
    wanted = [*range(6), *range(6 + gap, 12 + gap)]
    if codes is not None and len(codes) == 1:
        wanted = wanted[1 if 8 in codes else 0 :: 2]
    assert got == wanted
