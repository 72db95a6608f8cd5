"""Rows of topics in files of three formats: Parquet, CSV, and JSON lines. Rule: what is written can be read again, with
body, tag, keys and properties as they were.

A body that is UTF-8 text is the text `body`, any other one is base64 in `body_base64`, in CSV and JSON lines.
"""

from __future__ import annotations

import base64
import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.arrow.message_columns import COLUMNS, STRING_MAP, STRINGS, TIME
from rocketspark.client.validators import BODY_BYTES_MAX
from rocketspark.errors import UsageError
from rocketspark.model.text import shown
from rocketspark.protocol.message import properties

PARQUET, CSV, JSONL = "parquet", "csv", "jsonl"
FORMATS = {".parquet": PARQUET, ".csv": CSV, ".jsonl": JSONL, ".ndjson": JSONL}
BASE64 = "body_base64"
# Rows of a batch that is read from a file.
ROWS = 16_384
# A line of a file holds a body of 4 MiB, escaped, and properties.
LINE_BYTES_MAX = 32 << 20

# What spreadsheets take for a formula at the beginning of a cell. Quotes too, so that each text is read as it was.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")

# The columns of files that are sent, with their types.
SENT: dict[str, pa.DataType] = {
    "body": pa.binary(),
    "tag": pa.string(),
    "keys": STRINGS,
    "properties": STRING_MAP,
    "shardingKey": pa.string(),
    "queueId": pa.int64(),
    "delayLevel": pa.int64(),
    "delayMs": pa.int64(),
    "deliverTime": TIME,
    "flag": pa.int32(),
}
# Columns of exported and printed messages of which a new message has its own.
_LEFT_OUT = (set(COLUMNS) | {"physicalOffset", "brokerName", "bornTimeMs", "storeTimeMs"}) - set(SENT)


def format_of(path: Path) -> str:
    """Return a file's format, by its ending. Raises UsageError."""
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise UsageError(f"{shown(str(path))}: the name must end in {', '.join(FORMATS)}, which says the format")
    return found


# -- rows to lines -----------------------------------------------------------------------------------------------------


