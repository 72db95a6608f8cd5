"""The power goes: files hold what was synced, whichever process did it, and each may be cut short, empty or zeros."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketspark.errors import StoreUnwritable
from rocketspark.protocol.message import record
from rocketspark.store import Store
from rocketspark.store.files.system_calls import PAGE, OsFiles
from rocketspark.store.settings import ManualClock
from rocketspark.store.timers.timer_files import TimerCheckpoint, TimerFiles

NOW_MS = 1_700_000_000_000


class Disk(OsFiles):
    """Knows of each file which bytes are on the disk, as long as no other than this writes."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: dict[int, tuple[Any, str]] = {}
        self.synced: dict[str, list[tuple[int, int]]] = {}

    def map(self, path: str, *, scattered: bool = False) -> Any:
        mapped = super().map(path, scattered=scattered)
        self.maps[id(mapped)] = mapped, path
        return mapped

    def sync_map(self, mapped: Any, at: int, end: int) -> None:
        self.synced.setdefault(self.maps[id(mapped)][1], []).append((at - at % PAGE, end))

    def sync_file(self, path: str) -> None:
        self.synced[path] = [(0, os.path.getsize(path))]

    def write_file(self, path: str, content: bytes) -> None:
        super().write_file(path, content)
        self.synced[path.removesuffix(".tmp")] = [(0, len(content))]

    def overwrite(self, path: str, content: bytes, size: int) -> None:
        super().overwrite(path, content, size)
        self.synced[path] = [(0, size)]

    def cut_power(self, root: Path, to: Path) -> Path:
        """Make a folder of what is on the disk now."""
        for path in (p for p in root.rglob("*") if p.is_file()):
            now = path.read_bytes()
            there = bytearray(len(now))
            for at, end in self.synced.get(str(path), []):
                there[at:end] = now[at:end]
            kept = to / path.relative_to(root)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(there)
        return to


@pytest.mark.shows(
    "all that a start after an unclean stop counts on is synced first (log, queues, index, timers, tables, "
    "checkpoints); repairs too"
)
def test_what_a_killed_process_left_in_memory_is_synced_before_it_counts(tmp_path: Path, small: Any, send: Any) -> None:
    disk = Disk()

    def opened(root: Path, files: OsFiles) -> tuple[Store, TimerFiles]:
        store = Store(small(root), clock=ManualClock(NOW_MS), files=files)
        store.open()
        timers = TimerFiles(str(root), log_file_bytes=104_000, files=files)
        timers.open()
        return store, timers

    root = tmp_path / "s"
    store, timers = opened(root, disk)
    for i in range(100):
        send(store, "t", i % 2, b"n%d" % i, keys=f"k{i}")
        timers.add(NOW_MS, NOW_MS + 5000 * (i % 3 + 1), i, 100, 1)
    store.abandon()
    timers.close()
    store, timers = opened(root, disk)
    assert store.crashed
    send(store, "t", 0, b"n100", keys="k100")
    for flush in (store.flush_log, store.flush_queues, store.flush_indexes, store.write_checkpoint):
        flush()
    timers.flush(TimerCheckpoint(NOW_MS, timers.log.end, 100, 100))
    left, timers_left = opened(disk.cut_power(root, tmp_path / "left"), OsFiles())
    bodies = {r.body for r in left.iterate(0)}
    assert bodies == {b"n%d" % i for i in range(101)}
    assert left.queue_range("t", 0) == (0, 51)
    assert left.queue_range("t", 1) == (0, 50)
    assert [record.decode(v).body for v in left.query("t", "k7", 1, 0, 1 << 60)] == [b"n7"]
    assert timers_left.checkpoint.queue_offset == 100
    assert [len(timers_left.positions(NOW_MS + 5000 * n)) for n in (1, 2, 3)] == [34, 33, 33]
    store.close()
    left.close()


