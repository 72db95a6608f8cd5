"""A unit of a consume queue that was flipped on the disk: its message comes all the same, or its loss is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.readonly.test_read_only_store import Lost, read_all

from rocketspark.model.text import string_hash
from rocketspark.protocol.message import record, record_layout
from rocketspark.store import GetStatus, Store, consume_queue_repair
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, UNIT_TYPE, ConsumeQueue

pytestmark = pytest.mark.shows("a flipped unit of an older consume queue file")

UNIT_BYTES = 20
FILE_UNITS = 50
COUNT = 120
SMALL, LARGE = 7, 64


def filled(make_store: Any, send: Any, count: int = COUNT, *, keeps: bool = False) -> Any:
    """Two topics in lockstep: their records of one offset differ in the topic alone, and are 256 bytes each. Returns
    where they are, or the open store.
    """
    store = make_store()
    for i in range(count):
        for topic in ("t0", "t1"):
            body = b"%s %04d" % (topic.encode(), i)
            send(store, topic, 0, body.ljust(256 - record_layout.record_bytes(0, 2, 7, 0)), tag="A")
    if keeps:
        return store
    store.close()
    return Path(store.settings.root)


def unit_file(root: Path, offset: int, topic: str = "t0") -> tuple[Path, int]:
    first = offset // FILE_UNITS * FILE_UNITS
    return root / "consumequeue" / topic / "0" / f"{first * UNIT_BYTES:020d}", (offset - first) * UNIT_BYTES


def put(root: Path, offset: int, change: Any, topic: str = "t0") -> None:
    path, at = unit_file(root, offset, topic)
    content = bytearray(path.read_bytes())
    content[at : at + UNIT_BYTES] = change(bytes(content[at : at + UNIT_BYTES]))
    path.write_bytes(content)


def flipped(bit: int) -> Any:
    def change(unit: bytes) -> bytes:
        content = bytearray(unit)
        content[bit // 8] ^= 0x80 >> bit % 8
        return bytes(content)

    return change


def walk(store: Store, count_max: int, topic: str = "t0", **filters: Any) -> tuple[list[int], list[int]]:
    """Offsets that were read, each record that of the offset, and the offsets that were told as gone."""
    at, end = store.queue_range(topic, 0)
    found: list[int] = []
    gone: list[int] = []
    steps = 0
    while at < end:
        read = store.read(topic, 0, at, count_max, 1 << 20, **filters)
        assert read.status in (GetStatus.FOUND, GetStatus.REMOVED), (read.status, at)
        for chunk in read.records:
            for r in record.decode_all(chunk):
                assert r.topic == topic.encode()
                assert r.body.startswith(b"%s %04d" % (topic.encode(), r.queue_offset))
                found.append(r.queue_offset)
        if read.status is GetStatus.REMOVED:
            gone += range(at, read.next_offset)
        assert read.next_offset > at
        at = read.next_offset
        steps += 1
        assert steps <= 3 * COUNT
    return found, gone


FILTERS: list[dict[str, Any]] = [
    {},
    {"codes": frozenset({string_hash("A")})},
    {"accepts": lambda found: True},
]


@pytest.mark.parametrize("filters", FILTERS, ids=["all", "tags", "test"])
@pytest.mark.parametrize("count_max", [1, SMALL, LARGE])
def test_every_bit_of_place_and_size(make_store: Any, send: Any, count_max: int, filters: dict[str, Any]) -> None:
    root = filled(make_store, send)
    for bit in range(96) if not filters and count_max == SMALL else range(0, 96, 5):
        offset = 10 + bit % 35  # In the oldest file, in the midst.
        kept = unit_file(root, offset)[0].read_bytes()
        put(root, offset, flipped(bit))
        store = make_store()
        found, gone = walk(store, count_max, **filters)
        assert (found, gone) == (list(range(COUNT)), []), bit
        assert (store.mender.mended, store.mender.lost) == (1, 0), bit
        assert f"offset {offset} of queue 0 of topic t0" in store.mender.news[-1]
        store.close()
        assert unit_file(root, offset)[0].read_bytes() == kept


@pytest.mark.shows("a flipped tags code, a unit of zeros")
@pytest.mark.parametrize("count_max", [1, SMALL])
def test_a_unit_that_a_reader_by_tags_would_pass_over(make_store: Any, send: Any, count_max: int) -> None:
    """Each bit of the tags code, and a unit that says nothing."""
    root = filled(make_store, send)
    changes = [(bit, flipped(bit)) for bit in range(96, 160)] + [(160, lambda unit: bytes(UNIT_BYTES))]
    for number, change in changes:
        offset = 10 + number % 35
        kept = unit_file(root, offset)[0].read_bytes()
        put(root, offset, change)
        store = make_store()
        assert walk(store, count_max, **FILTERS[1]) == (list(range(COUNT)), []), number
        # One with the sign's bit may be an address of the extension: its reader looks at the record.
        if number != 96:
            assert f"offset {offset} of queue 0 of topic t0" in store.mender.news[-1]
        store.close()
        unit_file(root, offset)[0].write_bytes(kept)


@pytest.mark.shows("a flipped tags code, a unit of zeros")
def test_many_tags_are_looked_at_once_each_and_too_many_not_at_all(
    make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    for i in range(COUNT):
        send(store, "t0", 0, b"t0 %04d" % i, tag=str(i % 10))
        send(store, "t1", 0, b"t1 %04d" % i, tag=str(i))
    store.close()
    looked_at: list[int] = []
    monkeypatch.setattr(consume_queue_repair, "CODES_MAX", 50)
    code_of = consume_queue_repair.UnitRepair._code
    monkeypatch.setattr(
        consume_queue_repair.UnitRepair,
        "_code",
        staticmethod(lambda queue, offset, found: looked_at.append(offset) or code_of(queue, offset, found)),
    )
    store = make_store()
    for topic, looks in (("t0", 10), ("t1", 2 * FILE_UNITS)):
        for _ in range(2):
            read = store.read(topic, 0, 0, 32, 1 << 20, codes=frozenset({string_hash("7")}))
            assert read.count == len(range(7, COUNT, 10 if topic == "t0" else COUNT))
            assert len(looked_at) == looks
        looked_at.clear()


def test_the_first_and_neighbours_and_all_of_a_file(make_store: Any, send: Any) -> None:
    root = filled(make_store, send)
    for offset in (0, 1, 2, 48, 49, 50, 51):
        put(root, offset, flipped(20))
    store = make_store()
    assert walk(store, 32) == (list(range(COUNT)), [])
    assert store.mender.mended == 7


def test_the_record_of_another_topic_is_not_given_out(make_store: Any, send: Any) -> None:
    root = filled(make_store, send)
    path, at = unit_file(root, 20, "t1")
    others = path.read_bytes()[at : at + UNIT_BYTES]
    put(root, 20, lambda unit: others)
    store = make_store()
    assert walk(store, 32) == (list(range(COUNT)), [])
    assert walk(store, 32, "t1") == (list(range(COUNT)), [])
    assert store.mender.mended == 1


def test_what_the_log_has_not_is_told_once_and_passed_over(make_store: Any, send: Any) -> None:
    root = filled(make_store, send)
    store = make_store()
    position, size, _ = store.queue_units("t0", 0, 20, 1)[0]
    start = position - position % 16384
    with open(root / "commitlog" / f"{start:020d}", "r+b") as log:
        log.seek(position - start)
        log.write(bytes(size))
    put(root, 20, flipped(30))
    for _ in range(2):
        for filters in FILTERS:
            assert walk(store, 32, **filters) == ([n for n in range(COUNT) if n != 20], [20])
    assert (store.mender.mended, store.mender.lost, len(store.mender.news)) == (0, 1, 1)
    assert "the log has no record of it" in store.mender.news[0]


@pytest.mark.parametrize("filters", FILTERS)
def test_a_lost_message_hides_none_whose_units_are_damaged_behind_it(
    make_store: Any, send: Any, filters: dict[str, Any]
) -> None:
    root = filled(make_store, send)
    store = make_store()
    position, size, _ = store.queue_units("t0", 0, 20, 1)[0]
    start = position - position % 16384
    with open(root / "commitlog" / f"{start:020d}", "r+b") as log:
        log.seek(position - start)
        log.write(bytes(size))
    for offset in (20, 21, 22):
        put(root, offset, lambda unit: b"\xff" * len(unit))
    assert walk(store, 32, **filters)[0] == [n for n in range(COUNT) if n != 20]


@pytest.mark.shows("a flipped unit of the file that a running broker writes to")
@pytest.mark.parametrize("filters", FILTERS)
def test_what_was_written_since_the_start_is_looked_at_as_it_is_read(
    make_store: Any, send: Any, filters: dict[str, Any]
) -> None:
    store = filled(make_store, send, 40, keeps=True)
    root = Path(store.settings.root)
    # Position and size: the tags code of what was written since the start is taken as it is.
    for bit in range(96):
        count_max, at = (1, 10, 40)[bit % 3], (0, 7, 39)[bit // 3 % 3]
        put(root, at, flipped(bit))
        assert walk(store, count_max, **filters) == (list(range(40)), []), bit
    assert store.mender.mended == 96


def test_a_unit_that_leads_into_damage_of_the_log_is_mended(make_store: Any, send: Any) -> None:
    store = filled(make_store, send, 40, keeps=True)
    lost = 3 * 512
    store.log.damaged = [(lost, lost + 256)]
    put(Path(store.settings.root), 10, lambda unit: lost.to_bytes(8, "big") + unit[8:])
    found, gone = walk(store, 10)
    assert (found, gone) == ([offset for offset in range(40) if offset != 3], [3])
    assert (store.mender.mended, store.mender.lost) == (1, 0)


def test_what_was_written_since_the_start_is_looked_at_by_its_records_alone(
    make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    for i in range(30):
        send(store, "t0", 0, b"t0 %04d" % i, tag="A")
    monkeypatch.setattr(store.mender, "right_until", None)
    for filters in FILTERS:
        assert walk(store, 10, **filters)[0] == list(range(30))


def test_readers_at_their_own_places_look_at_each_unit_once(
    make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(make_store, send)
    store = make_store()
    looked_at: list[tuple[int, int]] = []
    right_until = store.mender._right_until

    def noted(queue: Any, offset: int, count: int, bytes_max: int) -> int:
        looked_at.append((offset, count))
        return right_until(queue, offset, count, bytes_max)

    monkeypatch.setattr(store.mender, "_right_until", noted)
    monkeypatch.setattr(consume_queue_repair, "AHEAD_COUNT", 8)
    for step in range(0, 8, 2):
        for begin in (0, 8, 16, 24):
            read = store.read("t0", 0, begin + step, 2, 1 << 20)
            assert read.next_offset == begin + step + 2
    assert looked_at == [(0, 8), (8, 8), (16, 8), (24, 8)]


def test_a_reader_of_the_files_tells_of_it_and_gives_no_other_record(make_store: Any, send: Any) -> None:
    """It changes nothing, so it makes no unit anew: a copy without consumequeue/ has all."""
    root = filled(make_store, send)
    path, at = unit_file(root, 20, "t1")
    others = path.read_bytes()[at : at + UNIT_BYTES]
    whole = read_all(root)
    for change in [*map(flipped, range(0, 96, 7)), lambda unit: others]:
        kept = unit_file(root, 20)[0].read_bytes()
        put(root, 20, change)
        lost: Lost = []
        found = read_all(root, lost=lost)
        assert [row[:4] for row in lost] == [("t0", 0, 20, 21)]
        assert found["t0", 0] == whole["t0", 0][:20] + whole["t0", 0][21:]
        assert found["t1", 0] == whole["t1", 0]
        unit_file(root, 20)[0].write_bytes(kept)


@pytest.mark.shows("mended: a pull that begins in a zeroed page gives messages up for all readers")
def test_a_reader_that_begins_within_a_zeroed_page_loses_nothing(
    make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours are far, and before them lies more of the log than is searched at once."""
    monkeypatch.setattr(consume_queue_repair, "SEARCH_BYTES_MAX", 65536)
    sizes = {"queue_file_units": 1200, "log_file_bytes": 1 << 20}
    store = make_store(**sizes)
    for _ in range(40):
        send(store, "other", 0, bytes(50_000))
    for n in range(1000):
        send(store, "t0", 0, b"t0 %04d" % n)
    store.close()
    (path,) = Path(store.settings.root).glob("consumequeue/t0/0/*")
    for first, reader in ((205, 300), (0, 150), (795, 900), (205, 409)):
        content = bytearray(path.read_bytes())
        content[first * UNIT_BYTES : (first + 205) * UNIT_BYTES] = bytes(205 * UNIT_BYTES)
        path.write_bytes(content)
        store = make_store(**sizes)
        read = store.read("t0", 0, reader, 1, 1 << 20)
        assert [r.queue_offset for piece in read.records for r in record.decode_all(piece)] == [reader]
        assert walk(store, 32, "t0") == (list(range(1000)), [])
        assert store.mender.lost == 0
        store.close()