def _plain(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what turns a value of a type into one of JSON; None where nothing is to do. Maps are pairs in Arrow."""
    if pa.types.is_map(kind) and not pa.types.is_nested(kind.key_type):
        value = _plain(kind.item_type) or (lambda one: one)
        return lambda pairs: {name: None if one is None else value(one) for name, one in pairs}
    if pa.types.is_decimal(kind) and kind.scale == 0:
        return lambda number: int(number) if abs(number) < 1 << 63 else number
    if pa.types.is_list(kind):
        inner = _plain(kind.value_type)
        return inner and (lambda values: [None if one is None else inner(one) for one in values])
    return _plain_struct(kind) if pa.types.is_struct(kind) else None


def _plain_struct(kind: pa.DataType) -> Callable[[Any], Any] | None:
    parts = {field.name: made for field in kind if (made := _plain(field.type)) is not None}

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        return row | {name: make(row[name]) for name, make in parts.items() if row[name] is not None}

    return convert if parts else None


def _columns(batch: pa.RecordBatch) -> Iterator[tuple[str, list[Any]]]:
    """Yield the columns of a batch as values of JSON; the body as two columns."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name == "body" and pa.types.is_binary(field.type):
            try:
                yield "body", column.cast(pa.string()).to_pylist()
                yield BASE64, [None] * len(column)
            except pa.ArrowInvalid:
                bodies = column.to_pylist()
                texts = [None if body is None else _text(body) for body in bodies]
                yield "body", texts
                yield BASE64, [body if text is None else None for body, text in zip(bodies, texts, strict=True)]
        elif pa.types.is_timestamp(field.type):
            # By Arrow's kernels: a datetime of each costs more than all else of a row.
            yield field.name, pc.replace_substring(column.cast(pa.string()), " ", "T").to_pylist()
        elif field.type == STRING_MAP and not column.null_count:
            names, values, ends = column.keys.to_pylist(), column.items.to_pylist(), column.offsets.to_pylist()
            first = ends[0]
            spans = ((start - first, end - first) for start, end in pairwise(ends))
            yield field.name, [dict(zip(names[start:end], values[start:end], strict=True)) for start, end in spans]
        else:
            make = _plain(field.type)
            values = column.to_pylist()
            yield field.name, values if make is None else [None if one is None else make(one) for one in values]


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def lines_of(batch: pa.RecordBatch) -> bytes:
    """Return a batch's rows as lines of JSON; what is null is left out of its line."""
    columns = dict(_columns(batch))
    rows = [
        {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        for row in zip(*columns.values(), strict=True)
    ]
    return msgspec.json.Encoder().encode_lines(rows)


def csv_head(schema: pa.Schema) -> bytes:
    """Return the first line of a CSV file."""
    return _csv([[each for name in schema.names for each in ((name, BASE64) if name == "body" else (name,))]])


def csv_of(batch: pa.RecordBatch) -> bytes:
    """Return a batch's rows as lines of CSV: keys with blanks between them, other values that are no plain ones as
    JSON. A text that a spreadsheet would run as a formula has a quote before it, which an import takes away.
    """
    return _csv(list(zip(*(map(_harmless, _cells(name, values)) for name, values in _columns(batch)), strict=True)))


def cells_of(batch: pa.RecordBatch) -> list[list[str]]:
    """Return a batch's rows as texts for people: one for each column."""
    columns: dict[str, list[Any]] = {}
    for name, values in _columns(batch):
        cells = _cells(name, values)
        if name == BASE64 and "body" in columns:
            texts = zip(columns["body"], cells, strict=True)
            columns["body"] = [other if text is None else text for text, other in texts]
        else:
            columns[name] = cells
    return [["" if cell is None else str(cell) for cell in row] for row in zip(*columns.values(), strict=True)]


def _harmless(cell: Any) -> Any:
    return f"'{cell}" if type(cell) is str and _FORMULA.match(cell) else cell


def _cells(name: str, values: list[Any]) -> list[Any]:
    if all(value is None or type(value) in (str, int, float) for value in values):
        return values
    return [_cell(name, value) for value in values]


def _cell(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return str(value).lower() if isinstance(value, bool) else value
    if name == "keys":
        return " ".join(value)
    text = msgspec.json.encode(value).decode()
    return text if isinstance(value, dict | list) else text.strip('"')


def _csv(rows: Sequence[Sequence[Any]]) -> bytes:
    made = io.StringIO(newline="")
    csv.writer(made).writerows(rows)
    return made.getvalue().encode()


# -- files to rows -----------------------------------------------------------------------------------------------------


def batches_of(path: Path, skip: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file as batches whose columns a write takes, without the first `skip` rows.

    Raises UsageError, naming the row, for one that is no message, OSError.
    """
    kind = format_of(path)
    if kind == PARQUET:
        yield from _parquet(path, skip)
        return
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(_lines(path) if kind == JSONL else _csv_lines(path)):
        if number >= skip:
            rows.append(row)
            if len(rows) == ROWS:
                yield _batch(rows)
                rows = []
    if rows:
        yield _batch(rows)


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = [name for name in SENT if any(name in row for row in rows)]
    arrays = [pa.array([row.get(name) for row in rows], SENT[name]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        if file.read(3) != codecs.BOM_UTF8:
            file.seek(0)
        number = 0
        while line := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            where = f"{shown(str(path))}: line {number}"
            if len(line) > LINE_BYTES_MAX:
                raise UsageError(f"{where} is longer than {LINE_BYTES_MAX >> 20} MiB")
            if not line.strip():
                continue
            try:
                found = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
                raise UsageError(f"{where} is no JSON: {shown(str(e))}") from None
            if not isinstance(found, dict):
                raise UsageError(f"{where} is no JSON object")
            yield _row(found, where)


def _csv_lines(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(LINE_BYTES_MAX)
    with path.open(encoding="utf-8-sig", newline="") as file:
        # Strict, so that a file that is cut within quotes is no row.
        reader = csv.DictReader(file, strict=True)
        try:
            names = reader.fieldnames or ()
            for name in names:
                if names.count(name) > 1:
                    raise UsageError(f"{shown(str(path))}: column {shown(name)!r} is there twice: leave one out")
            for cells in reader:
                where = f"{shown(str(path))}: line {reader.line_num}"
                if None in cells:
                    raise UsageError(f"{where} has more cells than the first line")
                if None in cells.values():
                    raise UsageError(f"{where} has fewer cells than the first line: is the file cut short?")
                texts = {name: text for name, text in cells.items() if text}
                yield _row({name: _as_it_was(text) for name, text in texts.items()}, where, in_texts=True)
        except UnicodeDecodeError:
            raise UsageError(f"{shown(str(path))} is no UTF-8 text, after line {reader.line_num}") from None
        except csv.Error as e:
            raise UsageError(f"{shown(str(path))}: line {reader.line_num}: {e}") from None


def _as_it_was(text: str) -> str:
    return text[1:] if text[0] == "'" and _FORMULA.match(text) else text


def _row(found: Mapping[str, Any], where: str, *, in_texts: bool = False) -> dict[str, Any]:
    """Return a row of values for the columns that are sent. Raises UsageError."""
    row: dict[str, Any] = {}
    for given, value in found.items():
        name = given if given == BASE64 else _camel(given)
        if value is None or name in _LEFT_OUT:
            continue
        if name != BASE64 and name not in SENT:
            raise UsageError(f"{where}: column {shown(given)!r} is not understood: leave it out; {_understood()}")
        try:
            if name == BASE64:
                row["body"] = base64.b64decode(value, validate=True)
            else:
                row[name] = _OF_TEXT[name](value) if in_texts and name in _OF_TEXT else value
            _CHECKED[name](row["body" if name == BASE64 else name])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, msgspec.DecodeError):
            raise UsageError(f"{where}: {shown(given)} is {shown(str(value))[:80]!r}: {_NEEDED[name]}") from None
    if not row.get("body"):
        raise UsageError(f"{where}: there is no body, or an empty one, which RocketMQ does not take")
    row["body"] = row["body"].encode() if isinstance(row["body"], str) else row["body"]
    if len(row["body"]) > BODY_BYTES_MAX:
        raise UsageError(f"{where}: the body has {len(row['body'])} bytes; at most {BODY_BYTES_MAX} are allowed")
    if isinstance(row.get("deliverTime"), str):
        row["deliverTime"] = _time(row["deliverTime"])
    if isinstance(row.get("keys"), str):
        row["keys"] = row["keys"].split()
    pairs = row.get("properties")
    if pairs is not None:
        row.setdefault("shardingKey", pairs.get(properties.SHARDING_KEY))
        row["properties"] = list(pairs.items())
    return row


def _understood() -> str:
    return f"columns that are: {', '.join((*SENT, BASE64))}"


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(text)
    return found.astimezone(UTC)


def _whole(value: Any) -> None:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(value)


def _is_flag(value: Any) -> None:
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise ValueError(value)


def _is_text(value: Any) -> None:
    value.encode()


def _are_keys(value: Any) -> None:
    for key in [value] if isinstance(value, str) else value:
        _is_text(key)
    if isinstance(value, dict):
        raise TypeError(value)


def _are_properties(value: Any) -> None:
    for name, one in value.items():
        _is_text(name)
        _is_text(one)


_OF_TEXT: dict[str, Callable[[str], Any]] = {
    "properties": msgspec.json.decode,
    **dict.fromkeys(("queueId", "delayLevel", "delayMs", "flag"), int),
}
_CHECKED: dict[str, Callable[[Any], object]] = {
    **dict.fromkeys(("body", "tag", "shardingKey"), _is_text),
    BASE64: len,
    "keys": _are_keys,
    "properties": _are_properties,
    **dict.fromkeys(("queueId", "delayLevel", "delayMs"), _whole),
    "flag": _is_flag,
    "deliverTime": _time,
}
_NEEDED = {
    **dict.fromkeys(("body", "tag", "shardingKey"), "a text is needed"),
    BASE64: "base64 is needed",
    "keys": "a list of texts is needed, or a text with blanks between",
    "properties": "an object of texts is needed",
    **dict.fromkeys(("queueId", "delayLevel", "delayMs"), "a whole number from 0 up is needed"),
    "flag": "a whole number of 32 bits is needed",
    "deliverTime": "a time with its zone such as 2026-01-31T12:00:00Z is needed",
}


def _parquet(path: Path, skip: int) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except pa.ArrowInvalid as e:
        raise UsageError(f"{shown(str(path))} is no Parquet file: {shown(str(e))}") from None
    with file:
        names = [name for name in file.schema_arrow.names if name not in _LEFT_OUT]
        for name in names:
            if name not in SENT:
                raise UsageError(
                    f"{shown(str(path))}: column {shown(name)!r} is not understood: leave it out; {_understood()}"
                )
        if "body" not in names:
            raise UsageError(f"{shown(str(path))} has no column 'body': {_understood()}")
        at = 0
        for batch in file.iter_batches(ROWS, columns=names):
            if at + batch.num_rows > skip:
                yield _sent(batch.slice(max(0, skip - at)), path, max(at, skip))
            at += batch.num_rows


def _sent(batch: pa.RecordBatch, path: Path, at: int) -> pa.RecordBatch:
    """Return a file's columns in the types that are sent, with the sharding keys that are among the properties. `at`:
    the number of the first row.
    """
    columns: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            if name == "keys" and not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
                columns[name] = column.cast(pa.string())
            else:
                columns[name] = column.cast(SENT[name])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise UsageError(
                f"{shown(str(path))}: column {name!r} is {column.type}, which is no {SENT[name]}: {shown(str(e))[:200]}"
            ) from None
    for row, size in enumerate(pc.fill_null(pc.binary_length(columns["body"]), 0).to_pylist()):
        if not 0 < size <= BODY_BYTES_MAX:
            text = f"has {size} bytes; at most {BODY_BYTES_MAX} are allowed" if size else "is null or empty"
            raise UsageError(f"{shown(str(path))}: row {at + row + 1}: the body {text}")
    if "properties" in columns and "shardingKey" not in columns:
        found = pc.map_lookup(columns["properties"], pa.scalar(properties.SHARDING_KEY), "last")
        if found.null_count < len(found):
            columns["shardingKey"] = found
    return pa.RecordBatch.from_pydict(columns)
