"""A batch is stored whole or not at all, and its keys are found, where the disk takes nothing more."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest

from rocketspark.protocol.message import batch, record
from rocketspark.store import BatchMessage
from rocketspark.store.consumequeue.consume_queue import ConsumeQueue
from rocketspark.store.index.key_hashes import BatchKeys

pytestmark = pytest.mark.shows(
    "mended: a full disk, or no descriptor left, while a batch reached the next file of its queue left units "
    "that point to nothing; the message after them was lost at the next start; plain batches too"
)

NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")


@pytest.mark.parametrize("as_layout", [True, False])
def test_a_batch_that_reaches_the_next_file_asks_the_disk_before_its_first_unit(
    as_layout: bool, make_store: Any, send: Any, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(queue_file_units=50)
    for i in range(40):
        send(store, "t", 0, b"%d" % i)
    make_room_for = ConsumeQueue.make_room_for

    def no_descriptor(path: str, **options: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files", path)

    def then_full(queue: ConsumeQueue, count: int) -> None:
        make_room_for(queue, count)
        files.room_bytes, files.map = 0, no_descriptor

    monkeypatch.setattr(ConsumeQueue, "make_room_for", then_full)
    if as_layout:
        layout = batch.scan(batch.encode([batch.BatchItem(0, b"b", b"")] * 40))
        assert layout is not None
        store.append_layout(b"t", 0, layout, (np.zeros(40, np.int64), BatchKeys()), NOW_MS, 0, NOW_MS, BORN)
    else:
        store.append_batch(b"t", 0, [BatchMessage(b"b", b"", 0, None, None, None)] * 40, NOW_MS, 0, NOW_MS, BORN)
    files.room_bytes = None
    del files.map
    read = store.read("t", 0, 0, 100, 1 << 20)
    found = [r.body for piece in read.records for r in record.decode_all(piece)]
    assert found == [b"%d" % i for i in range(40)] + [b"b"] * 40
    assert send(store, "t", 0, b"next")[1] == 80


@pytest.mark.shows(
    "mended: while the index had no room, a transaction just committed was taken for one that never was: its "
    "repeated end was told as gone, and one given up before could be committed twice"
)
def test_keys_that_the_index_has_no_room_for_are_found(make_store: Any, files: Any) -> None:
    """Who asks whether a transaction was committed must not hear no."""
    reserve = files.reserve

    def no_room_for_indexes(path: str, at: int, count: int) -> None:
        if "/index/" in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        reserve(path, at, count)

    store = make_store(log_file_bytes=1 << 20, queue_file_units=500, index_entries=50)
    for n in range(0, 90, 30):
        rows = [BatchMessage(b"%d" % i, b"KEYS\x01k%d\x02" % i, 0, None, b"k%d" % i, None) for i in range(n, n + 30)]
        store.append_batch(b"t", 0, rows + rows[:1], NOW_MS + n * 1000, 0, NOW_MS, BORN)
        if not n:
            store.index_service.write_pending()
            files.reserve = no_room_for_indexes
    for n in (0, 29, 30, 60, 89):
        found = [record.decode(stored).body for stored in store.query("t", f"k{n}", 5, 0, 1 << 60)]
        assert found == [b"%d" % n] * (1 + (n % 30 == 0))
    assert store.query("t", "k60", 5, 0, NOW_MS + 30_000) == []
    del files.reserve
