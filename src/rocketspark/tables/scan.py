"""scan_rocketmq: a topic as a LazyFrame of Polars. Rule: what a query leaves out is not read where that can be told by
columns, tags and store times; every filter of the query is applied to the rows that were read all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from rocketspark.errors import ConfigError
from rocketspark.model.subscription import can_be_asked
from rocketspark.tables.read_table import read_batches

if TYPE_CHECKING:
    import polars as pl

_UNITS = {"Milliseconds": timedelta(milliseconds=1), "Microseconds": timedelta(microseconds=1)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SWAPPED = {"Gt": "Lt", "GtEq": "LtEq", "Lt": "Gt", "LtEq": "GtEq", "Eq": "Eq"}


def scan_rocketmq(namesrv: str | None = None, topic: str | Sequence[str] | None = None, **how: Any) -> pl.LazyFrame:
    """Return the messages of a topic as a LazyFrame, each time it is collected those that are there then.

    Arguments and errors are those of `read_batches`. A query reads only the columns that it uses, stops after the rows
    that it asks for, and leaves its filters on `tag` and `storeTime` to the broker. Raises ConfigError without Polars.
    """
    try:
        import polars as pl
        from polars.io.plugins import register_io_source
    except ImportError:
        raise ConfigError("a LazyFrame needs Polars: pip install 'rocketspark[polars]'") from None
    with read_batches(namesrv, topic, **how) as reader:
        schema = pl.DataFrame(reader.schema.empty_table()).schema

    def rows(
        columns: list[str] | None, predicate: pl.Expr | None, count: int | None, batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        asked = schema.names() if columns is None else columns
        tested = [] if predicate is None else predicate.meta.root_names()
        # One at least, as rows are counted by it.
        names = [name for name in schema.names() if name in asked or name in tested] or schema.names()[-1:]
        # Polars counts the rows that it asks for before its filter, which then leaves none out of the read.
        given = how | narrowed(predicate if count is None else None, how) | {"columns": names}
        if {"start", "end"} <= given.keys() - how.keys() and given["start"] >= given["end"]:
            return
        with read_batches(namesrv, topic, **given) as reader:
            for batch in reader:
                frame = pl.DataFrame(batch)
                if count is not None:
                    frame = frame.head(count)
                    count -= frame.height
                if predicate is not None:
                    frame = frame.filter(predicate)
                yield frame.select(asked or names)
                if count == 0:
                    return

    return register_io_source(rows, schema=schema)


class _Span(NamedTuple):
    """What a filter leaves: store times, the last one excluded, and tags; None for all."""

    first: datetime | None = None
    end: datetime | None = None
    tags: frozenset[str] | None = None

    def __and__(self, other: _Span) -> _Span:
        firsts = [one.first for one in (self, other) if one.first is not None]
        ends = [one.end for one in (self, other) if one.end is not None]
        tags = [one.tags for one in (self, other) if one.tags is not None]
        return _Span(
            max(firsts, default=None), min(ends, default=None), frozenset.intersection(*tags) if tags else None
        )


def narrowed(predicate: pl.Expr | None, how: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that leave out what a filter leaves out, beside those that the application gave."""
    if predicate is None or any(name.lower() == "compacted" for name in how):
        return {}  # A filter that was applied before a compaction would let older values of a key through.
    try:
        span = _span(json.loads(predicate.meta.serialize(format="json")))
    except Exception:
        return {}  # Polars may write its filters in another way one day: then rows are filtered here alone.
    found: dict[str, Any] = {"start": span.first, "end": span.end}
    if span.tags and all(can_be_asked(tag) and not set(tag) & set("| ,*") for tag in span.tags):
        found["tags"] = " || ".join(sorted(span.tags))
    # Both of a pair: a time and an offset do not mix.
    taken = {name for name in found if how.get(name) is not None}
    if taken & {"start", "end"} or any("offsets" in name.lower() or "timestamp" in name.lower() for name in how):
        taken |= {"start", "end"}
    if "sql" in how:
        taken.add("tags")
    return {name: value for name, value in found.items() if value is not None and name not in taken}


def _span(node: Any) -> _Span:
    """Return what is known of a filter's rows; of one that is not understood: nothing."""
    if not isinstance(node, dict):
        return _Span()
    if "BinaryExpr" in node:
        left, operator, right = (node["BinaryExpr"][name] for name in ("left", "op", "right"))
        if operator == "And":
            return _span(left) & _span(right)
        if operator == "Or":
            sides = _span(left).tags, _span(right).tags
            return _Span(tags=sides[0] | sides[1]) if sides[0] and sides[1] else _Span()
        if "Column" in right:
            left, right, operator = right, left, _SWAPPED.get(operator)
        return _compared(left.get("Column"), operator, _value(right))
    call = node.get("Function", {})
    kind = call.get("function", {}).get("Boolean", {}) if call else {}
    if "IsBetween" in kind:
        column, low, high = call["input"]
        name = column.get("Column")
        return _compared(name, "GtEq", _value(low)) & _compared(name, "LtEq", _value(high))
    if "IsIn" in kind and call["input"][0].get("Column") == "tag":
        packed = bytes(call["input"][1]["Literal"]["Scalar"]["List"])
        values = pa.ipc.open_stream(packed).read_all().column(0).to_pylist()
        if values and all(isinstance(value, str) for value in values):
            return _Span(tags=frozenset(values))
    return _Span()


def _compared(column: str | None, operator: str | None, value: Any) -> _Span:
    if column == "tag" and operator == "Eq" and isinstance(value, str):
        return _Span(tags=frozenset([value]))
    if column != "storeTime" or not isinstance(value, datetime):
        return _Span()
    # Brokers store times in whole milliseconds.
    after = value + timedelta(milliseconds=1)
    match operator:
        case "Eq":
            return _Span(value, after)
        case "Gt" | "GtEq":
            return _Span(first=value)
        case "Lt" | "LtEq":
            return _Span(end=after)
    return _Span()


def _value(node: Any) -> Any:
    found = node.get("Literal", {}).get("Scalar", {})
    if "String" in found:
        return found["String"]
    if "Datetime" in found:
        number, unit, zone = found["Datetime"]
        if unit in _UNITS and zone is not None:
            return _EPOCH + number * _UNITS[unit]
    return None
