"""Stores read as files, without opening them: the rows a broker would give, and never others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import expire
from tests.unit.store.test_kill import WRITER

from rocketspark.errors import ConfigError, StoreError
from rocketspark.protocol.message import record
from rocketspark.store import Store
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, UNIT
from rocketspark.store.readonly.log_scan import LogScan
from rocketspark.store.readonly.read_only_store import ReadOnlyStore
from rocketspark.store.readonly.record_reader import RecordReader

pytestmark = pytest.mark.shows(
    "`store`: a store directory read directly, live, backed up, killed or damaged; ours and Apache's",
)

NOW_MS = 1_700_000_000_000
Send = Callable[..., tuple[int, int, int]]
Golden = Any  # root, manifest, settings: see conftest
Lost = list[tuple[str, int, int, int, str]]


def read_all(
    root: Path, commit_logs: tuple[str, ...] = (), lost: Lost | None = None, *, check_crc: bool = True
) -> dict[tuple[str, int], list[bytes]]:
    """Every record of every queue; what is lost fails, or is noted."""
    found: dict[tuple[str, int], list[bytes]] = {}
    frozen = ReadOnlyStore(str(root), commit_logs)
    try:
        for key, queue in frozen.load(lambda topic: True).items():
            records: list[bytes] = []
            files = LogScan(frozen.log_directories)

            def gone(first: int, end: int, why: str, key: tuple[str, int] = key) -> None:
                assert lost is not None, (key, first, end, why)
                lost.append((*key, first, end, why))

            for piece in RecordReader(queue, files, gone, check_crc=check_crc).pieces():
                records += (
                    bytes(piece.buffer[start : start + size])
                    for start, size in zip(piece.starts.tolist(), piece.sizes.tolist(), strict=True)
                )
            files.close()
            if records:
                found[key] = records
        if lost is None:
            assert frozen.damages == []
    finally:
        frozen.close()
    return found


def appended(store: Store) -> dict[tuple[str, int], list[bytes]]:
    """The same as `read_all`, by the store itself."""
    found: dict[tuple[str, int], list[bytes]] = {}
    for topic, ids in store.queues().items():
        for queue_id in ids:
            records: list[bytes] = []
            offset, end = store.queue_range(topic, queue_id)
            while offset < end:
                read = store.read(topic, queue_id, offset, 1000, 1 << 20)
                for piece in read.records:
                    at = 0
                    while at < len(piece):
                        size = int.from_bytes(piece[at : at + 4], "big")
                        records.append(bytes(piece[at : at + size]))
                        at += size
                offset = read.next_offset
            if records:
                found[topic, queue_id] = records
    return found


def fill(store: Store, send: Send, count: int, first: int = 0, topic: str = "orders") -> None:
    """Messages over three queues with bodies of many lengths."""
    for i in range(first, first + count):
        send(store, topic, i % 3, b"%d:" % i + b"x" * (i * 37 % 300), tag="AB"[i % 2], now_ms=NOW_MS + i)


NAMES = ["store", "store_unclean", "store_ext"]


@pytest.mark.parametrize("name", ["store", "store_ext"])
def test_official_stores_are_read_as_their_manifest_says(golden: Callable[[str], Golden], name: str) -> None:
    unpacked = golden(name)
    expected = defaultdict(list)
    for message in unpacked.manifest["messages"]:
        if message["sysFlag"] & 4 == 0:
            place = (message["queueOffset"], message["commitLogOffset"], message["size"])
            expected[message["topic"], message["queueId"]].append(place)
    places = {
        key: [(r.queue_offset, r.position, r.size) for r in map(record.decode, rows)]
        for key, rows in read_all(unpacked.root).items()
    }
    assert places == {key: sorted(rows) for key, rows in expected.items()}


@pytest.mark.parametrize("name", NAMES)
def test_official_stores_are_read_as_a_broker_reads_them(golden: Callable[[str], Golden], name: str) -> None:
    unpacked = golden(name)
    found = read_all(unpacked.root)
    store = Store(unpacked.settings)
    store.open()
    expected = appended(store)
    store.close()
    assert found == expected
    assert read_all(unpacked.root) == expected


@pytest.mark.parametrize("name", NAMES)
def test_without_consume_queues_the_log_says_the_same(golden: Callable[[str], Golden], name: str) -> None:
    unpacked = golden(name)
    expected = read_all(unpacked.root)
    shutil.rmtree(unpacked.root / "consumequeue")
    shutil.rmtree(unpacked.root / "batchconsumequeue", ignore_errors=True)
    assert read_all(unpacked.root) == expected


def test_a_store_in_use_is_read_to_the_last_message(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    root = tmp_path / "s"
    assert read_all(root) == {}
    for count in (1, 5, 60, 400):
        fill(store, send, count)
        assert read_all(root) == appended(store)
        store.flush_queues()
        assert read_all(root) == appended(store)
        store.flush_log()
        store.flush_indexes()
        store.write_checkpoint()
        assert read_all(root) == appended(store)
    expected = appended(store)
    store.close()
    assert read_all(root) == expected


def test_files_are_only_opened_for_reading(
    make_store: Any, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    fill(store, send, 300)
    before = {p: p.read_bytes() for p in (tmp_path / "s").rglob("*") if p.is_file()}
    opened: dict[str, int] = {}
    really_open = os.open

    def noted(path: str, flags: int, *more: Any) -> int:
        # Threads of this process may open files elsewhere.
        if str(path).startswith(str(tmp_path)):
            opened[path] = flags
        return really_open(path, flags, *more)

    monkeypatch.setattr(os, "open", noted)
    monkeypatch.setattr("mmap.mmap", None)
    read_all(tmp_path / "s")
    monkeypatch.undo()
    assert {flags & os.O_ACCMODE for flags in opened.values()} == {os.O_RDONLY}
    assert {p: p.read_bytes() for p in (tmp_path / "s").rglob("*") if p.is_file()} == before


def test_what_retention_removed_is_not_there(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 600)
    store.flush_log()
    assert expire(store, NOW_MS + 300) > 0
    found = read_all(tmp_path / "s")
    assert found == appended(store)
    assert 0 < len(found["orders", 0]) < 200
    # Removed, but the queues do not know it yet.
    oldest = min((tmp_path / "s" / "commitlog").iterdir())
    oldest.unlink()
    lacking = read_all(tmp_path / "s")
    start = int(min((tmp_path / "s" / "commitlog").iterdir()).name)
    kept = {key: [r for r in rows if record.decode(r).position >= start] for key, rows in found.items()}
    assert lacking == kept


def test_files_removed_between_planning_and_reading_are_reported(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 600)
    frozen = ReadOnlyStore(str(tmp_path / "s"))
    queues = frozen.load(lambda topic: True)
    files = LogScan(frozen.log_directories)
    for path in sorted((tmp_path / "s" / "commitlog").iterdir())[:2]:
        path.unlink()
    start = int(min((tmp_path / "s" / "commitlog").iterdir()).name)
    for key, queue in queues.items():
        gone: list[tuple[int, int, str]] = []

        def note(first: int, end: int, why: str, gone: list[tuple[int, int, str]] = gone) -> None:
            gone.append((first, end, why))

        pieces = RecordReader(queue, files, note, check_crc=True).pieces()
        offsets = [record.decode(p.buffer, at).queue_offset for p in pieces for at in p.starts.tolist()]
        first = next(o for o in range(queue.next) if store.queue_units(*key, o, 1)[0][0] >= start)
        assert offsets == list(range(first, queue.next))
        assert gone == [(0, first, "deleted")]
    files.close()
    frozen.close()


def test_the_oldest_record_of_the_log_is_damaged_not_deleted(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    places = [send(store, "t", 0, b"x" * 400, now_ms=NOW_MS) for _ in range(100)]
    store.flush_log(), store.flush_queues()
    assert expire(store, NOW_MS) > 0
    first = next(n for n, place in enumerate(places) if place[0] == store.min_position)
    store.close()
    with open(min((tmp_path / "s" / "commitlog").iterdir()), "r+b") as file:
        file.seek(200)
        file.write(b"y")
    lost: Lost = []
    read_all(tmp_path / "s", lost=lost)
    assert lost == [("t", 0, first, first + 1, "damaged, or cut off, in the log or their consume queue")]


@pytest.mark.shows("consume queue files removed between planning and reading a store")
def test_a_part_of_a_queue_whose_files_were_removed_after_planning_is_told(
    make_store: Any, send: Send, tmp_path: Path
) -> None:
    fill(make_store(), send, 600)
    frozen = ReadOnlyStore(str(tmp_path / "s"))
    files = LogScan(frozen.log_directories)
    ((topic, queue_id), queue), *_ = sorted(frozen.load(lambda topic: True).items())
    folder = tmp_path / "s" / "consumequeue" / topic / str(queue_id)
    first, *rest = sorted(folder.iterdir())
    kept = int(rest[0].name) // 20
    first.unlink()
    gone: list[tuple[int, int, str]] = []
    part = queue.part(0, kept // 2)
    assert list(RecordReader(part, files, lambda *told: gone.append(told), check_crc=True).pieces()) == []
    assert [told[:2] for told in gone] == [(0, kept // 2)]
    assert part.mean_size() > 0
    files.close()
    frozen.close()


def test_a_queue_that_lags_or_is_lost_is_made_up_from_the_log(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 100)
    store.flush_queues()
    older = tmp_path / "older"
    shutil.copytree(tmp_path / "s" / "consumequeue", older)
    fill(store, send, 200, 100)
    expected = appended(store)
    store.flush_log()
    store.flush_queues()
    store.flush_indexes()
    store.write_checkpoint()
    # One queue as it was, one lost, while the checkpoint says all is there; a copy made meanwhile may be so.
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "s", copy)
    queues = copy / "consumequeue" / "orders"
    shutil.rmtree(queues / "0")
    shutil.copytree(older / "orders" / "0", queues / "0")
    assert read_all(copy) == expected
    shutil.rmtree(queues / "1")
    send(store, "orders", 1, b"one more")
    shutil.copytree(tmp_path / "s" / "commitlog", copy / "commitlog", dirs_exist_ok=True)
    assert read_all(copy) == appended(store)


@pytest.mark.shows("mended: `store` passes over the messages of a queue's first file, if that is missing")
@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_queue_whose_first_file_is_missing_is_made_up_from_the_log(
    make_store: Any, send: Send, tmp_path: Path, is_closed: bool, expires: bool
) -> None:
    """Of a copy that was cut short, say. Of the log, too, the first files may have been removed, as they were old."""
    store = make_store()
    fill(store, send, 600)
    store.flush_log()
    if expires:
        assert expire(store, NOW_MS + 100) > 0
    expected = appended(store)
    if is_closed:
        store.close()
    files = sorted((tmp_path / "s" / "consumequeue" / "orders" / "0").iterdir())
    assert len(files) > 2
    files[0].unlink()
    assert read_all(tmp_path / "s") == expected
    files[1].unlink()
    assert read_all(tmp_path / "s") == expected


def test_a_young_store_s_queue_that_has_no_file_yet_is_made_up_from_the_log(
    make_store: Any, send: Send, tmp_path: Path
) -> None:
    """A thread makes a queue's first file; until the checkpoint says so, another queue's end proves nothing of it."""
    store = make_store()
    fill(store, send, 60)
    store.flush_log()
    store.flush_queues()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "s", copy)
    shutil.rmtree(copy / "consumequeue" / "orders" / "0")
    (copy / "config").mkdir(exist_ok=True)
    (copy / "config" / "topics.json").write_text('{"topicConfigTable": {"orders": {"readQueueNums": 3}}}')
    assert (copy / "abort").exists()
    assert read_all(copy) == appended(store)


def test_a_queue_longer_than_the_log_ends_with_it(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 150)
    shorter = appended(store)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "s" / "commitlog", copy / "commitlog")
    fill(store, send, 150, 150)
    store.flush_log()
    store.flush_queues()
    store.flush_indexes()
    store.write_checkpoint()
    shutil.copytree(tmp_path / "s", copy, dirs_exist_ok=True, ignore=lambda folder, names: {"commitlog"} & set(names))
    assert (copy / "abort").exists()
    assert read_all(copy) == shorter


@pytest.mark.shows(
    "mended: a gap or a hole in the midst of a consume queue hides what lies before it from a read of the files"
)
def test_a_gap_or_a_hole_in_a_queue_hides_nothing_before_it(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 600)
    store.close()
    expected = read_all(tmp_path / "s")
    folder = tmp_path / "s" / "consumequeue" / "orders"
    _, cut, whole, *_ = sorted((folder / "0").iterdir())
    (width,) = {int(whole.name) - int(cut.name)}
    os.truncate(cut, width // 2)
    (folder / "1" / cut.name).unlink()
    # Where a search for the oldest message, or for one by its time, looks first.
    path = folder / "2" / f"{2000 // width * width:020d}"
    units = bytearray(path.read_bytes())
    UNIT.pack_into(units, 2000 % width, 0, GAP_SIZE, 0)
    path.write_bytes(units)
    # The begin of a queue.
    with min((folder / "2").iterdir()).open("r+b") as file:
        file.write(bytes(3 * 20))

    lost: Lost = []
    found = read_all(tmp_path / "s", lost=lost)
    first, end = int(cut.name) // 20, int(whole.name) // 20
    holes = {0: (first + width // 40, end), 1: (first, end)}
    told = [("orders", n, *hole, "the store knows no place of theirs") for n, hole in holes.items()]
    assert sorted(lost)[:2] == told
    assert [one[:4] for one in sorted(lost)[2:]] == [("orders", 2, 0, 3)]
    holes[2] = (100, 101)
    kept = {("orders", n): expected["orders", n][:a] + expected["orders", n][b:] for n, (a, b) in holes.items()}
    kept["orders", 2] = kept["orders", 2][3:]
    assert found == kept
    frozen = ReadOnlyStore(str(tmp_path / "s"))
    queues = frozen.load(lambda topic: True)
    for n, (hole, _) in holes.items():
        times = [NOW_MS + n + 3 * offset for offset in (10, hole - 1, 199)]
        assert [queues["orders", n].offset_at_time(at, frozen.log) for at in times] == [10, hole - 1, 199]
    frozen.close()


@pytest.mark.parametrize("closed", [True, False])
def test_a_topic_without_its_queues_is_found_in_the_log(
    make_store: Any, send: Send, tmp_path: Path, closed: bool
) -> None:
    store = make_store()
    fill(store, send, 60)
    fill(store, send, 60, topic="other")
    store.flush_log()
    store.flush_queues()
    store.flush_indexes()
    store.write_checkpoint()
    expected = appended(store)
    if closed:
        store.close()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "s", copy)
    shutil.rmtree(copy / "consumequeue" / "orders")
    (copy / "config" / "topics.json").write_text('{"topicConfigTable": {"orders": {"readQueueNums": 3}}}')
    assert read_all(copy) == expected
    shutil.rmtree(copy / "consumequeue")
    assert read_all(copy) == expected


def test_a_topic_deleted_and_made_anew(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 90)
    store.delete_topic("orders")
    assert read_all(tmp_path / "s") == {}
    fill(store, send, 30, 90)
    assert read_all(tmp_path / "s") == appended(store)
    store.close()
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    found = read_all(tmp_path / "s")
    assert {key: len(rows) for key, rows in found.items()} == {("orders", i): 10 for i in range(3)}


def test_a_log_in_several_directories(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 400)
    store.close()
    expected = read_all(tmp_path / "s")
    for i, path in enumerate(sorted((tmp_path / "s" / "commitlog").iterdir())):
        path.rename((tmp_path / f"disk-{i % 2}").mkdir(exist_ok=True) or tmp_path / f"disk-{i % 2}" / path.name)
    (tmp_path / "s" / "commitlog").rmdir()
    with pytest.raises(ConfigError, match="name it by the option storePathCommitLog"):
        ReadOnlyStore(str(tmp_path / "s"))
    assert read_all(tmp_path / "s", (f"{tmp_path}/disk-0", f"{tmp_path}/disk-1")) == expected


def test_a_torn_end_is_left_out_and_damage_within_is_told(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 300)
    expected = appended(store)
    end = store.written_position
    last = max(store.queue_units("orders", q, store.queue_range("orders", q)[1] - 1, 1)[0][0] for q in range(3))
    torn = tmp_path / "torn"
    shutil.copytree(tmp_path / "s", torn)
    overwrite(torn, end - 30, b"\0" * 30)
    found = read_all(torn)
    assert sum(map(len, found.values())) == 299
    assert all(found[key] == rows[: len(found[key])] for key, rows in expected.items())
    within = tmp_path / "within"
    shutil.copytree(tmp_path / "s", within)
    position = store.queue_units("orders", 1, 50, 1)[0][0]
    assert position < last
    overwrite(within, position + 100, b"damage")
    for queues_there in (True, False):
        lost: Lost = []
        found = read_all(within, lost=lost)
        assert [(topic, queue_id, first, end) for topic, queue_id, first, end, _ in lost] == [("orders", 1, 50, 51)]
        assert found == {**expected, ("orders", 1): expected["orders", 1][:50] + expected["orders", 1][51:]}
        frozen = ReadOnlyStore(str(within))
        frozen.load(lambda topic: True)
        # What only the log can tell may have been any queue's.
        assert [d.first for d in frozen.damages] == ([] if queues_there else [position])
        frozen.close()
        shutil.rmtree(within / "consumequeue", ignore_errors=True)


def overwrite(root: Path, position: int, content: bytes) -> None:
    """Bytes of the log of `root`, whose files are of 16 KiB, replaced."""
    at = position % 16384
    with (root / "commitlog" / f"{position - at:020d}").open("r+b") as file:
        file.seek(at)
        file.write(content)


WRONG = [
    ("absent", "there is no directory .*/absent: give a broker's storePathRootDir, the folder with commitlog/"),
    ("file", ".*/file is a file: give a broker's storePathRootDir"),
    ("empty", ".*/empty holds no commitlog/: give a broker's storePathRootDir"),
    ("parent", ".*/parent holds no commitlog/: the stores in it are .*/parent/broker-a"),
]


@pytest.mark.parametrize(("name", "says"), WRONG)
def test_a_directory_that_is_no_store(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "file").write_text("no store")
    (tmp_path / "empty").mkdir()
    (tmp_path / "parent" / "broker-a" / "commitlog").mkdir(parents=True)
    with pytest.raises(ConfigError, match=says):
        ReadOnlyStore(str(tmp_path / name))


def test_what_cannot_be_read_is_named(make_store: Any, send: Send, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 30)
    store.close()
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    path.unlink()
    path.mkdir()  # Whoever runs the tests may read any file, but no folder as one.
    with pytest.raises(StoreError, match=f"cannot read {path}: Is a directory; check its permissions"):
        read_all(tmp_path / "s")


def test_beside_a_writer_and_after_its_kill_nothing_acknowledged_is_missing(tmp_path: Path, make_store: Any) -> None:
    root = tmp_path / "s"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(root), "0"], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    acknowledged = 0
    reads = 0
    try:
        for line in writer.stdout:
            acknowledged += line.endswith("\n")
            if acknowledged < 500 * 4**reads:
                continue
            found = read_all(root)
            assert sum(map(len, found.values())) >= acknowledged
            for rows in found.values():
                assert [record.decode(r).queue_offset for r in rows] == list(range(len(rows)))
            reads += 1
            if reads == 4:
                break
    finally:
        writer.kill()
        writer.wait(120)
        writer.stdout.close()
    assert reads == 4
    found = read_all(root)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    sizes = {"log_file_bytes": 1 << 18, "queue_file_units": 500, "index_entries": 2000}
    assert found == appended(make_store(root, **sizes))
    assert read_all(copy) == found


def test_a_folder_that_is_elsewhere_on_an_executor_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no directory .*/commitlog on .*: the driver and every"):
        LogScan((f"{tmp_path}/commitlog",)).check_there()
