"""What is cleaned and refused when; and that it happens, with a clock and a disk that do as they are told."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.stand_ins import like
from tests.unit.store.test_power_cut import Disk

from rocketspark.broker.broker_conf import settings_from
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage import retention as retention_file
from rocketspark.broker.storage.retention import MANUAL_ROUNDS, CleaningPlan, FileCleaning, decide, disk_used_percent
from rocketspark.errors import ConfigError, StoreFull
from rocketspark.store import GetStatus, Store
from rocketspark.store.files.system_calls import OsFiles

pytestmark = pytest.mark.shows("by age at the hour, by disk use, by force; writes refused on a full disk")

NOTHING, CLEAN = CleaningPlan(False, False, False), CleaningPlan(True, False, False)
FORCED, REFUSE = CleaningPlan(True, True, False), CleaningPlan(True, True, True)
# 2023-11-15 in the local zone, at 12 and at 4 o'clock.
NOON_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
FILE_BYTES = 16384


@pytest.mark.parametrize(
    ("hour", "used", "changes", "plan"),
    [
        (3, 0, {}, NOTHING),
        (4, 0, {}, CLEAN),
        (4, 0, {"delete_when": "05;16"}, NOTHING),
        (16, 0, {"delete_when": "05;16"}, CLEAN),
        (4, 0, {"delete_when": ""}, NOTHING),
        (3, 75, {}, NOTHING),
        (3, 76, {}, CLEAN),
        (3, 85, {}, CLEAN),
        (3, 86, {}, FORCED),
        (3, 90, {}, FORCED),
        (3, 91, {}, REFUSE),
        (3, 91, {"clean_by_force": False}, CleaningPlan(True, False, True)),
        (3, 61, {"disk_clean_percent": 60}, CLEAN),
        (3, 10, {"disk_clean_percent": 5}, NOTHING),
        (3, 11, {"disk_clean_percent": 5}, CLEAN),
        (3, 31, {"disk_force_percent": 1}, FORCED),
        (3, 86, {"disk_force_percent": 99}, FORCED),
        (3, 36, {"disk_refuse_percent": 1}, REFUSE),
        (3, 91, {"disk_refuse_percent": 99}, REFUSE),
    ],
)
def test_the_plan(hour: int, used: int, changes: dict[str, Any], plan: CleaningPlan) -> None:
    assert decide(BrokerSettings(**changes), hour, used) == plan


def test_an_operator_cleans_at_any_hour() -> None:
    assert decide(BrokerSettings(), 12, 0, manual=True) == CLEAN


@pytest.mark.parametrize("hours", ["24", "4-6", "four", "-1", "4,16"])
def test_hours_that_are_none(hours: str) -> None:
    with pytest.raises(ConfigError, match="deleteWhen"):
        settings_from({"deleteWhen": hours})


def test_how_full_a_disk_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # 1000 blocks, 251 used, 100 kept for root: 251 of 900 is 27.9 %.
    found = os.statvfs_result((4096, 4096, 1000, 749, 649, 0, 0, 0, 0, 255))
    monkeypatch.setattr(retention_file, "os", like(os, statvfs=lambda path: found))
    assert disk_used_percent("/") == 28


class Place:
    """A store of small files, one per hour of `NOON_MS` on, and its retention."""

    def __init__(self, root: Path, files: OsFiles | None = None, **changes: Any) -> None:
        self.settings = BrokerSettings(
            store_root=str(root),
            log_file_bytes=FILE_BYTES,
            queue_file_bytes=1000,
            index_slots=64,
            index_entries=200,
            clean_pause_ms=0,
            **changes,
        )
        self.store = Store(self.settings.store_settings(), files=files)
        self.store.open()
        self.now_ms = NOON_MS
        self.used = 0.0
        self.per_file = 0.0
        self.retention = FileCleaning(self.settings, self.store, clock=lambda: self.now_ms, disk_used=self._used)
        self.full_files = 0

    def _used(self, path: str) -> float:
        return self.used + self.per_file * len(list(Path(self.settings.store_root, "commitlog").iterdir()))

    def fill(self, files: int) -> None:
        """So many whole files, an hour each, and the begin of another."""
        for n in range(files):
            while self.store.written_position < (self.full_files + n + 1) * FILE_BYTES:
                self.send(NOON_MS + n * HOUR_MS)
        self.full_files += files
        self.store.flush_log()

    def send(self, stored_ms: int, topic: bytes = b"t") -> int:
        key = b"k%d" % stored_ms
        properties = b"KEYS\x01" + key + b"\x02"
        return self.store.append(
            topic, 0, bytes(1000), properties, 0, None, key, None, stored_ms, 0, 0, stored_ms, bytes(8)
        )[1]

    @property
    def files(self) -> list[int]:
        names = os.listdir(Path(self.settings.store_root) / "commitlog")
        return sorted(int(name) // FILE_BYTES for name in names)

    def clean(self) -> int:
        return asyncio.run(self.retention.clean())


@pytest.fixture
def place(tmp_path: Path) -> Any:
    found = Place(tmp_path / "s")
    yield found
    found.store.close()


def hour_ms(hour: int, days: int = 0) -> int:
    """That hour, local time, so many days after the files' first one."""
    from datetime import datetime, timedelta

    day = datetime.fromtimestamp(NOON_MS / 1000).replace(hour=hour, minute=30, second=0, microsecond=0)
    return int((day + timedelta(days=days)).timestamp() * 1000)


