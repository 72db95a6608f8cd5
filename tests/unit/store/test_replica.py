"""A copy of another broker's log: byte for byte the same, whatever cuts the stream, kills the copy or cuts it back."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.store.consumequeue.test_batch_consume_queue import send_batch

from rocketspark.errors import NotMaster, ReplicationError, StoreFull
from rocketspark.model.text import string_hash
from rocketspark.protocol.message import properties as props
from rocketspark.protocol.message import record, sysflags
from rocketspark.protocol.message.record_layout import MAGIC_V1
from rocketspark.store import GetStatus, Store, recovery

pytestmark = pytest.mark.shows(
    "raw bytes of another broker's log, cut anywhere; a part of a record never looks whole after a kill; what "
    "is left of one is zeros after a promotion; cut back while open: log, queues of every kind, index; the "
    "timer wheel is made anew then"
)

NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")
BORN_V6 = bytes(15) + b"\x01" + bytes(4)
TOPICS = ("A", "B", "C" * 130, "SCHEDULE_TOPIC_XXXX")


def some_message(rng: random.Random, store: Store, number: int) -> None:
    """A message of any kind: plain, half, committed, rolled back, delayed, of IPv6 hosts, of a long topic, a batch."""
    pairs = {props.UNIQUE_ID: f"u{number}", props.KEYS: f"k{number}"}
    if rng.random() < 0.7:
        pairs[props.TAGS] = rng.choice("xyz")
    if rng.random() < 0.5:
        del pairs[props.UNIQUE_ID]
    if rng.random() < 0.1:
        pairs["empty"] = "\0\0\0"
    sys_flag = rng.choice((0, 0, 0, 0, sysflags.TRANSACTION_PREPARED, sysflags.TRANSACTION_COMMIT, 12))
    topic, queue_id = rng.choice(TOPICS), rng.randrange(3)
    if rng.random() < 0.1:
        topic, sys_flag = "BQ", sysflags.INNER_BATCH
        pairs["INNER_NUM"] = str(rng.randrange(1, 5))
    tag, unique_id = pairs.get(props.TAGS), pairs.get(props.UNIQUE_ID)
    store.append(
        topic.encode(),
        queue_id,
        rng.randbytes(rng.choice((0, 3, 50, 700, 2000))),
        props.encode(pairs).encode(),
        string_hash(tag) if tag else 0,
        unique_id.encode() if unique_id else None,
        f"k{number}".encode(),
        tag.encode() if tag else None,
        NOW_MS + number,
        0,
        sys_flag,
        NOW_MS,
        BORN_V6 if rng.random() < 0.05 else BORN,
    )


def stream(master: Store, slave: Store, rng: random.Random, bytes_max: int, chunk_max: int = 5000) -> None:
    """What an HA connection does: bytes from the slave's end on, in pieces."""
    while bytes_max > 0:
        piece = master.log_bytes(slave.end_position, rng.randrange(1, chunk_max))
        if not piece:
            break
        slave.append_raw(slave.end_position, bytes(piece[:bytes_max]))
        if rng.random() < 0.5:
            slave.dispatch_received()
        bytes_max -= len(piece)
    slave.dispatch_received()


def log_of(store: Store) -> bytes:
    log = store.log
    at, found = log.min_position, b""
    while piece := store.log_bytes(at, 1 << 20):
        found += piece
        at += len(piece)
    return found


def units_of(store: Store) -> dict[tuple[str, int], list[Any]]:
    found = {}
    for topic, ids in store.queues().items():
        for queue_id in ids:
            queue = store.consume_queues.find(topic, queue_id)
            assert queue is not None
            if queue.next:
                units = (
                    list(queue.batches(queue.min))
                    if queue.is_batch
                    else list(queue.units(queue.min, queue.next - queue.min))
                )
                found[topic, queue_id] = [queue.min, queue.next, *units]
    return found


def assert_equal(master: Store, slave: Store, numbers: int) -> None:
    assert slave.written_position == slave.end_position == master.written_position
    assert log_of(slave) == log_of(master)
    assert units_of(slave) == units_of(master)
    assert slave.last_store_time_ms == master.last_store_time_ms
    for number in range(max(numbers - 30, 0), numbers):
        for topic in TOPICS:
            asked = [[bytes(v) for v in s.query(topic, f"k{number}", 9, 0, 1 << 60)] for s in (master, slave)]
            assert asked[0] == asked[1]


