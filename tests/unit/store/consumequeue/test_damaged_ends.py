"""Damage in the files of a queue without new messages moves neither its begin nor its end: no offset is given twice."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import expire

from rocketspark.protocol.message import properties, record, sysflags
from rocketspark.store import GetStatus, Store

COUNT = 600
UNIT_BYTES = 20
BATCH_BYTES = 46
SIZES = {"queue_file_units": 1000, "batch_queue_file_units": 1000, "log_file_bytes": 8 << 20, "index_enabled": False}


def idle(store: Store, send: Any) -> None:
    """More of the log than a start looks at again, so that no record of the queue is in it."""
    for _ in range(50):
        send(store, "busy", 0, bytes(100_000))


def file_of(root: Path) -> Path:
    (found,) = root.glob("*consumequeue/t/0/*")
    return found


def flip(at: int, bit: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with open(path, "r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit]))

    return change


def zero(at: int, count: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes(count))

    return change


def read_all(store: Store) -> list[bytes]:
    at, end = store.queue_range("t", 0)
    found: list[bytes] = []
    while at < end:
        read = store.read("t", 0, at, 32, 1 << 20)
        assert read.status is GetStatus.FOUND, (at, read)
        found += [r.body for piece in read.records for r in record.decode_all(piece)]
        at = read.next_offset
    return found


DAMAGE = {
    "size of a unit the search looks at": flip(500 * UNIT_BYTES + 8, 7),
    "size of the last unit": flip(599 * UNIT_BYTES + 8, 7),
    "place of a unit the search looks at": flip(500 * UNIT_BYTES + 1, 6),
    "place of the last unit": flip(599 * UNIT_BYTES + 1, 6),
    "place of a unit the search for the begin looks at": flip(300 * UNIT_BYTES, 7),
    "place of the first unit": flip(0, 7),
    "a page at the end": zero(8192, 4096),
    "a page in the midst": zero(4096, 4096),
    "a shorter file": lambda path: os.truncate(path, 300 * UNIT_BYTES),
}


# A store that was never written by us says nowhere how long its queues are.
CASES = [
    (damage, ends)
    for damage, ends in itertools.product(DAMAGE, ("stop", "kill", "not noted"))
    if ends != "not noted" or damage not in ("a page at the end", "a shorter file")
]


@pytest.mark.shows(
    "mended: one flipped bit, a zeroed page or a truncated file cuts an idle queue; offsets are given twice",
)
@pytest.mark.parametrize(("damage", "ends"), CASES)
def test_begin_and_end_stay(make_store: Any, send: Any, tmp_path: Path, damage: str, ends: str) -> None:
    store = make_store(**SIZES)
    bodies = [b"a%d" % n for n in range(COUNT)]
    for body in bodies:
        send(store, "t", 0, body)
    root = Path(store.settings.root)
    if ends == "kill":
        store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
    idle(store, send)
    if ends == "kill":
        store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
        send(store, "busy", 0, b"late")
        root = Path(shutil.copytree(root, tmp_path / "killed"))
    store.close()
    if ends == "not noted":
        (root / "config/storeFiles.json").unlink()
    DAMAGE[damage](file_of(root))
    again = make_store(root, **SIZES)
    assert again.queue_range("t", 0) == (0, COUNT)
    assert not again.recovered.remade
    assert read_all(again) == bodies
    assert send(again, "t", 0, b"new")[1] == COUNT
    again.close()
    assert read_all(make_store(root, **SIZES)) == [*bodies, b"new"]


@pytest.mark.shows("mended: one flipped position moves a queue's begin")
@pytest.mark.parametrize("unit", [300, 400, 450, 500])
def test_the_begin_stays_once_old_files_are_removed(make_store: Any, send: Any, unit: int) -> None:
    store = make_store(queue_file_units=1000, log_file_bytes=16384)
    for n in range(COUNT):
        send(store, "t", 0, b"%0300d" % n, now_ms=n)
    store.flush_log()
    expire(store, 200)
    oldest, end = store.queue_range("t", 0)
    assert 0 < oldest < 300
    assert end == COUNT
    store.close()
    flip(unit * UNIT_BYTES, 7)(file_of(Path(store.settings.root)))
    again = make_store(queue_file_units=1000, log_file_bytes=16384)
    assert again.queue_range("t", 0) == (oldest, end)
    assert len(read_all(again)) == end - oldest


# Places in a unit of 46 bytes: physical offset 0, size 8, first queue offset 28, messages 36.
@pytest.mark.shows(
    "mended: one flipped bit, a zeroed page or a truncated file cuts an idle queue; offsets are given twice",
)
@pytest.mark.parametrize("ends", ["noted", "not noted"])
@pytest.mark.parametrize("unit", [0, 50, 83, 99])
@pytest.mark.parametrize("byte", [0, 8, 28, 29, 33, 35, 36, 37])
def test_batch_queues_too(make_store: Any, send: Any, unit: int, byte: int, ends: str) -> None:
    store = make_store(**SIZES)
    store.make_batch_topic("t")
    for n in range(100):
        stored = properties.encode({"INNER_NUM": "3"}).encode()
        store.append(b"t", 0, b"%d" % n, stored, 0, None, None, None, 0, 0, sysflags.INNER_BATCH, 0, bytes(8))
    assert store.queue_range("t", 0) == (0, 300)
    idle(store, send)
    store.close()
    root = Path(store.settings.root)
    if ends == "not noted":
        (root / "config/storeFiles.json").unlink()
    flip(unit * BATCH_BYTES + byte, 7 if byte < 36 else 1)(file_of(root))
    assert make_store(**SIZES).queue_range("t", 0) == (0, 300)


def test_ends_are_noted_when_they_change(make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every flush: of 10,000 queues the file is large."""
    store = make_store(**SIZES)
    written: list[int] = []
    write = store.consume_queues.inventory.write
    monkeypatch.setattr(store.consume_queues.inventory, "write", lambda *a: (written.append(1), write(*a)))
    for _ in range(20):
        send(store, "t", 0, b"x")
        store.flush_queues()
    assert len(written) == 1
    store.close()
    assert len(written) == 2


@pytest.mark.shows(
    "mended: a message of a deleted topic is put in the place of a newer one; a flipped first unit ends as a deletion"
)
def test_a_flipped_first_unit_is_no_deleted_topic(make_store: Any, send: Any) -> None:
    store = make_store(**SIZES)
    send(store, "t", 0, b"old")
    store.delete_topic("t")
    for n in range(COUNT):
        send(store, "t", 0, b"%d" % n)
    idle(store, send)
    store.close()
    flip(0, 7)(file_of(Path(store.settings.root)))
    again = make_store(**SIZES)
    assert read_all(again) == [b"%d" % n for n in range(COUNT)]