@pytest.mark.parametrize("what", ["timerlog", "timerwheel"])
@pytest.mark.shows("timers: after a flush that failed no progress is noted; the next start reads on from the last one")
def test_timers_whose_flush_failed_are_read_again_after_a_power_cut(tmp_path: Path, what: str) -> None:
    class Failing(Disk):
        left, failed = 0, False

        def sync_map(self, mapped: Any, at: int, end: int) -> None:
            if self.left and what in self.maps[id(mapped)][1]:
                self.left -= 1
                # As Linux does it: told once, and these pages count as written from then on.
                raise OSError(errno.EIO, "Input/output error")
            if what not in self.maps[id(mapped)][1] or not self.failed:
                super().sync_map(mapped, at, end)

    def opened(root: Path, files: OsFiles) -> TimerFiles:
        timers = TimerFiles(str(root), log_file_bytes=104_000, files=files)
        timers.open()
        return timers

    disk, root = Failing(), tmp_path / "s"
    (root / "config").mkdir(parents=True)
    timers = opened(root, disk)
    timers.add(NOW_MS, NOW_MS + 5000, 0, 100, 1)
    timers.flush(TimerCheckpoint(NOW_MS, timers.log.end, 1, 1))
    timers.add(NOW_MS, NOW_MS + 9000, 100, 100, 1)
    disk.left, disk.failed = 1, True
    for _ in range(2):
        with pytest.raises(StoreUnwritable):
            timers.flush(TimerCheckpoint(NOW_MS, timers.log.end, 2, 2))
    left = opened(disk.cut_power(root, tmp_path / "left"), OsFiles())
    # The queue is read again from the second one on.
    assert left.checkpoint.queue_offset == 1
    assert len(left.positions(NOW_MS + 5000)) == 1


def test_of_folders_that_a_store_makes_the_names_are_on_the_disk(tmp_path: Path, small: Any) -> None:
    synced: list[str] = []

    class Noted(OsFiles):
        def sync_directory(self, path: str) -> None:
            synced.append(path)
            super().sync_directory(path)

    root = tmp_path / "new" / "in" / "it"
    store = Store(small(root), clock=ManualClock(NOW_MS), files=Noted())
    store.open()
    store.close()
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "in"), str(root)} <= set(synced)
    synced.clear()
    store = Store(small(root), clock=ManualClock(NOW_MS), files=Noted())
    store.open()
    store.close()
    assert not {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "in")} & set(synced)


SECTOR = 512


def filled(store: Store, send: Any) -> None:
    """Some files of log, queues and index, a deleted topic; then one more message that is not flushed."""
    for i in range(20):
        send(store, "gone", 0, b"g%d" % i)
    store.delete_topic("gone")
    for i in range(240):
        send(store, "t", i % 2, b"n%d" % i, keys=f"k{i}", now_ms=NOW_MS + i)
    for flush in (store.flush_log, store.flush_queues, store.flush_indexes, store.write_checkpoint):
        flush()
    send(store, "t", 0, b"n240", keys="k240", now_ms=NOW_MS + 240)


