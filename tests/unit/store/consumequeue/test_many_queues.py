"""Many queues: each takes what its messages need, not what its file could hold."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from rocketspark.errors import StoreFull
from rocketspark.protocol.message import record
from rocketspark.store import BatchMessage, GetStatus, Store, StoreSettings
from rocketspark.store.files.system_calls import OsFiles

pytestmark = pytest.mark.shows(
    "store: 10,000 queues in small steps",
    "10,000 active queues stay mapped without descriptors; a new queue costs no file on the loop",
)

NOW_MS = 1_700_000_000_000
TOPICS, QUEUES = 250, 8


class Watched(OsFiles):
    """Files of which it is known in which threads they are put on the disk; `gone` is not there then."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.paths: list[str] = []
        self.gone = ""

    def sync_file(self, path: str) -> None:
        self.threads.add(threading.get_ident())
        if path == self.gone:
            raise FileNotFoundError(path)
        self.paths.append(path)


@pytest.mark.parametrize("count", [3, 400])
def test_many_files_are_put_on_the_disk_several_at_a_time(count: int) -> None:
    """New ones of a file system together: one after the other each takes 5 ms."""
    files = Watched()
    names = [str(number) for number in range(count)]
    files.gone = names.pop(1)
    files.sync_files([*names, files.gone])
    assert sorted(files.paths) == sorted(names)
    assert (threading.get_ident() in files.threads) == (count == 3)


class Failing(Watched):
    """Files some of which cannot be put on the disk: "few" for want of descriptors, "bad" as the disk fails."""

    def sync_file(self, path: str) -> None:
        if path in ("few", "bad"):
            raise OSError(errno.EMFILE if path == "few" else errno.EIO, path)
        super().sync_file(path)


@pytest.mark.parametrize(("names", "found"), [(["few"], errno.EMFILE), (["few", "bad"], errno.EIO)])
def test_a_lack_of_descriptors_hides_no_disk_that_fails(names: list[str], found: int) -> None:
    """After the first a flush is tried again, and what failed then would count as flushed."""
    files = Failing()
    with pytest.raises(OSError) as raised:
        files.sync_files([*names, *map(str, range(400))])
    assert raised.value.errno == found
    assert len(files.paths) == 400


def test_files_are_put_on_the_disk_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    files = Watched()
    files.sync_files([str(number) for number in range(400)])
    assert (len(files.paths), files.threads) == (400, {threading.get_ident()})


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
    # Until a flush they are in memory, as the log has them.
    assert list(queues.iterdir()) == []
    store.flush_queues()
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
        assert (read.status, read.next_offset, read.max_offset) == (GetStatus.FOUND, 1, 1)
        assert record.decode(read.records[0]).body == b"%d" % n
    send(again, "topic-5", 3, b"more", now_ms=NOW_MS)
    assert again.queue_range("topic-5", 3) == (0, 2)
    again.close()


@pytest.mark.shows("a light queue takes some 2 kB of memory")
def test_a_queue_of_few_messages_takes_little_memory(make_store: Any, send: Any) -> None:
    store, count = make_store(), 400
    send(store, "first", 0, b"0")
    tracemalloc.start(1)
    before = tracemalloc.get_traced_memory()[0]
    for number in range(count):
        # The topic of an own message is hashed for the index, that of a light queue is not.
        store.consume_queues.make(b"%%LMQ%%$chats$session-%d" % number, 0).put(number, 100, 0, NOW_MS)
    taken = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    assert taken < 2300


def killed(store: Store, to: Path) -> Path:
    """The directory as a killed process leaves it: what was written to maps is in the files."""
    shutil.copytree(store.settings.root, to)
    return to


def bodies(store: Store, queue_id: int) -> list[bytes]:
    found: list[bytes] = []
    while (read := store.read("t", queue_id, len(found), 20, 1 << 20)).status is GetStatus.FOUND:
        found += [r.body for piece in read.records for r in record.decode_all(piece)]
    return found


@pytest.mark.parametrize("flushes", [(), (1,), (4,), (31,), (32,), (33,), (1, 5, 31, 32, 40)])
@pytest.mark.parametrize("count", [1, 5, 31, 32, 33, 60, 130])
def test_a_queue_goes_from_memory_to_files(
    count: int, flushes: tuple[int, ...], make_store: Any, send: Any, tmp_path: Path
) -> None:
    """Files of 50 units here; whatever was flushed when, every message is read before and after a kill or a stop."""
    store = make_store()
    expected = []
    for n in range(count):
        send(store, "t", 0, b"%d" % n)
        expected.append(b"%d" % n)
        if n + 1 in flushes:
            store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
            file = Path(store.settings.root, "consumequeue/t/0", "0" * 20)
            assert file.read_bytes()[: min(20 * (n + 1), 1000)].count(b"\0" * 20) == 0
        assert bodies(store, 0) == expected
    assert Path(store.settings.root, "consumequeue/t").exists() == (count > 32 or any(n <= count for n in flushes))
    assert store.queue_range("t", 0) == (0, count)
    again = make_store(killed(store, tmp_path / "killed"))
    store.close()
    for one in (again, make_store()):
        assert bodies(one, 0) == expected
        assert send(one, "t", 0, b"more")[1] == count
        assert bodies(one, 0) == [*expected, b"more"]


