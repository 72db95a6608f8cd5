"""A broker's folder in a second tier, as RocketMQ 5.5.0 and we write it, read as a table without a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.golden_stores import unpack_all
from tests.unit.store.tiered.test_java_tier import VECTOR

from rocketspark import MessageQueue
from rocketspark.errors import ConfigError
from rocketspark.store.tiered.layout import UNIT
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.tables.read_table import read_table

pytestmark = pytest.mark.shows("second tier: the option store reads a broker's folder in it, RocketMQ's too")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    unpack_all(VECTOR, tmp_path)
    return tmp_path / "stopped/tier/212d6b50_DefaultCluster/broker-a"


def test_it_is_a_table(folder: Path) -> None:
    table = read_table(topic="base", store=folder).sort_by([("queueId", "ascending"), ("queueOffset", "ascending")])
    assert table["queueOffset"].to_pylist() == [*range(60), *range(60)]
    assert set(table["broker"].to_pylist()) == {"broker-a"}
    bodies = [b"%d" % number * 50 for queue_id in (0, 1) for number in range(queue_id, 120, 2)]
    assert table["body"].to_pylist() == bodies
    times = [when.timestamp() for when in table["storeTime"].to_pylist()[:60]]
    middle = datetime.fromtimestamp(times[30], UTC)
    found = read_table(topic="base", store=folder, start=middle, columns=["queueId", "queueOffset"])
    assert min(o for q, o in zip(*found.to_pydict().values(), strict=True) if q == 0) == times.index(times[30])
    assert read_table(topic="base", store=folder, tags="B").num_rows == 60
    first = {MessageQueue("base", "broker-a", n): 50 for n in (0, 1)}
    assert sorted(read_table(topic="base", store=folder, start=first)["queueOffset"].to_pylist()) == sorted(
        [*range(50, 60)] * 2
    )
    with pytest.raises(ConfigError, match=r"no topic 'other' in .*; there are: base"):
        read_table(topic="other", store=folder)


def test_units_without_their_records_do_not_count(folder: Path) -> None:
    newest = max((folder / "base/0/COMMIT_LOG").iterdir(), key=lambda path: path.name[8:])
    newest.write_bytes(newest.read_bytes()[:-10])
    table = read_table(topic="base", store=folder, columns=["queueId", "queueOffset"])
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == [(0, n) for n in range(59)] + [
        (1, n) for n in range(60)
    ]
    # A record that is damaged within is lost, and told.
    oldest = min((folder / "base/1/COMMIT_LOG").iterdir(), key=lambda path: path.name[8:])
    content = bytearray(oldest.read_bytes())
    content[100] ^= 1
    oldest.write_bytes(content)
    with pytest.raises(DataLost, match="messages 0 to 0 of queue 1"):
        read_table(topic="base", store=folder)


@pytest.mark.shows("mended: a read of a second tier leaves out what lies beside a damaged unit, and says nothing")
def test_a_damaged_unit_is_lost_alone_and_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    oldest, newest = sorted((folder / "base/0/CONSUME_QUEUE").iterdir(), key=lambda path: path.name[8:])
    with newest.open("r+b") as file:
        file.seek(5 * UNIT.size)
        file.write(bytes(UNIT.size))
    oldest.write_bytes(oldest.read_bytes()[: 12 * UNIT.size])
    with pytest.raises(DataLost, match="messages 12 to 39 of queue 0"):
        read_table(topic="base", store=folder)
    table = read_table(topic="base", store=folder, columns=["queueId", "queueOffset"], fail_on_data_loss=False)
    found = sorted(o for q, o in zip(*table.to_pydict().values(), strict=True) if q == 0)
    assert found == [*range(12), *range(40, 45), *range(46, 60)]
    assert [text for _, _, text in caplog.record_tuples if "messages 45 to 45 of queue 0" in text]
