"""Rows in files: what is written comes back, and a row that is no message is named."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from rocketspark.arrow.message_columns import schema_of
from rocketspark.errors import UsageError
from rocketspark.tables import file_rows

pytestmark = pytest.mark.shows(
    "files of topics: bodies of any bytes, tags, keys and properties come back from Parquet, CSV and JSON lines; a row "
    "that is no message is named with its line"
)

NAMES = ("body", "tag", "keys", "properties", "flag", "queueId", "storeTime")
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6)
# Keys that RocketMQ can have: without blanks.
keys = texts.filter(lambda text: text.split() == [text])
rows = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=12) | texts.map(str.encode),
            "tag": st.none() | texts,
            "keys": st.lists(keys, max_size=3),
            "properties": st.dictionaries(texts, texts, max_size=3).map(lambda one: list(one.items())),
            "flag": st.integers(-(2**31), 2**31 - 1),
            "queueId": st.integers(0, 2**31 - 1),
            "storeTime": st.just(0),
        }
    ),
    min_size=1,
    max_size=6,
)


def written(kind: str, batch: pa.RecordBatch, folder: str) -> Path:
    path = Path(folder) / f"f.{kind}"
    if kind == "parquet":
        parquet.write_table(pa.Table.from_batches([batch]), path)
    elif kind == "csv":
        path.write_bytes(file_rows.csv_head(batch.schema) + file_rows.csv_of(batch))
    else:
        path.write_bytes(file_rows.lines_of(batch))
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@given(rows=rows, skip=st.integers(0, 7))
def test_what_is_written_comes_back(kind: str, rows: list[dict[str, Any]], skip: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema_of(NAMES))
    with tempfile.TemporaryDirectory() as folder:
        path = written(kind, batch, folder)
        found = [row for batch in file_rows.batches_of(path, skip) for row in batch.to_pylist()]
    assert len(found) == max(0, len(rows) - skip)
    for row, was in zip(found, rows[skip:], strict=True):
        assert row["body"] == was["body"]
        assert row.get("tag") == was["tag"]
        assert (row.get("keys") or []) == was["keys"]
        assert (row.get("properties") or []) == was["properties"]
        assert (row["flag"], row["queueId"]) == (was["flag"], was["queueId"])
        assert "storeTime" not in row


def read(tmp_path: Path, name: str, data: str | bytes) -> list[dict[str, Any]]:
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return [row for batch in file_rows.batches_of(path, 0) for row in batch.to_pylist()]


def test_lines_that_consume_prints_are_messages(tmp_path: Path) -> None:
    line = '{"topic":"t","broker_name":"b","queue_id":3,"born_time_ms":5,"keys":["a"],"body_base64":"/w==","flag":7}'
    rows = [{"body": b"\xff", "keys": ["a"], "queueId": 3, "flag": 7}]
    assert read(tmp_path, "f.jsonl", f"{line}\n\n") == rows
    assert read(tmp_path, "f.jsonl", f"\ufeff{line}\n") == rows  # As editors of Windows begin a file.


def test_sharding_keys_among_the_properties_count(tmp_path: Path) -> None:
    line = '{"body":"x","properties":{"__SHARDINGKEY":"s","a":"b"}}\n{"body":"y"}'
    assert [row.get("shardingKey") for row in read(tmp_path, "f.jsonl", line)] == ["s", None]
    table = pa.table(
        {"body": [b"x"], "properties": pa.array([[("__SHARDINGKEY", "s")]], pa.map_(pa.string(), pa.string()))}
    )
    parquet.write_table(table, tmp_path / "f.parquet")
    assert next(file_rows.batches_of(tmp_path / "f.parquet", 0)).column("shardingKey").to_pylist() == ["s"]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("f.txt", "", "the name must end in .parquet, .csv, .jsonl, .ndjson"),
        ("f.jsonl", '{"body":"a"}\n{"body":', "line 2 is no JSON"),
        ("f.jsonl", "[1]", "line 1 is no JSON object"),
        ("f.jsonl", '{"tag":"a"}', "line 1: there is no body"),
        ("f.jsonl", '{"body":""}', "line 1: there is no body"),
        ("f.jsonl", '{"body":{"a":1}}', "line 1: body is .*: a text is needed"),
        ("f.jsonl", '{"body":"x","keys":{"a":1}}', "line 1: keys is .*: a list of texts is needed"),
        ("f.jsonl", '{"body":"x","keys":[1]}', "line 1: keys is"),
        ("f.jsonl", '{"body":"x","properties":{"a":1}}', "line 1: properties is .*: an object of texts is needed"),
        ("f.jsonl", '{"body":"x","flag":"1"}', "line 1: flag is .*: a whole number of 32 bits is needed"),
        ("f.jsonl", '{"body":"x","flag":true}', "line 1: flag is"),
        ("f.jsonl", '{"body":"x","flag":2147483648}', "line 1: flag is .*: a whole number"),
        ("f.jsonl", '{"body":"x","deliverTime":"2026-01-01"}', "line 1: deliverTime is .*: a time with its zone"),
        ("f.jsonl", '{"body_base64":"?"}', "line 1: body_base64 is .*: base64 is needed"),
        (
            "f.jsonl",
            '{"body":"x","nope":1}',
            "line 1: column 'nope' is not understood: leave it out",
        ),
        ("f.jsonl", b'{"body":"\xff"}', "line 1 is no JSON"),
        ("f.jsonl", '{"body":"x"}\n{"body":"' + "x" * ((4 << 20) + 1) + '"}', "line 2: the body has 4194305 bytes"),
        ("f.csv", "body,tag\nx,y\nx,y,z\n", "line 3 has more cells than the first line"),
        ("f.csv", "body,tag,keys\nx,y,\nx,y", "line 3 has fewer cells than the first line: is the file cut short"),
        ("f.csv", "body,tag,body\nx,y,z\n", "column 'body' is there twice"),
        ("f.csv", b"body\n\xff\n", "is no UTF-8 text"),
        ("f.csv", 'body\nx\n"torn', "unexpected end of data"),
        ("f.jsonl", '{"body":"x","deliverTime":"0001-01-01T00:00:00+14:00"}', "line 1: deliverTime is"),
        ("f.csv", "tag\na\n", "line 2: there is no body"),
        ("f.csv", "body,flag\nx,1.5\n", "line 2: flag is '1.5': a whole number"),
        ("f.parquet", "no parquet at all", "is no Parquet file"),
    ],
)
def test_a_row_that_is_no_message_is_named(tmp_path: Path, name: str, data: str | bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        read(tmp_path, name, data)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"tag": ["a"]}, "has no column 'body'"),
        ({"body": ["a"], "more": [1]}, "column 'more' is not understood"),
        ({"body": [1]}, "column 'body' is int64"),
        ({"body": ["a", None]}, "row 2: the body is null or empty"),
        ({"body": ["a", "b", "x" * (4 << 20) + "x"]}, "row 3: the body has 4194305 bytes"),
        ({"body": ["a"], "properties": ["x"]}, "column 'properties' is string, which is no map<string, string>"),
    ],
)
def test_columns_of_parquet_that_are_none(tmp_path: Path, table: dict[str, list[Any]], said: str) -> None:
    parquet.write_table(pa.table(table), tmp_path / "f.parquet")
    with pytest.raises(UsageError, match=said):
        list(file_rows.batches_of(tmp_path / "f.parquet", 0))