@pytest.mark.parametrize("first", [0, 1, 31, 32])
@pytest.mark.parametrize("size", [1, 31, 32, 33, 70])
def test_a_batch_goes_from_memory_to_files(first: int, size: int, make_store: Any, send: Any) -> None:
    store = make_store()
    expected = [b"%d" % n for n in range(first + size)]
    for body in expected[:first]:
        send(store, "t", 0, body)
    batch = [BatchMessage(body, b"") for body in expected[first:]]
    store.append_batch(b"t", 0, batch, NOW_MS, 0, NOW_MS, bytes(8))
    assert bodies(store, 0) == expected
    store.close()
    assert bodies(make_store(), 0) == expected


def test_a_deleted_queue_is_not_made_by_a_flush(make_store: Any, send: Any) -> None:
    store = make_store()
    send(store, "t", 0, b"old")
    queue = store.consume_queues.find("t", 0)
    store.delete_topic("t")
    assert queue.unflushed() == []  # As a thread does that began before the deletion.
    assert os.listdir(Path(store.settings.root, "consumequeue")) == []
    assert send(store, "t", 0, b"new")[1] == 0
    assert bodies(store, 0) == [b"new"]


def test_a_full_disk_delays_the_file_of_a_queue(make_store: Any, send: Any, files: Any) -> None:
    store = make_store()
    send(store, "other", 0, b"x")
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
    before = Path(store.settings.root, "checkpoint").read_bytes()
    send(store, "t", 0, b"0")
    files.room_bytes = 0
    with pytest.raises(StoreFull, match="free some space"):
        store.flush_queues()
    store.flush_log(), store.write_checkpoint()
    assert Path(store.settings.root, "checkpoint").read_bytes() == before
    files.room_bytes = None
    assert send(store, "t", 0, b"1")[1] == 1
    store.flush_queues()
    store.write_checkpoint()
    assert bodies(store, 0) == [b"0", b"1"]
    store.close()
    assert bodies(make_store(), 0) == [b"0", b"1"]


def test_mapped_files_keep_no_descriptor(make_store: Any, send: Any) -> None:
    store = make_store(log_file_bytes=1 << 20)
    before = len(os.listdir("/proc/self/fd"))
    for n in range(40 * 40):
        send(store, "t", n % 40, b"%d" % n)
    assert len(os.listdir("/proc/self/fd")) == before
    with open("/proc/self/maps") as maps:
        mapped = sum("/consumequeue/t/" in line for line in maps)
    assert mapped == 40
    assert bodies(store, 7) == [b"%d" % n for n in range(7, 1600, 40)]
    store.close()
    with open("/proc/self/maps") as maps:
        assert not any("/consumequeue/t/" in line for line in maps)


def test_queues_that_are_written_to_stay_mapped(make_store: Any, send: Any) -> None:
    store = make_store(log_file_bytes=1 << 20)
    store.consume_queues._active.count_max = 4
    queues = []
    for queue_id in range(4):
        for n in range(33):
            send(store, "t", queue_id, b"%d" % n)
        queues.append(store.consume_queues.find("t", queue_id))
    assert [queue.limit > 0 for queue in queues] == [True] * 4
    send(store, "t", 0, b"33")
    for n in range(33):
        send(store, "t", 4, b"%d" % n)
    # The first in, but in use; the second has to go.
    assert [queue.limit > 0 for queue in queues] == [True, False, True, True]
    for queue_id in range(5):
        assert send(store, "t", queue_id, b"last")[1] == (34 if queue_id == 0 else 33)
        assert bodies(store, queue_id) == [*(b"%d" % n for n in range(33 + (queue_id == 0))), b"last"]
    assert len(store.consume_queues._active._queues) == 4


def test_what_is_reserved_grows_with_the_queue(make_store: Any, send: Any) -> None:
    store = make_store(queue_file_units=300_000, log_file_bytes=16 << 20)
    sizes = []
    for n in range(20_000):
        send(store, "t", 0, b"", now_ms=NOW_MS)
        if n in (0, 250, 4_000, 19_999):
            store.flush_queues()
            sizes.append(disk_bytes(Path(store.settings.root, "consumequeue/t/0")))
    assert sizes[0] <= 8 << 10
    assert sizes[1] <= 24 << 10
    # At most one step of 64 KiB, and the folder, beyond what is used.
    assert 80_000 <= sizes[2] <= 80_000 + (72 << 10)
    assert 400_000 <= sizes[3] <= 400_000 + (72 << 10)
