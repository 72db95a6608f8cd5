"""Damage in what was on the disk: the rest is kept, what is passed over is said, lost queues are made anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import expire

from rocketspark.errors import ConfigError
from rocketspark.protocol.message import record, sysflags
from rocketspark.store import BatchMessage, GetStatus, Store, StoreSettings, recovery
from rocketspark.store.settings import ManualClock

pytestmark = pytest.mark.shows("log files before a hole in the log")

NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")
HOST = bytes.fromhex("7f00000100002a9f")
FILE_BYTES = 16384


def filled(make_store: Any, send: Any, count: int = 200) -> tuple[Path, list[tuple[int, int, int]]]:
    store = make_store()
    places = [send(store, f"t{i % 2}", 0, b"body %03d" % i + b"x" * 300, unique_id=f"K{i}") for i in range(count)]
    store.close()
    return Path(store.settings.root), places


def flip(root: Path, position: int) -> None:
    path = root / "commitlog" / f"{position - position % FILE_BYTES:020d}"
    content = bytearray(path.read_bytes())
    content[position % FILE_BYTES] ^= 1
    path.write_bytes(content)


def everything(store: Store, topic: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Offsets that are read, and (from, to) of the holes that a reader is told."""
    at, end = store.queue_range(topic, 0)
    found, holes = [], []
    while at < end:
        read = store.read(topic, 0, at, 32, 1 << 20)
        if read.status is GetStatus.REMOVED:
            holes.append((at, read.next_offset))
        found += [r.queue_offset for piece in read.records for r in record.decode_all(piece)]
        at = read.next_offset
    return found, holes


# Of a record: its length, magic, CRC, own position, body; each is found out by something else.
@pytest.mark.shows("mended: one flipped byte in an old body and a replay from before it: the log is cut there")
@pytest.mark.parametrize("byte", [1, 3, 5, 10, 31, 90, 200])
@pytest.mark.parametrize("replay", ["checkpoint", "consumequeue"])
def test_a_flipped_bit_costs_one_message(byte: int, replay: str, make_store: Any, send: Any) -> None:
    root, places = filled(make_store, send)
    flip(root, places[60][0] + byte)
    if replay == "checkpoint":
        (root / "checkpoint").unlink()
    shutil.rmtree(root / "consumequeue")
    files = sorted(os.listdir(root / "commitlog"))
    store = make_store()
    assert sorted(os.listdir(root / "commitlog")) == files
    assert store.written_position == places[-1][2]
    assert store.recovered.skipped == ((places[60][0], places[60][2]),)
    assert store.recovered.skipped_bytes == places[60][2] - places[60][0]
    assert f"bytes of the log are damaged, the first at {places[60][0]} " in "\n".join(store.recovered.remarks())
    assert everything(store, "t0") == ([n for n in range(100) if n != 30], [(30, 31)])
    assert everything(store, "t1") == (list(range(100)), [])
    assert len(store.query("t0", "K62", 5, 0, 1 << 60, "U")) == 1
    assert [r.position for r in store.iterate(0)] == [p[0] for i, p in enumerate(places) if i != 60]
    assert send(store, "t0", 0, b"on")[:2] == (places[-1][2], 100)


def test_gaps_hide_nothing(make_store: Any, send: Any) -> None:
    """Wherever one lies: what is before it is found by offset, by time and after expiry, over ends of queue files."""
    store = make_store(queue_file_units=10)
    kept = []
    for n in range(60):
        if n in (3, 9, 10, 15, 29, 30, 31, 44):
            store.consume_queues.find("t", 0).fill_to(store.queue_range("t", 0)[1] + (12 if n == 15 else 1))
        kept.append((send(store, "t", 0, b"x" * 400, now_ms=NOW_MS + n)[:2], NOW_MS + n))
    store.flush_log(), store.flush_queues()
    for _ in range(2):
        assert everything(store, "t")[0] == [offset for (_, offset), _ in kept]
        for (_, offset), time_ms in kept:
            assert store.offset_at_time("t", 0, time_ms) in range(offset - 12, offset + 1)
            assert store.read("t", 0, store.offset_at_time("t", 0, time_ms), 1, 1).next_offset in (offset, offset + 1)
        store.close()
        store = make_store(queue_file_units=10)
    assert expire(store, NOW_MS + 45) == 1
    kept = [row for row in kept if row[0][0] >= store.min_position]
    for _ in range(2):
        assert store.queue_range("t", 0)[0] == kept[0][0][1]
        assert everything(store, "t")[0] == [offset for (_, offset), _ in kept]
        store.close()
        store = make_store(queue_file_units=10)


