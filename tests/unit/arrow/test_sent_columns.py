"""Columns of Arrow, pandas and Polars, and tables of them, are sent as lists of the same values are.

Here, beside Arrow's other tests, as the tests of the clients run where none of the three is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.unit.client.producer.test_given_columns import body_of, checked

from rocketspark.errors import UsageError

pytestmark = pytest.mark.shows("send_many takes columns of Arrow, numpy, pandas and Polars, and tables of them")

X3 = [b"x"] * 3
TAGS = ["a", None, "ü"]
BODIES = [b"one", b"\x00", b"three\x00"]
KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "iterator": iter,
    "numpy": lambda values: np.array(values, object),
    "arrow": pa.array,
    "chunks": lambda values: pa.chunked_array([values[:1], values[1:], []], pa.array(values).type),
    "large": lambda values: pa.array(values, pa.large_binary() if isinstance(values[0], bytes) else pa.large_string()),
    "slice": lambda values: pa.array([*values[:1], *values])[1:],
    "view": lambda values: pa.array(values, pa.binary_view() if isinstance(values[0], bytes) else pa.string_view()),
    "dictionary": lambda values: pa.array(values).dictionary_encode(),
    "pandas": pd.Series,
    "polars": pl.Series,
}


class Foreign:
    """An Arrow array of a library that nobody knows."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._values.__arrow_c_array__(requested_schema)


class ForeignStream:
    """The same as a stream: an array, or a table, in chunks."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._values.__arrow_c_stream__(requested_schema)


KINDS["foreign"] = lambda values: Foreign(pa.array(values))
KINDS["stream"] = lambda values: ForeignStream(pa.chunked_array([values]))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_columns_of_every_kind(kind: Callable[[list[Any]], Any]) -> None:
    wanted = checked(BODIES, tags=TAGS, properties={"p": TAGS})
    found = checked(kind(BODIES), tags=kind(TAGS), properties={"p": kind(TAGS)})
    assert (list(found.bodies), found.pieces) == (BODIES, wanted.pieces)


TABLES: list[Callable[[dict[str, Any]], Any]] = [
    pa.table,
    pa.RecordBatch.from_pydict,
    lambda columns: ForeignStream(pa.table(columns)),
    pd.DataFrame,
    pl.DataFrame,
    dict,
]


@pytest.mark.parametrize("make", TABLES)
def test_tables(make: Callable[[dict[str, Any]], Any]) -> None:
    columns = {"body": BODIES, "tag": TAGS, "keys": [["k"], ["a", "b"], []], "shardingKey": ["s", "", None]}
    rows = checked(make(columns))
    assert (list(rows.bodies), rows.sharding_keys) == (BODIES, ["s", "", None])
    wanted = checked(BODIES, tags=TAGS, keys=columns["keys"], sharding_keys=columns["shardingKey"])
    assert body_of(rows) == body_of(wanted)
    with pytest.raises(
        UsageError, match="the table has a column 'price', which is not sent: select those of body, tag"
    ):
        checked(make({**columns, "price": TAGS}))
    with pytest.raises(UsageError, match="give tags or a column 'tag' of the table, not both"):
        checked(make(columns), tags="x")
    with pytest.raises(UsageError, match="the table has no column 'body'; it has tag"):
        checked(make({"tag": TAGS}))


def test_a_table_that_was_read_is_sent_without_the_brokers_properties() -> None:
    pairs = [[("UNIQ_KEY", "1"), ("WAIT", "true"), ("p", "1")], [], None]
    table = pa.table({"body": BODIES, "properties": pa.array(pairs, pa.map_(pa.string(), pa.string()))})
    assert body_of(checked(table)) == body_of(checked(BODIES, properties=[{"p": "1"}, {}, {}]))


@pytest.mark.parametrize("frame", [pa.Table.to_pandas, pl.from_arrow, lambda table: table], ids=["pd", "pl", "pa"])
def test_frames_of_a_table_that_was_read_are_sent_with_their_sharding_keys(frame: Callable[[pa.Table], Any]) -> None:
    pairs = [[("UNIQ_KEY", "1"), ("p", "1"), ("__SHARDINGKEY", "s")], [("q", None)], None]
    table = pa.table({"body": BODIES, "properties": pa.array(pairs, pa.map_(pa.string(), pa.string()))})
    rows = checked(frame(table))
    assert rows.sharding_keys == ["s", None, None]
    assert body_of(rows) == body_of(checked(BODIES, properties=[{"p": "1"}, {}, {}], sharding_keys=["s", None, None]))
    assert checked(frame(table), sharding_keys=["a", "b", None]).sharding_keys == ["a", "b", None]


@pytest.mark.parametrize("column", [pa.array, pl.Series], ids=["pa", "pl"])
def test_a_null_of_a_struct_is_no_property(column: Callable[[list[Any]], Any]) -> None:
    rows = checked(X3, properties=column([{"p": "1", "q": None}, {"p": None, "q": "2"}, None]))
    assert body_of(rows) == body_of(checked(X3, properties=[{"p": "1"}, {"q": "2"}, {}]))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"bodies": pa.array([b"x", None])}, "row 1, column bodies: it is null"),
        ({"bodies": pd.Series([b"x", None])}, "row 1, column bodies: it is null"),
        ({"bodies": pa.array([1, 2])}, "row 0, column bodies: .* must be bytes, not int"),
        ({"bodies": pa.array(["a", "b"])}, "row 0, column bodies: .* must be bytes, not str"),
        ({"bodies": X3, "tags": pa.table({"a": ["x"] * 3})}, "tags: a column is needed, .* not Table"),
    ],
)
def test_what_is_wrong_is_named(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        checked(columns.pop("bodies"), **columns)


def test_what_pandas_makes_of_nulls_and_of_lists_of_keys() -> None:
    frame = pd.DataFrame({"body": X3, "delayMs": [1000, None, 5], "tag": ["a", pd.NA, np.nan]}).astype({"tag": object})
    frame["keys"] = pd.Series([np.array(["k", "l"], object), None, np.array([], object)])
    found = checked(frame)
    assert found.delays_ms.tolist() == [1000, 0, 5]  # type: ignore[union-attr]
    whole = checked(X3, delay_ms=[1000, None, 5], tags=["a", None, None], keys=[["k", "l"], None, []])
    assert body_of(found) == body_of(whole)
    assert body_of(checked(X3, tags=["a", pd.NA, pd.NaT])) == body_of(checked(X3, tags=["a", None, None]))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"bodies": pl.LazyFrame({"body": X3})}, "bodies: a column is needed, .* not LazyFrame"),
        ({"bodies": X3, "properties": pl.DataFrame({"a": ["x"] * 3})}, "properties: a column is .* not DataFrame"),
        ({"bodies": X3, "properties": pd.DataFrame({"a": ["x"] * 3})}, "properties: a column is .* not DataFrame"),
        ({"bodies": X3, "tags": pa.scalar("x")}, "tags: a column is needed, .* not StringScalar"),
    ],
)
def test_what_is_no_column(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        checked(columns.pop("bodies"), **columns)


def test_numbers_of_pandas() -> None:
    rows = checked(pd.Series([b"x"] * 2), delay_ms=pd.array([None, 3], "Int64"))
    assert rows.delays_ms is not None
    assert rows.delays_ms.tolist() == [0, 3]
