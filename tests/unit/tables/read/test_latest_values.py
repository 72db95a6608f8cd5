"""Option compacted: which messages of a queue are given, against a model."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.arrow.message_columns import schema_of
from rocketspark.tables.read.latest_values import KEY_COLUMNS, QueueReads, latest, note_latest
from rocketspark.tables.read_columns import Columns, ReadColumns

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
    found: dict[str, int] = {}
    assert note_latest(iter(queue), found) == len(messages)
    assert sorted(found.values()) == [offset for offset, _ in wanted]

    def read(part: int, columns: Columns = KEY_COLUMNS) -> Iterator[pa.RecordBatch]:
        return (columns.given(batch.select(columns.decoded)) for batch in queue)

    rows = list(latest(0, QueueReads(read, read, lambda part: len(messages), lambda part: None), ReadColumns(["body"])))
    assert all(batch.num_rows and batch.schema.names == ["body"] for batch in rows)
    assert [body for batch in rows for body in batch.column("body").to_pylist()] == [body for _, body in wanted]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.data())
@pytest.mark.shows("mended: option compacted has no row of keys whose message a broker compacts while they are read")
def test_a_compaction_meanwhile_takes_no_key(keys: list[str], data: st.DataObject) -> None:
    """Before each read some messages come, and the broker removes any that a newer one of their key follows."""
    queue = dict(enumerate(keys))
    seen: set[str] = set(keys)

    def changed() -> None:
        for key in data.draw(st.lists(st.sampled_from("abc"), max_size=3)) if max(queue) < 40 else ():
            queue[max(queue) + 1] = key
        newest = {key: offset for offset, key in queue.items()}
        for offset in [one for one, key in queue.items() if newest[key] > one]:
            if data.draw(st.booleans()):
                del queue[offset]

    def read(part: tuple[int, int], columns: Columns = KEY_COLUMNS) -> Iterator[pa.RecordBatch]:
        changed()
        rows = [{"queueOffset": at, "keys": [k], "body": b"%d" % at} for at, k in queue.items() if at in range(*part)]
        yield columns.given(pa.RecordBatch.from_pylist(rows, schema=schema_of(NAMES)).select(columns.decoded))

    def following(part: tuple[int, int]) -> tuple[int, int] | None:
        return (part[1], max(queue) + 1) if max(queue) >= part[1] else None

    reads = QueueReads(read, read, lambda part: part[1] - part[0], following)
    rows = [one for batch in latest((0, len(keys)), reads, ReadColumns(["keys"])) for one in batch["keys"].to_pylist()]
    assert seen <= {key for (key,) in rows}
    assert len(rows) == len({key for (key,) in rows})