def damages(name: str, content: bytes, before: bytes) -> Iterator[bytes]:
    """What a power cut may leave of a file: its begin, nothing, zeros; of one written in place old among new."""
    used = len(content.rstrip(b"\0"))
    places = range(0, used + SECTOR, SECTOR)
    for at in places[:: max(1, len(places) // 6)]:
        yield content[:at]
        yield content[:at].ljust(len(content), b"\0")
    yield bytes(len(content))
    if "config" not in name:
        for odd in (0, 1):
            mixed = bytearray(content)
            for at in range(odd * SECTOR, len(before), 2 * SECTOR):
                mixed[at : at + SECTOR] = before[at : at + SECTOR]
            yield bytes(mixed[: len(content)])


@pytest.mark.shows(
    "each file of the store and of its own tables at 0 bytes, cut at sectors, zeros, old and new mixed",
)
@pytest.mark.parametrize("how", ["killed", "closed"])
def test_whatever_is_left_of_a_file_what_the_log_holds_is_read(how: str, tmp_path: Path, small: Any, send: Any) -> None:
    root, now = tmp_path / "s", tmp_path / "now"
    store = Store(small(root), clock=ManualClock(NOW_MS))
    store.open()
    filled(store, send)
    if how == "closed":
        store.close()
    shutil.copytree(root, now)
    store.close()
    (now / "lock").unlink()
    for path in sorted(p for p in now.rglob("*") if p.is_file() and p.name not in ("abort", "spare")):
        name = str(path.relative_to(now))
        content = path.read_bytes()
        old = path.with_name(path.name + ".bak")
        before = old.read_bytes() if old.exists() else bytes(len(content))
        if name.startswith("commitlog") or name.endswith(".bak"):
            continue
        kinds = list(damages(name, content, before))
        # Old sectors within a file of the index are looked for after a kill alone.
        for number, left in enumerate(kinds[:-2] if name.startswith("index") and how == "closed" else kinds):
            again_root = tmp_path / f"{path.name}{number}"
            shutil.copytree(now, again_root)
            (again_root / name).write_bytes(left)
            again = Store(small(again_root), clock=ManualClock(NOW_MS))
            again.open()
            story = f"{name}, {number}: {len(left)} bytes"
            found = {q: units(again, q) for q in (0, 1)}
            assert found == {q: [b"n%d" % i for i in range(q, 241, 2)] for q in (0, 1)}, story
            assert again.queues().keys() == {"t"}, story
            lost = [i for i in range(241) if not list(again.query("t", f"k{i}", 1, 0, 1 << 60))]
            assert not lost, f"{story}: {len(lost)} keys are not found"
            assert send(again, "t", 0, b"next")[1] == 121, story
            again.close()
            shutil.rmtree(again_root)


@pytest.mark.shows(
    "each file of the store and of its own tables at 0 bytes, cut at sectors, zeros, old and new mixed",
)
def test_of_a_log_cut_short_the_rest_is_read_and_what_is_lost_is_named(tmp_path: Path, small: Any, send: Any) -> None:
    root = tmp_path / "s"
    store = Store(small(root), clock=ManualClock(NOW_MS))
    store.open()
    filled(store, send)
    store.close()
    places = [(r.position, r.position + r.size, r.queue_id, r.body) for r in _records(root, small)]
    for path in sorted((root / "commitlog").iterdir()):
        start, content = int(path.name), path.read_bytes()
        cut = [left for left in damages("config", content, b"") if len(left) < len(content)]
        for number, left in enumerate([*cut, content]):
            again_root = tmp_path / f"{path.name}{number}"
            shutil.copytree(root, again_root)
            (again_root / "commitlog" / path.name).write_bytes(left)
            again = Store(small(again_root), clock=ManualClock(NOW_MS))
            again.open()
            story = f"{path.name}, {number}: {len(left)} bytes"
            here = [(at - start, end - start) for at, end, _, _ in places if start <= at < start + len(content)]
            lost = [start + at for at, end in here if left.ljust(end, b"\0")[at:end] != content[at:end]]
            kept = [p for p in places if p[0] not in lost and not p[3].startswith(b"g")]
            assert {q: units(again, q) for q in (0, 1)} == {q: [p[3] for p in kept if p[2] == q] for q in (0, 1)}, story
            assert len(again.recovered.remarks()) == bool(lost), story
            again.close()
            shutil.rmtree(again_root)


def _records(root: Path, small: Any) -> list[record.Record]:
    store = Store(small(root), clock=ManualClock(NOW_MS))
    store.open()
    found = list(store.iterate(0))
    store.close()
    return found


def units(store: Store, queue_id: int) -> list[bytes]:
    bodies: list[bytes] = []
    at = 0
    while (read := store.read("t", queue_id, at, 1000, 1 << 30)).next_offset > at:
        bodies += [r.body for piece in read.records for r in record.decode_all(piece)]
        at = read.next_offset
    return bodies
