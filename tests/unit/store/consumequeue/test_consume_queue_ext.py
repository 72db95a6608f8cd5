"""Consume queue extensions: read as the official broker wrote them, written as it does, kept in line with the queue."""

from __future__ import annotations

import errno
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import expire

from rocketspark.errors import StoreFull, StoreUnwritable
from rocketspark.model.text import string_hash
from rocketspark.protocol.message import properties as props
from rocketspark.protocol.message import record, record_crc
from rocketspark.store import GetStatus, Store
from rocketspark.store.consumequeue.consume_queue_ext import is_address
from rocketspark.store.settings import ManualClock

pytestmark = pytest.mark.shows("store: consume queue ext", "bitmaps in consume queue extensions are read past")

NOW_MS = 1_700_000_000_000
SMALL = {"queue_ext": True, "queue_ext_file_bytes": 4096}
# Units of 20 bytes in a file of 4096, the last four bytes of which stay free.
PER_FILE = (4096 - 4) // 20


def raw_units(store: Store, topic: str, queue_id: int) -> list[tuple[int, int, int]]:
    queue = store.consume_queues.find(topic, queue_id)
    assert queue is not None
    return list(queue.units(queue.min, queue.next - queue.min))


def ext_files(store: Store, topic: str, queue_id: int) -> list[str]:
    return sorted(p.name for p in (Path(store.settings.root) / "consumequeue_ext" / topic / str(queue_id)).iterdir())


def bodies(store: Store, topic: str, codes: frozenset[int] | None = None) -> list[bytes]:
    found: list[bytes] = []
    at = store.queue_range(topic, 0)[0]
    while (read := store.read(topic, 0, at, 100, 1 << 20, codes)).status in (GetStatus.FOUND, GetStatus.NO_MATCHED):
        found += [r.body for piece in read.records for r in record.decode_all(piece)]
        at = read.next_offset
    return found


def golden_code(message: dict[str, Any]) -> int | None:
    """The tags code of a message as the manifest tells it; None where it is a delivery time."""
    if message["topic"] == "SCHEDULE_TOPIC_XXXX":
        return None
    return string_hash(message["tags"]) if message["tags"] else 0


@pytest.mark.parametrize("on", [True, False])
def test_official_units_are_read(on: bool, golden: Callable[[str], Any]) -> None:
    g = golden("store_ext")
    g.settings.queue_ext = on
    store = Store(g.settings)
    store.open()
    addresses = 0
    for message in g.manifest["messages"]:
        if message["topic"] == "S_Bcq" or message["sysFlag"] & 4:
            continue
        topic, queue_id, offset = message["topic"], message["queueId"], message["queueOffset"]
        [(position, size, code)] = store.queue_units(topic, queue_id, offset, 1)
        assert (position, size) == (message["commitLogOffset"], message["size"])
        expected = golden_code(message)
        if expected is None:
            expected = message["storeTimestamp"] + g.settings.delay_ms[queue_id]
        assert code == expected
        queue = store.consume_queues.find(topic, queue_id)
        assert queue is not None
        assert queue.ext is not None
        stated = queue.unit(offset)[2]
        if not on and message["commitLogOffset"] >= g.manifest["checkpoint"]["logicsPhysicalOffset"]:
            assert stated == expected  # Replayed, and so written anew.
            continue
        assert is_address(stated)
        assert queue.ext.get(stated) == (expected, message["storeTimestamp"], b"")
        addresses += 1
    assert addresses > 100
    store.close()


def test_the_same_messages_make_the_same_files(golden: Callable[[str], Any], tmp_path: Path) -> None:
    g = golden("store_ext")
    source = Store(g.settings)
    source.open()
    clock = ManualClock()
    settings = type(g.settings)(
        **{
            **{f: getattr(g.settings, f) for f in g.settings.__struct_fields__},
            "root": str(tmp_path / "copy"),
            "queue_ext": True,
            "append_record_crc": True,
        }
    )
    first = next(source.iterate(0))
    target = Store(settings, store_host=first.store_host, clock=clock)
    target.open()
    appended = 0
    for r in source.iterate(0):
        if r.sys_flag & 0x80:
            break
        tags = props.find(r.properties, b"TAGS")
        assert target.append(
            r.topic, r.queue_id, r.body, record_crc.without(r.properties),
            string_hash(tags.decode()) if tags else 0, props.find(r.properties, b"UNIQ_KEY"),
            props.find(r.properties, b"KEYS"), tags, r.store_time_ms, r.flag, r.sys_flag, r.born_time_ms,
            r.born_host, r.reconsume_times, r.prepared_position,
        ) == (r.position, r.queue_offset, r.position + r.size)  # fmt: skip
        appended += 1
    end = target.written_position
    assert appended > 60
    target.close()
    source.close()
    assert (tmp_path / "copy/commitlog" / f"{0:020d}").read_bytes()[:end] == (
        g.root / "commitlog" / f"{0:020d}"
    ).read_bytes()[:end]
    same = 0
    for path in sorted((tmp_path / "copy/consumequeue_ext").rglob("0" * 20)):
        ours = path.read_bytes()
        theirs = (g.root / path.relative_to(tmp_path / "copy")).read_bytes()
        at = 0
        while size := struct.unpack_from(">h", ours, at)[0]:
            # From the first bitmap on, which we do not write, units lie elsewhere.
            if struct.unpack_from(">h", theirs, at)[0] != size:
                break
            assert ours[at : at + size] == theirs[at : at + size]
            at += size
            same += 1
    assert same > 40