@pytest.mark.shows("mended: one flipped byte in an old body and a replay from before it: the log is cut there")
def test_a_damaged_stretch_over_the_end_of_a_file(make_store: Any, send: Any) -> None:
    root, places = filled(make_store, send)
    gone = [i for i, p in enumerate(places) if 2 * FILE_BYTES - 3000 < p[0] < 2 * FILE_BYTES + 3000]
    with open(root / "commitlog" / f"{FILE_BYTES:020d}", "r+b") as file:
        file.seek(places[gone[0]][0] - FILE_BYTES)
        file.write(bytes(2 * FILE_BYTES - places[gone[0]][0]))
    with open(root / "commitlog" / f"{2 * FILE_BYTES:020d}", "r+b") as file:
        file.write(b"\xff" * (places[gone[-1]][2] - 2 * FILE_BYTES))
    shutil.rmtree(root / "consumequeue")
    store = make_store()
    assert store.recovered.skipped == ((places[gone[0]][0], places[gone[-1]][2]),)
    kept = [i for i in range(200) if i not in gone]
    assert [r.position for r in store.iterate(0)] == [places[i][0] for i in kept]
    for topic in (0, 1):
        assert everything(store, f"t{topic}")[0] == [i // 2 for i in kept if i % 2 == topic]


@pytest.mark.shows(
    "mended: queues made anew: more lost messages than a queue file holds, or one flipped queue offset, hid "
    "all later messages of their queue"
)
@pytest.mark.parametrize("kind", ["batch", "simple", "last"])
def test_more_lost_messages_of_a_queue_than_a_file_of_it_holds_hide_no_later_ones(
    kind: str, small: Callable[..., StoreSettings], send: Any, tmp_path: Path
) -> None:
    def opened() -> Store:
        store = Store(small(tmp_path / "s", queue_file_units=10, batch_queue_file_units=4), clock=ManualClock(NOW_MS))
        store.batch_topics = ["t"] if kind == "batch" else []
        store.open()
        return store

    store = opened()
    places = [send(store, "t", 0, b"%d" % n + bytes(100)) for n in range(200)]
    if kind == "last":
        while places[-1][0] < 2 * FILE_BYTES:
            send(store, "other", 0, bytes(1000))
            places.append(send(store, "t", 0, b"x"))
    store.close()
    lost = range(3, 190) if kind != "last" else range(3, len(places) - 1)
    for n in lost:
        flip(tmp_path / "s", places[n][0] + 5)
    for folder in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(tmp_path / "s" / folder, ignore_errors=True)
    for _ in range(2):
        store = opened()
        assert everything(store, "t") == ([0, 1, 2, *range(lost.stop, len(places))], [(3, lost.stop)])
        store.close()


@pytest.mark.shows(
    "mended: queues made anew: more lost messages than a queue file holds, or one flipped queue offset, hid "
    "all later messages of their queue"
)
def test_one_damaged_queue_offset_hides_no_other_message(make_store: Any, send: Any) -> None:
    """No check covers it: where queues are made anew the records after it show that it cannot be."""
    store = make_store()
    places = [send(store, "t", 0, b"%d" % n) for n in range(100)]
    store.close()
    root = Path(store.settings.root)
    for n, byte in ((0, 26), (30, 27), (31, 27), (60, 22)):
        path = root / "commitlog" / f"{0:020d}"
        content = bytearray(path.read_bytes())
        content[places[n][0] + byte] ^= 8
        path.write_bytes(content)
    shutil.rmtree(root / "consumequeue")
    store = make_store()
    assert everything(store, "t")[0] == [n for n in range(1, 100) if n not in (30, 31, 60)]
    assert send(store, "t", 0, b"on")[1] == 100


@pytest.mark.shows("mended: one flipped byte in an old body and a replay from before it: the log is cut there")
def test_what_the_checkpoint_does_not_cover_ends_at_the_first_damage(make_store: Any, send: Any) -> None:
    """A power cut leaves holes there, and what follows one was not acknowledged as flushed."""
    store = make_store()
    places = [send(store, "t", 0, b"x" * 100) for _ in range(20)]
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
    places += [send(store, "t", 0, b"x" * 100) for _ in range(20)]
    root, copy = Path(store.settings.root), Path(store.settings.root).with_name("copy")
    shutil.copytree(root, copy)
    for damaged in (10, 30):
        flip(copy, places[damaged][0] + 90)
    again = make_store(copy)
    assert again.written_position == places[30][0]
    assert again.queue_range("t", 0) == (0, 30)


@pytest.mark.shows("mended: a lost queue folder goes unnoticed unless the last record is its own")
@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/t0", "consumequeue/t0/0", "file"])
def test_lost_queues_are_noticed(lost: str, make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "VERIFY_BYTES", 20_000)
    store = make_store()
    for i in range(200):
        send(store, f"t{i % 3}", 0, b"%d" % i)
    # Not among what is read again at a start.
    for _ in range(100):
        send(store, "other", 0, b"x" * 400)
    store.close()
    root = Path(store.settings.root)
    before = {p: p.read_bytes() for p in (root / "consumequeue").rglob("*") if p.is_file()}
    if lost == "file":
        (root / "consumequeue/t0/0" / f"{1000:020d}").unlink()
    else:
        shutil.rmtree(root / lost)
    again = make_store()
    assert again.recovered.remade
    assert "made anew from the log" in "\n".join(again.recovered.remarks())
    assert [again.queue_range(f"t{t}", 0) for t in range(3)] == [(0, 67), (0, 67), (0, 66)]
    again.close()
    assert {p: p.read_bytes() for p in (root / "consumequeue").rglob("*") if p.is_file()} == before
    assert make_store().recovered.remarks() == []


@pytest.mark.shows("mended: the first file of a consume queue is removed by hand")
@pytest.mark.parametrize("batch", [False, True])
def test_a_first_queue_file_that_somebody_removed_is_made_anew(
    batch: bool, small: Callable[..., StoreSettings], send: Any, tmp_path: Path
) -> None:
    def opened() -> Store:
        store = Store(small(tmp_path / "s", batch_queue_file_units=50), store_host=HOST, clock=ManualClock(NOW_MS))
        store.batch_topics = ["t"] if batch else []
        store.open()
        return store

    store = opened()
    for n in range(120):
        send(store, "t", 0, b"%d" % n)
    store.close()
    folder = tmp_path / "s" / ("batchconsumequeue" if batch else "consumequeue") / "t/0"
    first = min(folder.iterdir())
    before = first.read_bytes()
    first.unlink()
    again = opened()
    assert again.recovered.remade
    assert again.queue_range("t", 0) == (0, 120)
    bodies: list[bytes] = []
    while len(bodies) < 120:
        read = again.read("t", 0, len(bodies), 32, 1 << 20)
        bodies += [r.body for piece in read.records for r in record.decode_all(piece)]
    assert bodies == [b"%d" % n for n in range(120)]
    again.close()
    # The units of a batch queue need not begin where they began before.
    assert batch or first.read_bytes() == before


@pytest.mark.shows("mended: the first file of a consume queue is removed by hand")
def test_first_queue_files_that_retention_removed_are_not_missed(make_store: Any, send: Any) -> None:
    store = make_store(queue_file_units=50)
    for n in range(400):
        send(store, "t", 0, b"%d" % n * 100)
    store.flush_log(), store.flush_queues()
    root = Path(store.settings.root)
    noted = (root / "config/storeFiles.json").read_text()
    assert expire(store, NOW_MS + 1) > 0
    low, high = store.queue_range("t", 0)
    assert 50 < low < high == 400
    copy = root.with_name("killed")
    shutil.copytree(root, copy)
    # As a kill before the next flush leaves it, or RocketMQ, which keeps no such note.
    (copy / "config/storeFiles.json").write_text(noted)
    store.close()
    for folder in (root, copy):
        again = make_store(folder, queue_file_units=50)
        assert not again.recovered.remade
        assert again.queue_range("t", 0) == (low, high)


@pytest.mark.shows("mended: a lost queue folder goes unnoticed unless the last record is its own")
def test_a_deleted_topic_is_not_missed(make_store: Any, send: Any) -> None:
    store = make_store()
    for topic in ("a", "b"):
        send(store, topic, 0, b"x")
    store.flush_queues()
    store.delete_topic("a")
    store.close()
    again = make_store()
    assert not again.recovered.remade
    assert dict(again.queues()) == {"b": {0}}


@pytest.mark.shows("mended: raising mappedFileSizeConsumeQueue, mappedFileSizeCommitLog")
@pytest.mark.parametrize("noted", [True, False], ids=["noted", "not-noted"])
@pytest.mark.parametrize("short_first", [True, False])
@pytest.mark.parametrize("changes", [{"queue_file_units": 100}, {"log_file_bytes": 2 * FILE_BYTES}])
def test_other_sizes_are_refused_and_nothing_is_changed(
    changes: dict[str, int], short_first: bool, noted: bool, make_store: Any, send: Any
) -> None:
    store = make_store()
    for topic, count in (("a", 10), ("b", 250))[:: 1 if short_first else -1]:
        for _ in range(count):
            send(store, topic, 0, b"x" * 100)
    store.flush_log(), expire(store, NOW_MS + 1)
    store.close()
    root = Path(store.settings.root)
    if not noted:
        (root / "config/storeFiles.json").unlink()
    before = {p: p.stat().st_size for p in root.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match=r"set (it as it was|mappedFileSize\w+=\d+)"):
        make_store(**changes)
    assert {p: p.stat().st_size for p in root.rglob("*") if p.is_file()} == before
    assert make_store().queue_range("b", 0)[1] == 250


@pytest.mark.shows("mended: a batch whose last properties end in NUL, as last record")
@pytest.mark.parametrize("length", range(470, 540, 3))
def test_properties_that_end_with_a_nul(length: int, make_store: Any, tmp_path: Path) -> None:
    """A page that a power cut left out begins within them; these were sent so."""
    store = make_store()
    batch = [BatchMessage(b"x" * length, b"a\1b\2"), BatchMessage(b"two", b"UNIQ_KEY\1B\2k\1v\0")]
    store.append_batch(b"t", 0, batch, NOW_MS, 0, NOW_MS, BORN)
    end = store.written_position
    shutil.copytree(store.settings.root, tmp_path / "killed")
    store.close()
    assert make_store().written_position == end
    killed = make_store(tmp_path / "killed")
    assert killed.queue_range("t", 0) == (0, 2)


@pytest.mark.shows("mended: a group name of 249-255 bytes ends both flush threads, no start succeeds")
def test_records_of_topics_without_a_directory_do_not_forbid_a_start(make_store: Any, send: Any) -> None:
    store = make_store()
    send(store, "t", 0, b"0")
    # As a broker without that check has stored it.
    store.consume_queues.can_have = lambda topic: True
    send(store, "n" * 300, 0, b"x")
    send(store, "t", 0, b"1")
    store.log.flush()
    del store.consume_queues._by_name["n" * 300, 0]
    copy = Path(store.settings.root).with_name("copy")
    shutil.copytree(store.settings.root, copy)
    for _ in range(2):
        again = make_store(copy)
        assert (again.queue_range("t", 0), dict(again.queues())) == ((0, 2), {"t": {0}})
        again.flush_queues()
        again.close()
        (copy / "checkpoint").unlink()
    assert "1 messages are in no queue" in again.recovered.remarks()[0]


@pytest.mark.shows(
    "mended: inner-batch flags with a delay or timer: SCHEDULE_TOPIC lies in batchconsumequeue after a kill",
)
@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "simple"])
def test_a_parked_batch_does_not_change_the_kind_of_a_queue(topic: str, make_store: Any, send: Any) -> None:
    store = make_store()
    send(store, topic, 0, b"x", sys_flag=sysflags.INNER_BATCH)
    store.log.flush()
    copy = Path(store.settings.root).with_name("copy")
    shutil.copytree(store.settings.root, copy)
    again = make_store(copy)
    again.close()
    shutil.rmtree(copy / "batchconsumequeue", ignore_errors=True)
    shutil.rmtree(copy / "consumequeue")
    (copy / "checkpoint").unlink()
    again = Store(again.settings)
    again.simple_topics = {"simple"}
    again.open()
    again.close()
    assert not (copy / "batchconsumequeue").exists()
    assert (copy / "consumequeue" / topic).exists()


