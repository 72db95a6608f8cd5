"""A flush fails, and the program is started again on the same machine: what the disk lacks the memory still has."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from rocketspark.errors import StoreUnwritable
from rocketspark.protocol.message import record
from rocketspark.store import Store
from rocketspark.store.compaction.segments import Places, Segment
from rocketspark.store.files.system_calls import PAGE, OsFiles
from rocketspark.store.settings import ManualClock
from rocketspark.store.timers.timer_files import TimerCheckpoint, TimerFiles

pytestmark = pytest.mark.shows(
    "after a failed flush a start on the same machine writes anew what the disk may lack, before it counts as flushed"
)
NOW_MS = 1_700_000_000_000


class ForgetfulDisk(OsFiles):
    """As Linux does it: a flush that fails says so once, and its pages count as written until they change again.

    `failing`: flushes of files with this in their path fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failing = ""
        # By file: what the disk has, and of pages that it did not take what they held in memory.
        self._held: dict[str, bytearray] = {}
        self._forgotten: dict[tuple[str, int], bytes] = {}
        self._maps: dict[int, tuple[Any, str]] = {}

    def map(self, path: str, *, scattered: bool = False) -> Any:
        mapped = super().map(path, scattered=scattered)
        self._maps[id(mapped)] = mapped, path
        return mapped

    def _sync(self, path: str, at: int, end: int) -> None:
        content = Path(path).read_bytes()
        held = self._held.setdefault(path, bytearray())
        held.extend(bytes(len(content) - len(held)))
        for begin in range(at - at % PAGE, min(end, len(content)), PAGE):
            page = content[begin : begin + PAGE]
            if page == held[begin : begin + PAGE] or self._forgotten.get((path, begin)) == page:
                continue
            if self.failing and self.failing in path:
                self._forgotten[path, begin] = page
            else:
                held[begin : begin + PAGE] = page
        if self.failing and self.failing in path:
            raise OSError(errno.EIO, "Input/output error", path)

    def sync_map(self, mapped: Any, at: int, end: int) -> None:
        self._sync(self._maps[id(mapped)][1], at, end)

    def sync_file(self, path: str) -> None:
        self._sync(path, 0, Path(path).stat().st_size)

    def write_again(self, mapped: Any, at: int, end: int) -> None:
        super().write_again(mapped, at, end)
        path = self._maps[id(mapped)][1]
        for begin in range(at - at % PAGE, end, PAGE):
            self._forgotten.pop((path, begin), None)

    def write_at(self, path: str, at: int, content: bytes | bytearray | memoryview) -> None:
        super().write_at(path, at, content)
        for begin in range(at - at % PAGE, at + len(content), PAGE):
            self._forgotten.pop((path, begin), None)

    def cut(self, path: str, at: int, size: int) -> None:
        super().cut(path, at, size)
        for of, begin in [*self._forgotten]:
            if of == path and begin + PAGE > at:
                del self._forgotten[of, begin]

    def write_file(self, path: str, content: bytes) -> None:
        super().write_file(path, content)
        self._held[path.removesuffix(".tmp")] = bytearray(content)

    def overwrite(self, path: str, content: bytes, size: int) -> None:
        super().overwrite(path, content, size)
        self._held[path] = bytearray(content.ljust(size, b"\0"))

    def cut_power(self, root: Path, to: Path) -> Path:
        """Make a folder of what the disk has."""
        for path in (p for p in root.rglob("*") if p.is_file()):
            kept = to / path.relative_to(root)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(self._held.get(str(path), b"").ljust(path.stat().st_size, b"\0"))
        return to


@pytest.fixture
def disk() -> ForgetfulDisk:
    return ForgetfulDisk()


def flush_all(store: Store) -> None:
    for flush in (store.flush_log, store.flush_queues, store.flush_indexes, store.write_checkpoint):
        flush()


@pytest.mark.parametrize("failing", ["commitlog", "consumequeue", "index"])
@pytest.mark.parametrize("starts_fail", [False, True])
def test_what_a_failed_flush_left_in_memory_alone_is_written_again(
    failing: str, starts_fail: bool, tmp_path: Path, small: Any, send: Any, disk: ForgetfulDisk
) -> None:
    root = tmp_path / "s"

    def opened() -> Store:
        store = Store(small(root), clock=ManualClock(NOW_MS), files=disk)
        store.open()
        return store

    def send_all(store: Store, numbers: range) -> None:
        for i in numbers:
            send(store, "t", i % 2, b"n%d" % i + bytes(200), keys=f"k{i}")

    store = opened()
    send_all(store, range(20))
    flush_all(store)
    send_all(store, range(20, 100))
    disk.failing = failing
    with pytest.raises(StoreUnwritable):
        flush_all(store)
    store.abandon()
    if starts_fail:
        for _ in range(2):
            with pytest.raises(StoreUnwritable):
                opened()
    disk.failing = ""
    store = opened()
    send_all(store, range(100, 101))
    flush_all(store)
    left = Store(small(disk.cut_power(root, tmp_path / "left")), clock=ManualClock(NOW_MS))
    left.open()
    assert left.recovered.remarks() == []
    assert [r.body.rstrip(b"\0") for r in left.iterate(0)] == [b"n%d" % i for i in range(101)]
    assert left.queue_range("t", 0) == (0, 51)
    assert [i for i in range(101) if not list(left.query("t", f"k{i}", 1, 0, 1 << 60))] == []
    store.close()
    left.close()


