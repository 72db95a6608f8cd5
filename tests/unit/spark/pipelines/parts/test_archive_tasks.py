"""Rows to files by hour, files merged, segments read back: every row once, in order, with all columns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketspark.arrow.message_columns import schema_of
from rocketspark.spark.pipelines.parts import archive_tasks
from rocketspark.spark.pipelines.parts.archive_manifest import FILES, HOUR_MS, ArchiveFile, WrittenFile

START_MS = 1_795_237_200_000  # 2026-11-21T05:00 UTC


def batch(offsets: range, *, broker: str = "b", queue: int = 0, step_ms: int = 60_000) -> pa.RecordBatch:
    """Rows of one queue, one each minute."""
    count = len(offsets)
    times = [datetime.fromtimestamp((START_MS + o * step_ms) / 1000, UTC) for o in offsets]
    values: dict[str, list[Any]] = {
        "topic": ["t"] * count,
        "broker": [broker] * count,
        "queueId": [queue] * count,
        "queueOffset": list(offsets),
        "tag": [None if o % 3 else "é" for o in offsets],
        "keys": [[f"k{o}"] if o % 2 else [] for o in offsets],
        "body": [b"body %d" % o for o in offsets],
        "properties": [[("n", str(o))] for o in offsets],
        "storeTime": times,
    }
    schema = schema_of()
    arrays = [pa.array(values.get(f.name, [None] * count), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def stored(written: list[WrittenFile], root: Path) -> list[ArchiveFile]:
    """Files as a commit leaves them."""
    files = []
    for number, one in enumerate(written):
        file = ArchiveFile(one.topic, one.hour, f"{number}.parquet", one.rows, one.bytes, 0, one.segments)
        target = root / FILES / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(one.path).rename(target)
        files.append(file)
    return files


def offsets_in(path: Path) -> list[tuple[str, int, int]]:
    rows = pq.ParquetFile(path).read(["broker", "queueId", "queueOffset"]).to_pylist()
    return [tuple(row.values()) for row in rows]


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


def test_each_hour_has_a_file_and_all_columns_come_back(tmp_path: Path, staging: Path) -> None:
    rows = batch(range(150))
    files = stored(list(archive_tasks.write_rows(iter([rows[:70], rows[70:70], rows[70:]]), staging)), tmp_path)
    found = {f.hour: (f.rows, [(s.first, s.end, s.rows) for s in f.segments]) for f in files}
    assert found == {
        "2026-11-21T05": (60, [(0, 60, 60)]),
        "2026-11-21T06": (60, [(60, 120, 60)]),
        "2026-11-21T07": (30, [(120, 150, 30)]),
    }
    back = pa.Table.from_batches([b for f in files for b in archive_tasks.read_segment(tmp_path, f, 0, 0, 1 << 60)])
    assert back.equals(pa.Table.from_batches([rows]).select(archive_tasks.SCHEMA.names).cast(archive_tasks.SCHEMA))


def test_times_that_go_back_and_many_hours_lose_nothing(tmp_path: Path, staging: Path) -> None:
    hours = [0, 5, 1, 9, 2, 7, 0, 3, 0]
    parts: Iterator[pa.RecordBatch] = iter(
        batch(range(i, i + 1), step_ms=0).set_column(
            schema_of().get_field_index("storeTime"),
            schema_of().field("storeTime"),
            pa.array([START_MS * 1000 + hour * HOUR_MS * 1000], schema_of().field("storeTime").type),
        )
        for i, hour in enumerate(hours)
    )
    files = stored(list(archive_tasks.write_rows(parts, staging)), tmp_path)
    places = sorted(place for f in files for place in offsets_in(tmp_path / FILES / f.path))
    assert places == [("b", 0, i) for i in range(len(hours))]
    assert len({f.hour for f in files}) == len(set(hours))


def test_merging_keeps_every_row_in_order_in_files_of_the_size_asked_for(
    tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_tasks, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr(archive_tasks, "BATCH_ROWS", 7)
    made = []
    ranges = [(20, 40, "b", 1), (0, 20, "b", 1), (0, 33, "a", 0), (33, 50, "a", 0), (5, 6, "b", 0)]
    for first, end, broker, queue in ranges:
        made += list(archive_tasks.write_rows(iter([batch(range(first, end), broker=broker, queue=queue)]), staging))
    files = stored(made, tmp_path)
    one = list(archive_tasks.merge(files, tmp_path, staging, 1 << 30))
    assert [(w.rows, [tuple(vars_of(s)) for s in w.segments]) for w in one] == [
        (91, [("a", 0, 0, 50, 50), ("b", 0, 5, 6, 1), ("b", 1, 0, 40, 40)])
    ]
    wanted = [("a", 0, i) for i in range(50)] + [("b", 0, 5)] + [("b", 1, i) for i in range(40)]
    assert offsets_in(Path(one[0].path)) == wanted
    many = list(archive_tasks.merge(files, tmp_path, staging, 2000))
    assert len(many) > 2
    assert all(w.bytes >= 2000 for w in many[:-1])
    assert [place for w in many for place in offsets_in(Path(w.path))] == wanted
    # Merged once more, with what came later.
    late = list(archive_tasks.write_rows(iter([batch(range(50, 55), broker="a")]), staging))
    (last,) = archive_tasks.merge(stored([*many, *late], tmp_path / "again"), tmp_path / "again", staging, 1 << 30)
    assert offsets_in(Path(last.path)) == sorted([*wanted, *(("a", 0, i) for i in range(50, 55))])


def vars_of(segment: Any) -> list[Any]:
    return [segment.broker, segment.queue_id, segment.first, segment.end, segment.rows]


def test_a_part_of_a_segment_is_read_alone(tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_tasks, "ROW_GROUP_ROWS", 10)
    made = [
        *archive_tasks.write_rows(iter([batch(range(30), broker="a")]), staging),
        *archive_tasks.write_rows(iter([batch(range(10, 55), broker="b")]), staging),
    ]
    (file,) = stored(list(archive_tasks.merge(stored(made, tmp_path), tmp_path, staging, 1 << 30)), tmp_path)
    found = [b.column("body").to_pylist() for b in archive_tasks.read_segment(tmp_path, file, 1, 25, 32)]
    assert [body for bodies in found for body in bodies] == [b"body %d" % i for i in range(25, 32)]
    assert list(archive_tasks.read_segment(tmp_path, file, 0, 30, 99)) == []
