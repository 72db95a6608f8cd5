"""Compaction logs: what readers find by a model, segments in RocketMQ's layout, kills and power cuts at any step."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.store.conftest import NOW_MS, expire, send, small_settings

from rocketspark.errors import StoreFull, StoreUnwritable
from rocketspark.model.text import string_hash
from rocketspark.protocol.message import record
from rocketspark.store import Store
from rocketspark.store.backup import backup, restore
from rocketspark.store.compaction.compaction_store import segment_bytes
from rocketspark.store.compaction.copying import CompactionCopies
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.get_message import GetStatus, SoFar
from rocketspark.store.settings import ManualClock

TOPIC = "Prices"
SIZES = {"compaction_log_bytes": 2300, "compaction_units_bytes": 460}

pytestmark = pytest.mark.shows(
    "compaction logs: the newest message of each key, offsets as they were; kills, full disks"
)


def opened(root: Path, files: OsFiles | None = None, **changes: Any) -> Store:
    store = Store(small_settings(root, **SIZES | changes), files=files, clock=ManualClock(NOW_MS))
    store.simple_topics = store.compacted_topics = {TOPIC}
    store.open()
    return store


def copy(store: Store) -> None:
    while CompactionCopies(store).copy(TOPIC, 0):
        pass


def compact(store: Store) -> None:
    for _ in store.compaction.compact_all():
        pass


def found(store: Store, offset: int = 0) -> list[tuple[int, bytes]]:
    """Offset and body of all that a reader finds who pulls from an offset on, three messages at a time."""
    messages = []
    while True:
        read = store.read(TOPIC, 0, offset, 3, 10_000)
        messages += [(r.queue_offset, r.body) for run in read.records for r in record.decode_all(run)]
        if read.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED):
            return messages
        assert read.next_offset > offset
        offset = read.next_offset


def test_sizes_of_segments_are_those_of_rocketmq() -> None:
    assert segment_bytes(100 << 20, 10 << 20) == (104857460, 10485746)
    assert segment_bytes(2300, 460) == (2760, 460)
    assert segment_bytes(10, 460) == (2300, 460)


def test_older_messages_of_a_key_go_and_offsets_stay(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(40):
        send(store, TOPIC, 0, b"%d" % n, keys="abc"[n % 3] if n % 10 else "rare", now_ms=NOW_MS + n)
    copy(store)
    assert [offset for offset, _ in found(store)] == list(range(40))
    log = store.compaction.logs[TOPIC, 0]
    closed = log.segments[-1].unit(0).offset
    compact(store)
    last = {("abc"[n % 3] if n % 10 else "rare"): n for n in range(closed)}
    assert found(store) == [(n, b"%d" % n) for n in (*sorted(last.values()), *range(closed, 40))]
    # Older ones than the newest compacted of each are read from the first that is left on.
    assert store.read(TOPIC, 0, 1, 1, 9999).min_offset == min(last.values())
    assert found(store, min(last.values()) + 1)[0][0] == sorted(last.values())[1]
    store.close()


def test_an_empty_body_removes_its_key(tmp_path: Path) -> None:
    store = opened(tmp_path)
    send(store, TOPIC, 0, b"old", keys="gone")
    send(store, TOPIC, 0, b"stays", keys="kept")
    send(store, TOPIC, 0, b"", keys="gone")
    for n in range(20):
        send(store, TOPIC, 0, b"filler", keys=f"k{n}")
    copy(store)
    compact(store)
    assert [offset for offset, _ in found(store)] == [1, *range(3, 23)]
    store.close()


def test_what_was_compacted_is_read_after_the_log_is_gone(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(200):
        send(store, TOPIC, 0, b"%d" % n + bytes(100), keys=f"key{n % 7}" if n != 3 else "once", now_ms=NOW_MS + n)
    copy(store)
    compact(store)
    before = found(store)
    assert len(before) < 40
    store.flush_log()
    for _ in range(9):
        expire(store, NOW_MS + 10_000)
    assert store.queue_range(TOPIC, 0)[0] > 100
    assert store.readable_range(TOPIC, 0) == (before[0][0], 200)
    assert found(store) == before
    assert store.offset_at_time(TOPIC, 0, NOW_MS) == before[0][0]
    assert store.store_time_at(TOPIC, 0, before[0][0]) == NOW_MS + before[0][0]
    store.close()
    store = opened(tmp_path)
    assert found(store) == before
    store.close()


def test_reads_take_tags_filters_and_bounds(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(30):
        send(store, TOPIC, 0, b"%d" % n, keys=f"k{n}", tag="even" if n % 2 == 0 else "odd")
    copy(store)
    even = store.read(TOPIC, 0, 3, 4, 10_000, frozenset({string_hash("even")}))
    assert [r.queue_offset for run in even.records for r in record.decode_all(run)] == [4, 6, 8, 10]
    assert (even.count, even.next_offset, even.max_offset) == (4, 11, 30)
    one = store.read(TOPIC, 0, 0, 32, 1)
    assert (one.count, one.next_offset) == (1, 1)
    # What an earlier call of the read found counts for the bounds alone.
    more = store.read(TOPIC, 0, 0, 32, 10_000, so_far=SoFar(messages=2, size=even.size))
    assert (more.count, more.size) == (30, sum(map(len, more.records)))
    none = store.read(TOPIC, 0, 0, 32, 10_000, accepts=lambda stored: False)
    assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED, 30)
    store.close()


def test_messages_without_a_key_are_passed_over_once_they_were_copied(tmp_path: Path) -> None:
    store = opened(tmp_path)
    send(store, TOPIC, 0, b"a", keys="k")
    send(store, TOPIC, 0, b"b")
    send(store, TOPIC, 0, b"c", keys=" ")
    assert [offset for offset, _ in found(store)] == [0, 1, 2]
    copy(store)
    assert found(store) == [(0, b"a")]
    store.close()


def test_a_deleted_topic_takes_its_log_with_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(20):
        send(store, TOPIC, 0, b"old", keys=f"k{n}")
    copy(store)
    store.delete_topic(TOPIC)
    send(store, TOPIC, 0, b"new", keys="k")
    copy(store)
    assert found(store) == [(0, b"new")]
    store.close()
    # A kill in the midst of it left the folder.
    left = Store(small_settings(tmp_path, **SIZES))
    left.open()
    assert not (tmp_path / "compaction/compactionLog" / TOPIC).exists()
    left.close()


def test_a_lost_table_of_topics_takes_no_log_with_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(30):
        send(store, TOPIC, 0, b"%d" % n, keys=f"k{n}")
    copy(store)
    store.close()
    other = Store(small_settings(tmp_path, **SIZES))
    other.open()
    other.close()
    store = opened(tmp_path)
    assert store.compaction.logs[TOPIC, 0].next == 30
    store.close()


def test_a_queue_that_lost_its_end_takes_the_logs_end_with_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(30):
        send(store, TOPIC, 0, b"%d" % n, keys=f"k{n}")
    copy(store)
    store.compaction.logs[TOPIC, 0].flush()
    queue = store.consume_queues.find(TOPIC, 0)
    assert queue is not None
    # As a slave's queue does that follows another master.
    queue.cut(12)
    copy(store)
    send(store, TOPIC, 0, b"other", keys="k12")
    copy(store)
    assert found(store) == [*((n, b"%d" % n) for n in range(12)), (12, b"other")]
    store.close()


class Full(OsFiles):
    """A disk on which nothing can be written once it is `full`."""

    full = False

    def write_at(self, path: str, at: int, content: bytes | bytearray | memoryview) -> None:
        if self.full and "compaction" in path:
            raise OSError(28, "No space left on device", path)
        super().write_at(path, at, content)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    files = Full()
    store = opened(tmp_path, files)
    for n in range(40):
        send(store, TOPIC, 0, b"%d" % n, keys=f"k{n % 3}")
    files.full = True
    with pytest.raises(StoreFull):
        copy(store)
    assert [offset for offset, _ in found(store)] == list(range(40))
    files.full = False
    copy(store)
    files.full = True
    compact(store)
    assert [offset for offset, _ in found(store)] == list(range(40))
    files.full = False
    compact(store)
    assert len(found(store)) < 20
    store.close()


class Failing(OsFiles):
    """A disk whose next flush of a compaction log fails."""

    left, errno = 0, errno.EIO

    def sync_file(self, path: str) -> None:
        if "/compaction/" in path and self.left > 0:
            self.left -= 1
            raise OSError(self.errno, os.strerror(self.errno), path)
        super().sync_file(path)


def one_copied(root: Path, number: int) -> Store:
    """A store that has copied a message, and whose next flush of it fails with an error of the system's."""
    files = Failing()
    store = opened(root, files)
    send(store, TOPIC, 0, b"x", keys="k")
    copy(store)
    files.left, files.errno = 1, number
    return store


