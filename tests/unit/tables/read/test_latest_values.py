"""Option compacted: which messages of a queue are given, against a model."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.arrow.columns import schema_of
from rocketspark.tables.columns import ChosenColumns, ReadColumns
from rocketspark.tables.read.latest_values import latest, latest_offsets

NAMES = ["queueOffset", "keys", "body"]
KEYS = st.sampled_from([None, ["a"], ["b"], ["a", "b"], ["ä", "c"]])
MESSAGES = st.lists(st.tuples(KEYS, st.sampled_from([b"", b"1", b"22"])), max_size=40)


def batches(messages: list[tuple[list[str] | None, bytes]], cut: int, step: int) -> list[pa.RecordBatch]:
    rows = [{"queueOffset": 3 + step * i, "keys": keys, "body": body} for i, (keys, body) in enumerate(messages)]
    return [pa.RecordBatch.from_pylist(part, schema=schema_of(NAMES)) for part in (rows[:cut], rows[cut:])]


@given(MESSAGES, st.integers(0, 40), st.sampled_from([1, 5]))
@pytest.mark.shows("option compacted: the last value of each key, without those that were deleted")
def test_the_last_of_each_key(messages: list[tuple[list[str] | None, bytes]], cut: int, step: int) -> None:
    model: dict[tuple[str, ...], tuple[int, bytes]] = {}
    for i, (keys, body) in enumerate(messages):
        if keys:
            model[tuple(keys)] = 3 + step * i, body
    wanted = sorted(value for value in model.values() if value[1])
    queue = batches(messages, cut, step)
    assert latest_offsets(iter(queue)).tolist() == [offset for offset, _ in wanted]

    def read(columns: ReadColumns | ChosenColumns) -> list[pa.RecordBatch]:
        return [columns.given(batch.select(columns.decoded)) for batch in queue]

    given = latest(lambda c: iter(read(c)), lambda c: iter(read(c)), ReadColumns(["body"]))  # type: ignore[arg-type]
    rows = list(given)
    assert all(batch.num_rows and batch.schema.names == ["body"] for batch in rows)
    assert [body for batch in rows for body in batch.column("body").to_pylist()] == [body for _, body in wanted]
