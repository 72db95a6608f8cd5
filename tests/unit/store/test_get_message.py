"""Reads against a plain model of them: every place, limit and filter, over the ends of files, over gaps."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from rocketspark.model.text import string_hash
from rocketspark.protocol.message import record
from rocketspark.store import GetStatus, Store
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.get_message import SoFar

TAGS = ("a", "b", "c")
BYTES_MAX = 1 << 20


class Unit(NamedTuple):
    position: int
    size: int
    code: int


def filled(make_store: Any, send: Any, count: int, run_max: int) -> tuple[Store, dict[int, list[Unit]]]:
    """A store of three queues, up to `run_max` messages to one after another, and what their units hold."""
    # Queue files of 130 units: longer than what a pull takes, shorter than what a scan looks at.
    store = make_store(log_file_bytes=16384, queue_file_units=130)
    units: dict[int, list[Unit]] = {0: [], 1: [], 2: []}
    rng = random.Random(count)
    while sum(map(len, units.values())) < count:
        queue_id = rng.randrange(3)
        for _ in range(rng.randint(1, run_max)):
            tag = rng.choice((*TAGS, None))
            position, offset, end = send(store, "t", queue_id, b"x" * rng.randint(0, 150), tag=tag)
            assert offset == len(units[queue_id])
            units[queue_id].append(Unit(position, end - position, string_hash(tag) if tag else 0))
    # A queue made from a log whose beginning is gone has such units before its first message.
    gaps = store.consume_queues.find("t", 2)
    gaps.fill_to(gaps.next + 5)
    units[2] += [Unit(0, GAP_SIZE, 0)] * 5
    return store, units


def model(
    units: list[Unit], offset: int, count_max: int, bytes_max: int, codes: frozenset[int] | None, even: bool
) -> tuple[list[int], int]:
    """(offsets read, next offset) by the rule, one unit after the other."""
    filtered = codes is not None or even
    scan = max(800, count_max) if filtered else count_max
    taken: list[int] = []
    total = 0
    for at in range(offset, min(offset + scan, len(units))):
        unit = units[at]
        if unit.size == GAP_SIZE:
            # Before a hole a read ends; one that begins in it is told, and goes on behind it.
            behind = (i for i in range(at, len(units)) if units[i].size != GAP_SIZE)
            return taken, at if at > offset else next(behind, len(units))
        if codes is not None and unit.code not in codes:
            continue
        if taken and (total + unit.size > bytes_max or len(taken) >= count_max):
            return taken, at
        if even and at % 2:
            continue
        taken.append(at)
        total += unit.size
    return taken, min(offset + scan, len(units))


@pytest.mark.parametrize("run_max", [1, 5, 400], ids=["mixed", "short-runs", "long-runs"])
def test_any_read_is_that_of_the_model(make_store: Any, send: Any, run_max: int) -> None:
    store, units = filled(make_store, send, 3000, run_max)
    rng = random.Random(run_max)
    kinds: list[tuple[frozenset[int] | None, bool]] = [
        (None, False),
        (frozenset({string_hash("a")}), False),
        (frozenset({string_hash("b"), 0}), False),
        (frozenset({string_hash("c"), *range(1, 40)}), False),
        (frozenset({12345}), False),
        (None, True),
    ]
    for _ in range(1500):
        queue_id = rng.randrange(3)
        row = units[queue_id]
        offset = rng.choice((rng.randrange(len(row)), len(row) - rng.randint(1, 8), rng.choice((0, 129, 130))))
        count_max = rng.choice((1, 2, 31, 32, 64, 65, 100, 3000))
        bytes_max = rng.choice((1, 500, 3000, 9000, BYTES_MAX, 1 << 40))
        codes, even = rng.choice(kinds)

        def accepts(view: memoryview) -> bool:
            return record.decode(view).queue_offset % 2 == 0

        read = store.read("t", queue_id, offset, count_max, bytes_max, codes, accepts if even else None)
        taken, following = model(row, offset, count_max, bytes_max, codes, even)
        where = (queue_id, offset, count_max, bytes_max, codes, even)
        assert (read.next_offset, read.count) == (following, len(taken)), where
        assert (read.min_offset, read.max_offset) == (0, len(row))
        nothing = GetStatus.REMOVED if row[offset].size == GAP_SIZE else GetStatus.NO_MATCHED
        assert read.status is (GetStatus.FOUND if taken else nothing)
        # The bytes themselves: each record where its unit says, none between them.
        stored = b"".join(bytes(store.record_at(row[at].position)) for at in taken)
        assert b"".join(read.records) == stored, where
        assert read.size == len(stored)


def test_reads_that_are_cut_anywhere_find_what_one_finds(make_store: Any, send: Any) -> None:
    store, units = filled(make_store, send, 1500, 5)
    rng = random.Random(7)
    for _ in range(300):
        queue_id = rng.randrange(3)
        row = units[queue_id]
        start = rng.randrange(len(row) - 5)
        count_max, bytes_max = rng.choice((1, 2, 31, 100, 3000)), rng.choice((1, 500, 3000, BYTES_MAX))
        codes = rng.choice((None, frozenset({string_hash("a")})))

        def accepts(view: memoryview) -> bool:
            return record.decode(view).queue_offset % 2 == 0

        passed = -1

        def accepts_some(view: memoryview) -> bool | None:
            # Undecided now and then, but not twice at one place.
            nonlocal passed
            offset = record.decode(view).queue_offset
            if offset != passed and rng.random() < 0.2:
                passed = offset
                return None
            passed = -1
            return accepts(view)

        whole = store.read("t", queue_id, start, count_max, bytes_max, codes, accepts)
        records: list[bytes] = []
        messages = size = 0
        offset = start
        while True:
            so_far = SoFar(offset - start, messages, size)
            part = store.read("t", queue_id, offset, count_max, bytes_max, codes, accepts_some, so_far)
            records += map(bytes, part.records)
            messages, size, offset = messages + part.count, size + part.size, part.next_offset
            if passed < 0:
                break
        assert (messages, size, offset) == (whole.count, whole.size, whole.next_offset)
        assert b"".join(records) == b"".join(whole.records)


def test_records_in_a_row_come_as_one_slice(make_store: Any, send: Any) -> None:
    store = make_store(log_file_bytes=65536, queue_file_units=300)
    for queue_id in (0, 0, 1, 0):
        for _ in range(70):
            send(store, "t", queue_id, b"x")
    for offset, count, slices in ((0, 32, 1), (64, 64, 1), (0, 140, 1), (100, 110, 2), (140, 70, 1)):
        read = store.read("t", 0, offset, count, BYTES_MAX)
        assert (read.count, len(read.records)) == (count, slices), offset


@pytest.mark.shows("mended: who read at a lost message was sent behind gaps to one that readers do not see yet")
def test_who_reads_at_a_lost_message_is_sent_no_further_than_readers_see(make_store: Any, send: Any) -> None:
    store = make_store()
    send(store, "t", 0, b"a")
    position, _, end = send(store, "t", 0, b"b")
    queue = store.consume_queues.find("t", 0)
    queue.fill_to(6)
    hidden, offset, _ = send(store, "t", 0, b"c")
    assert (hidden, offset) == (end, 6)
    store.show_up_to(end)
    store.log.map[position : position + 8] = bytes(8)
    read = store.read("t", 0, 1, 32, BYTES_MAX)
    assert (read.status, read.next_offset, read.max_offset) == (GetStatus.REMOVED, 2, 2)
    assert store.read("t", 0, 2, 32, BYTES_MAX).status is GetStatus.AT_END
    store.show_up_to(None)
    found = store.read("t", 0, store.read("t", 0, 2, 32, BYTES_MAX).next_offset, 32, BYTES_MAX)
    assert [record.decode(view).queue_offset for view in found.records] == [6]