def test_by_age_at_the_hour(place: Place) -> None:
    place.fill(5)
    place.now_ms = hour_ms(3, days=9)
    assert place.clean() == 0
    place.now_ms = hour_ms(4, days=9)
    assert place.clean() == 5
    # The one being written stays, however old.
    assert place.files == [5]
    low, high = place.store.queue_range("t", 0)
    assert place.store.min_position == 5 * FILE_BYTES
    assert place.store.read("t", 0, low - 1, 9, 9999).status is GetStatus.OFFSET_TOO_SMALL
    assert place.store.read("t", 0, low - 1, 9, 9999).next_offset == low
    assert place.store.read("t", 0, low, 9, 9999).count == high - low
    assert place.clean() == 0


def test_by_age_only_what_is_old(place: Place) -> None:
    place.fill(5)
    place.settings.delete_when = ";".join(str(hour) for hour in range(24))
    # The last record of each hour opens the next file, and tells how old the one before is.
    place.now_ms = NOON_MS + 72 * HOUR_MS
    assert place.clean() == 1
    assert place.files == [1, 2, 3, 4, 5]
    place.settings.reserved_hours = 70
    assert place.clean() == 2
    place.settings.reserved_hours = 0
    place.settings.clean_files_max = 1
    assert [place.clean(), place.clean(), place.clean()] == [1, 1, 0]


def test_a_crowded_disk_waits_for_no_hour(place: Place) -> None:
    place.fill(3)
    place.now_ms = hour_ms(12, days=9)
    place.used = 75
    assert place.clean() == 0
    place.used = 76
    assert place.clean() == 3
    # Nothing expired goes for this.
    place.fill(3)
    place.now_ms = NOON_MS + 10 * HOUR_MS
    assert place.clean() == 0


def test_by_force_no_more_than_must(place: Place) -> None:
    place.fill(5)
    place.per_file = 10
    place.used = 40  # With the one being written 100, after two files 80.
    assert place.clean() == 2
    assert place.files == [2, 3, 4, 5]
    place.used, place.settings.clean_by_force = 99, False
    assert place.clean() == 0
    place.settings.clean_by_force = True
    assert place.clean() == 3
    assert place.files == [5]
    assert place.clean() == 0


def test_writes_are_refused_and_taken_again(place: Place) -> None:
    place.fill(1)
    written = place.store.written_position
    place.used = 91
    place.settings.clean_by_force = False
    place.clean()
    with pytest.raises(StoreFull, match=r"91 % of the disk of .*commitlog is in use: free some space"):
        place.send(NOON_MS)
    assert place.store.written_position == written
    place.store.populate_ahead()
    with pytest.raises(StoreFull):
        place.send(NOON_MS)
    place.used = 90
    place.clean()
    assert place.send(NOON_MS) == place.store.queue_range("t", 0)[1] - 1