@pytest.mark.shows("a file missing in the midst of the commit log is named at the start")
def test_a_missing_file_in_the_midst_of_the_log_is_named_and_what_is_before_it_kept(
    make_store: Any, send: Any, tmp_path: Path
) -> None:
    store = make_store()
    number = 0
    while len(store.log.mapped_files.starts) < 5:
        send(store, "T", 0, b"n%07d" % number + bytes(200))
        number += 1
    starts = list(store.log.mapped_files.starts)
    root, directory = Path(store.settings.root), Path(store.log.mapped_files.directory)
    store.close()
    names = [f"{start:020d}" for start in starts]
    away = tmp_path / "away"
    (directory / names[2]).rename(away)
    kept = {name: (directory / name).read_bytes() for name in names[:2]}
    again = make_store()
    (line,) = [line for line in again.recovered.remarks() if "missing" in line]
    assert f"missing: {starts[2]} to {starts[3]};" in line
    assert f"without the files from {starts[3]} on" in line
    assert again.min_position == starts[3]
    low, high = again.queue_range("T", 0)
    assert high == number
    assert again.read("T", 0, 0, 10, 1 << 20).status is GetStatus.OFFSET_TOO_SMALL
    assert [r.queue_offset for r in again.iterate(starts[3])] == list(range(low, high))
    assert send(again, "T", 0, b"new")[2] >= 0
    again.close()
    assert {name: (directory / name).read_bytes() for name in names[:2]} == kept
    # What the line says: a copy of what is before the hole can be read.
    shutil.copytree(root, tmp_path / "copy")
    for name in names[3:]:
        (tmp_path / "copy/commitlog" / name).unlink()
    before = make_store(tmp_path / "copy")
    assert before.recovered.cut
    offsets = [r.queue_offset for r in before.iterate(0)]
    assert 0 < len(offsets) < low
    assert offsets == list(range(len(offsets)))
    assert before.queue_range("T", 0) == (0, len(offsets))
    before.close()
    # Without a hole nothing is said.
    away.rename(directory / names[2])
    whole = make_store()
    assert not [line for line in whole.recovered.remarks() if "missing" in line]
    assert [r.queue_offset for r in whole.iterate(0)] == list(range(number + 1))
    assert whole.queue_range("T", 0) == (0, number + 1)
    assert root.exists()