def test_units_point_there_and_files_roll(make_store: Any, send: Any) -> None:
    store = make_store(**SMALL)
    count = PER_FILE * 2 + 10
    for n in range(count):
        send(store, "t", 0, b"%d" % n, tag="AB"[n % 2], now_ms=NOW_MS + n)
    assert ext_files(store, "t", 0) == [f"{start:020d}" for start in (0, 4096, 8192)]
    for n, (_, _, code) in enumerate(raw_units(store, "t", 0)):
        assert code == n // PER_FILE * 4096 + n % PER_FILE * 20 - 2**63
        unit = store.consume_queues.find("t", 0).ext.get(code)
        assert unit == (string_hash("AB"[n % 2]), NOW_MS + n, b"")
    first = Path(store.settings.root, "consumequeue_ext/t/0", f"{0:020d}").read_bytes()
    assert first[PER_FILE * 20 : PER_FILE * 20 + 2] == b"\xff\xff"
    assert bodies(store, "t", frozenset({string_hash("A")})) == [b"%d" % n for n in range(0, count, 2)]
    assert bodies(store, "t", frozenset({string_hash("C")})) == []
    assert len(bodies(store, "t")) == count


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_goes_on_where_it_ended(clean: bool, make_store: Any, send: Any) -> None:
    store = make_store(**SMALL)
    for n in range(PER_FILE):
        send(store, "t", 0, b"%d" % n, tag="A", now_ms=NOW_MS + n)
    if clean:
        store.close()
    else:
        store._closed = True
        store._give_back()
    root = Path(store.settings.root)
    # What a kill may leave behind the last unit, and a file nothing points to.
    with (root / "consumequeue_ext/t/0" / f"{0:020d}").open("r+b") as file:
        file.seek(PER_FILE * 20)
        file.write(b"\x00\x14junk")
    (root / "consumequeue_ext/t/0" / f"{4096:020d}").write_bytes(b"\x00\x14" * 2048)
    again = make_store(root, **SMALL)
    send(again, "t", 0, b"more", tag="B", now_ms=NOW_MS + 1000)
    *_, last = raw_units(again, "t", 0)
    assert last[2] == 4096 - 2**63
    assert bodies(again, "t", frozenset({string_hash("B")})) == [b"more"]
    assert len(bodies(again, "t", frozenset({string_hash("A")}))) == PER_FILE
    content = (root / "consumequeue_ext/t/0" / f"{4096:020d}").read_bytes()
    assert content[20:] == bytes(4096 - 20)