def test_after_a_failed_flush_none_counts_as_done(tmp_path: Path) -> None:
    store = one_copied(tmp_path, errno.EIO)
    for _ in range(2):
        with pytest.raises(StoreUnwritable):
            store.compaction.flush()
    store.abandon()


@pytest.mark.shows("compaction: a flush for which no descriptor was free is made good by the next one")
def test_a_flush_without_a_free_descriptor_is_made_good(tmp_path: Path) -> None:
    store = one_copied(tmp_path, errno.EMFILE)
    with pytest.raises(StoreUnwritable, match="too many open files") as told:
        store.flush_queues()
    assert told.value.retriable
    store.flush_queues()
    assert CompactionCopies(store).uncopied_from(TOPIC, 0) == store.written_position
    store.close()


def test_a_gap_in_the_queue_keeps_no_file_of_the_log(tmp_path: Path) -> None:
    store = opened(tmp_path)
    send(store, TOPIC, 0, b"0", keys="k")
    copy(store)
    store.flush_queues()
    store.consume_queues.find(TOPIC, 0).fill_to(4)
    position, _, _ = send(store, TOPIC, 0, b"1", keys="k")
    assert CompactionCopies(store).uncopied_from(TOPIC, 0) == position
    store.close()


def test_no_flush_is_promised_to_be_tried_again_after_one_that_found_no_room(tmp_path: Path) -> None:
    store = one_copied(tmp_path, errno.ENOSPC)
    with pytest.raises(StoreFull):
        store.flush_queues()
    with pytest.raises(StoreUnwritable, match=r"failed before .*start again") as told:
        store.flush_queues()
    assert not told.value.retriable
    store.abandon()