@pytest.mark.shows("mended: a pull that begins in a zeroed page gives messages up for all readers")
def test_what_was_given_up_is_found_between_nearer_neighbours(
    make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = filled(make_store, send)
    for offset in range(20, 40):
        put(root, offset, lambda unit: bytes(UNIT_BYTES))
    store = make_store()
    with monkeypatch.context() as less:
        less.setattr(consume_queue_repair, "SEARCH_BYTES_MAX", 0)
        assert store.read("t0", 0, 30, 1, 1 << 20).status is GetStatus.REMOVED
    assert store.mender.lost == 1
    assert walk(store, 32) == (list(range(COUNT)), [])
    assert store.mender.lost == 1


def test_units_are_told_right_together_as_one_by_one(make_store: Any, send: Any) -> None:
    """Over several log files, whatever units say: the fields of the record that each leads to, read by themselves."""
    store = make_store(log_file_bytes=4096)
    for i in range(80):
        send(store, ("t0", "t1")[i % 2], 0, b"x" * (i // 2 % 7 * 20), tag="A")
    log, queue, other = store.log, store.consume_queues.find("t0", 0), store.consume_queues.find("t1", 0)

    def units_of(queue: ConsumeQueue) -> Any:
        view, at, here = queue.place(0, 40)
        return np.frombuffer(view, UNIT_TYPE, here, at)

    stored = units_of(queue)
    fields = record_layout.head_type("size", "queue_id", "queue_offset", "position", "body_bytes")

    def is_right(offset: int, position: int, size: int) -> bool:
        if size == GAP_SIZE:
            return True
        start = position - position % 4096
        if start not in log.mapped_files.starts or position - start + record_layout.RECORD_BYTES_MIN > 4096:
            return False
        content = log.mapped_files.get(start).view
        head = np.frombuffer(content, fields, 1, position - start)[0]
        topic_at = position - start + record_layout.FIXED_BYTES_V4 + int(head["body_bytes"])
        told = tuple(int(head[name]) for name in ("size", "queue_id", "queue_offset", "position"))
        is_topic = int(head["body_bytes"]) >= 0 and bytes(content[topic_at : topic_at + 3]) == b"\x02t0"
        return told == (size, 0, offset, position) and is_topic

    positions = st.one_of(st.integers(-(1 << 62), 1 << 62), st.integers(-5000, log.written + 5000))
    sizes = st.one_of(st.integers(-(1 << 31), (1 << 31) - 1), st.just(GAP_SIZE))
    others = st.sampled_from([tuple(unit) for unit in [*stored.tolist(), *units_of(other).tolist()]])
    change = st.one_of(st.tuples(positions, sizes, st.just(0)), others)
    swapped = st.sets(st.integers(0, 39), max_size=3)

    @given(st.integers(0, 39), st.integers(1, 40), st.dictionaries(st.integers(0, 39), change, max_size=6), swapped)
    def hold(first: int, count: int, changes: dict[int, tuple[int, int, int]], same_of_other: set[int]) -> None:
        units = stored.copy()
        for row in same_of_other:
            units[row] = units_of(other)[row]
        for row, unit in changes.items():
            units[row] = unit
        units = units[first : first + count]
        offsets = np.arange(first, first + len(units))
        expected = [is_right(int(o), *unit.item()[:2]) for o, unit in zip(offsets, units, strict=True)]
        assert consume_queue_repair.right_units(log, queue, offsets, units).tolist() == expected

    hold()


@pytest.mark.parametrize("bit", [2, 70])
@pytest.mark.shows("a flipped unit at its queue's end hides no message where readers see what is flushed alone")
def test_a_flipped_last_unit_hides_nothing_that_is_flushed(bit: int, make_store: Any, send: Any) -> None:
    root = filled(make_store, send)
    put(root, COUNT - 1, flipped(bit))
    store = make_store(root)
    store.show_flushed(store.flushed_position)
    assert walk(store, 32) == (list(range(COUNT)), [])
