"""Disks that are full or fail: a clear error, nothing half-stored, reads go on."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from rocketspark.errors import MessageIllegal, StoreError, StoreFull, StoreUnwritable
from rocketspark.protocol.message import record
from rocketspark.store import BatchMessage, Store
from rocketspark.store.files import checkpoint, config_files
from rocketspark.store.files.system_calls import OsFiles

NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    read = store.read(topic, 0, 0, 1000, 1 << 30)
    return [r.body for piece in read.records for r in record.decode_all(piece)]


@pytest.mark.shows("store: a full disk")
@pytest.mark.parametrize("room_bytes", [0, 1000, 20_000, 40_000, 70_000, 100_000])
def test_a_full_disk_stops_appends_and_nothing_else(room_bytes: int, make_store: Any, send: Any, files: Any) -> None:
    store = make_store()
    files.room_bytes = room_bytes
    stored: list[bytes] = []

    def send_on() -> None:
        for i in range(3000):
            send(store, "t", 0, b"n%d" % i, keys=f"k{i}")
            stored.append(b"n%d" % i)

    with pytest.raises(StoreFull, match="free some space") as caught:
        send_on()
    assert caught.value.needed_bytes > 0
    end = store.written_position
    for _ in range(3):
        with pytest.raises(StoreFull):
            send(store, "t", 0, b"refused", keys="refused")
    assert store.written_position == end
    assert bodies(store) == stored
    assert len(stored) == store.queue_range("t", 0)[1]
    if stored:
        for begin_ms, end_ms in ((NOW_MS, NOW_MS), (0, 1 << 60)):
            assert len(store.query("t", "k0", 1, begin_ms, end_ms)) == 1
    # Room again: it goes on where it stopped, and every key is found.
    files.room_bytes = None
    assert send(store, "t", 0, b"after", keys="after")[1] == len(stored)
    for i, key in [(len(stored), "after"), *((i, f"k{i}") for i in range(0, len(stored), 37))]:
        assert [record.decode(v).queue_offset for v in store.query("t", key, 5, 0, 1 << 60)] == [i]
    store.close()
    again = make_store()
    assert bodies(again) == [*stored, b"after"]


def test_a_batch_that_does_not_fit_leaves_nothing(make_store: Any, send: Any, files: Any) -> None:
    store = make_store()
    send(store, "t", 0, b"first")
    end = store.written_position
    files.room_bytes = 1000
    batch = [BatchMessage(b"x" * 100, b"") for _ in range(80)]
    with pytest.raises(StoreFull):
        store.append_batch(b"t", 0, batch, NOW_MS, 0, NOW_MS, BORN)
    assert (store.written_position, store.queue_range("t", 0)) == (end, (0, 1))
    files.room_bytes = None
    assert [p[1] for p in store.append_batch(b"t", 0, batch, NOW_MS, 0, NOW_MS, BORN)] == list(range(1, 81))


@pytest.mark.shows("after a failed flush nothing more is acknowledged")
def test_after_a_failed_flush_the_store_is_read_only(make_store: Any, send: Any, files: Any) -> None:
    store = make_store()
    for i in range(3):
        send(store, "t", 0, b"%d" % i, keys=f"k{i}")
    assert store.flush_log() == store.written_position
    send(store, "t", 0, b"3")
    flushed = store.flushed_position
    files.broken_sync = True
    with pytest.raises(StoreUnwritable, match="read-only since a flush failed"):
        store.flush_log()
    # Even where the disk says it is well again: what it holds is unknown.
    files.broken_sync = False
    for _ in range(2):
        with pytest.raises(StoreUnwritable, match="start again"):
            send(store, "t", 0, b"refused")
        with pytest.raises(StoreUnwritable):
            store.flush_log()
        with pytest.raises(StoreUnwritable):
            store.append_batch(b"t", 0, [BatchMessage(b"", b"")], NOW_MS, 0, NOW_MS, BORN)
    assert store.flushed_position == flushed
    assert bodies(store) == [b"0", b"1", b"2", b"3"]
    assert len(store.query("t", "k1", 5, 0, 1 << 60)) == 1
    with pytest.raises(StoreUnwritable):
        store.close()
    root = Path(store.settings.root)
    assert (root / "abort").exists()
    again = make_store()
    assert bodies(again) == [b"0", b"1", b"2", b"3"]
    assert send(again, "t", 0, b"4")[1] == 4


@pytest.mark.parametrize("flush", ["flush_queues", "flush_indexes"])
def test_failed_flushes_of_queues_and_indexes_count_too(flush: str, make_store: Any, send: Any, files: Any) -> None:
    store = make_store()
    send(store, "t", 0, b"0", keys="k")
    files.broken_sync = True
    with pytest.raises(StoreUnwritable):
        getattr(store, flush)()
    files.broken_sync = False
    with pytest.raises(StoreUnwritable):
        send(store, "t", 0, b"1")
    with pytest.raises(StoreUnwritable):
        store.close()


@pytest.mark.parametrize("flush", ["flush_queues", "flush_indexes"])
def test_the_checkpoint_stays_where_a_flush_failed(flush: str, make_store: Any, send: Any, files: Any) -> None:
    store = make_store()
    send(store, "t", 0, b"0", keys="k")
    for step in (store.flush_log, store.flush_queues, store.flush_indexes, store.write_checkpoint):
        step()
    before = Path(store.settings.root, "checkpoint").read_bytes()
    assert checkpoint.read(f"{store.settings.root}/checkpoint").queues_position == store.written_position
    send(store, "t", 0, b"1", keys="k")
    store.flush_log()
    files.broken_sync = True
    with pytest.raises(StoreUnwritable):
        getattr(store, flush)()
    files.broken_sync = False
    # The disk says it is well again, and so it did to whoever else flushed meanwhile.
    for step in (store.flush_queues, store.flush_indexes, store.write_checkpoint):
        with pytest.raises(StoreUnwritable, match="read-only since a flush failed"):
            step()
    assert Path(store.settings.root, "checkpoint").read_bytes() == before
    with pytest.raises(StoreUnwritable):
        store.close()


def test_a_checkpoint_that_cannot_be_written_stops_appends(
    make_store: Any, send: Any, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    send(store, "t", 0, b"0")

    def broken(path: str, content: bytes, size: int) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(files, "overwrite", broken)
    number = errno.ENOSPC
    with pytest.raises(StoreFull):
        store.write_checkpoint()
    send(store, "t", 0, b"1")
    number = errno.EIO
    with pytest.raises(StoreUnwritable):
        store.write_checkpoint()
    with pytest.raises(StoreUnwritable):
        send(store, "t", 0, b"2")
    assert bodies(store) == [b"0", b"1"]
    with pytest.raises(StoreUnwritable):
        store.close()


class Watched(mmap.mmap):
    """A map whose own flush is not to be used: it keeps the GIL, so all else stands still meanwhile."""

    def flush(self, offset: int = 0, size: int = 0) -> None:
        raise AssertionError("mmap.flush")


def test_a_map_is_put_on_the_disk_without_the_gil(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    with path.open("r+b") as file:
        mapped = Watched(file.fileno(), 0)
    mapped[5000:5003] = b"abc"
    OsFiles().sync_map(mapped, 5000, 5003)
    assert path.read_bytes()[5000:5003] == b"abc"
    # Beyond the map there is nothing to be put anywhere; which of the two it says depends on where the map lies.
    with pytest.raises(OSError, match=r"Cannot allocate memory|Invalid argument"):
        OsFiles().sync_map(mapped, 0, 1 << 45)
    mapped.close()


class ShortWrites(OsFiles):
    """A disk that takes `left` more bytes of small files."""

    left = 0

    def write_file(self, path: str, content: bytes) -> None:
        if len(content) > self.left:
            Path(path).write_bytes(content[: self.left])
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().write_file(path, content)


def test_config_files_keep_the_version_before(tmp_path: Path) -> None:
    path = str(tmp_path / "config" / "topics.json")
    assert config_files.read(path) is None
    config_files.write(path, "one é")
    assert (config_files.read(path), config_files.read_backup(path)) == ("one é", None)
    config_files.write(path, "two")
    assert (config_files.read(path), config_files.read_backup(path)) == ("two", "one é")
    config_files.write(path, "two")
    assert config_files.read_backup(path) == "one é"
    assert sorted(os.listdir(tmp_path / "config")) == ["topics.json", "topics.json.bak"]
    Path(path).write_bytes(b"")
    assert config_files.read(path) == "one é"
    os.unlink(path)
    assert config_files.read(path) == "one é"
    Path(path).write_bytes(b"broken \xff")
    assert config_files.read(path) == "broken \ufffd"


@pytest.mark.parametrize("left", range(8))
def test_config_files_survive_a_full_disk(left: int, tmp_path: Path) -> None:
    path = str(tmp_path / "topics.json")
    config_files.write(path, "before")
    disk = ShortWrites()
    disk.left = left
    with pytest.raises(StoreFull, match="free some space"):
        config_files.write(path, "the new one", disk)
    assert config_files.read(path) == "before"
    assert [n for n in os.listdir(tmp_path) if n.endswith(".tmp")] == []


def test_a_directory_that_cannot_be_read_is_told_plainly(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.mkdir()
    with pytest.raises(StoreError, match="cannot read"):
        config_files.read(str(path))


NO_FILES = "too many open files; raise the limit"


@pytest.mark.shows(
    "mended: a failed flush of a queue (EMFILE) does not stop appends",
    "mended: EMFILE makes the store read-only until a restart",
)
@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        *((call, errno.EMFILE, NO_FILES) for call in ("sync_file", "create", "sync_directory", "overwrite", "map")),
        *((call, errno.EFBIG, "may not be so large; raise the limit") for call in ("create", "overwrite")),
    ],
)
def test_at_a_limit_of_the_system_nothing_is_taken_until_it_is_lifted(
    call: str, error: int, told: str, make_store: Any, send: Any, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    send(store, "t", 0, b"0", keys="k")

    def none_left(*args: Any, **more: Any) -> None:
        raise OSError(error, os.strerror(error), "somewhere")

    def flush_all() -> None:
        store.flush_log()
        store.flush_queues()
        store.flush_indexes()
        store.write_checkpoint()

    with monkeypatch.context() as patch:
        patch.setattr(files, call, none_left)
        for _ in range(2):
            with pytest.raises(StoreUnwritable, match=told) as caught:
                flush_all()
            assert caught.value.retriable
            with pytest.raises(StoreUnwritable, match=told):
                send(store, "t", 0, b"refused")
        assert bodies(store) == [b"0"]
    flush_all()
    assert send(store, "t", 0, b"1")[1] == 1
    flush_all()
    assert store.flushed_position == store.written_position
    store.close()
    assert bodies(make_store()) == [b"0", b"1"]


def test_the_name_of_a_new_log_file_is_on_the_disk_once_its_first_records_are(
    make_store: Any, send: Any, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    synced: list[str] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    counts = []
    for body in (b"0", b"1", bytes(16_200), b"3", b"4"):
        send(store, "t", 0, body)
        store.flush_log()
        counts.append(synced.count(store.log.mapped_files.directory))
    assert counts == [1, 1, 2, 3, 3]


@pytest.mark.shows("mended: a failed flush of a queue (EMFILE) does not stop appends")
def test_a_queue_file_that_cannot_be_made_stops_appends(make_store: Any, send: Any, files: Any) -> None:
    """Not by an error of the system's, but by the store's own: it counted as a full disk's, or ended nothing."""
    store = make_store()
    send(store, "t", 0, b"0")

    def denied(path: str, size: int, *, keep: bool = False) -> None:
        raise OSError(errno.EACCES, "Permission denied", path)

    files.create = denied
    with pytest.raises(StoreUnwritable, match=r"read-only since a flush failed .*Permission denied"):
        store.flush_queues()
    for refused in (lambda: send(store, "t", 0, b"1"), store.flush_log, store.write_checkpoint):
        with pytest.raises(StoreUnwritable, match="read-only"):
            refused()
    assert bodies(store) == [b"0"]
    del files.create
    with pytest.raises(StoreUnwritable):
        store.close()
    assert bodies(make_store()) == [b"0"]


@pytest.mark.shows("mended: a group name of 249-255 bytes ends both flush threads, no start succeeds")
@pytest.mark.parametrize("topic", ["t" * 256, "ü" * 128, "a/b", "a\0b", ".", ".."])
def test_a_topic_that_no_directory_can_be_named_after_is_refused(topic: str, make_store: Any, send: Any) -> None:
    store = make_store()
    with pytest.raises(MessageIllegal, match="name of a directory"):
        send(store, topic, 0, b"x")
    send(store, "t" * 255, 0, b"x")
    store.flush_queues()
    store.close()
    assert dict(make_store().queues()) == {"t" * 255: {0}}
