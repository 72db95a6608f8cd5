"""What a start makes of a store that did not end well: torn tails, lost files, stale units, power cuts."""

from __future__ import annotations

import os
import random
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketspark.errors import StoreUnwritable
from rocketspark.protocol.message import record
from rocketspark.store import GetStatus, Store, recovery
from rocketspark.store.files import checkpoint as checkpoints

pytestmark = pytest.mark.shows("recovery after stop and crash, ASYNC_FLUSH and SYNC_FLUSH")

NOW_MS = 1_700_000_000_000


def read_all(store: Store, topic: str, queue_id: int) -> list[record.Record]:
    low, high = store.queue_range(topic, queue_id)
    found: list[record.Record] = []
    while low < high:
        read = store.read(topic, queue_id, low, 50, 1 << 20)
        assert read.status in (GetStatus.FOUND, GetStatus.REMOVED)
        found += [r for piece in read.records for r in record.decode_all(piece)]
        low = read.next_offset
    return found


def assert_agrees(store: Store) -> list[bytes]:
    """Queues and index hold exactly what the log holds; returns the bodies in log order."""
    records = list(store.iterate(store.min_position))
    expected: dict[tuple[str, int], list[record.Record]] = {}
    for r in records:
        expected.setdefault((r.topic.decode(), r.queue_id), []).append(r)
    present = {(t, q) for t, ids in store.queues().items() for q in ids if store.queue_range(t, q)[1]}
    assert present == set(expected)
    for (topic, queue_id), rows in expected.items():
        assert read_all(store, topic, queue_id) == rows
        for r in rows:
            key = r.body[:8].decode()
            assert [record.decode(v).position for v in store.query(topic, key, 100, 0, 1 << 60)] == [r.position]
    return [r.body for r in records]


def fill(store: Store, send: Any, count: int, start: int = 0) -> list[tuple[int, int, int]]:
    return [
        send(
            store,
            f"t{i % 2}",
            i % 3,
            b"n%07d" % i + b"x" * (i * 37 % 300),
            tag="A",
            keys=f"n{i:07d}",
            now_ms=NOW_MS + i,
        )
        for i in range(start, start + count)
    ]


def abandon(store: Store) -> None:
    """As if the process was gone: nothing is flushed or noted, the directory is free."""
    store._closed = True
    store._give_back()


def crash_copy(store: Store, target: Path) -> Path:
    """The directory as a kill would leave it now."""
    shutil.copytree(store.settings.root, target)
    return target


def test_after_a_kill_everything_is_there(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 100)
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
    fill(store, send, 150, start=100)
    copy = crash_copy(store, tmp_path / "copy")
    again = make_store(copy)
    # One more than what came after the checkpoint: the newest index entry is made again.
    assert again.recovered.replayed == 151
    assert again.written_position == store.written_position
    assert [b[:8] for b in assert_agrees(again)] == [b"n%07d" % i for i in range(250)]
    fill(again, send, 50, start=250)
    assert len(assert_agrees(again)) == 300
    again.close()
    last = make_store(copy)
    assert last.recovered.replayed == 1
    assert len(assert_agrees(last)) == 300