def test_an_operator_s_word_lasts_some_rounds(place: Place) -> None:
    async def main() -> list[int]:
        place.retention.clean_now()
        return [await place.retention.clean() for _ in range(MANUAL_ROUNDS + 1)]

    place.fill(MANUAL_ROUNDS + 2)
    place.settings.clean_files_max = 1
    place.now_ms = hour_ms(12, days=9)
    assert asyncio.run(main()) == [1] * MANUAL_ROUNDS + [0]


def test_a_disk_that_cannot_be_asked_stops_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    def broken(path: str) -> float:
        raise OSError(5, "Input/output error")

    place.fill(1)
    retention = FileCleaning(place.settings, place.store, clock=lambda: hour_ms(4, days=9), disk_used=broken)
    assert asyncio.run(retention.clean()) == 1
    assert "cannot be told: Input/output error" in caplog.text


def test_queues_go_on_between_the_steps(tmp_path: Path) -> None:
    """Appends, reads and a deleted topic while hundreds of queues follow the log."""
    place = Place(tmp_path / "s")
    store = place.store
    for n in range(300):
        store.append(b"q%d" % (n % 3), n, bytes(1000), b"", 0, None, None, None, NOON_MS, 0, 0, 0, bytes(8))
    store.flush_log()
    steps = store.expire_steps(NOON_MS, 100, forced=True)
    removed = 0
    for remove in steps:
        # From before the first file goes to after the last: nothing that is gone is in any queue.
        if removed or remove is not None:
            assert sum(store.queue_range(f"q{n % 3}", n)[0] for n in range(300)) > 15
        if remove is None and removed:
            break
        if remove is not None:
            remove()
            removed += 1
    assert removed > 15
    assert store.append(b"new", 0, b"x", b"", 0, None, None, None, NOON_MS, 0, 0, 0, bytes(8))[1] == 0
    # Its turn has not come or has: in either case nothing that is gone is read.
    for n in range(300):
        assert store.read(f"q{n % 3}", n, 0, 9, 9999).count == 0 or store.queue_range(f"q{n % 3}", n)[0] == 0
    store.delete_topic("q1")
    assert [remove for remove in steps if remove is not None] == []
    gone = [n for n in range(300) if n % 3 != 1 and store.queue_range(f"q{n % 3}", n) == (1, 1)]
    kept = [n for n in range(300) if n % 3 != 1 and store.queue_range(f"q{n % 3}", n) == (0, 1)]
    assert len(gone) + len(kept) == 200
    assert all(store.read(f"q{n % 3}", n, 0, 9, 9999).count == 1 for n in kept)
    assert gone
    assert kept
    store.close()


def test_a_round_that_fails_in_a_way_nobody_thought_of_is_not_the_last(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.fill(1)
    place.settings.clean_interval_ms = 100
    failing = iter([ValueError("odd"), RuntimeError("odd too")])

    def used(path: str) -> float:
        for error in failing:
            raise error
        return 0

    async def main() -> None:
        retention = FileCleaning(place.settings, place.store, clock=lambda: hour_ms(4, days=9), disk_used=used)
        # As `start` does, but for its first look.
        retention._task = asyncio.create_task(retention._clean_forever())
        while 0 in place.files:
            assert not retention._task.done()
            retention.clean_now()
            await asyncio.sleep(0)
        await retention.stop()

    asyncio.run(main())
    assert "old files cannot be removed" in caplog.text


@pytest.mark.shows("retention: a queue whose messages were removed goes on where it ended, also after a power cut")
def test_the_end_of_a_queue_without_messages_outlasts_a_power_cut(tmp_path: Path) -> None:
    place = Place(tmp_path / "s", disk := Disk())
    for _ in range(3):
        place.send(NOON_MS, b"rare")
    place.fill(3)
    place.now_ms = hour_ms(4, days=9)
    assert place.clean() == 3
    left = disk.cut_power(tmp_path / "s", tmp_path / "left")
    place.store.close()
    after = Place(left)
    assert after.store.queue_range("rare", 0) == (3, 3)
    after.store.close()
