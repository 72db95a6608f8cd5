"""What goes where in which order: every row once, each queue ascending."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines import restore as pipeline
from rocketspark.spark.pipelines.parts.archive_manifest import ArchivedRange, ArchiveFile, open_archive
from rocketspark.spark.pipelines.parts.restore_plan import ArchivedSpan, Queue, archived_spans, chunks, ends, map_queues
from rocketspark.spark.pipelines.parts.restore_tasks import ArchiveSource

pytestmark = pytest.mark.shows("`restore`, `replay`: order, keys, tags, properties, rate, dry run, nothing twice")

A0, A1, B0, B1 = ("a", 0), ("a", 1), ("b", 0), ("b", 1)


@pytest.mark.parametrize(
    ("sources", "targets", "mapping"),
    [
        ([A0, B0], [A0, A1, B0, B1], {A0: A0, B0: B0}),
        ([A0, A1], [B0, B1], {A0: B0, A1: B1}),
        ([A0, A1, B0], [("c", 5), ("c", 7)], {A0: ("c", 5), A1: ("c", 7), B0: ("c", 5)}),
        ([A0, ("z", 0)], [A0, A1], {A0: A0, ("z", 0): A1}),
    ],
)
def test_queues_go_to_their_namesakes_or_in_turn(
    sources: list[Queue], targets: list[Queue], mapping: dict[Queue, Queue]
) -> None:
    assert map_queues(sources, targets) == mapping


def file(hour: int, *segments: tuple[str, int, int, int]) -> ArchiveFile:
    found = [ArchivedRange(broker, queue, first, end, end - first) for broker, queue, first, end in segments]
    return ArchiveFile("t", f"2026-11-21T{hour:02}", "f", sum(s.rows for s in found), 0, 0, found)


def test_hours_follow_each_other() -> None:
    files = [file(7, ("a", 0, 10, 20)), file(6, ("a", 0, 0, 5), ("a", 1, 0, 3)), file(6, ("a", 0, 5, 10))]
    assert archived_spans(files) == [
        [ArchivedSpan(A0, 0, 10, 10), ArchivedSpan(A1, 0, 3, 3)],
        [ArchivedSpan(A0, 10, 20, 10)],
    ]


def test_a_clock_that_went_back_changes_no_order() -> None:
    # Offsets 5 to 7 have the time of an hour before that of 0 to 4.
    files = [file(7, ("a", 0, 0, 5), ("a", 0, 8, 9)), file(6, ("a", 0, 5, 8))]
    spans = [span for hour in archived_spans(files) for span in hour]
    assert [(span.first, span.end) for span in spans] == [(0, 8), (8, 9)]


segments = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1), st.integers(0, 3), st.integers(1, 9)), max_size=12
)


@given(segments, st.integers(1, 30), st.dictionaries(st.sampled_from([A0, A1, B0, B1]), st.integers(0, 40)))
def test_every_row_is_in_one_chunk_and_queues_ascend(
    made: list[tuple[str, int, int, int]], rows_max: int, sent: dict[Queue, int]
) -> None:
    # Each queue's segments follow each other, whatever hours they fall in.
    at: dict[Queue, int] = {}
    files = []
    for broker, queue, hour, rows in made:
        first = at.get((broker, queue), 0)
        at[broker, queue] = first + rows
        files.append(file(hour, (broker, queue, first, first + rows)))
    todo = chunks(archived_spans(files), rows_max, sent)
    reached = dict(sent)
    for chunk in todo:
        assert len({span.queue for span in chunk}) == len(chunk)
        for queue, first, end, _ in chunk:
            assert first == reached.get(queue, 0) or queue not in reached
            assert first < end
        reached = ends(chunk, reached)
    assert reached == {**sent, **{queue: max(end, sent.get(queue, 0)) for queue, end in at.items()}}
    if not sent:
        assert sum(span.rows for chunk in todo for span in chunk) == sum(at.values())


@pytest.mark.shows(
    "mended: an empty `--to` of `restore` or `dlq --resend` sent into the original topics, an empty "
    "`--to-namesrv` of `replay` into the cluster it read, an empty `--against-namesrv` compared a topic with "
    "itself"
)
@pytest.mark.parametrize("to", ["", " "])
def test_a_target_without_a_name_is_not_where_the_rows_came_from(to: str, tmp_path: Path) -> None:
    with open_archive(tmp_path) as archive:
        archive.commit([], offsets={})
    spark: Any = None
    with pytest.raises(ConfigError, match="the target topic's name is needed"):
        pipeline.restore(spark, tmp_path, "127.0.0.1:1", "t", to)
    with pytest.raises(ConfigError, match="the target topic's name is needed"):
        pipeline.replay(spark, "127.0.0.1:1", "t", to)


@pytest.mark.shows(
    "mended: a restore in chunks leaves out rows of an archive that holds a topic of before its deletion"
)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(1, 50),
)
def test_chunks_hold_each_row_once_where_segments_overlap(parts: list[tuple[int, int, int]], rows_max: int) -> None:
    held = [
        ArchiveFile("t", f"2026-01-01T0{hour}", str(n), rows, 0, 0, [ArchivedRange("b", 0, first, first + rows, rows)])
        for n, (first, rows, hour) in enumerate(parts)
    ]
    source = ArchiveSource(Path(), held)
    found = [
        (file.name, offset)
        for chunk in chunks(archived_spans(held), rows_max, {})
        for span in chunk
        for first, end, file, _ in source._within(span)
        for offset in range(max(first, span.first), min(end, span.end))
    ]
    assert sorted(found) == sorted((f.name, at) for f in held for at in range(f.segments[0].first, f.segments[0].end))
