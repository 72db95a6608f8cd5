"""Batch consume queues: read as the official broker wrote them, the same bytes written, kept in line with the log."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import expire

from rocketspark.model.text import string_hash
from rocketspark.protocol.message import batch, record
from rocketspark.protocol.message import properties as props
from rocketspark.store import GetStatus, Store

pytestmark = pytest.mark.shows("inner batches, topics with queue.type=BatchCQ")

NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")
TOPIC = "S_Bcq"
INNER = 0xC0
# Ten units in a file.
SMALL = {"batch_queue_file_units": 10}


@pytest.fixture
def store(make_store: Any) -> Store:
    made: Store = make_store(**SMALL)
    made.make_batch_topic("b")
    return made


def send_batch(store: Store, texts: list[str], *, tag: str | None = None, now_ms: int = NOW_MS) -> tuple[int, int, int]:
    """One record of several messages, as a broker puts it together."""
    body = batch.encode([batch.BatchItem(n, text.encode(), b"K\x01%d\x02" % n) for n, text in enumerate(texts)])
    pairs = {"UNIQ_KEY": "U" + texts[0], "KEYS": "k" + texts[0], "INNER_NUM": str(len(texts))}
    pairs["INNER_BASE"] = str(store.queue_range("b", 0)[1])
    if tag:
        pairs["TAGS"] = tag
    return store.append(
        b"b", 0, body, props.encode(pairs).encode(), string_hash(tag) if tag else 0, pairs["UNIQ_KEY"].encode(),
        pairs["KEYS"].encode(), tag.encode() if tag else None, now_ms, 0, INNER, now_ms, BORN,
    )  # fmt: skip


def fill(store: Store, send: Any, rounds: int = 30) -> list[str]:
    """Batches of 1 to 5 and single messages in turn; returns the texts in order."""
    texts = []
    for n in range(rounds):
        if n % 3 == 2:
            now = [f"s{n}"]
            send(store, "b", 0, now[0].encode(), keys=f"k{n}", now_ms=NOW_MS + n)
        else:
            now = [f"b{n}.{i}" for i in range(n % 5 + 1)]
            send_batch(store, now, tag="even" if n % 2 == 0 else "odd", now_ms=NOW_MS + n)
        texts += now
    return texts


def messages(store: Store, topic: str, at: int, **limits: Any) -> Iterator[tuple[int, bytes]]:
    """(queue offset, body) of all messages from an offset on."""
    while (read := store.read(topic, 0, at, 32, 1 << 20, **limits)).status in (GetStatus.FOUND, GetStatus.NO_MATCHED):
        found = [m for piece in read.records for m in record.decode_messages(piece)]
        assert len(found) == read.count
        assert sum(map(len, read.records)) == read.size
        yield from ((m.queue_offset, m.body) for m in found)
        assert read.next_offset > at
        at = read.next_offset


@pytest.mark.parametrize("name", ["store", "store_unclean", "store_ext"])
def test_official_batch_queues_are_read(name: str, golden: Callable[[str], Any]) -> None:
    g = golden(name)
    found = Store(g.settings)
    found.open()
    expected = [m for m in g.manifest["messages"] if m["topic"] == TOPIC]
    assert [m["queueOffset"] for m in expected] == [0, 5]
    assert found.queues()[TOPIC] == {0}
    assert found.queue_range(TOPIC, 0) == (0, 6)
    read = found.read(TOPIC, 0, 0, 32, 1 << 20)
    assert (read.status, read.count, read.next_offset, read.max_offset) == (GetStatus.FOUND, 6, 6, 6)
    assert [record.decode(r).position for r in read.records] == [m["commitLogOffset"] for m in expected]
    assert [offset for offset, _ in messages(found, TOPIC, 0)] == list(range(6))
    # A read within a batch gives the whole of it, and goes on behind.
    for offset in range(1, 5):
        read = found.read(TOPIC, 0, offset, 1, 1 << 20)
        assert (read.count, read.next_offset) == (5, 5)
    assert found.store_time_at(TOPIC, 0, 4) == expected[0]["storeTimestamp"]
    assert found.store_time_at(TOPIC, 0, 5) == expected[1]["storeTimestamp"]
    # A batch without tags of its own is read whole: its reader takes the messages that it wants.
    tagged = found.read(TOPIC, 0, 0, 32, 1 << 20, frozenset({string_hash("TagInner")}))
    assert [record.decode(r).queue_offset for r in tagged.records] == [0, 5]
    assert found.read(TOPIC, 0, 5, 32, 1 << 20, frozenset({string_hash("TagOther")})).count == 0
    found.close()


@pytest.mark.parametrize("name", ["store", "store_ext"])
def test_official_batch_queues_are_made_anew_byte_for_byte(name: str, golden: Callable[[str], Any]) -> None:
    g = golden(name)
    path = g.root / "batchconsumequeue" / TOPIC / "0" / ("0" * 20)
    before = path.read_bytes()
    assert any(before)
    shutil.rmtree(g.root / "batchconsumequeue")
    shutil.rmtree(g.root / "consumequeue")
    again = Store(g.settings)
    again.batch_topics = [TOPIC]
    again.open()
    again.close()
    assert path.read_bytes() == before
    assert not (g.root / "consumequeue" / TOPIC).exists()


def test_offsets_count_messages(store: Store, send: Any) -> None:
    assert send_batch(store, ["a", "b", "c"])[1] == 0
    assert send(store, "b", 0, b"d")[1] == 3
    assert send_batch(store, ["e"])[1] == 4
    assert send_batch(store, ["f", "g"])[1] == 5
    assert store.queue_range("b", 0) == (0, 7)
    assert list(messages(store, "b", 0)) == list(enumerate([b"a", b"b", b"c", b"d", b"e", b"f", b"g"]))
    path = Path(store.settings.root, "batchconsumequeue/b/0", "0" * 20)
    units = [u for u in struct.iter_unpack(">qiqqqhii", path.read_bytes()) if u[1]]
    assert [(base, count, compacted, rest) for *_, base, count, compacted, rest in units] == [
        (0, 3, -1, 0),
        (3, 1, -1, 0),
        (4, 1, -1, 0),
        (5, 2, -1, 0),
    ]
    assert not Path(store.settings.root, "consumequeue/b").exists()
    assert store.take_stored()[0][:2] == ("b", 7)


def test_reads_are_bounded_but_never_split_a_batch(store: Store) -> None:
    for n in range(5):
        send_batch(store, [f"{n}.{i}" for i in range(4)])
    assert store.read("b", 0, 0, 1, 1 << 20).next_offset == 4
    assert store.read("b", 0, 0, 8, 1 << 20).next_offset == 8
    assert store.read("b", 0, 0, 11, 1 << 20).next_offset == 8
    assert store.read("b", 0, 4, 100, 10).next_offset == 8
    assert store.read("b", 0, 18, 100, 1 << 20).next_offset == 20
    assert store.read("b", 0, 20, 100, 1 << 20).status is GetStatus.AT_END
    assert store.read("b", 0, 21, 100, 1 << 20).status is GetStatus.OFFSET_TOO_BIG


def test_tags_and_filters_are_of_records(store: Store, send: Any) -> None:
    texts = fill(store, send)
    even = [b for _, b in messages(store, "b", 0, codes=frozenset({string_hash("even")}))]
    assert even == [t.encode() for t in texts if t[0] == "b" and int(t[1:].split(".")[0]) % 2 == 0]
    single = [b for _, b in messages(store, "b", 0, accepts=lambda found: not record.decode(found).sys_flag & INNER)]
    assert single == [t.encode() for t in texts if t[0] == "s"]


@pytest.mark.parametrize(
    ("time_ms", "lower", "upper"),
    [
        (NOW_MS - 1, 0, 0),
        (NOW_MS, 0, 0),
        (NOW_MS + 5, 3, 0),
        (NOW_MS + 10, 3, 3),
        (NOW_MS + 20, 4, 4),
        (NOW_MS + 99, 4, 4),
    ],
)
def test_offsets_by_time(time_ms: int, lower: int, upper: int, store: Store) -> None:
    send_batch(store, ["a", "b", "c"], now_ms=NOW_MS)
    send_batch(store, ["d"], now_ms=NOW_MS + 10)
    send_batch(store, ["e", "f"], now_ms=NOW_MS + 20)
    assert store.offset_at_time("b", 0, time_ms) == lower
    assert store.offset_at_time("b", 0, time_ms, upper=True) == upper
    store.show_up_to(store.consume_queues.find("b", 0).unit(3)[0])
    assert store.offset_at_time("b", 0, time_ms) == lower if lower < 3 else 3


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_goes_on_where_it_ended(clean: bool, store: Store, send: Any, make_store: Any) -> None:
    texts = fill(store, send)
    files = sorted(Path(store.settings.root, "batchconsumequeue/b/0").iterdir())
    assert len(files) == 3
    before = [path.read_bytes() for path in files]
    if clean:
        store.close()
    else:
        store._closed = True
        store._give_back()
        # A unit that leads nowhere, as a kill of the system may leave it.
        content = before[2][:-46] + struct.pack(">qiqqqhii", 1 << 30, 10, 0, 0, 1 << 20, 1, -1, 0)
        files[2].write_bytes(content)
    again = make_store(Path(store.settings.root), **SMALL)
    assert [m.decode() for _, m in messages(again, "b", 0)] == texts
    assert [path.read_bytes() for path in files] == before
    assert send_batch(again, ["x", "y"])[1] == len(texts)
    assert [m.decode() for _, m in messages(again, "b", 0)] == [*texts, "x", "y"]
    assert [record.decode(r).body[20:22] for r in again.query("b", "kx", 10, 0, 1 << 60)] == [b"x\0"]


def test_it_is_made_anew_from_the_log(store: Store, send: Any, make_store: Any) -> None:
    texts = fill(store, send)
    store.close()
    root = Path(store.settings.root)
    before = {p: p.read_bytes() for p in sorted(root.glob("batchconsumequeue/b/0/*"))}
    shutil.rmtree(root / "batchconsumequeue")
    # What kind of topic it is the first record tells, a batch; else the broker says so.
    again = make_store(root, **SMALL)
    assert {p: p.read_bytes() for p in sorted(root.glob("batchconsumequeue/b/0/*"))} == before
    assert [m.decode() for _, m in messages(again, "b", 0)] == texts


def test_files_go_with_the_log_and_with_the_topic(store: Store, send: Any) -> None:
    for n in range(300):
        send_batch(store, [f"{n}.{i}" + "x" * 50 for i in range(3)], now_ms=NOW_MS + n)
    store.flush_log()
    while expire(store, NOW_MS + 200):
        pass
    low, high = store.queue_range("b", 0)
    assert 300 < low < high == 900
    assert low % 3 == 0
    assert int(min(Path(store.settings.root, "batchconsumequeue/b/0").iterdir()).name) == low // 3 // 10 * 460
    assert [offset for offset, _ in messages(store, "b", low)] == list(range(low, high))
    assert store.read("b", 0, low - 1, 10, 1 << 20).status is GetStatus.OFFSET_TOO_SMALL
    store.delete_topic("b")
    assert not Path(store.settings.root, "batchconsumequeue/b").exists()
    # Made anew without the attribute it is a topic as any other.
    send(store, "b", 0, b"plain")
    store.flush_queues()
    assert Path(store.settings.root, "consumequeue/b/0").exists()
    assert [b for _, b in messages(store, "b", 0)] == [b"plain"]


def test_a_lost_start_of_the_log_leaves_the_later_messages(store: Store, send: Any, make_store: Any) -> None:
    for n in range(300):
        send_batch(store, [f"{n}.{i}" + "x" * 50 for i in range(3)], now_ms=NOW_MS + n)
    store.flush_log()
    while expire(store, NOW_MS + 200):
        pass
    low, high = store.queue_range("b", 0)
    store.close()
    root = Path(store.settings.root)
    shutil.rmtree(root / "batchconsumequeue")
    again = make_store(root, **SMALL)
    assert again.queue_range("b", 0) == (low, high)
    assert [offset for offset, _ in messages(again, "b", low)] == list(range(low, high))


@pytest.mark.shows("mended: silent loss while a broker removes old files: the store's half")
def test_a_hole_in_it_is_told(store: Store, send: Any) -> None:
    send_batch(store, ["a", "b"])
    store.consume_queues.find("b", 0).fill_to(5)
    send_batch(store, ["c"])
    reads = [store.read("b", 0, at, 10, 1 << 20) for at in (0, 2, 5)]
    assert [(r.status, r.count, r.next_offset) for r in reads] == [
        (GetStatus.FOUND, 2, 2),
        (GetStatus.REMOVED, 0, 5),
        (GetStatus.FOUND, 1, 6),
    ]


def damage(root: Path, change: Callable[[bytearray], None]) -> dict[Path, bytes]:
    """Changes all units of the queue; returns the files as they were."""
    before = {path: path.read_bytes() for path in sorted((root / "batchconsumequeue/b/0").iterdir())}
    content = bytearray(b"".join(before.values()))
    change(content)
    for path, old in before.items():
        path.write_bytes(content[: len(old)])
        del content[: len(old)]
    return before


def begin_of(texts: list[str], offset: int) -> int:
    """The first message of the record that holds a message."""
    return max(n for n in range(offset + 1) if texts[n][0] == "s" or texts[n].endswith(".0"))


# Each field of a unit but the tags code, which only reading every record would show.
@pytest.mark.shows("a flipped unit of an older consume queue file")
@pytest.mark.parametrize("byte", [0, 5, 7, 8, 11, 20, 27, 28, 33, 35, 36, 37])
def test_a_damaged_unit_is_made_anew_from_the_log(byte: int, store: Store, send: Any, make_store: Any) -> None:
    texts = fill(store, send)
    store.close()
    for unit in (0, 4, 9, 10, 25, 29):

        def flip(content: bytearray, at: int = unit * 46 + byte) -> None:
            content[at] ^= 0x90

        before = damage(Path(store.settings.root), flip)
        again = make_store(**SMALL)
        assert again.queue_range("b", 0) == (0, len(texts))
        assert [body.decode() for _, body in messages(again, "b", 0)] == texts
        assert again.mender.lost == 0
        again.close()
        assert {path: path.read_bytes() for path in before} == before


@pytest.mark.shows("mended: a batch queue whose file was cut: its readers stood still for ever")
@pytest.mark.parametrize(("first", "end"), [(0, 1), (0, 30), (4, 9), (5, 10), (7, 23), (10, 30), (28, 30)])
def test_lost_units_are_made_anew_from_the_log_wherever_a_reader_begins(
    first: int, end: int, store: Store, send: Any, make_store: Any
) -> None:
    texts = fill(store, send)
    store.close()

    def lose(content: bytearray) -> None:
        content[first * 46 : end * 46] = bytes((end - first) * 46)

    for start in range(0, len(texts), 3):
        before = damage(Path(store.settings.root), lose)
        again = make_store(**SMALL)
        assert again.queue_range("b", 0) == (0, len(texts))
        begin = begin_of(texts, start)
        if start % 2:
            assert [(n, body.decode()) for n, body in messages(again, "b", start)] == list(enumerate(texts))[begin:]
        else:
            ((position, _, _),) = again.queue_units("b", 0, start, 1)
            assert record.decode(again.record_at(position)).queue_offset == begin
            now_ms = again.store_time_at("b", 0, start)
            assert again.offset_at_time("b", 0, now_ms) == begin
        assert [body.decode() for _, body in messages(again, "b", 0)] == texts
        assert again.mender.lost == 0
        again.close()
        assert {path: path.read_bytes() for path in before} == before


@pytest.mark.shows("mended: a batch queue whose file was cut: its readers stood still for ever")
@pytest.mark.parametrize("lost", [(4, 6), (0, 2), (9, 12), (27, 29)])
@pytest.mark.parametrize("zeroed", [(4, 6), (3, 12), (0, 5), (0, 30)])
def test_lost_units_of_lost_records_hide_no_other_message(
    lost: tuple[int, int], zeroed: tuple[int, int], store: Store, send: Any, make_store: Any
) -> None:
    texts = fill(store, send)
    places = [(unit[0], unit[4], unit[5]) for unit in map(store.consume_queues.find("b", 0).unit_at, range(30))]
    store.close()
    root = Path(store.settings.root)

    def lose(content: bytearray) -> None:
        content[zeroed[0] * 46 : zeroed[1] * 46] = bytes((zeroed[1] - zeroed[0]) * 46)

    damage(root, lose)
    log = root / "commitlog" / ("0" * 20)
    content = bytearray(log.read_bytes())
    for position, _, _ in places[slice(*lost)]:
        content[position + 5] ^= 1
    log.write_bytes(content)
    gone = {n for _, base, count in places[slice(*lost)] for n in range(base, base + count)}
    for _ in range(2):
        again = make_store(**SMALL)
        found, at = [], 0
        while at < len(texts):
            read = again.read("b", 0, at, 8, 1 << 20)
            assert at < read.next_offset <= len(texts)
            found += [m.queue_offset for piece in read.records for m in record.decode_messages(piece)]
            at = read.next_offset
        assert found == [n for n in range(len(texts)) if n not in gone]
        assert send_batch(again, ["x", "y"])[1] == len(texts)
        texts += ["x.0", "y"]
        again.close()


def test_lost_units_hide_nothing_from_retention(store: Store, make_store: Any) -> None:
    for n in range(300):
        send_batch(store, [f"{n}.{i}" + "x" * 50 for i in range(3)], now_ms=NOW_MS + n)
    store.close()

    def lose(content: bytearray) -> None:
        content[100 * 46 : 215 * 46] = bytes(115 * 46)

    damage(Path(store.settings.root), lose)
    again = make_store(**SMALL)
    while expire(again, NOW_MS + 200):
        pass
    oldest = record.decode(again.record_at(again.min_position)).queue_offset
    assert 300 < oldest < 615
    assert [offset for offset, _ in messages(again, "b", oldest)] == list(range(oldest, 900))
    assert again.queue_range("b", 0) == (oldest, 900)
    assert again.mender.lost == 0


def test_lost_units_at_the_end_of_a_queue_that_is_cut(store: Store, send: Any, make_store: Any) -> None:
    texts = fill(store, send)
    position = store.consume_queues.find("b", 0).unit_at(20)[0]
    store.close()

    def lose(content: bytearray) -> None:
        content[23 * 46 : 30 * 46] = bytes(7 * 46)

    damage(Path(store.settings.root), lose)
    again = make_store(**SMALL)
    again.become_replica()
    again.truncate(position)
    again.become_master()
    low, high = again.queue_range("b", 0)
    assert [body.decode() for _, body in messages(again, "b", low)] == texts[:high]
    assert send_batch(again, ["x", "y"])[1] == high
    assert [body.decode() for _, body in messages(again, "b", low)] == [*texts[:high], "x", "y"]


def test_a_damaged_unit_of_a_removed_record_hides_no_message(store: Store, make_store: Any) -> None:
    for n in range(300):
        send_batch(store, [f"{n}.{i}" + "x" * 50 for i in range(3)], now_ms=NOW_MS + n)
    store.flush_log()
    while expire(store, NOW_MS + 200):
        pass
    low, high = store.queue_range("b", 0)
    first = low // 3 % 10
    assert first > 0
    store.close()

    def misplace(content: bytearray) -> None:
        content[(first - 1) * 46 + 30] ^= 0x10  # Of the first offset.

    damage(Path(store.settings.root), misplace)
    again = make_store(**SMALL)
    assert again.queue_range("b", 0) == (low, high)
    for start in range(low, high, 7):
        assert [offset for offset, _ in messages(again, "b", start)] == list(range(start - start % 3, high))


@pytest.mark.shows(
    "mended: with queue extensions a send that was refused, as a file could not be mapped, came back after a "
    "kill; a batch topic made again lost its kind where a start ended its deletion"
)
def test_a_batch_topic_made_again_stays_one_where_a_start_ends_its_deletion(
    small: Callable[..., Any], send: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> Store:
        store = Store(small(tmp_path / "s", **SMALL))
        store.batch_topics = ["b"]
        store.open()
        return store

    store = opened()
    send_batch(store, ["old"])
    monkeypatch.setattr(store.consume_queues, "delete_topics", lambda topics: None)
    store.delete_topic("b")
    store.close()
    store = opened()
    assert "b" not in store.queues()
    send_batch(store, ["new", "er"])
    store.close()
    assert list((tmp_path / "s").glob("*consumequeue/b/0")) == [tmp_path / "s/batchconsumequeue/b/0"]
    store = opened()
    assert list(messages(store, "b", 0)) == [(0, b"new"), (1, b"er")]
    store.close()


def test_a_damaged_last_unit_of_a_removed_record_does_not_move_the_queues_end(
    store: Store, make_store: Any, send: Any
) -> None:
    """It tells an offset that no log has room for: what is sent then would be taken for damage."""
    for n in range(5):
        send_batch(store, [f"{n}.{i}" for i in range(3)])
    while store.min_position == 0:
        send(store, "other", 0, bytes(1000), now_ms=NOW_MS + 1)
        store.flush_log(), store.flush_queues()
        expire(store, NOW_MS + 2)
    store.close()
    with open(Path(store.settings.root) / "batchconsumequeue" / "b" / "0" / ("0" * 20), "r+b") as file:
        file.seek(4 * 46 + 28)
        file.write(b"\x20")  # Of the first offset, 12: 2 to the power of 61 is added.
    for last in (15, 17):
        again = make_store(**SMALL)
        assert again.queue_range("b", 0) == (15, last)
        assert send_batch(again, ["new", "er"])[1] == last
        assert [offset for offset, _ in messages(again, "b", 15)] == list(range(15, last + 2))
        again.close()


def test_a_record_that_is_gone_with_a_damaged_count_leads_past_no_other(store: Store, make_store: Any) -> None:
    """Its unit tells 1,026 messages where it had 2: those of the next units are read all the same."""
    places = [send_batch(store, texts) for texts in (["a", "b"], ["c", "d"], ["e"], ["f"])]
    root = Path(store.settings.root)
    store.close()
    with open(root / "commitlog" / ("0" * 20), "r+b") as file:
        file.seek(places[1][0])
        file.write(bytes(100))
    with open(root / "batchconsumequeue" / "b" / "0" / ("0" * 20), "r+b") as file:
        file.seek(46 + 36)
        file.write((1026).to_bytes(2, "big"))
    again = make_store(**SMALL)
    assert again.recovered.skipped == ((places[1][0], places[2][0]),)
    read = again.read("b", 0, 2, 32, 1 << 20)
    assert (read.status, read.next_offset) == (GetStatus.REMOVED, 4)
    assert list(messages(again, "b", 4)) == [(4, b"e"), (5, b"f")]


def test_what_came_before_a_topic_was_made_anew_is_in_its_batch_queues(make_store: Any) -> None:
    """A message that waited for the deleted topic made a simple queue, in which a whole batch had one offset."""
    store: Store = make_store(**SMALL)
    store.make_batch_topic("b")
    send_batch(store, ["gone"])
    store.delete_topic("b")
    for text in (b"late", b"later"):
        store.append(b"b", 0, text, b"", 0, None, None, None, NOW_MS, 0, 0, NOW_MS, BORN)
    store.take_stored()
    store.make_batch_topic("b")
    assert store.take_stored() == []
    texts = [b"late", b"later"]
    for n in range(3):
        assert send_batch(store, [f"{n}.{i}" for i in range(5)])[1] == len(texts)
        texts += [b"%d.%d" % (n, i) for i in range(5)]
    assert list(messages(store, "b", 0)) == list(enumerate(texts))
    store.abandon()
    again = Store(store.settings)
    again.batch_topics = ["b"]
    again.open()
    assert list(messages(again, "b", 0)) == list(enumerate(texts))
    again.close()
