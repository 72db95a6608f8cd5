"""Many queues: each takes what its messages need, not what its file could hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rocketspark.protocol import record
from rocketspark.store import Found, Store, StoreSettings
from rocketspark.store.files import OsFiles

NOW_MS = 1_700_000_000_000
TOPICS, QUEUES = 250, 8


class Unsynced(OsFiles):
    """Files whose flushes are not waited for: 2,000 of them are not what this is about."""

    def sync_file(self, path: str) -> None:
        pass


def disk_bytes(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*"))


def test_many_queues_take_little_and_are_there_after_a_kill(tmp_path: Path, send: Any) -> None:
    settings = StoreSettings(root=str(tmp_path / "s"), log_file_bytes=64 << 20, index_slots=100, index_entries=400)
    assert settings.queue_file_units == 300_000
    store = Store(settings, files=Unsynced())
    store.open()
    for n in range(TOPICS * QUEUES):
        send(store, f"topic-{n % TOPICS}", n // TOPICS, b"%d" % n, now_ms=NOW_MS)
    queues = tmp_path / "s/consumequeue"
    assert len(list(queues.iterdir())) == TOPICS
    # A folder and a file of a block or two; a whole queue file would be 6 MB.
    assert disk_bytes(queues) <= TOPICS * QUEUES * 10_000
    # As a kill leaves it.
    store._closed = True
    store._give_back()
    again = Store(settings, files=Unsynced())
    again.open()
    assert sum(map(len, again.queues().values())) == TOPICS * QUEUES
    for n in range(0, TOPICS * QUEUES, 7):
        read = again.read(f"topic-{n % TOPICS}", n // TOPICS, 0, 32, 1 << 20)
        assert (read.status, read.next_offset, read.max_offset) == (Found.FOUND, 1, 1)
        assert record.decode(read.records[0]).body == b"%d" % n
    send(again, "topic-5", 3, b"more", now_ms=NOW_MS)
    assert again.queue_range("topic-5", 3) == (0, 2)
    again.close()


def test_what_is_reserved_grows_with_the_queue(make_store: Any, send: Any) -> None:
    store = make_store(queue_file_units=300_000, log_file_bytes=16 << 20)
    sizes = []
    for n in range(20_000):
        send(store, "t", 0, b"", now_ms=NOW_MS)
        if n in (0, 250, 4_000, 19_999):
            sizes.append(disk_bytes(Path(store.settings.root, "consumequeue/t/0")))
    assert sizes[0] <= 8 << 10
    assert sizes[1] <= 24 << 10
    # At most one step of 64 KiB, and the folder, beyond what is used.
    assert 80_000 <= sizes[2] <= 80_000 + (72 << 10)
    assert 400_000 <= sizes[3] <= 400_000 + (72 << 10)
