"""Timer wheel, timer log and checkpoint: the official broker's files read, and written byte for byte."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.golden_stores import STORES, unpack

from rocketspark.errors import ConfigError, StoreFull
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.timers.timer_files import TimerCheckpoint, TimerFiles, read_checkpoint
from rocketspark.store.timers.timer_log import DELETE, NORMAL, ROLL, TimerLogUnit
from rocketspark.store.timers.timer_wheel import SLOT_COUNT, TimerWheelSlot

LOG_BYTES = 104_000
NOW = 1_795_214_512_000


def unpacked(name: str, where: Path) -> Path:
    """The timer files of a golden store, in a root of their own."""
    return unpack(name, where, lambda file: "timer" in file and "consumequeue" not in file)


def manifest(name: str) -> Any:
    return json.loads((STORES / name).read_text())


def files_in(root: Path, **changes: Any) -> TimerFiles:
    (root / "config").mkdir(parents=True, exist_ok=True)
    return TimerFiles(str(root), **{"log_file_bytes": LOG_BYTES} | changes)


def opened(root: Path, **changes: Any) -> TimerFiles:
    made = files_in(root, **changes)
    made.open()
    return made


@pytest.mark.parametrize("name", ["store", "store_unclean"])
def test_golden_files_are_read(tmp_path: Path, name: str) -> None:
    root = unpacked(name, tmp_path)
    expected = manifest("manifest.json")
    files = opened(root)
    units = list(files.log.units(0))
    assert [
        {
            "size": 52,
            "prevPos": u.previous,
            "magic": u.magic,
            "currWriteTime": u.write_time_ms,
            "delayedTime": u.delay_ms,
            "offsetPy": u.physical_offset,
            "sizePy": u.record_bytes,
            "hashOfRealTopic": u.topic_hash,
            "reserved": 0,
        }
        for u in units
    ] == expected["timerlog_units"]
    for row in expected["timerwheel_slots"]:
        assert row["slot"] == row["time"] % SLOT_COUNT
        assert files.wheel.get(row["time"] * 1000) == TimerWheelSlot(
            row["firstPos"], row["lastPos"], row["num"], row["magic"]
        )
    times, lasts = files.wheel.slots(0)
    assert (times, lasts) == (
        [row["time"] * 1000 for row in expected["timerwheel_slots"]],
        [row["lastPos"] for row in expected["timerwheel_slots"]],
    )
    # All but the hour-long one are done.
    assert files.pending() == [1_795_218_112_000] == times[-1:]
    assert files.positions(1_795_214_532_000).tolist() == [104, 156]
    if name == "store":
        check = expected["timercheck"]
        assert files.checkpoint[:4] == tuple(
            check[k]
            for k in ("lastReadTimeMs", "lastTimerLogFlushPos", "lastTimerQueueOffset", "masterTimerQueueOffset")
        )
        assert files.checkpoint[4:] == (0, 1_795_214_576_631, 61)


def test_the_same_messages_give_the_same_bytes(tmp_path: Path) -> None:
    theirs = unpacked("store", tmp_path / "theirs")
    ours = tmp_path / "ours"
    files = opened(ours)
    for row in manifest("manifest.json")["timerlog_units"]:
        files.add(
            row["currWriteTime"],
            row["currWriteTime"] + row["delayedTime"],
            row["offsetPy"],
            row["sizePy"],
            row["hashOfRealTopic"],
            delete=bool(row["magic"] & DELETE),
        )
    files.flush(read_checkpoint(str(theirs / "config/timercheck")))
    for name in ("timerwheel", f"timerlog/{0:020d}", "config/timercheck"):
        # Behind RocketMQ's checkpoint stands a copy of ours, where they have zeros.
        end = 64 if name == "config/timercheck" else None
        assert (ours / name).read_bytes()[:end] == (theirs / name).read_bytes()[:end], name
    assert (ours / "config/timercheck").stat().st_size == (theirs / "config/timercheck").stat().st_size
    assert not any((theirs / "config/timercheck").read_bytes()[64:])


def test_nothing_is_made_before_the_first_message_and_the_wheel_stays_sparse(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.flush(TimerCheckpoint())
    assert [p.name for p in tmp_path.iterdir()] == ["config"]
    assert (files.used, files.pending(), files.log.end) == (False, [], 0)
    files.add(NOW, NOW + 5000, 0, 100, 1)
    files.flush(TimerCheckpoint(NOW, files.log.end, 1, 1))
    assert (tmp_path / "timerwheel").stat().st_size == SLOT_COUNT * 32
    assert (tmp_path / "timerwheel").stat().st_blocks * 512 <= 64 << 10
    assert opened(tmp_path).pending() == [NOW + 5000]


@pytest.mark.parametrize(
    ("delay_slots", "slot_after", "rolled"),
    [
        (99, 99, False),
        (100, 50, True),
        (132, 50, True),
        (133, 100, True),
        (260, 100, True),
    ],
)
def test_what_lies_beyond_the_window_gets_a_slot_on_the_way(
    tmp_path: Path, delay_slots: int, slot_after: int, rolled: bool
) -> None:
    files = opened(tmp_path, roll_slots=100)
    assert files.add(NOW, NOW + delay_slots * 1000, 7, 100, 1) == NOW + slot_after * 1000
    (unit,) = files.chain(NOW + slot_after * 1000)
    assert unit == TimerLogUnit(0, -1, NORMAL | (ROLL if rolled else 0), NOW, slot_after * 1000, 7, 100, 1)


def test_a_window_of_no_sense_is_the_widest(tmp_path: Path) -> None:
    files = opened(tmp_path, roll_slots=SLOT_COUNT)
    assert files.add(NOW, NOW + 604_739_000, 0, 1, 1) == NOW + 604_739_000
    assert files.add(NOW, NOW + 604_740_000, 0, 1, 1) == NOW + 302_370_000


def test_a_file_ends_with_a_blank_and_the_chain_goes_on_in_the_next(tmp_path: Path) -> None:
    # 78 units and 40 bytes: too few for the 79th and the blank behind it.
    files = opened(tmp_path, log_file_bytes=4096)
    for n in range(200):
        files.add(NOW, NOW + 5000, n * 100, 100, n)
    assert sorted(p.name for p in (tmp_path / "timerlog").iterdir()) == [f"{n:020d}" for n in (0, 4096, 8192)]
    first = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert first[78 * 52 :] == bytes.fromhex("00000028 0000000000000000 cbd43194") + bytes(24)
    assert [u.topic_hash for u in files.chain(NOW + 5000)] == list(range(199, -1, -1))
    files.flush(TimerCheckpoint(NOW, files.log.end, 200, 200))
    again = opened(tmp_path, log_file_bytes=4096)
    assert again.log.end == files.log.end == 8192 + 44 * 52
    assert [u.physical_offset for u in again.log.units(0)] == [n * 100 for n in range(200)]
    again.add(NOW, NOW + 5000, 1, 100, 200)
    assert again.positions(NOW + 5000).tolist()[-1] == files.log.end
    # Files whose last message is gone from the commit log go; the newest stays whatever is gone.
    assert (again.log.clean(7700), again.log.clean(7701), again.log.clean(1 << 40)) == (0, 1, 1)
    assert [u.topic_hash for u in again.chain(NOW + 5000)] == list(range(200, 155, -1))


@pytest.mark.parametrize("torn_bytes", [0, 4, 51])
def test_a_kill_between_log_and_wheel_loses_no_unit(tmp_path: Path, torn_bytes: int) -> None:
    files = opened(tmp_path)
    for n in range(3):
        files.add(NOW, NOW + 5000, n, 100, 1)
    files.flush(TimerCheckpoint(NOW, files.log.end, 3, 3))
    # Written, but their slots are not: a chain grown by two, and a slot that is new.
    files.log.append(104, NORMAL, NOW, 5000, 3, 100, 1)
    files.log.append(156, NORMAL | DELETE, NOW, 5000, 4, 100, 1)
    files.log.append(-1, NORMAL, NOW, 9000, 5, 100, 1)
    with open(tmp_path / "timerlog" / f"{0:020d}", "r+b") as log:
        log.seek(6 * 52 + 52 - torn_bytes)
        log.write(b"\x05" * torn_bytes)
    again = opened(tmp_path)
    assert again.log.end == 6 * 52
    assert again.wheel.get(NOW + 5000) == TimerWheelSlot(0, 208, 3)
    assert again.wheel.get(NOW + 9000) == TimerWheelSlot(260, 260, 1)
    assert [u.physical_offset for u in again.chain(NOW + 5000)] == [4, 3, 2, 1, 0]
    assert again.pending() == [NOW + 5000, NOW + 9000]
    # What was cut is zero: the next unit stands alone.
    assert (tmp_path / "timerlog" / f"{0:020d}").read_bytes()[6 * 52 :] == bytes(LOG_BYTES - 6 * 52)


@pytest.mark.shows("`timerwheel` short, empty, gone")
@pytest.mark.parametrize("left", [None, 0, 4096, "one slot", "half a slot", "all but a byte"])
def test_a_wheel_that_is_lost_or_short_is_made_again_from_the_log(tmp_path: Path, left: int | str | None) -> None:
    files = opened(tmp_path)
    for n in range(5):
        files.add(NOW, NOW + 1000 * (n % 2 + 1), n, 100, 1)
    files.flush(TimerCheckpoint(NOW, files.log.end, 5, 5))
    wheel = tmp_path / "timerwheel"
    if left is None:
        wheel.unlink()
    else:
        end = (NOW // 1000 + 2) % SLOT_COUNT * 32
        os.truncate(wheel, {"one slot": end, "half a slot": end + 12, "all but a byte": 38707199}.get(str(left), left))
    again = opened(tmp_path)
    assert [u.physical_offset for u in again.chain(NOW + 1000)] == [4, 2, 0]
    assert again.wheel.get(NOW + 2000) == TimerWheelSlot(52, 156, 2)


@pytest.mark.shows("mended: `TimerFiles._relink` without a ring guard")
def test_a_ring_in_a_damaged_log_ends(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for n in range(3):
        files.add(NOW, NOW + 1000, n, 100, 1)
    files.flush(TimerCheckpoint(NOW, files.log.end, 3, 3))
    with open(tmp_path / "timerlog" / f"{0:020d}", "r+b") as log:
        log.seek(52 + 4)
        log.write((104).to_bytes(8, "big"))  # The second says that the third is before it.
    (tmp_path / "timerwheel").unlink()
    again = opened(tmp_path)
    # The units of the slot are all in the log, whatever linked them.
    assert again.wheel.get(NOW + 1000) == TimerWheelSlot(0, 104, 3)
    assert again.positions(NOW + 1000).tolist() == [0, 52, 104]


def test_a_log_shorter_than_its_checkpoint_starts_over(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for n in range(3):
        files.add(NOW, NOW + 5000, n, 100, 1)
    files.flush(TimerCheckpoint(NOW, files.log.end, 3, 3, 0, NOW, 8))
    with open(tmp_path / "timerlog" / f"{0:020d}", "r+b") as log:
        log.seek(104)
        log.write(bytes(52))
    again = opened(tmp_path)
    assert again.checkpoint == TimerCheckpoint(0, 0, 0, 3, 0, NOW, 8)
    assert again.wheel.get(NOW + 5000) == TimerWheelSlot(0, 52, 2)
    (tmp_path / "timerlog" / f"{0:020d}").unlink()
    empty = opened(tmp_path)
    assert list(empty.chain(NOW + 5000)) == []
    empty.add(NOW, NOW + 9000, 1, 100, 1)
    assert list(empty.chain(NOW + 5000)) == []


@pytest.mark.shows("mended: a flipped bit in config/timercheck: slots cleared, or messages doubled")
def test_no_flipped_bit_changes_what_the_checkpoint_says(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.add(NOW, NOW + 5000, 0, 100, 1)
    checkpoint = TimerCheckpoint(NOW, files.log.end, 1, 1, 0, NOW, 8)
    files.flush(checkpoint)
    path = tmp_path / "config/timercheck"
    kept = path.read_bytes()
    for bit in range(128 * 8):
        content = bytearray(kept)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        assert read_checkpoint(str(path)) == checkpoint, bit
    # RocketMQ writes over the first 56 bytes alone.
    theirs = checkpoint._replace(read_time_ms=NOW + 1000, queue_offset=2)
    path.write_bytes(struct.pack(">7q", *theirs) + kept[56:])
    assert read_checkpoint(str(path)) == theirs
    path.write_bytes(struct.pack(">7q", *theirs).ljust(4096, b"\0"))
    assert read_checkpoint(str(path)) == theirs


@pytest.mark.shows("mended: a damaged last unit of a file of the timer log: no file is removed any more")
@pytest.mark.parametrize("field", [0, 4, 12, 28])
@pytest.mark.parametrize("unit", [97, 98, 99])
def test_a_damaged_unit_at_a_file_s_end_keeps_no_file_and_loses_none(tmp_path: Path, field: int, unit: int) -> None:
    files = opened(tmp_path, log_file_bytes=52 * 100 + 16)
    for n in range(250):
        files.add(NOW, NOW + 5000, n * 100, 100, 0)
    with open(tmp_path / "timerlog" / f"{0:020d}", "r+b") as log:
        log.seek(unit * 52 + field)
        log.write(b"\x35")
    assert files.log.clean(9800) == 0
    assert files.log.clean(10_000) == 1
    assert files.log.clean(1 << 40) == 1


def test_files_of_other_sizes_are_named(tmp_path: Path) -> None:
    unpacked("store", tmp_path)
    with pytest.raises(ConfigError, match="set mappedFileSizeTimerLog=104000"):
        opened(tmp_path / "store", log_file_bytes=4096)
    (tmp_path / "timerwheel").write_bytes(bytes(38707232))
    with pytest.raises(ConfigError, match="timerwheel has 38707232 bytes"):
        opened(tmp_path)


class FullDisk(OsFiles):
    full = ""

    def reserve(self, path: str, at: int, count: int) -> None:
        if self.full and self.full in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(path, at, count)


@pytest.mark.parametrize("what", ["timerlog", "timerwheel"])
def test_a_full_disk_is_an_error_and_leaves_all_as_it_was(tmp_path: Path, what: str) -> None:
    disk = FullDisk()
    files = opened(tmp_path, files=disk)
    files.add(NOW, NOW + 5000, 0, 100, 1)
    files.flush(TimerCheckpoint(NOW, files.log.end, 1, 1))
    files.log._reserved = files.log.end
    disk.full = what
    with pytest.raises(StoreFull):
        files.add(NOW, NOW + 4_000_000, 1, 100, 1)
    assert [u.physical_offset for u in files.chain(NOW + 5000)] == [0]
    disk.full = ""
    files.add(NOW, NOW + 4_000_000, 1, 100, 1)
    assert [u.physical_offset for u in files.chain(NOW + 4_000_000)] == [1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=160), st.data())
def test_slots_that_a_power_cut_took_back_are_made_to_fit_the_log(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[int, bool]], data: st.DataObject
) -> None:
    flushed = data.draw(st.integers(1, len(messages)))
    lost = data.draw(st.sets(st.integers(0, 20)))
    files = opened(tmp_path_factory.mktemp("timers"), log_file_bytes=4096)
    for n, (slot, delete) in enumerate(messages[:flushed]):
        files.add(NOW, NOW + slot * 1000, n, 100, 1, delete=delete)
    files.flush(TimerCheckpoint(NOW, files.log.end, flushed, flushed))
    before = {slot: files.wheel.get(NOW + slot * 1000) for slot in lost}
    for n, (slot, delete) in enumerate(messages[flushed:], flushed):
        files.add(NOW, NOW + slot * 1000, n, 100, 1, delete=delete)
    expected = {slot: files.wheel.get(NOW + slot * 1000) for slot in range(21)}
    chains = {slot: [u.physical_offset for u in files.chain(NOW + slot * 1000)] for slot in range(21)}
    for slot, was in before.items():
        if expected[slot] is not None:
            files.wheel.put(NOW + slot * 1000, was or TimerWheelSlot(-1, -1, 0))
    again = opened(Path(files._root), log_file_bytes=4096)
    assert {slot: again.wheel.get(NOW + slot * 1000) for slot in range(21)} == expected
    assert {slot: [u.physical_offset for u in again.chain(NOW + slot * 1000)] for slot in range(21)} == chains
    assert chains == {slot: [n for n, (s, _) in enumerate(messages) if s == slot][::-1] for slot in range(21)}