@pytest.mark.shows(
    "mended: a start that failed half way lost keys of the index; index entries put in the place of others "
    "were not synced"
)
@pytest.mark.parametrize("count", [1, 2, 70])
def test_a_start_that_comes_to_nothing_loses_no_key(
    count: int, make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken entries out of the index by then, of a single message all."""
    store = make_store()
    fill(store, send, count)
    store.close()

    def fails(*_: Any) -> None:
        raise StoreUnwritable("no disk")

    with monkeypatch.context() as broken:
        broken.setattr(recovery, "_put_unit", fails)
        with pytest.raises(StoreUnwritable, match="no disk"):
            make_store()
    again = make_store()
    assert len(assert_agrees(again)) == count
    assert again.recovered.replayed == 1 + (count > 1)


def test_keys_of_a_replay_that_was_broken_off_are_written_once(make_store: Any, send: Any, tmp_path: Path) -> None:
    """A queue that turns out damaged has all read from the log anew; a start after a kill then finds every key."""
    store = make_store()
    for n in range(6):
        send(store, "t", n % 2, b"%d" % n, keys=f"k{n}")
    store.close()
    with open(Path(store.settings.root) / "consumequeue" / "t" / "0" / ("0" * 20), "r+b") as file:
        file.seek(2 * 20)
        file.write(b"\xff" * 8)
    again = make_store()
    assert again.recovered.remade
    shutil.copytree(again.settings.root, tmp_path / "killed")
    last = make_store(tmp_path / "killed")
    for n in range(6):
        assert [record.decode(found).body for found in last.query("t", f"k{n}", 10, 0, 1 << 60)] == [b"%d" % n]


def test_index_entries_that_a_start_puts_in_the_place_of_others_are_synced(
    make_store: Any, send: Any, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many then as before."""
    store = make_store()
    fill(store, send, 9)
    store.close()
    synced: list[Any] = []
    monkeypatch.setattr(files, "sync_map", lambda mapped, at, end: synced.append(mapped))
    again = make_store()
    (file,) = again.index_service._open.values()
    assert any(mapped is file.map for mapped in synced)


@pytest.mark.parametrize("lost", ["consumequeue", "index", "checkpoint"])
@pytest.mark.parametrize("crashed", [True, False])
def test_lost_files_are_made_anew(lost: str, crashed: bool, make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 120)
    store.close()
    root = Path(store.settings.root)
    path = root / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if crashed:
        (root / "abort").write_text("1")
    again = make_store()
    if lost in ("consumequeue", "checkpoint"):
        assert len(assert_agrees(again)) == 120
    fill(again, send, 6, start=120)
    abandon(again)
    last = make_store()
    if lost != "index":
        assert len(assert_agrees(last)) == 126
    else:
        assert len(read_all(last, "t0", 0)) == 21


EVERY_KIND = {"queue_ext": True, "queue_ext_file_bytes": 4096, "append_record_crc": True, "verify_record_crc": True}


def check_torn_tail(
    clean: bool,
    changes: dict[str, Any],
    data: st.DataObject,
    make_store: Any,
    send: Any,
    root: Path,
) -> None:
    store = make_store(root, **changes)
    places = fill(store, send, data.draw(st.integers(2, 90)))
    if data.draw(st.booleans()):
        store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
        places += fill(store, send, data.draw(st.integers(0, 40)), start=len(places))
    store.close() if clean else abandon(store)
    end = places[-1][2]
    file_start = end - end % 16384 if end % 16384 else end - 16384
    path = root / "commitlog" / f"{file_start:020d}"
    torn_at = data.draw(st.integers(max(end - file_start - 600, 0), end - file_start - 1))
    content = bytearray(path.read_bytes())
    cut = data.draw(st.booleans())
    if cut:
        path.write_bytes(content[:torn_at])
    else:
        junk = data.draw(st.binary(min_size=1, max_size=400))
        content[torn_at : torn_at + len(junk)] = junk
        path.write_bytes(content[:16384])
    untouched = sum(1 for p in places if p[2] <= file_start + torn_at)
    again = make_store(root, **changes)
    found = list(again.iterate(0))
    assert [int(r.body[1:8]) for r in found[:untouched]] == list(range(untouched))
    # Junk is only found out where a size, a length, the magic, the position or the CRC covers it.
    assert untouched <= len(found) <= (untouched if cut else len(places))
    # The file may have ended with a blank record, which is untouched if the tail of the file before is.
    assert again.written_position in (found[-1].position + found[-1].size if found else 0, file_start)
    more = fill(again, send, 10, start=1000)
    assert more[0][0] == again.recovered.end or more[0][0] % 16384 == 0
    again.close()
    last = make_store(root, **changes)
    if cut:
        assert len(assert_agrees(last)) == untouched + 10
    assert [r.position for r in last.iterate(0)] == [r.position for r in found] + [p[0] for p in more]
    for p in places[:untouched] + more:
        r = record.decode(last.record_at(p[0]))
        queue = read_all(last, r.topic.decode(), r.queue_id)
        assert p[0] in [q.position for q in queue]
    last.close()


@pytest.mark.parametrize("clean", [True, False])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_torn_tail_is_cut_at_the_last_whole_record(
    clean: bool, data: st.DataObject, make_store: Any, send: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_torn_tail(clean, {}, data, make_store, send, tmp_path_factory.mktemp("torn"))


@pytest.mark.parametrize("clean", [True, False])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_torn_tail_is_cut_with_extensions_and_record_crcs_too(
    clean: bool, data: st.DataObject, make_store: Any, send: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_torn_tail(clean, EVERY_KIND, data, make_store, send, tmp_path_factory.mktemp("torn"))


def test_nothing_of_a_cut_tail_stays_behind(make_store: Any, send: Any) -> None:
    store = make_store()
    places = fill(store, send, 30)
    abandon(store)
    path = Path(store.settings.root) / "commitlog" / ("0" * 20)
    content = bytearray(path.read_bytes())
    content[places[20][0] + 40] ^= 0xFF  # born time: no check covers it
    content[places[10][0] + 90] ^= 0xFF  # a byte of the body: the CRC does
    path.write_bytes(content)
    again = make_store()
    assert again.written_position == places[10][0]
    assert not any(path.read_bytes()[places[10][0] :])
    assert len(assert_agrees(again)) == 10
    # The cut is noted at once: another kill finds the same end.
    abandon(again)
    assert len(assert_agrees(make_store())) == 10


@pytest.mark.shows("store: a half-written last record")
@pytest.mark.parametrize("part", range(1, 12))
def test_a_half_written_last_record(part: int, make_store: Any, send: Any) -> None:
    """Append writes the variable part, then the fixed part: every state in between is no record."""
    store = make_store()
    places = fill(store, send, 5)
    abandon(store)
    path = Path(store.settings.root) / "commitlog" / ("0" * 20)
    content = bytearray(path.read_bytes())
    start, end = places[-1][0], places[-1][2]
    written = bytes(content[start:end])
    content[start:end] = bytes(end - start)
    if part > 2:
        content[start + 88 : end] = written[88:]
        content[start : start + part * 7] = written[: part * 7]
    else:
        content[start + 88 : start + 88 + part * 5] = written[88 : 88 + part * 5]
    path.write_bytes(content)
    again = make_store()
    assert len(assert_agrees(again)) == 4
    assert fill(again, send, 1, start=4)[0] == places[-1]
    assert len(assert_agrees(again)) == 5


def test_units_and_entries_beyond_the_log_are_taken_away(make_store: Any, send: Any, tmp_path: Path) -> None:
    """As after a power cut that kept queues and index but not the log's tail."""
    store = make_store()
    fill(store, send, 60)
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
    log_before = crash_copy(store, tmp_path / "before") / "commitlog"
    fill(store, send, 200, start=60)
    store.flush_indexes()
    after = crash_copy(store, tmp_path / "after")
    shutil.rmtree(after / "commitlog")
    shutil.copytree(log_before, after / "commitlog")
    again = make_store(after)
    assert len(assert_agrees(again)) == 60
    fill(again, send, 200, start=60)
    assert len(assert_agrees(again)) == 260


def test_index_pages_lost_in_a_power_cut_are_rebuilt(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store(index_entries=2000)
    fill(store, send, 60)
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
    fill(store, send, 200, start=60)
    store.flush_indexes()
    after = crash_copy(store, tmp_path / "after")
    (index,) = (after / "index").iterdir()
    content = bytearray(index.read_bytes())
    entries_at = 40 + 4 * 64
    count = struct.unpack_from(">i", content, 36)[0]
    assert count == 521
    # The header is new, some entries never came: 60 messages made 120 entries.
    content[entries_at + 20 * 200 : entries_at + 20 * 400] = bytes(20 * 200)
    index.write_bytes(content)
    again = make_store(after, index_entries=2000)
    assert len(assert_agrees(again)) == 260
    # And the slots that lead to the lost entries are mended, not just covered by new ones.
    chain = struct.unpack_from(">i", index.read_bytes(), 36)[0]
    assert chain == 521
    again.close()


def test_a_clean_start_reads_only_the_end(make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "VERIFY_BYTES", 3000)
    store = make_store()
    send(store, "aside", 0, b"n9999999", keys="n9999999", now_ms=NOW_MS)
    fill(store, send, 400)
    store.close()
    seen: list[int] = []
    real = record.decode
    monkeypatch.setattr(record, "decode", lambda *a, **k: seen.append(1) or real(*a, **k))
    again = make_store()
    assert len(seen) < 30
    assert again.last_store_time_ms == NOW_MS + 399
    # Those alone that the last records name are looked at.
    assert {(q.topic, q.queue_id) for q in again.consume_queues.loaded()} == {
        (topic, queue_id) for topic in (b"t0", b"t1") for queue_id in range(3)
    }
    monkeypatch.setattr(record, "decode", real)
    assert len(assert_agrees(again)) == 401


def test_bytes_that_look_like_a_record_do_not_deceive(
    make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that holds a record with its own right position, where the check of the tail would begin."""
    monkeypatch.setattr(recovery, "VERIFY_BYTES", 2000)
    store = make_store()
    fill(store, send, 10)
    position = store.written_position
    fake_at = position + 88 + 100
    fake = record.encode(topic=b"t0", queue_id=0, queue_offset=0, position=fake_at, body=b"fake", properties=b"")
    send(store, "t0", 0, b"n0000010" + b"y" * 92 + fake + b"z" * 1500, keys="n0000010")
    fill(store, send, 2, start=12)
    store.close()
    again = make_store()
    assert not again.recovered.cut
    assert len(assert_agrees(again)) == 13


def test_a_store_of_older_brokers_without_position(make_store: Any, send: Any) -> None:
    store = make_store()
    fill(store, send, 300)
    store.close()
    root = Path(store.settings.root)
    from rocketspark.store.files.system_calls import OsFiles

    last = NOW_MS + 299
    checkpoints.write(
        str(root / "checkpoint"), checkpoints.Checkpoint(last, last, last, 0, 0, 0), OsFiles(), replay_from=0
    )
    (root / "abort").touch()
    assert len(assert_agrees(make_store())) == 300


@pytest.mark.shows(
    "checksums: checkpoint (both CRCs behind RocketMQ's six numbers), storeFiles.json, deletedTopics.json; "
    "epoch files have RocketMQ's own; JSON tables are replaced whole by a rename after a sync"
)
def test_the_checkpoint_file(make_store: Any, send: Any) -> None:
    store = make_store()
    places = fill(store, send, 20)
    store.close()
    content = (Path(store.settings.root) / "checkpoint").read_bytes()
    assert len(content) == 4096
    time_ms = NOW_MS + 19
    assert struct.unpack_from(">6q", content) == (time_ms, time_ms, time_ms, 0, 0, places[-1][2])
    # Ours: the position, a CRC over all, one over both.
    own = struct.pack(">qI", places[-1][2], zlib.crc32(content[:48] + struct.pack(">q", places[-1][2])))
    assert content[48:] == (bytes(16) + own + struct.pack(">I", zlib.crc32(own))).ljust(4048, b"\0")
    path = Path(store.settings.root) / "checkpoint"
    told = checkpoints.read(str(path))
    for bit in range(80 * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert checkpoints.read(str(path)) == (checkpoints.Checkpoint() if bit >= 64 * 8 else told), bit
    path.write_bytes(random.Random(1).randbytes(4096))
    assert checkpoints.read(str(path)) == checkpoints.Checkpoint()


def test_abort_is_there_while_open(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.store.store.boot_id", lambda: "this-boot")
    store = make_store()
    abort = Path(store.settings.root) / "abort"
    assert abort.read_text() == f"{os.getpid()} this-boot"
    store.close()
    store.close()
    assert not abort.exists()


def test_rocketmq_is_told_to_read_again_what_the_growing_index_file_holds(make_store: Any, send: Any) -> None:
    store = make_store(index_entries=60)  # Two entries for each message: a file is full after 29.5.

    path = Path(store.settings.root, "checkpoint")

    def told() -> tuple[int, ...]:
        store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
        # A start of ours reads no more than it must.
        assert checkpoints.read(str(path)).queues_position == store.written_position
        log_ms, queues_ms, index_ms, _, _, position = struct.unpack_from(">qqqqqq", path.read_bytes())
        return log_ms - NOW_MS, queues_ms - NOW_MS, index_ms - NOW_MS, position

    places = fill(store, send, 10)
    assert told() == (0, 0, 9, 0)
    places += fill(store, send, 40, start=10)
    assert told() == (29, 29, 49, places[29][0])
    # What RocketMQ wrote since counts alone.
    content = path.read_bytes()
    path.write_bytes(struct.pack(">qqqqqq", 1, 2, 3, 4, 5, 6) + content[48:])
    assert checkpoints.read(str(path)) == (1, 2, 3, 4, 5, 6)
    # After a clean stop nothing is dropped, so nothing is read again.
    store.close()
    assert struct.unpack_from(">qqqqqq", path.read_bytes()) == (*[NOW_MS + 49] * 3, 0, 0, places[-1][2])
    assert checkpoints.read(str(path)).queues_position == places[-1][2]


def test_rocketmq_is_told_to_read_again_whole_index_files_that_end_later(make_store: Any, send: Any) -> None:
    store = make_store(index_entries=60)  # Two entries for each message: a file is full after 29.5.
    places = fill(store, send, 10)
    store.flush_log(), store.flush_queues(), store.flush_indexes()
    # Two more files are filled before the queues are flushed again: the checkpoint stays behind them.
    places += fill(store, send, 90, start=10)
    store.flush_log(), store.write_checkpoint()
    path = Path(store.settings.root, "checkpoint")
    log_ms, _, index_ms, _, _, position = struct.unpack_from(">qqqqqq", path.read_bytes())
    # All of them, the first one too, end after the time that the index is told to be good for.
    assert index_ms < NOW_MS + 29
    assert (log_ms - NOW_MS, position) == (0, places[0][0])


def test_a_topic_that_is_no_text_ends_the_log(make_store: Any, send: Any) -> None:
    store = make_store()
    places = fill(store, send, 5)
    abandon(store)
    path = Path(store.settings.root, "commitlog", f"{0:020d}")
    content = bytearray(path.read_bytes())
    content[content.index(b"\x02t0", places[4][0]) + 1] = 0x80
    path.write_bytes(content)
    again = make_store(Path(store.settings.root))
    assert again.written_position == places[3][2]
    assert len(assert_agrees(again)) == 4
