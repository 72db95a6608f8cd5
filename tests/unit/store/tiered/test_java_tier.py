"""A tier as RocketMQ 5.5.0 wrote it: what ours reads of it, and that ours writes the same bytes.

`running`: while the broker ran, the key index in its store; `stopped`: after a stop, the index in the tier.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.golden_stores import unpack_all

from rocketspark.protocol.message import record
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.tiered.key_files import GrowingKeyFile
from rocketspark.store.tiered.layout import decode_metadata, encode_metadata
from rocketspark.store.tiered.queue_tier import NewUnit, QueueTier
from rocketspark.store.tiered.segments import FolderSegments
from rocketspark.store.tiered.tier import Tier, TierSettings

pytestmark = pytest.mark.shows(
    "second tier: a folder that RocketMQ 5.5.0 wrote is read, and ours is byte for byte alike"
)

VECTOR = Path(__file__).parents[3] / "vectors/store/tiered_5.5.0.tar.gz"
SIZES = {"log_bytes": 16 * 1024, "queue_bytes": 20 * 40, "index_slots": 50, "index_entries": 100}


@pytest.fixture(params=["running", "stopped"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    unpack_all(VECTOR, tmp_path)
    found: Path = tmp_path / request.param
    return found


def tier_in(folder: Path, tier: str = "tier") -> Tier:
    settings = TierSettings(str(folder / "store"), "DefaultCluster", "broker-a", **SIZES)
    found = Tier(settings, FolderSegments(str(folder / tier)))
    found.open()
    return found


def numbers(queue: QueueTier) -> list[int]:
    found, offset = [], queue.low
    while offset < queue.next:
        stretch = queue.stretch(offset, 25, 4000)
        for at in range(offset, stretch.next):
            stored = stretch.record(at)
            assert stored is not None
            found.append(int(record.decode(stored).properties.split(b"key")[1].split(b" ")[0]))
        offset = stretch.next
    return found


def test_it_is_read(folder: Path) -> None:
    tier = tier_in(folder)
    assert sorted(tier.queues) == [("base", 0), ("base", 1)]
    for (_, queue_id), queue in tier.queues.items():
        assert (queue.low, queue.next, queue.log.end, queue.units.end) == (0, 60, 19755, 1200)
        assert numbers(queue) == list(range(queue_id, 120, 2))
        times = [queue.time_at(at) for at in range(60)]
        assert queue.first_time_ms() == times[0]
        assert queue.offset_at_time(times[40], False) == times.index(times[40])
        assert queue.offset_at_time(times[40], True) == 59 - times[::-1].index(times[40])
        assert [queue.offset_at_time(t, u) for t in (0, 1 << 60) for u in (False, True)] == [0, 0, 60, 59]
    for number in (0, 7, 119):
        (found,) = tier.query("base", f"key{number}", 10, 0, 1 << 60)
        assert record.decode(memoryview(found)).body == b"%d" % number * 50
    assert len(tier.query("base", "shared1", 100, 0, 1 << 60)) == 40
    assert tier.query("base", "shared1", 100, 0, 1000) == []
    assert tier.query("other", "key7", 100, 0, 1 << 60) == []
    tier.close()


def test_the_same_messages_make_the_same_bytes(folder: Path) -> None:
    tier = tier_in(folder)
    # As the owner's file does.
    (folder / "ours/212d6b50_DefaultCluster/broker-a").mkdir(parents=True)
    mine = Tier(
        TierSettings(str(folder / "new"), "DefaultCluster", "broker-a", **SIZES), FolderSegments(str(folder / "ours"))
    )
    mine.open()
    for (topic, queue_id), queue in sorted(tier.queues.items()):
        made = mine.begin(topic, queue_id, 0, None, 0)
        for first in (0, 13, 50):
            stretch = queue.stretch(first, {0: 13, 13: 37, 50: 10}[first], 1 << 20)
            mine.append(
                made, [_unit(stretch.record(at), stretch.units[at - first][2]) for at in range(first, stretch.next)], 0
            )
    mine.save(5)
    for path in (folder / "tier").rglob("*"):
        if path.is_file() and "rmq_sys_INDEX" not in str(path):
            assert (folder / "ours" / path.relative_to(folder / "tier")).read_bytes() == path.read_bytes()
    tables = [(f / "config/tieredStoreMetadata.json").read_text() for f in (folder / "store", folder / "new")]
    theirs, ours = (decode_metadata(text, "table") for text in tables)
    for a, b in ((theirs, ours), (ours, theirs)):
        for path, rows in a.commit_log_file_segment_table.items():
            assert [(e.base_offset, e.size, e.begin_ms, e.end_ms) for e in rows.values()] == [
                (e.base_offset, e.size, e.begin_ms, e.end_ms) for e in b.commit_log_file_segment_table[path].values()
            ]
    assert decode_metadata(encode_metadata(theirs), "table") == theirs
    mine.close()
    tier.close()


def _unit(stored: memoryview | None, code: int) -> NewUnit:
    assert stored is not None
    return NewUnit(stored, code, record.decode(stored).store_time_ms)


def test_a_growing_key_file_becomes_the_same_segment(tmp_path: Path) -> None:
    unpack_all(VECTOR, tmp_path)
    segments = sorted((tmp_path / "stopped/tier").rglob("*rmq_sys_INDEX/0/INDEX/*"), key=lambda p: p.name[8:])
    growing = sorted((tmp_path / "running/store/tiered_index_file").iterdir())
    assert len(segments) == len(growing) == 4
    for path, segment in zip(growing, segments, strict=True):
        file = GrowingKeyFile(str(path.parent), int(path.name), 50, 100, OsFiles())
        assert file.sorted() == segment.read_bytes()
        file.close()