def abandon(store: Store) -> None:
    store._closed = True
    store._give_back()


def new_slave(make_store: Any, root: Path) -> Store:
    slave: Store = make_store(root)
    slave.make_batch_topic("BQ")
    slave.become_replica()
    return slave


def new_master(make_store: Any, root: Path) -> Store:
    master: Store = make_store(root)
    master.make_batch_topic("BQ")
    return master


def fill(master: Store, count: int, rng: random.Random, start: int = 0) -> int:
    for number in range(start, start + count):
        some_message(rng, master, number)
    return start + count


def test_the_copy_is_byte_equal(make_store: Any, tmp_path: Path) -> None:
    rng = random.Random(1)
    master, slave = new_master(make_store, tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    count = fill(master, 400, rng)
    stream(master, slave, rng, 1 << 30)
    assert len(master.log.mapped_files.starts) > 5
    assert_equal(master, slave, count)
    slave.close()
    again = make_store(tmp_path / "s")
    assert again.recovered.replayed <= 1
    assert not again.recovered.cut
    assert_equal(master, again, count)
    for start in master.log.mapped_files.starts[:-1]:
        ours, theirs = (Path(s.log.mapped_files.path(start)).read_bytes() for s in (again, master))
        assert ours == theirs


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_whatever_cuts_kills_or_cuts_back(make_store: Any, tmp_path_factory: Any, seed: int) -> None:
    run = Run(make_store, tmp_path_factory.mktemp("run"), seed)
    for _ in range(14):
        run.step()
    run.finish()


class Run:
    """One seed: a master and its copy."""

    def __init__(self, make_store: Any, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.make_store = make_store
        self.master = new_master(make_store, folder / "m")
        self.slave = new_slave(make_store, folder / "s0")
        self.count = self.times = 0

    def step(self) -> None:
        rng, slave = self.rng, self.slave
        self.count = fill(self.master, rng.randrange(30), rng, self.count)
        stream(self.master, slave, rng, rng.choice((10, 300, 4000, 60_000)), rng.choice((8, 40, 5000)))
        act = rng.randrange(8)
        if act == 0:
            slave.close()
            self.slave = new_slave(self.make_store, Path(slave.settings.root))
        elif act == 1:
            if rng.random() < 0.5:
                slave.flush_log(), slave.flush_queues(), slave.flush_indexes(), slave.write_checkpoint()
                stream(self.master, slave, rng, 500)
            self.kill()
        elif act == 2:
            assert slave.cut_partial_record() == slave.written_position
        elif act == 3 and slave.written_position:
            slave.truncate(rng.choice(begins(slave)))
            if rng.random() < 0.5:
                self.kill()

    def kill(self) -> None:
        self.times += 1
        killed, whole = self.folder / f"s{self.times}", self.slave.written_position
        shutil.copytree(self.slave.settings.root, killed)
        abandon(self.slave)
        self.slave = new_slave(self.make_store, killed)
        assert self.slave.written_position == whole

    def finish(self) -> None:
        stream(self.master, self.slave, self.rng, 1 << 30)
        assert_equal(self.master, self.slave, self.count)
        self.slave.close()
        again = self.make_store(Path(self.slave.settings.root))
        assert_equal(self.master, again, self.count)
        again.close(), self.master.close()
        # A soak draws thousands of examples.
        shutil.rmtree(self.folder)


def begins(store: Store) -> list[int]:
    return [r.position for r in store.iterate(store.min_position)]


def test_a_part_of_a_record_never_looks_whole(make_store: Any, tmp_path: Path, send: Any) -> None:
    """Cut at every byte of a record whose properties end with zeros, which no CRC covers."""
    master, slave = make_store(tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    send(master, "t", 0, b"first")
    end = master.written_position
    master.append(b"t", 0, b"second", b"p\x01v\x02" + bytes(9), 0, None, None, None, NOW_MS, 0, 0, NOW_MS, BORN)
    data = bytes(master.log_bytes(0, 1 << 20))
    slave.append_raw(0, data[:end])
    for at in range(end, len(data)):
        slave.append_raw(at, data[at : at + 1])
        if at == len(data) - 1:
            break
        killed = tmp_path / "killed"
        shutil.copytree(slave.settings.root, killed)
        opened = make_store(killed)
        assert opened.written_position == end
        opened.close()
        shutil.rmtree(killed)
    slave.dispatch_received()
    assert slave.written_position == master.written_position


def test_the_part_of_a_record_that_begins_a_file_makes_no_file_expire(
    make_store: Any, tmp_path: Path, send: Any
) -> None:
    master, slave = make_store(tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    file_bytes = master.log.file_bytes
    while master.written_position <= file_bytes:
        send(master, "t", 0, bytes(1000))
    for at in range(0, file_bytes, 1000):
        slave.append_raw(at, bytes(master.log_bytes(at, min(1000, file_bytes - at))))
    slave.append_raw(file_bytes, bytes(master.log_bytes(file_bytes, 20)))
    slave.dispatch_received()
    slave.flush_log()
    assert slave.log.flushed == file_bytes
    for step in slave.expire_steps(1):
        if step is not None:
            step()
    assert slave.min_position == 0


def test_the_newest_record_is_found_whatever_lies_in_bodies(make_store: Any, tmp_path: Path, send: Any) -> None:
    store = make_store(tmp_path / "m")
    assert store.newest_record() is None
    ends = [0]
    for body in (b"first", b"", MAGIC_V1.to_bytes(4, "big", signed=True) * 20, b"last"):
        send(store, "t", 0, body)
        at, found = store.newest_record()
        assert (at, found) == (ends[-1], bytes(store.log_bytes(at, 1 << 20)))
        ends.append(store.written_position)
    # A record of another place in the log is a body's content alone.
    send(store, "t", 0, bytes(store.log_bytes(0, ends[1])))
    assert store.newest_record()[0] == ends[-1]


@pytest.mark.shows("mended records are in their queues, found by key, and in batch queues")
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("which", [[0], [1], [1, 2], [0, 3]])
def test_what_is_mended_is_read_also_where_queues_were_made_anew_without_it(
    make_store: Any, tmp_path: Path, send: Any, which: list[int], batches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody gets it from whoever is elected, though its log has it; by its key too."""
    bodies = [b"one", b"two", b"three", b"four"]
    master, slave = make_store(tmp_path / "m"), make_store(tmp_path / "s")
    if batches:
        master.make_batch_topic("b")
        for body in bodies:
            send_batch(master, [body.decode(), "more"])
    else:
        for body in bodies:
            send(master, "b", 0, body, keys=f"k{body.decode()}")
    send(master, "u", 0, b"last of another", keys="ku")
    slave.become_replica()
    content = log_of(master)
    slave.append_raw(0, content)
    slave.dispatch_received()
    slave.close()
    file = tmp_path / "s/commitlog/00000000000000000000"
    stored = bytearray(file.read_bytes())
    for number in which:
        stored[stored.index(bodies[number])] ^= 1
    file.write_bytes(stored)
    for folder in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(tmp_path / "s" / folder, ignore_errors=True)

    def found_by_keys(store: Store) -> list[tuple[int, list[bytes]]]:
        found = []
        for number, topic in [*((body.decode(), "b") for body in bodies), ("u", "u")]:
            records = store.query(topic, f"k{number}", 10, 0, 1 << 62)
            positions = list(store.index_service.find(topic, f"k{number}", 0, 1 << 62))
            found.append((positions, [bytes(r) for r in records]))
        return found

    slave = make_store(tmp_path / "s")
    slave.become_replica()
    damaged = slave.log.damaged
    assert damaged
    for begin, end in damaged:
        assert slave.mend(begin, content[begin:end])
        # It is mended once.
        assert not slave.mend(begin, content[begin:end])
    assert log_of(slave) == content
    assert (slave.log.damaged, units_of(slave)) == ((), units_of(master))
    assert found_by_keys(slave) == found_by_keys(master)
    slave.close()
    slave = make_store(tmp_path / "s")
    count = 8 if batches else 4
    found = slave.read("b", 0, 0, 10, 1 << 20)
    assert (found.status, found.count, found.next_offset) == (GetStatus.FOUND, count, count)
    assert found_by_keys(slave) == found_by_keys(master)
    assert "by key" not in caplog.text


@pytest.mark.shows("mended records are in their queues, found by key, and in batch queues")
def test_mended_long_ago_and_not_found_by_key_is_told(
    make_store: Any, tmp_path: Path, send: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recovery, "REINDEX_BYTES_MAX", 100)
    master, slave = make_store(tmp_path / "m"), make_store(tmp_path / "s")
    for body in (b"one", b"two", b"three"):
        send(master, "t", 0, body, keys="k")
    slave.become_replica()
    content = log_of(master)
    slave.append_raw(0, content)
    slave.dispatch_received()
    begin, end = (unit[0] for unit in units_of(master)["t", 0][3:5])
    for known in (True, False):
        if not known:
            slave.index_service.cut(begin)
        slave.log.damaged = ((begin, end),)
        assert slave.mend(begin, content[begin:end])
        told = f"1 mended messages are not found by key: {len(content) - begin} bytes of the log follow"
        assert (told in caplog.text) is not known


def test_a_stretch_that_was_cut_away_meanwhile_is_not_mended(make_store: Any, tmp_path: Path, send: Any) -> None:
    master, slave = make_store(tmp_path / "m"), make_store(tmp_path / "s")
    for body in (b"one", b"two", b"three"):
        send(master, "t", 0, body)
    slave.become_replica()
    content = log_of(master)
    slave.append_raw(0, content)
    slave.dispatch_received()
    begin, end = [unit[0] for unit in units_of(master)["t", 0][3:5]]
    slave.log.damaged = ((begin, end),)
    slave.truncate(0)
    assert not slave.mend(begin, content[begin:end])
    assert log_of(slave) == b""


def test_a_copy_takes_no_messages(make_store: Any, tmp_path: Path, send: Any) -> None:
    slave = make_store()
    slave.become_replica()
    with pytest.raises(NotMaster, match="master alone"):
        send(slave, "t", 0, b"x")
    master = make_store(tmp_path / "m")
    send(master, "t", 0, b"of the master")
    slave.append_raw(0, log_of(master))
    slave.dispatch_received()
    for _ in range(2):
        # Nor where there is room for what comes next.
        with pytest.raises(NotMaster, match="master alone"):
            send(slave, "t", 0, b"x")
        assert slave.end_position == slave.written_position == master.written_position
        slave.log.populate_ahead()
    slave.become_master()
    assert send(slave, "t", 0, b"x")[:2] == (master.written_position, 1)
    with pytest.raises(ReplicationError, match="takes messages itself"):
        slave.append_raw(slave.end_position, b"x" * 100)


def test_the_part_of_a_record_is_given_up_by_a_new_master(make_store: Any, tmp_path: Path, send: Any) -> None:
    master, slave = make_store(tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    send(master, "t", 0, b"first")
    send(master, "t", 0, b"second" * 50)
    data = bytes(master.log_bytes(0, 1 << 20))
    slave.append_raw(0, data[:-7])
    slave.become_master()
    position, offset, _ = send(slave, "t", 0, b"mine")
    assert offset == 1
    assert [r.body for r in slave.iterate(0)] == [b"first", b"mine"]
    assert slave.read("t", 0, 1, 9, 9999).status is GetStatus.FOUND
    assert position == slave.read("t", 0, 1, 9, 9999).count + position - 1


@pytest.mark.parametrize("how", ["at once", "the link ended before", "the broker was ended", "the broker was killed"])
@pytest.mark.parametrize("file_begins", [False, True])
def test_nothing_of_a_part_of_a_record_is_left_at_a_promotion(
    make_store: Any, tmp_path: Path, send: Any, how: str, file_begins: bool
) -> None:
    """A body may hold what looks like the next record of the new master's log."""
    master, slave = make_store(tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    send(master, "t", 0, b"first")
    if file_begins:
        while master.written_position < master.log.file_bytes:
            send(master, "t", 0, bytes(1000))
    end = master.log.file_bytes if file_begins else master.written_position
    if file_begins:
        # The record that begins the second file is the one that does not arrive whole.
        assert [at for at in begins(master) if at >= end] == [end]
    else:
        send(master, "t", 0, b"\xda\xa3\x20\xa7" * 300)
    for at in range(0, end, 1000):
        slave.append_raw(at, bytes(master.log_bytes(at, min(1000, end - at))))
    slave.append_raw(end, bytes(master.log_bytes(end, 1 << 20))[:-7])
    slave.dispatch_received()
    if how == "the link ended before":
        slave.cut_partial_record()
        # Less of it arrives the second time.
        slave.append_raw(end, bytes(master.log_bytes(end, 50)))
    if how.startswith("the broker"):
        slave.close() if how.endswith("ended") else slave.abandon()
        slave = make_store(tmp_path / "s")
    slave.become_master()
    file = Path(slave.log.mapped_files.path(end - end % slave.log.file_bytes))
    assert not file.exists() or not any(file.read_bytes()[end % slave.log.file_bytes :])
    send(slave, "t", 0, b"mine")
    begun = end % slave.log.file_bytes + slave.written_position - end
    assert not any(file.read_bytes()[begun:])
    assert [r.body for r in slave.iterate(end)] == [b"mine"]


def test_bytes_that_do_not_fit_are_refused(make_store: Any, tmp_path: Path, send: Any) -> None:
    master, slave = make_store(tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    send(master, "t", 0, b"first")
    data = bytes(master.log_bytes(0, 1 << 20))
    for position in (5, -16384, 16384 + 1):
        with pytest.raises(ReplicationError, match="do not continue"):
            slave.append_raw(position, data)
    with pytest.raises(ReplicationError, match="mappedFileSizeCommitLog"):
        slave.append_raw(0, bytes(16385))
    with pytest.raises(ReplicationError, match="begin no record"):
        slave.append_raw(0, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert slave.end_position == 0
    slave.append_raw(0, data)
    slave.dispatch_received()
    assert [r.body for r in slave.iterate(0)] == [b"first"]
    with pytest.raises(ReplicationError, match="no record begins"):
        slave.truncate(7)
    with pytest.raises(ReplicationError, match="do not continue"):
        slave.append_raw(0, data)


@pytest.mark.shows("a slave whose log files are half of its master's copies nothing behind the first of its own")
@pytest.mark.parametrize("left", [1, 7, 8, 19, 500])
def test_a_log_of_larger_files_is_no_damaged_one(left: int, make_store: Any, tmp_path: Path, send: Any) -> None:
    """Pieces may end where the files here do, so none of them tells; a record begins `left` bytes before that."""
    master = make_store(tmp_path / "m", log_file_bytes=32768)
    slave = new_slave(make_store, tmp_path / "s")
    _, _, size = send(master, "t", 0, b"")
    while master.written_position < 15000:
        send(master, "t", 0, bytes(300))
    send(master, "t", 0, bytes(16384 - left - master.written_position - size))
    assert master.written_position == 16384 - left
    for _ in range(20):
        send(master, "t", 0, bytes(600))

    def copy() -> None:
        while (position := slave.end_position) < master.written_position:
            slave.append_raw(position, bytes(master.log_bytes(position, 4096)))

    for _ in range(2):  # It tries again, as after a pause.
        with pytest.raises(ReplicationError, match="mappedFileSizeCommitLog") as raised:
            copy()
        assert raised.value.reason == "file-size"
        slave.cut_partial_record()
        assert slave.end_position <= 16384


@pytest.mark.parametrize("longer", [4, 200])
def test_a_damaged_size_at_the_end_of_a_file_is_passed_over(
    longer: int, make_store: Any, tmp_path: Path, send: Any
) -> None:
    """By it a few bytes are left of the file, or fewer than none."""
    master, slave = new_master(make_store, tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    _, _, size = send(master, "t", 0, b"")
    while master.written_position < 15000:
        send(master, "t", 0, bytes(300))
    position, *_ = send(master, "t", 0, bytes(16384 - 8 - master.written_position - size))
    for _ in range(20):
        send(master, "t", 0, bytes(600))
    data = bytearray(log_of(master))
    data[position : position + 4] = (16376 - position + longer).to_bytes(4, "big")
    for at in range(0, len(data), 4096):
        slave.append_raw(at, bytes(data[at : at + 4096]))
    slave.dispatch_received()
    assert slave.queue_range("t", 0) == master.queue_range("t", 0)
    assert slave.log.damaged == (((16380 if longer == 4 else position), 16384),)


def test_an_empty_copy_begins_at_any_file(make_store: Any, tmp_path: Path) -> None:
    rng = random.Random(3)
    master, slave = new_master(make_store, tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    fill(master, 100, rng)
    begin = master.log.mapped_files.starts[2]
    slave.append_raw(begin, bytes(master.log_bytes(begin, 1000)))
    stream(master, slave, rng, 1 << 30)
    assert slave.min_position == begin
    assert log_of(slave) == log_of(master)[begin:]
    for topic, ids in slave.queues().items():
        for queue_id in ids:
            low, high = slave.queue_range(topic, queue_id)
            assert high == master.queue_range(topic, queue_id)[1]
            read = slave.read(topic, queue_id, low, 99, 1 << 20)
            first = next(record.decode_all(read.records[0]))
            assert (first.queue_offset, first.position >= begin) == (low, True)


def test_damage_of_the_master_is_passed_over(make_store: Any, tmp_path: Path, send: Any) -> None:
    master, slave = make_store(tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    ends = [send(master, "t", 0, b"%d" % i * 30)[2] for i in range(6)]
    data = bytearray(master.log_bytes(0, 1 << 20))
    data[ends[1] : ends[1] + 8] = bytes(8)
    for at in range(0, len(data), 11):
        slave.append_raw(at, bytes(data[at : at + 11]))
        slave.dispatch_received()
    assert slave.log.damaged == ((ends[1], ends[2]),)
    assert [r.queue_offset for r in slave.iterate(0)] == [0, 1, 3, 4, 5]
    assert slave.queue_range("t", 0) == (0, 6)


@pytest.mark.parametrize("after", [1, 2])
def test_more_damage_of_the_master_than_a_queue_file_holds_hides_no_later_message(
    after: int, make_store: Any, tmp_path: Path, send: Any
) -> None:
    """The first message after it is put into the queue when a second one comes, or with the promotion."""
    master, slave = make_store(tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    places = [send(master, "t", 0, b"%d" % i) for i in range(90 + after)]
    data = bytearray(master.log_bytes(0, 1 << 20))
    for position, _, _ in places[2:90]:
        data[position : position + 8] = bytes(8)
    slave.append_raw(0, bytes(data))
    slave.dispatch_received()
    assert slave.queue_range("t", 0) == (0, 2 if after == 1 else 92)
    slave.become_master()
    assert slave.queue_range("t", 0) == (0, 90 + after)
    assert slave.read("t", 0, 2, 9, 1 << 20).next_offset == 90
    assert slave.read("t", 0, 90, 9, 1 << 20).count == after
    assert send(slave, "t", 0, b"on")[1] == 90 + after


def test_a_full_disk_loses_nothing(make_store: Any, files: Any, tmp_path: Path) -> None:
    rng = random.Random(4)
    master, slave = new_master(make_store, tmp_path / "m"), new_slave(make_store, tmp_path / "s")
    count = fill(master, 200, rng)
    files.room_bytes = 30_000
    with pytest.raises(StoreFull):
        stream(master, slave, rng, 1 << 30)
    files.room_bytes = None
    stream(master, slave, rng, 1 << 30)
    assert_equal(master, slave, count)


@pytest.mark.shows("queries by key and by id show no more than pulls do: nothing that is not confirmed yet")
def test_readers_see_what_is_confirmed(make_store: Any, send: Any) -> None:
    store = make_store()
    placed = [send(store, "t", 0, b"%d" % i, keys="k") for i in range(5)]
    ends = [place[2] for place in placed]
    store.show_up_to(ends[2])
    # By key and by position no more than by queue.
    assert len(store.query("t", "k", 99, 0, 1 << 62)) == 3
    assert [store.shown_at(end) is None for end in (0, *ends[:4])] == [False, False, False, True, True]
    # A replica that lost them to its disk is given those, too.
    assert [store.copied_at(end) is None for end in (0, *ends)] == [False] * len(ends) + [True]
    assert store.queue_range("t", 0) == (0, 3)
    # Who begins at the end, by time, begins before what may be another message once it is shown.
    assert [store.offset_at_time("t", 0, 1 << 62, upper) for upper in (False, True)] == [3, 2]
    found = store.read("t", 0, 0, 99, 1 << 20)
    assert (found.count, found.max_offset, found.next_offset) == (3, 3, 3)
    assert store.read("t", 0, 3, 99, 1 << 20).status is GetStatus.AT_END
    store.show_up_to(ends[2] - 1)
    assert store.queue_range("t", 0) == (0, 2)
    store.show_up_to(0)
    assert store.read("t", 0, 0, 99, 1 << 20).status is GetStatus.EMPTY
    assert store.query("t", "k", 99, 0, 1 << 62) == []
    store.show_up_to(None)
    assert len(store.query("t", "k", 99, 0, 1 << 62)) == 5
    assert store.read("t", 0, 0, 99, 1 << 20).count == 5