class Killed(Exception):
    """The process ends here."""


class Killing(OsFiles):
    """A disk whose process is killed before the change of a compaction's files with the number `left`."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 << 30

    def _step(self, path: str) -> None:
        if "/compaction" in path:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def write_at(self, path: str, at: int, content: bytes | bytearray | memoryview) -> None:
        self._step(path)
        super().write_at(path, at, content)

    def create(self, path: str, size: int, *, keep: bool = False) -> None:
        self._step(path)
        super().create(path, size, keep=keep)

    def replace(self, source: str, target: str) -> None:
        self._step(target)
        super().replace(source, target)

    def remove_tree(self, path: str) -> None:
        self._step(path)
        super().remove_tree(path)

    def write_file(self, path: str, content: bytes) -> None:
        self._step(path)
        super().write_file(path, content)


def test_a_kill_at_any_step_leaves_what_was_or_what_is_to_be(tmp_path: Path) -> None:
    steps = 0
    while True:
        root = tmp_path / str(steps)
        files = Killing()
        store = opened(root, files)
        for n in range(45):
            send(store, TOPIC, 0, b"%d" % n, keys=f"k{n % 4}")
        files.left = steps
        try:
            copy(store)
            compact(store)
            done = True
        except Killed:
            done = False
        files.left = 1 << 30
        store.abandon()
        again = opened(root)
        kept = found(again)
        assert kept[-4:] == [(n, b"%d" % n) for n in range(41, 45)]
        assert kept == sorted(kept)
        copy(again)
        compact(again)
        assert len(found(again)) < 20
        assert not (root / "compaction/compactionLog" / TOPIC / "0/compacting").exists()
        again.close()
        shutil.rmtree(root)
        if done:
            assert steps > 20
            return
        steps += 1


def test_units_that_a_power_cut_took_are_made_anew_from_records(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(25):
        send(store, TOPIC, 0, b"%d" % n, keys=f"k{n}")
    copy(store)
    log = store.compaction.logs[TOPIC, 0]
    paths = [(segment.log_path, segment.units_path) for segment in log.segments]
    store.abandon()
    Path(paths[-1][1]).write_bytes(b"")
    last = bytearray(Path(paths[-2][0]).read_bytes())
    last[300] ^= 1
    Path(paths[-2][0]).write_bytes(last)
    store = opened(tmp_path)
    copy(store)
    assert [n for n, _ in found(store)] == list(range(25))
    store.close()


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_deleted_under_a_compaction_gets_nothing_of_it(tmp_path: Path, anew: bool) -> None:
    class Deleting(OsFiles):
        """A disk on which the topic is deleted, and made anew, once the compaction has written its segments."""

        waits = True

        def sync_file(self, path: str) -> None:
            super().sync_file(path)
            if "compacting" in path and self.waits:
                self.waits = False
                store.delete_topic(TOPIC)
                if anew:
                    more()

    def more() -> None:
        for n in range(60):
            send(store, TOPIC, 0, b"new%d" % n, keys=f"k{n}")
        copy(store)

    store = opened(tmp_path, files := Deleting())
    for n in range(40):
        send(store, TOPIC, 0, b"old", keys=f"k{n % 3}")
    copy(store)
    compact(store)
    assert not files.waits
    if not anew:
        assert not (tmp_path / "compaction/compactionLog" / TOPIC).exists()
        more()
    wanted = [(n, b"new%d" % n) for n in range(60)]
    assert found(store) == wanted
    store.close()
    store = opened(tmp_path)
    assert found(store) == wanted
    compact(store)
    assert found(store) == wanted
    store.close()


def test_segments_made_when_the_settings_were_larger_keep_all(tmp_path: Path) -> None:
    store = opened(tmp_path, compaction_log_bytes=23000, compaction_units_bytes=4600)
    for n in range(150):
        send(store, TOPIC, 0, b"%d" % n, keys=f"k{n}")
    copy(store)
    store.close()
    store = opened(tmp_path)
    for n in range(150, 200):
        send(store, TOPIC, 0, b"%d" % n, keys=f"k{n - 150}")
    copy(store)
    assert store.compaction.logs[TOPIC, 0].next == 200
    log = store.compaction.logs[TOPIC, 0]
    assert [unit.offset for _, unit in log.units(0)] == list(range(200))
    compact(store)
    assert [offset for offset, _ in found(store)][-150:] == list(range(50, 200))
    store.close()


def test_an_exchange_that_failed_half_way_is_finished_by_the_next(tmp_path: Path) -> None:
    class Failing(OsFiles):
        left = -1

        def replace(self, source: str, target: str) -> None:
            if "compacting" in source:
                self.left -= 1
                if self.left == 0:
                    raise OSError(5, "Input/output error", source)
            super().replace(source, target)

    store = opened(tmp_path, files := Failing())
    for n in range(60):
        send(store, TOPIC, 0, b"%d" % n, keys=f"k{n % 20}")
    copy(store)
    files.left = 2
    with pytest.raises(StoreUnwritable):
        compact(store)
    before = [offset for offset, _ in found(store)]
    assert before == list(range(60))
    compact(store)
    after = found(store)
    assert 20 <= len(after) < 60
    store.abandon()
    store = opened(tmp_path)
    assert found(store) == after
    store.close()


def test_a_backup_has_what_compaction_kept(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for n in range(200):
        send(store, TOPIC, 0, b"%d" % n + bytes(100), keys="once" if n == 3 else f"k{n % 7}", now_ms=NOW_MS + n)
    copy(store)
    compact(store)
    store.flush_log()
    while expire(store, NOW_MS + 10_000):
        pass
    before = found(store)
    assert before[0][0] == 3 < store.queue_range(TOPIC, 0)[0]
    for _ in range(2):
        backup(tmp_path / "store", tmp_path / "backup")
    store.close()
    restore(tmp_path / "backup", tmp_path / "restored")
    restored = opened(tmp_path / "restored")
    copy(restored)
    assert found(restored)[0] == before[0]
    assert {offset for offset, _ in before} <= {offset for offset, _ in found(restored)}
    restored.close()


actions = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("abcd"), st.binary(max_size=60)),
        st.sampled_from([("copy",), ("compact",), ("open",), ("kill",), ("flush",)]),
    ),
    min_size=20,
    max_size=120,
)


@given(actions)
@example([("send", "a", b"")] * 12 + [("copy",), ("compact",)] + [("send", "b", b"x")] * 12 + [("copy",), ("compact",)])
def test_readers_find_what_a_model_keeps(steps: list[Any]) -> None:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        _against_model(Path(folder), steps)


def _against_model(root: Path, steps: list[Any]) -> None:
    store = opened(root)
    sent: list[tuple[str, bytes]] = []
    doing: dict[str, Callable[[], Any]] = {"copy": lambda: copy(store), "compact": lambda: compact(store)}
    for name, *rest in steps:
        if name == "send":
            send(store, TOPIC, 0, rest[1], keys=rest[0])
            sent.append((rest[0], rest[1]))
        elif name in ("open", "kill"):
            store.close() if name == "open" else store.abandon()
            store = opened(root)
        elif name == "flush":
            store.flush_queues()
        else:
            doing[name]()
        seen = found(store)
        newest = {key: at for at, (key, _) in enumerate(sent)}
        offsets = [offset for offset, _ in seen]
        assert offsets == sorted(set(offsets))
        assert all(sent[offset][1] == body for offset, body in seen)
        assert {at for at in newest.values() if sent[at][1]} <= set(offsets)
    store.close()


def test_smaller_segments_take_nothing_from_larger_ones(tmp_path: Path) -> None:
    store = opened(tmp_path, compaction_log_bytes=23_000, compaction_units_bytes=4600)
    send(store, TOPIC, 0, bytes(4000), keys="larger than a segment will be")
    for n in range(1, 300):
        send(store, TOPIC, 0, b"%d" % n + bytes(70), keys=f"key{n}" if n != 5 else "key1")
    copy(store)
    expected = [message for message in found(store) if message[0] != 1]
    store.close()
    store = opened(tmp_path)
    compact(store)
    assert found(store) == expected
    store.close()
    store = opened(tmp_path)
    assert found(store) == expected
    store.close()


def test_a_damaged_record_or_unit_hides_no_other_message(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(60):
        send(store, TOPIC, 0, b"%d" % n + bytes(50), keys=f"key{n}" if n != 30 else "key29")
    copy(store)
    expected = [message for message in found(store) if message[0] not in (0, 29)]
    first, second, *_ = store.compaction.logs[TOPIC, 0].segments
    log_path, units_path = Path(first.log_path), Path(second.units_path)
    store.close()
    for path, at in ((log_path, 0), (units_path, 46 * 2 + 8)):
        content = bytearray(path.read_bytes())
        content[at : at + 4] = bytes(4)
        path.write_bytes(content)
    store = opened(tmp_path)
    assert [message for message in found(store) if message[0] != 29] == expected
    copy(store)
    compact(store)
    assert found(store) == expected
    store.close()


@pytest.mark.shows("compaction: a message damaged on the disk is not served; the one of its key before it stays")
def test_a_body_that_was_damaged_is_not_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    for n in range(60):
        send(store, TOPIC, 0, b"body%03d" % n, keys=f"key{n % 50}")
    copy(store)
    segment, unit = next(each for each in store.compaction.logs[TOPIC, 0].units(0) if each[1].offset == 3)
    path = Path(segment.log_path)
    store.close()
    content = bytearray(path.read_bytes())
    assert content.count(b"body003") == 1
    content[content.index(b"body003")] ^= 1
    path.write_bytes(content)
    assert unit.size < len(content)
    store = opened(tmp_path)
    assert [offset for offset, _ in found(store)] == [n for n in range(60) if n != 3]
    assert "the message at offset 3 of" in caplog.text
    compact(store)
    assert (53, b"body053") in found(store)
    store.close()
    # The newest of a key: the older one is what is left of it.
    store = opened(tmp_path / "newest")
    for n in range(60):
        send(store, TOPIC, 0, b"body%03d" % n, keys="key3" if n == 5 else f"key{n}")
    copy(store)
    segment = next(each for each, unit in store.compaction.logs[TOPIC, 0].units(0) if unit.offset == 5)
    store.close()
    path = Path(segment.log_path)
    path.write_bytes(path.read_bytes().replace(b"body005", b"bodyx05"))
    store = opened(tmp_path / "newest")
    compact(store)
    assert [offset for offset, _ in found(store)] == [n for n in range(60) if n != 5]
    store.close()
