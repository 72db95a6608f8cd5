"""Light queues in the store: one record in several queues, after a kill, in a copy, and once the log's files go."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

import pytest
from tests.unit.store.conftest import BORN, NOW_MS

from rocketspark.protocol.light_queues import offset_of
from rocketspark.store import Store, StoreSettings
from rocketspark.store.commitlog.append_message import BatchMessage
from rocketspark.store.consumequeue.consume_queue import ConsumeQueue
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.settings import ManualClock

pytestmark = pytest.mark.shows(
    "light queues (LMQ): a message in many queues; recovery, retention, copies, names of any kind"
)


def opened(root: Path, *, light: bool = True, told: Collection[str] = ()) -> Store:
    settings = StoreSettings(
        root=str(root),
        log_file_bytes=16384,
        queue_file_units=100,
        index_slots=100,
        index_entries=400,
        light_queues=light,
    )
    store = Store(settings, clock=ManualClock(NOW_MS))
    store.simple_topics = told
    store.open()
    return store


def send(store: Store, body: bytes, names: str, topic: bytes = b"base", now_ms: int = NOW_MS) -> None:
    stored = b"INNER_MULTI_DISPATCH\x01%b\x02" % names.encode()
    store.append(topic, 0, body, stored, 0, None, None, None, now_ms, 0, 0, now_ms, BORN)


def bodies(store: Store, name: str) -> list[bytes]:
    low, high = store.queue_range(name, 0)
    found = []
    for offset in range(low, high):
        [kept] = store.read(name, 0, offset, 1, 1 << 20).records
        assert offset_of(name.encode(), bytes(kept)[bytes(kept).index(b"INNER_MULTI_DISPATCH") :]) == offset
        found.append(bytes(kept)[bytes(kept).index(b"m") :][:2])
    return found


def fill(store: Store) -> None:
    send(store, b"m0", "%LMQ%a,%LMQ%b")
    send(store, b"m1", "%LMQ%b")
    send(store, b"m2", "%LMQ%a,x/y,,%LMQ%a,%LMQ%s/l,%LMQ%\u00e9 (1)")
    send(store, b"m3", "%LMQ%a", topic=b"%RETRY%g")


def check(store: Store) -> None:
    assert bodies(store, "%LMQ%a") == [b"m0", b"m2"]
    assert bodies(store, "%LMQ%b") == [b"m0", b"m1"]
    assert bodies(store, "%LMQ%\u00e9 (1)") == [b"m2"]
    assert store.queue_range("base", 0) == (0, 3)
    assert sorted(store.queues()) == sorted(["base", "%RETRY%g", "%LMQ%a", "%LMQ%b", "%LMQ%\u00e9 (1)"])
    assert store.consume_queues.light_count == 3


def test_one_record_is_in_each_queue_that_it_names_also_after_a_kill(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    assert store.light_grown == ["%LMQ%a", "%LMQ%b", "%LMQ%b", "%LMQ%a", "%LMQ%\u00e9 (1)"]
    assert sorted(store.take_stored()) == [("%RETRY%g", 1, 129), ("base", 3, store.written_position - 129)]
    check(store)
    store.abandon()
    store = opened(tmp_path)
    check(store)
    store.close()
    for gone in ("consumequeue/%LMQ%a", "consumequeue"):
        shutil.rmtree(tmp_path / gone)
        store = opened(tmp_path)
        assert store.recovered.remade or gone == "consumequeue"
        check(store)
        store.close()


@pytest.mark.shows(
    "mended: light queues whose folders' names were lost with the machine's power counted as removed, and who read them"
    " was led past their messages"
)
def test_light_queues_whose_folders_a_power_cut_took_are_made_again(tmp_path: Path) -> None:
    for boot, lows in (("another-boot", 0), ("", 1)):
        root = tmp_path / f"store{boot}"
        store = opened(root, told={"base", "%RETRY%g"})
        fill(store)
        store.flush_queues()
        store.abandon()
        shutil.rmtree(root / "consumequeue/%LMQ%a")
        if boot:
            (root / "abort").write_text(f"1 {boot}")
        store = opened(root, told={"base", "%RETRY%g"})
        send(store, b"m4", "%LMQ%a")
        # A removal by a broker that notes none is told from it by the machine's run.
        assert bodies(store, "%LMQ%a") == ([b"m4"] if lows else [b"m0", b"m2", b"m4"])
        assert bodies(store, "%LMQ%b") == [b"m0", b"m1"]
        store.close()


def test_a_batch_goes_message_by_message_into_light_queues(tmp_path: Path) -> None:
    store = opened(tmp_path)
    stored = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
    batch = [BatchMessage(b"m0", stored), BatchMessage(b"m1", b""), BatchMessage(b"m2", stored)]
    placed = store.append_batch(b"base", 0, batch, NOW_MS, 0, NOW_MS, BORN)
    assert [offset for _, offset, _ in placed] == [0, 1, 2]
    assert bodies(store, "%LMQ%a") == [b"m0", b"m2"]
    store.close()


def test_without_the_setting_none_is_made_and_those_that_are_there_stay_whole(tmp_path: Path) -> None:
    store = opened(tmp_path, light=False)
    fill(store)
    assert sorted(store.queues()) == ["%RETRY%g", "base"]
    store.close()
    store = opened(tmp_path)
    send(store, b"m5", "%LMQ%a")
    store.close()
    # A sender that writes an offset itself reaches no queue.
    store = opened(tmp_path, light=False)
    assert bodies(store, "%LMQ%a") == [b"m5"]
    forged = b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%z\x02INNER_MULTI_QUEUE_OFFSET\x0177,0\x02"
    store.append(b"base", 0, b"m6", forged, 0, None, None, None, NOW_MS, 0, 0, NOW_MS, BORN)
    store.abandon()
    store = opened(tmp_path, light=False)
    assert bodies(store, "%LMQ%a") == [b"m5"]
    assert "%LMQ%z" not in store.queues()
    store.close()


def test_a_slash_of_another_broker_stops_no_start_and_is_told(tmp_path: Path) -> None:
    store = opened(tmp_path, light=False)
    stored = b"INNER_MULTI_DISPATCH\x01%LMQ%x/y,%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010,0\x02"
    store.append(b"base", 0, b"m0", stored, 0, None, None, None, NOW_MS, 0, 0, NOW_MS, BORN)
    store.abandon()
    store = opened(tmp_path)
    assert store.recovered.unnamed_light == 1
    assert [line for line in store.recovered.remarks() if "slashes" in line]
    assert store.queue_range("%LMQ%a", 0) == (0, 1)
    store.close()


def test_a_copy_has_the_light_queues_of_its_master(tmp_path: Path) -> None:
    master, copy = opened(tmp_path / "master"), opened(tmp_path / "copy")
    fill(master)
    copy.become_replica()
    copy.append_raw(0, master.log_bytes(0, master.written_position))
    copy.dispatch_received()
    check(copy)
    assert ("%LMQ%a", 0, 2) in copy.take_arrived()
    copy.take_deletions({"%LMQ%b": master.written_position})
    assert copy.queue_range("%LMQ%b", 0) == (0, 0)
    copy.become_master()
    send(copy, b"m9", "%LMQ%a")
    assert bodies(copy, "%LMQ%a") == [b"m0", b"m2", b"m9"]
    master.close()
    copy.close()


def test_a_queue_without_messages_goes_once_the_logs_files_went(tmp_path: Path) -> None:
    store = opened(tmp_path)
    send(store, b"m0", "%LMQ%old")
    while store.written_position < 3 * 16384:
        send(store, b"m1" * 400, "%LMQ%a", now_ms=NOW_MS + 1000)
    store.flush_log()
    for remove in store.expire_steps(NOW_MS + 5000, 1):
        if remove is not None:
            remove()
    assert [*store.consume_queues.expired_light(1)] == [["%LMQ%old"], []]
    store.delete_light(["%LMQ%old"])
    low, high = store.queue_range("%LMQ%a", 0)
    assert 0 < low < high
    store.abandon()
    store = opened(tmp_path)
    assert "%LMQ%old" not in store.queues()
    assert store.queue_range("%LMQ%a", 0) == (low, high)
    send(store, b"m7", "%LMQ%old")
    assert bodies(store, "%LMQ%old") == [b"m7"]
    store.close()


def test_a_damaged_unit_is_made_anew_from_the_log(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(40):
        send(store, b"m%d" % (number % 10), "%LMQ%a")
    store.close()
    path = tmp_path / "consumequeue/%LMQ%a/0" / ("0" * 20)
    content = bytearray(path.read_bytes())
    content[5 * 20 : 5 * 20 + 8] = (999_999).to_bytes(8, "big")
    path.write_bytes(content)
    store = opened(tmp_path)
    assert store.read("%LMQ%a", 0, 5, 1, 1 << 20).count == 1
    assert bodies(store, "%LMQ%a") == [b"m%d" % (number % 10) for number in range(40)]
    store.close()


@pytest.mark.parametrize("how", ["destroyed", "older", "short"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_light_queue_whose_file_lacks_units_is_made_anew_from_the_log(how: str, closed: bool, tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    for number in range(4):
        send(store, b"m%d" % number, "%LMQ%a" if number else "%LMQ%b")
    store.flush_log(), store.flush_queues()
    path = tmp_path / "s/consumequeue/%LMQ%a/0" / ("0" * 20)
    before = path.read_bytes()
    for number in range(4, 8):
        send(store, b"m%d" % number, "%LMQ%a")
    send(store, b"m9", "%LMQ%b")
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()
    store.close() if closed else shutil.copytree(tmp_path / "s", tmp_path / "killed")
    root = tmp_path / ("s" if closed else "killed")
    path = root / "consumequeue/%LMQ%a/0" / ("0" * 20)
    contents = {"destroyed": b"\xff" * len(before), "older": before, "short": before[:1]}
    path.write_bytes(contents[how])
    again = opened(root)
    assert bodies(again, "%LMQ%a") == [b"m%d" % number for number in range(1, 8)]
    assert bodies(again, "%LMQ%b") == [b"m0", b"m9"]
    again.close()
    store.abandon() if not closed else None


@pytest.mark.shows("light queues: a start after a kill looks at those pages of their files alone that hold something")
def test_a_start_after_a_kill_looks_at_what_files_hold_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = StoreSettings(root=str(tmp_path), light_queues=True)
    store = Store(settings, clock=ManualClock(NOW_MS))
    store.open()
    for number in range(20):
        send(store, b"m0", f"%LMQ%{number}")
    store.flush_log()
    store.flush_queues()
    store.flush_indexes()
    store.write_checkpoint()
    send(store, b"m1", "%LMQ%7")
    store.abandon()
    searched, cuts = list[int](), list[str]()
    before, cut = ConsumeQueue._written_units, OsFiles.any_data

    def units(self: ConsumeQueue, view: memoryview, below: int | None, known: int, units_max: int) -> int:
        searched.append(units_max)
        return before(self, view, below, known, units_max)

    def any_data(self: OsFiles, path: str, at: int) -> bool:
        cuts.append(path)
        return cut(self, path, at)

    monkeypatch.setattr(ConsumeQueue, "_written_units", units)
    monkeypatch.setattr(OsFiles, "any_data", any_data)
    store = Store(settings, clock=ManualClock(NOW_MS))
    store.open()
    # Units of what is replayed go, and come again.
    assert len([path for path in cuts if "LMQ" in path]) <= 2
    assert len(searched) >= 21
    assert max(searched) < settings.queue_file_units // 10
    assert [store.queue_range(f"%LMQ%{number}", 0)[1] for number in (6, 7)] == [1, 2]
    store.close()
