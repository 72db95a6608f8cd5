"""A file of a queue that somebody removed: the queue is made anew from the log, whichever file it was."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import expire

from rocketspark.protocol.message import record
from rocketspark.store import GetStatus, Store


def read_all(store: Store) -> list[int]:
    at, end = store.queue_range("t", 0)
    found: list[int] = []
    while at < end:
        read = store.read("t", 0, at, 32, 1 << 20)
        assert read.status is GetStatus.FOUND
        found += [r.queue_offset for piece in read.records for r in record.decode_all(piece)]
        at = read.next_offset
    return found


# A store that was never written by us says nowhere where its queues begin and end.
CASES = [
    (which, expires, noted)
    for which, expires, noted in itertools.product(range(4), (False, True), (True, False))
    if noted or (which, expires) not in ((0, False), (0, True), (3, True))
]


@pytest.mark.shows(
    "mended: a queue file missing in the midst, or the first once old log files are gone, hides messages",
)
@pytest.mark.parametrize(("which", "expires", "noted"), CASES)
def test_no_message_is_missed(make_store: Any, send: Any, which: int, expires: bool, noted: bool) -> None:
    store = make_store()
    for n in range(230):
        send(store, "t", 0, b"%0200d" % n, now_ms=n)
    store.flush_log()
    if expires:
        expire(store, 100)
    oldest = store.queue_range("t", 0)[0]
    assert (oldest > 0) is expires
    for _ in range(450):
        send(store, "busy", 0, bytes(12_000), now_ms=1000)
    store.close()
    root = Path(store.settings.root)
    files = sorted((root / "consumequeue/t/0").iterdir())
    if not noted:
        assert files[which] not in (files[0], files[-1])
        (root / "config/storeFiles.json").unlink()
    files[which].unlink()
    again = make_store()
    assert again.recovered.remade
    assert read_all(again) == list(range(oldest, 230))
    assert send(again, "t", 0, b"new")[1] == 230
    again.close()
    last = make_store()
    assert not last.recovered.remade
    assert read_all(last) == list(range(oldest, 231))


@pytest.mark.shows("mended: a queue all of whose messages are removed begins at 0 again once its files are lost")
@pytest.mark.parametrize(("count", "lost"), [(230, "consumequeue"), (230, "consumequeue/t"), (250, "consumequeue/t")])
def test_a_lost_queue_without_messages_goes_on_at_its_offset(make_store: Any, send: Any, count: int, lost: str) -> None:
    store = make_store()
    for n in range(count):
        send(store, "t", 0, b"x", now_ms=n)
    for _ in range(450):
        send(store, "busy", 0, bytes(12_000), now_ms=count)
    store.flush_log()
    while store.queue_range("t", 0) != (count, count):
        assert expire(store, 1000)
    store.close()
    shutil.rmtree(Path(store.settings.root) / lost)
    again = make_store()
    assert again.recovered.remade
    assert again.queue_range("t", 0) == (count, count)
    again.close()
    last = make_store()
    assert not last.recovered.remade
    assert send(last, "t", 0, b"new")[1] == count
    assert last.queue_range("t", 0) == (count, count + 1)