def test_what_the_checkpoint_covers_is_not_written_again_where_queues_are_made_anew(
    tmp_path: Path, small: Any, send: Any
) -> None:
    """The whole log is read then, and may have hundreds of GB."""
    again: list[tuple[int, int]] = []

    class Watched(OsFiles):
        def write_again(self, mapped: Any, at: int, end: int) -> None:
            super().write_again(mapped, at, end)
            again.append((at, end))

    root = tmp_path / "s"
    store = Store(small(root), clock=ManualClock(NOW_MS))
    store.open()
    for number in range(20):
        send(store, "t", 0, b"n%d" % number, keys=f"k{number}")
    flush_all(store)
    covered = store.written_position
    send(store, "t", 0, b"n20", keys="k20")
    end = store.written_position
    store.abandon()
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "config" / "storeFiles.json").unlink()
    store = Store(small(root), clock=ManualClock(NOW_MS), files=Watched())
    store.open()
    assert (store.queue_range("t", 0), again) == ((0, 21), [(covered, end)])
    store.close()


@pytest.mark.parametrize("failing", ["timerlog", "timerwheel"])
def test_timers_of_a_failed_flush_are_written_again(tmp_path: Path, failing: str, disk: ForgetfulDisk) -> None:
    def opened(root: Path, files: OsFiles) -> TimerFiles:
        timers = TimerFiles(str(root), log_file_bytes=104_000, files=files)
        timers.open()
        return timers

    root = tmp_path / "s"
    (root / "config").mkdir(parents=True)
    timers = opened(root, disk)
    timers.add(NOW_MS, NOW_MS + 5000, 0, 100, 1)
    timers.flush(TimerCheckpoint(NOW_MS, timers.log.end, 1, 1))
    for i in range(1, 100):
        timers.add(NOW_MS, NOW_MS + 9000, i * 100, 100, 1)
    disk.failing = failing
    with pytest.raises(StoreUnwritable):
        timers.flush(TimerCheckpoint(NOW_MS, timers.log.end, 100, 100))
    disk.failing = ""
    timers = opened(root, disk)
    timers.flush(TimerCheckpoint(NOW_MS, timers.log.end, 100, 100))
    left = opened(disk.cut_power(root, tmp_path / "left"), OsFiles())
    assert list(left.news) == []
    assert left.checkpoint.queue_offset == 100
    assert [len(left.positions(NOW_MS + after)) for after in (5000, 9000)] == [1, 99]


@pytest.mark.parametrize("failing", ["log", "units"])
def test_a_segment_of_a_compacted_queue_is_written_again(
    tmp_path: Path, failing: str, small: Any, send: Any, disk: ForgetfulDisk
) -> None:
    store = Store(small(tmp_path / "s"), clock=ManualClock(NOW_MS))
    store.open()
    for i in range(30):
        send(store, "t", 0, b"n%d" % i, keys=f"k{i}")
    records = [store.record_at(r.position) for r in store.iterate(0)]
    root = tmp_path / "c"
    places = Places(str(root / "log"), str(root / "units"), 1 << 16, 1 << 14)
    segment = Segment.make(places, 0, disk)
    segment.append([r for r in records[:10] if r is not None])
    segment.flush()
    segment.append([r for r in records[10:] if r is not None])
    disk.failing = f"/c/{failing}"
    with pytest.raises(OSError):
        segment.flush()
    disk.failing = ""
    again = Segment(places, 0, disk)
    assert again.load(check=True, closed=False)
    again.flush()
    there = disk.cut_power(root, tmp_path / "left")
    left = Segment(Places(str(there / "log"), str(there / "units"), 1 << 16, 1 << 14), 0, OsFiles())
    assert left.load(check=True, closed=False)
    assert [record.decode(left.record(left.unit(i))).body for i in range(left.count)] == [b"n%d" % i for i in range(30)]
    store.close()