def test_it_is_made_anew_from_the_log(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store(**SMALL)
    for n in range(300):
        send(store, f"t{n % 2}", 0, b"%d" % n, tag=f"g{n % 7}", now_ms=NOW_MS + n)
    store.close()
    root = Path(store.settings.root)
    before = {p: p.read_bytes() for p in sorted(root.rglob("consumequeue*/**/0*")) if p.is_file()}
    assert len(before) > 6
    for folder in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(root / folder)
    make_store(root, **SMALL).close()
    assert {p: p.read_bytes() for p in sorted(root.rglob("consumequeue*/**/0*")) if p.is_file()} == before
    # The queues alone gone: what is in the extension belongs to none of them.
    shutil.rmtree(root / "consumequeue")
    make_store(root, **SMALL).close()
    assert {p: p.read_bytes() for p in sorted(root.rglob("consumequeue*/**/0*")) if p.is_file()} == before
    # The extension alone gone: tags are those of the records.
    shutil.rmtree(root / "consumequeue_ext")
    again = make_store(root, **SMALL)
    assert bodies(again, "t0", frozenset({string_hash("g2")})) == [b"%d" % n for n in range(2, 300, 14)]
    assert {code for _, _, code in again.queue_units("t0", 0, 0, 150)} == {string_hash(f"g{n}") for n in range(7)}


def test_switched_off_it_is_read_and_not_written(make_store: Any, send: Any) -> None:
    store = make_store(**SMALL)
    send(store, "t", 0, b"first", tag="A", keys="k")
    send(store, "SCHEDULE_TOPIC_XXXX", 1, b"late", now_ms=NOW_MS, keys="k")
    send(store, "other", 0, b"", keys="k")
    store.close()
    root = Path(store.settings.root)
    off = make_store(root, queue_ext_file_bytes=4096)
    send(off, "t", 0, b"second", tag="A", keys="k")
    send(off, "other", 0, b"", keys="k")
    first, second = raw_units(off, "t", 0)
    assert is_address(first[2])
    assert second[2] == string_hash("A")
    assert bodies(off, "t", frozenset({string_hash("A")})) == [b"first", b"second"]
    assert off.queue_units("SCHEDULE_TOPIC_XXXX", 1, 0, 1)[0][2] == NOW_MS + 5000
    off.close()
    on = make_store(root, **SMALL)
    send(on, "t", 0, b"third", tag="A")
    assert raw_units(on, "t", 0)[2][2] == 20 - 2**63
    assert bodies(on, "t", frozenset({string_hash("A")})) == [b"first", b"second", b"third"]


def test_it_goes_with_the_queue(make_store: Any, send: Any) -> None:
    store = make_store(**SMALL)
    for n in range(PER_FILE * 3):
        send(store, "t", 0, b"x" * 100, tag="A", now_ms=NOW_MS + n)
    send(store, "other", 0, b"stays", tag="A", now_ms=NOW_MS + 10_000)
    store.flush_log()
    while expire(store, NOW_MS + PER_FILE * 2 + 100):
        pass
    low, high = store.queue_range("t", 0)
    assert PER_FILE < low < high == PER_FILE * 3
    assert ext_files(store, "t", 0)[0] == f"{low // PER_FILE * 4096:020d}"
    assert len(bodies(store, "t", frozenset({string_hash("A")}))) == high - low
    store.delete_topic("t")
    assert not Path(store.settings.root, "consumequeue_ext/t").exists()
    send(store, "t", 0, b"again", tag="A", now_ms=NOW_MS + 20_000)
    assert raw_units(store, "t", 0)[0][2] == -(2**63)
    assert bodies(store, "t", frozenset({string_hash("A")})) == [b"again"]
    assert bodies(store, "other") == [b"stays"]


def test_a_full_disk_leaves_no_unit_behind(make_store: Any, send: Any, files: Any) -> None:
    store = make_store(**SMALL)
    send(store, "t", 0, b"0", tag="A")
    files.room_bytes = 0
    stored = 1
    full = False
    while not full:
        try:
            send(store, "t", 0, b"n", tag="A")
            stored += 1
        except StoreFull:
            full = True
    assert store.queue_range("t", 0) == (0, stored)
    files.room_bytes = None
    send(store, "t", 0, b"after", tag="A")
    assert len(bodies(store, "t", frozenset({string_hash("A")}))) == stored + 1


@pytest.mark.shows(
    "mended: with queue extensions a send that was refused, as a file could not be mapped, came back after a "
    "kill; a batch topic made again lost its kind where a start ended its deletion"
)
def test_a_file_that_cannot_be_mapped_leaves_no_message_behind(
    make_store: Any, send: Any, files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is refused, so no start may find it in the log."""
    store = make_store(queue_ext=True, queue_ext_file_bytes=200)
    mapped = files.map

    def no_descriptor(path: str, **options: Any) -> Any:
        if "consumequeue_ext" in path:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return mapped(path, **options)

    acknowledged: list[bytes] = []
    refused = 0
    for n in range(30):
        monkeypatch.setattr(files, "map", no_descriptor)
        try:
            send(store, "t", 0, b"%d" % n, tag="A")
            acknowledged.append(b"%d" % n)
        except StoreUnwritable:
            refused += 1
            monkeypatch.setattr(files, "map", mapped)
            shutil.copytree(store.settings.root, tmp_path / f"killed{n}")
            killed = make_store(tmp_path / f"killed{n}", queue_ext=True, queue_ext_file_bytes=200)
            assert [r.body for r in killed.iterate(0)] == acknowledged
            send(store, "t", 0, b"again", tag="A")
            acknowledged.append(b"again")
    assert refused > 1
