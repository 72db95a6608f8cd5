"""Append and read: places, rolling files, filters, batches, times, keys, and what is refused."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rocketspark.errors import ConfigError, MessageIllegal, StoreLocked, StoreUnwritable
from rocketspark.model.text import string_hash
from rocketspark.protocol.message import properties as props
from rocketspark.protocol.message import record, record_layout
from rocketspark.store import BatchMessage, GetStatus, Store, StoreSettings
from rocketspark.store.settings import ManualClock

pytestmark = pytest.mark.shows("store: message v1 and v2, IPv6 hosts")

NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")
BORN_V6 = bytes.fromhex("000000000000000000000000000000010000c001")
HOST = bytes.fromhex("7f00000100002a9f")


def bodies(store: Store, topic: str, queue_id: int, start: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while (read := store.read(topic, queue_id, start, 7, 1 << 20)).status is GetStatus.FOUND:
        found += [r.body for piece in read.records for r in record.decode_all(piece)]
        start = read.next_offset
    assert read.status is GetStatus.AT_END
    return found


def test_a_record_is_what_the_codec_says(make_store: Any, send: Any) -> None:
    store = make_store()
    send(store, "other", 0, b"before")
    position, offset, end = send(
        store, "t", 3, b"body", tag="A", keys="k1 k2", unique_id="U" * 32, flag=7, sys_flag=1, reconsume_times=2,
        prepared_position=9,
    )  # fmt: skip
    expected = record.encode(
        topic=b"t", queue_id=3, queue_offset=offset, position=position, body=b"body", flag=7, sys_flag=1,
        properties=b"UNIQ_KEY\x01" + b"U" * 32 + b"\x02KEYS\x01k1 k2\x02TAGS\x01A\x02",
        born_time_ms=NOW_MS, born_host=BORN, store_time_ms=NOW_MS, store_host=HOST, reconsume_times=2,
        prepared_position=9,
    )  # fmt: skip
    assert (offset, end) == (0, position + len(expected))
    assert bytes(store.record_at(position)) == expected
    assert store.written_position == end
    store.flush_queues()
    unit = (Path(store.settings.root) / "consumequeue/t/3" / ("0" * 20)).read_bytes()[:20]
    assert struct.unpack(">qiq", unit) == (position, len(expected), string_hash("A"))


@pytest.mark.parametrize(
    ("topic", "born", "host"),
    [("t", BORN_V6, HOST), ("t", BORN, BORN_V6), ("t", BORN_V6, BORN_V6), ("x" * 200, BORN, HOST)],
)
def test_ipv6_hosts_and_long_topics(topic: str, born: bytes, host: bytes, tmp_path: Path, small: Any) -> None:
    store = Store(small(tmp_path), store_host=host)
    store.open()
    place = store.append(
        topic.encode(), 0, b"b", b"TAGS\x01A\x02", 5, None, None, b"A", NOW_MS, 1, 0, NOW_MS, born, 0, 0
    )
    expected = record.encode(
        topic=topic.encode(), queue_id=0, queue_offset=0, position=0, body=b"b", properties=b"TAGS\x01A\x02", flag=1,
        born_time_ms=NOW_MS, born_host=born, store_time_ms=NOW_MS, store_host=host,
    )  # fmt: skip
    assert place == (0, 0, len(expected))
    assert bytes(store.record_at(0)) == expected
    assert bodies(store, topic, 0) == [b"b"]
    store.close()


@pytest.mark.shows("store: file rolling")
def test_log_files_roll_with_a_blank_record(make_store: Any, send: Any) -> None:
    store = make_store()
    places = [send(store, "t", 0, bytes([i % 251]) * 900) for i in range(60)]
    root = Path(store.settings.root)
    names = sorted(p.name for p in (root / "commitlog").iterdir())
    assert names == [f"{n * 16384:020d}" for n in range(4)]
    size = places[0][2] - places[0][0]
    per_file = (16384 - 8) // size
    assert [p[0] for p in places[: per_file + 1]] == [*(n * size for n in range(per_file)), 16384]
    left, magic = struct.unpack_from(">ii", (root / "commitlog" / names[0]).read_bytes(), per_file * size)
    assert (left, magic) == (16384 - per_file * size, record_layout.MAGIC_BLANK)
    assert bodies(store, "t", 0) == [bytes([i % 251]) * 900 for i in range(60)]
    # Queue files roll by bytes: 50 units each.
    assert sorted(p.name for p in (root / "consumequeue/t/0").iterdir()) == [f"{n * 1000:020d}" for n in range(2)]
    store.close()
    again = make_store()
    assert bodies(again, "t", 0) == [bytes([i % 251]) * 900 for i in range(60)]
    assert send(again, "t", 0, b"more")[:2] == (places[-1][2], 60)


@pytest.mark.parametrize("spare", range(10))
def test_a_record_fits_only_if_eight_bytes_stay(spare: int, make_store: Any, send: Any) -> None:
    store = make_store()
    empty = record_layout.record_bytes(0, 1, 0)
    send(store, "t", 0, b"x" * (16384 - 2 * empty - spare))
    position, _, _ = send(store, "t", 0, b"")
    assert position == (16384 - empty - spare if spare >= 8 else 16384)
    assert len(bodies(store, "t", 0)) == 2
    store.close()
    again = make_store()
    assert again.written_position == position + empty
    assert len(bodies(again, "t", 0)) == 2


def test_the_states_of_a_read(make_store: Any, send: Any) -> None:
    store = make_store()
    assert store.read("t", 0, 0, 32, 1000).status is GetStatus.NO_QUEUE
    for i in range(5):
        send(store, "t", 0, b"%d" % i)
    for offset, status, next_offset in [
        (5, GetStatus.AT_END, 5),
        (9999, GetStatus.OFFSET_TOO_BIG, 5),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ]:
        read = store.read("t", 0, offset, 32, 1000)
        assert (read.status, read.records, read.next_offset) == (status, [], next_offset)
        assert (read.min_offset, read.max_offset) == (0, 5)
    read = store.read("t", 0, 1, 2, 1 << 20)
    assert (read.status, read.count, read.next_offset) == (GetStatus.FOUND, 2, 3)
    # Neighbours in the log are one slice.
    assert len(read.records) == 1
    assert [r.body for r in record.decode_all(read.records[0])] == [b"1", b"2"]


def test_a_read_is_bounded_by_bytes_but_never_empty(make_store: Any, send: Any) -> None:
    store = make_store()
    for _ in range(6):
        send(store, "t", 0, b"x" * 500)
        send(store, "u", 0, b"y")
    read = store.read("t", 0, 0, 32, 100)
    assert (read.count, read.next_offset) == (1, 1)
    size = len(read.records[0])
    read = store.read("t", 0, 0, 32, 3 * size)
    assert (read.count, len(read.records), read.next_offset) == (3, 3, 3)


def test_reads_filter_by_code_and_by_record(make_store: Any, send: Any) -> None:
    store = make_store()
    for i in range(120):
        send(store, "t", 0, b"%d" % i, tag="even" if i % 2 == 0 else "odd")
    odd = frozenset({string_hash("odd")})
    read = store.read("t", 0, 0, 4, 1 << 20, odd)
    assert [r.body for v in read.records for r in record.decode_all(v)] == [b"1", b"3", b"5", b"7"]
    assert read.next_offset == 9
    read = store.read("t", 0, 0, 4, 1 << 20, odd, lambda v: record.decode(v).body.endswith(b"9"))
    assert [r.body for v in read.records for r in record.decode_all(v)] == [b"9", b"19", b"29", b"39"]
    read = store.read("t", 0, 3, 4, 1 << 20, frozenset({string_hash("none")}))
    assert (read.status, read.next_offset, read.records) == (GetStatus.NO_MATCHED, 120, [])


def test_a_filtered_read_looks_at_800_units(make_store: Any, send: Any) -> None:
    store = make_store()
    for _ in range(1000):
        send(store, "t", 0, b"", tag="A")
    none = frozenset({1})
    assert store.read("t", 0, 10, 32, 1000, none).next_offset == 810
    assert store.read("t", 0, 10, 900, 1000, none).next_offset == 910


def test_store_time_never_goes_back(make_store: Any, send: Any) -> None:
    store = make_store()
    for time_ms in (1000, 5000, 3000, 5000, 7000):
        send(store, "t", 0, b"", now_ms=time_ms)
    assert [store.store_time_at("t", 0, i) for i in range(-1, 6)] == [-1, 1000, 5000, 5000, 5000, 7000, -1]
    assert store.last_store_time_ms == 7000


@pytest.mark.parametrize(
    ("time_ms", "lower", "upper"),
    [(0, 0, 0), (10, 0, 0), (15, 1, 0), (20, 1, 3), (25, 4, 3), (30, 4, 4), (31, 5, 4), (10**13, 5, 4)],
)
def test_offsets_by_time(time_ms: int, lower: int, upper: int, make_store: Any, send: Any) -> None:
    store = make_store()
    for stored in (10, 20, 20, 20, 30):
        send(store, "t", 0, b"", now_ms=stored)
    assert store.offset_at_time("t", 0, time_ms) == lower
    assert store.offset_at_time("t", 0, time_ms, upper=True) == upper
    assert store.offset_at_time("none", 0, time_ms) == 0


def test_a_batch_is_consecutive_and_in_one_file(make_store: Any, send: Any) -> None:
    store = make_store()
    send(store, "t", 0, b"x" * 15000)
    batch = [BatchMessage(b"%d" % i, b"KEYS\x01k%d\x02" % i, 0, None, b"k%d" % i, None, i) for i in range(70)]
    places = store.append_batch(b"t", 0, batch, NOW_MS, 0, NOW_MS, BORN)
    assert [p[1] for p in places] == list(range(1, 71))
    assert places[0][0] == 16384
    assert all(a[2] == b[0] for a, b in pairwise(places))
    assert bodies(store, "t", 0, 1) == [b"%d" % i for i in range(70)]
    assert [record.decode(v).flag for v in store.query("t", "k33", 5, 0, NOW_MS)] == [33]


def test_keys_of_small_batches_are_written_many_at_a_time(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(log_file_bytes=1 << 20, queue_file_units=5000, index_entries=5000)
    index = store.index_service
    writes: list[int] = []
    write_pending = index.write_pending
    monkeypatch.setattr(index, "write_pending", lambda: (writes.append(len(index.pending)), write_pending()))
    for n in range(0, 1030, 10):
        batch = [BatchMessage(b"%d" % i, b"KEYS\x01k%d\x02" % i, 0, None, b"k%d" % i, None) for i in range(n, n + 10)]
        store.append_batch(b"t", 0, batch, NOW_MS, 0, NOW_MS, BORN)
    # 512 fit; a batch is written with none of it pending before.
    assert writes == [510, 510]
    for n in (0, 509, 510, 1019, 1020, 1029):
        assert [record.decode(v).body for v in store.query("t", f"k{n}", 5, 0, NOW_MS)] == [b"%d" % n]


def test_half_and_rolled_back_records_are_in_no_queue(make_store: Any, send: Any) -> None:
    store = make_store()
    send(store, "t", 0, b"plain", unique_id="A" * 32)
    half = send(store, "t", 0, b"half", unique_id="B" * 32, sys_flag=4)
    rolled = send(store, "t", 0, b"rolled", unique_id="C" * 32, sys_flag=12)
    commit = send(store, "t", 0, b"commit", unique_id="D" * 32, sys_flag=8)
    assert (half[1], rolled[1], commit[1]) == (0, 0, 1)
    for _ in range(2):
        assert bodies(store, "t", 0) == [b"plain", b"commit"]
        found = [len(store.query("t", letter * 32, 5, 0, NOW_MS, "U")) for letter in "ABCD"]
        assert found == [1, 1, 0, 1]
        store.close()
        # From the log alone the same comes out.
        (Path(store.settings.root) / "checkpoint").unlink()
        (Path(store.settings.root) / "abort").touch()
        store = make_store()


def test_the_schedule_topic_keeps_delivery_times(make_store: Any, send: Any) -> None:
    store = make_store(delay_ms=(1000, 5000))
    for queue_id, delay in ((0, 1000), (1, 5000)):
        send(store, "SCHEDULE_TOPIC_XXXX", queue_id, b"x", tag="A")
        assert store.consume_queues.find("SCHEDULE_TOPIC_XXXX", queue_id).unit(0)[2] == NOW_MS + delay


def test_queries_see_what_is_not_written_yet_newest_first(make_store: Any, send: Any) -> None:
    store = make_store()
    for i in range(300):
        send(
            store,
            "t",
            i % 3,
            b"%d" % i,
            tag="A",
            keys=f"all n{i} é{i}",
            unique_id=f"{i:032X}",
            now_ms=NOW_MS + i * 1000,
        )
    find = store.query
    every = [record.decode(v).body for v in find("t", "all", 1000, 0, 1 << 60)]
    assert every == [b"%d" % i for i in range(299, -1, -1)]
    assert [record.decode(v).body for v in find("t", "all", 2, 0, 1 << 60)] == [b"299", b"298"]
    assert [record.decode(v).body for v in find("t", "n7", 10, 0, 1 << 60)] == [b"7"]
    assert [record.decode(v).body for v in find("t", "é7", 10, 0, 1 << 60)] == [b"7"]
    assert [record.decode(v).body for v in find("t", f"{7:032X}", 10, 0, 1 << 60, "U")] == [b"7"]
    assert find("t", "n7", 10, 0, 1 << 60, "U") == []
    assert len(find("t", "A", 1000, 0, 1 << 60, "T")) == 300
    assert find("u", "n7", 10, 0, 1 << 60) == []
    in_time = find("t", "all", 1000, NOW_MS + 10_000, NOW_MS + 12_999)
    assert [record.decode(v).body for v in in_time] == [b"12", b"11", b"10"]
    # 300 messages make 1500 keys: 199 in each file.
    assert len(list((Path(store.settings.root) / "index").iterdir())) == 8


def test_colliding_hashes_are_told_apart(make_store: Any, send: Any) -> None:
    assert string_hash("Aa") == string_hash("BB")
    store = make_store()
    send(store, "t", 0, b"first", keys="Aa")
    send(store, "t", 0, b"second", keys="BB")
    assert [record.decode(v).body for v in store.query("t", "Aa", 5, 0, NOW_MS)] == [b"first"]


def test_a_store_without_index(make_store: Any, send: Any) -> None:
    store = make_store(index_enabled=False)
    send(store, "t", 0, b"x", keys="k")
    assert store.query("t", "k", 5, 0, NOW_MS) == []
    assert not (Path(store.settings.root) / "index").exists()


def test_a_deleted_topic_starts_anew_and_stays_so(make_store: Any, send: Any) -> None:
    store = make_store()
    for i in range(70):
        send(store, "t", 1, b"old%d" % i)
        send(store, "keep", 0, b"%d" % i)
    store.delete_topic("t")
    assert set(store.queues()) == {"keep"}
    assert store.read("t", 1, 0, 1, 1).status is GetStatus.NO_QUEUE
    assert [send(store, "t", 1, b"new%d" % i)[1] for i in range(3)] == [0, 1, 2]
    store.close()
    for lost in ("nothing", "checkpoint"):
        if lost == "checkpoint":
            # Replayed from the beginning: the younger generation leads.
            os.unlink(Path(store.settings.root) / "checkpoint")
            (Path(store.settings.root) / "abort").touch()
        store = make_store()
        assert bodies(store, "t", 1) == [b"new0", b"new1", b"new2"]
        assert len(bodies(store, "keep", 0)) == 70
        store.close()


def test_two_stores_do_not_write_one_log(make_store: Any, send: Any, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    store = make_store(tmp_path / "one", commit_log=log)
    for _ in range(2):
        with pytest.raises(StoreLocked, match=f"the store in {log} is in use"):
            make_store(tmp_path / "two", commit_log=log)
    send(store, "t", 0, b"x")
    assert [path.name for path in Path(log).iterdir()] == [f"{0:020d}"]
    store.close()
    make_store(tmp_path / "two", commit_log=log)


@pytest.mark.shows("a log that lies elsewhere than storePathCommitLog says is not taken for lost")
def test_a_log_below_the_store_is_not_lost_to_an_empty_folder_that_is_set(
    make_store: Any, send: Any, tmp_path: Path
) -> None:
    root, log = tmp_path / "one", tmp_path / "log"
    # One without a message may have its log anywhere.
    make_store(root).close()
    make_store(root, commit_log=str(log)).close()
    shutil.rmtree(log)
    store = make_store(root)
    send(store, "t", 0, b"x")
    store.close()
    for made in (False, True):
        if made:
            log.mkdir()
        with pytest.raises(ConfigError, match=f"lies in {root}/commitlog, and {log}, .* has none"):
            make_store(root, commit_log=str(log))
    for path in (root / "commitlog").iterdir():
        shutil.move(path, log)
    assert bodies(make_store(root, commit_log=str(log)), "t", 0) == [b"x"]


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("is_there", [False, True], ids=["gone", "empty"])
def test_a_log_of_its_own_disk_that_is_not_mounted_is_not_begun_anew(
    is_there: bool, killed: bool, make_store: Any, send: Any, tmp_path: Path
) -> None:
    """A disk that fails may kill the process first, which is started again by itself."""
    root, log = tmp_path / "one", tmp_path / "log"
    store = make_store(root, commit_log=str(log))
    send(store, "t", 0, b"x")
    store.flush_queues()
    store.abandon() if killed else store.close()
    log.rename(tmp_path / "unmounted")
    if is_there:
        log.mkdir()
    with pytest.raises(ConfigError, match=f"lay in {log} up to position \\d+, and no file of it is there: mount"):
        make_store(root, commit_log=str(log))
    shutil.rmtree(log, ignore_errors=True)
    (tmp_path / "unmounted").rename(log)
    assert bodies(make_store(root, commit_log=str(log)), "t", 0) == [b"x"]


@pytest.mark.parametrize("how", ["link", "mount"])
def test_nor_is_one_whose_disk_is_linked_or_mounted_below_the_store(
    how: str, make_store: Any, send: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, disk, unmounted = tmp_path / "one", tmp_path / "disk", tmp_path / "unmounted"
    log = disk if how == "link" else root / "commitlog"
    root.mkdir()
    if how == "link":
        disk.mkdir()
        (root / "commitlog").symlink_to(disk)
    with monkeypatch.context() as mounted:
        if how == "mount":
            mounted.setattr(os.path, "ismount", lambda path: path == str(log))
        store = make_store(root)
    send(store, "t", 0, b"x")
    store.close()
    log.rename(unmounted)
    log.mkdir()
    with pytest.raises(ConfigError, match=f"lay in {log} up to position \\d+, and no file of it is there: mount"):
        make_store(root)
    log.rmdir()
    unmounted.rename(log)
    store = make_store(root)
    assert bodies(store, "t", 0) == [b"x"]
    # Moved to the store's own disk it is as any.
    store.close()
    if how == "link":
        (root / "commitlog").unlink()
        disk.rename(root / "commitlog")
        make_store(root).close()
    shutil.rmtree(root / "commitlog")
    assert make_store(root).began_empty


def test_a_lost_log_of_its_own_disk_is_begun_anew_if_asked_and_by_a_replica(
    make_store: Any, send: Any, tmp_path: Path
) -> None:
    for lost in ("asked", "copied"):
        root, log = tmp_path / lost, tmp_path / f"log-{lost}"
        store = make_store(root, commit_log=str(log))
        send(store, "t", 0, b"x")
        store.flush_queues()
        store.close()
        if lost == "asked":
            (root / "config/storeFiles.json").unlink()
        shutil.rmtree(log)
        assert make_store(root, commit_log=str(log), is_copied=lost == "copied").began_empty


@pytest.mark.parametrize("later", [None, "other"], ids=["left out", "another"])
def test_a_log_that_lies_elsewhere_is_not_lost_to_a_start_that_does_not_name_it(
    later: str | None, make_store: Any, send: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root, log, other = tmp_path / "one", tmp_path / "log", later and str(tmp_path / later)
    store = make_store(root, commit_log="log")
    send(store, "t", 0, b"x")
    store.close()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    # What is relative is so to the folder of then.
    monkeypatch.chdir(root)
    with pytest.raises(ConfigError, match=f"lies in {log}, and {other or root / 'commitlog'}, .* has none"):
        make_store(root, commit_log=other)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    # With its files it may move.
    shutil.copytree(log, other or root / "commitlog", dirs_exist_ok=True)
    moved = make_store(root, commit_log=other)
    assert bodies(moved, "t", 0) == [b"x"]
    moved.close()
    # One that is lost keeps no store from its start.
    shutil.rmtree(other or root / "commitlog")
    make_store(root, commit_log=str(tmp_path / "new"))


def test_a_store_does_not_write_the_log_of_another_that_lies_where_it_lies_by_default(
    make_store: Any, tmp_path: Path
) -> None:
    log = str(tmp_path / "one/commitlog")
    # It may name that itself.
    store = make_store(tmp_path / "one", commit_log=log)
    with pytest.raises(StoreLocked, match=f"the store in {log} is in use"):
        make_store(tmp_path / "two", commit_log=log)
    store.close()
    store = make_store(tmp_path / "two", commit_log=log)
    with pytest.raises(StoreLocked, match=f"the store in {tmp_path}/one is in use"):
        make_store(tmp_path / "one")
    store.close()


def test_a_folder_without_locks_is_not_said_to_be_in_use(
    make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(descriptor: int, *how: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/log.lock"):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("rocketspark.store.files.system_calls.fcntl.lockf", none)
    # As with RocketMQ's broker its own lock is all there is.
    make_store(tmp_path / "one", commit_log=str(tmp_path / "log"))


def test_refusals(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store(message_bytes_max=20_000)
    with pytest.raises(MessageIllegal, match="maxMessageSize"):
        send(store, "t", 0, b"x" * 20_001)
    with pytest.raises(MessageIllegal, match="mappedFileSizeCommitLog"):
        send(store, "t", 0, b"x" * 18_000)
    with pytest.raises(MessageIllegal, match="32767"):
        send(store, "t", 0, b"", keys="k" * 32767)
    with pytest.raises(MessageIllegal, match="32767"):
        store.append_batch(b"t", 0, [BatchMessage(b"", b"x" * 40000)], NOW_MS, 0, NOW_MS, BORN)
    assert store.written_position == 0
    assert send(store, "t", 0, b"fits", keys="k")[:2] == (0, 0)
    with pytest.raises(StoreLocked, match="in use"):
        make_store()
    store.close()
    with pytest.raises(StoreUnwritable, match="closed"):
        send(store, "t", 0, b"late")
    for wrong in ({"log_file_bytes": 8192}, {"queue_file_units": 25}):
        with pytest.raises(ConfigError, match="mappedFileSize"):
            make_store(**wrong)
    with pytest.raises(ConfigError, match="maxHashSlotNum"):
        make_store(index_slots=65)
    make_store()


def test_a_root_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnwritable, match="create the directory"):
        Store(StoreSettings(root=str(tmp_path / "file"))).open()


def test_default_sizes_stay_small_until_used(tmp_path: Path, send: Any) -> None:
    store = Store(StoreSettings(root=str(tmp_path / "s")), clock=ManualClock(NOW_MS))
    store.open()
    send(store, "t", 0, b"x", keys="k")
    store.flush_queues()
    store.flush_indexes()
    sizes = {p.relative_to(tmp_path).parts[1]: p.stat() for p in (tmp_path / "s").rglob("0*") if p.is_file()}
    assert sizes["commitlog"].st_size == 1 << 30
    assert sizes["consumequeue"].st_size == 6_000_000
    assert sum(p.stat().st_blocks for p in tmp_path.rglob("*")) * 512 < 64 << 20
    store.close()


def test_many_queues_share_few_maps(make_store: Any, send: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = make_store()
    store.consume_queues._active.count_max = 8
    store.log.mapped_files.maps.count_max = 4
    for i in range(5):
        for queue_id in range(40):
            assert send(store, "t", queue_id, b"%d" % i)[1] == i
    for queue_id in range(40):
        assert bodies(store, "t", queue_id) == [b"%d" % i for i in range(5)]
    assert len(os.listdir("/proc/self/fd")) - before < 60
    store.close()
    again = make_store()
    assert all(again.queue_range("t", q) == (0, 5) for q in range(40))


def test_properties_show_the_way_of_the_log(make_store: Any, send: Any) -> None:
    store = make_store()
    end = send(store, "t", 0, b"x")[2]
    assert (store.min_position, store.written_position, store.flushed_position) == (0, end, 0)
    store.populate_ahead()
    assert store.flush_log() == end == store.flushed_position
    assert props.find(record.decode(store.record_at(0)).properties, b"TAGS") is None
    assert store.record_at(1) is None
    assert store.record_at(end) is None
    assert store.record_at(-5) is None
    assert store.record_at(1 << 40) is None


@pytest.mark.shows("mended: a key query with a narrow time misses the first entry of each later index file")
def test_a_key_is_found_by_a_narrow_time_over_the_ends_of_index_files(make_store: Any, send: Any) -> None:
    """The first entry of a file states its time from the begin inherited of the file before."""
    store = make_store(index_entries=11)
    times = [NOW_MS + i * 1000 + i // 10 * 3_600_000 for i in range(30)]
    for i, now_ms in enumerate(times):
        send(store, "t", 0, b"x", unique_id=f"K{i}", now_ms=now_ms)
    for _ in range(2):
        found = [len(store.query("t", f"K{i}", 5, at - 1, at + 1, "U")) for i, at in enumerate(times)]
        assert found == [1] * 30
        store.close()
        store = make_store(index_entries=11)


@pytest.mark.shows('mended: append_batch "all or none" against the flush thread\'s `log.stop`')
@pytest.mark.parametrize("rare", [False, True])
def test_a_batch_is_whole_also_if_the_log_is_stopped_meanwhile(rare: bool, make_store: Any, send: Any) -> None:
    store = make_store(append_record_crc=rare)
    send(store, "t", 0, b"first")

    class Stopping(list[BatchMessage]):
        """As a thread whose flush fails does, between two messages."""

        def __iter__(self) -> Iterator[BatchMessage]:
            for n in range(len(self)):
                if n == 2 and store.log.limit and store.written_position > end:
                    store.stop_writes(StoreUnwritable("the disk is gone"))
                yield self[n]

    end = store.written_position
    messages = Stopping(BatchMessage(b"%d" % n, b"") for n in range(5))
    if rare:
        placed = store.append_batch(b"t", 0, messages, NOW_MS, 0, NOW_MS, BORN)
    else:
        queue = store.plain_queue(b"t", 0)
        store.log.make_room(1)
        limit = store.log.limit
        plain = ((queue, b"x", record.after_body(b"t", b""), 0, None, None, None, 0, 0, NOW_MS, 0) for _ in messages)
        placed = store._append_run(plain, NOW_MS, BORN, limit)
    assert len(placed) == 5
    assert store.queue_range("t", 0) == (0, 6)
    with pytest.raises(StoreUnwritable, match="the disk is gone"):
        send(store, "t", 0, b"refused")
    with pytest.raises(StoreUnwritable):
        store.close()
