"""Trace messages as rows, one per record, for `mapInArrow`. Rule: nothing in a body fails the job; a message that
cannot be read becomes a row of kind BROKEN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from rocketspark.protocol.trace import (
    Broken,
    Consumed,
    Ended,
    Published,
    Received,
    Trace,
    Unknown,
    decode_each,
)

SENT, RECEIVED, CONSUMED, ENDED, OTHER = "Pub", "SubBefore", "SubAfter", "EndTransaction", "other"
BROKEN, MESSAGE = "broken", "message"

# Times in ms since 1970. `state` of a row of kind OTHER names the kind.
COLUMNS: dict[str, pa.DataType] = {
    "kind": pa.string(),
    "time_ms": pa.int64(),
    "group": pa.string(),
    "topic": pa.string(),
    "message_id": pa.string(),
    "tag": pa.string(),
    "keys": pa.string(),
    "body_bytes": pa.int64(),
    "cost_ms": pa.int64(),
    "message_kind": pa.int32(),
    "success": pa.bool_(),
    "request_id": pa.string(),
    "retry_times": pa.int32(),
    "context": pa.int32(),
    "state": pa.string(),
    "from_check": pa.bool_(),
}
SCHEMA = pa.schema(list(COLUMNS.items()))
DDL = ", ".join(
    f"{name} { {pa.string(): 'string', pa.int64(): 'bigint', pa.int32(): 'int', pa.bool_(): 'boolean'}[kind] }"
    for name, kind in COLUMNS.items()
)

TIME_MS_MAX = 253_402_300_799_999  # The end of the year 9999, which is Spark's and Python's too.
NUMBER_MAX = (1 << 31) - 1
NAME_MAX = 40

Row = dict[str, Any]


def decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn batches with the column `body` into batches of `SCHEMA`: the function for `mapInArrow`."""
    for batch in batches:
        # One list per column: rows as objects would cost twice as much.
        columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for body in batch.column("body").to_pylist():
            for row in rows_of(body or b""):
                for name, column in columns.items():
                    column.append(row.get(name))
        yield pa.record_batch([pa.array(columns[name], kind) for name, kind in COLUMNS.items()], SCHEMA)


def rows_of(body: bytes) -> Iterator[Row]:
    """Return the rows of one trace message, the first of kind MESSAGE for itself; columns that a row lacks are null."""
    yield {"kind": MESSAGE}
    for record in decode_each(body.decode("utf-8", "replace")):
        if isinstance(record, Unknown):
            yield {"kind": OTHER, "state": record.kind[:NAME_MAX]}
        elif isinstance(record, Broken) or not _is_sane(record):
            yield {"kind": BROKEN}
        elif isinstance(record, Published):
            yield from _sends(record)
        elif isinstance(record, Received):
            yield {
                "kind": RECEIVED,
                "time_ms": record.time_ms,
                "group": _text(record.group),
                "message_id": record.message_id,
                "keys": _text(record.keys),
                "request_id": record.request_id,
                "retry_times": record.retry_times,
            }
        elif isinstance(record, Consumed):
            yield {
                "kind": CONSUMED,
                "time_ms": record.time_ms or None,
                "group": _text(record.group),
                "message_id": record.message_id,
                "keys": _text(record.keys),
                "cost_ms": record.cost_ms,
                "success": record.success,
                "request_id": record.request_id,
                "context": record.context,
            }
        elif isinstance(record, Ended):
            yield {
                "kind": ENDED,
                "time_ms": record.time_ms,
                "group": _text(record.group),
                "topic": record.topic,
                "message_id": record.message_id,
                "tag": _text(record.tag),
                "keys": _text(record.keys),
                "message_kind": record.kind,
                "state": record.state[:NAME_MAX],
                "from_check": record.from_check,
            }


def _sends(record: Published) -> Iterator[Row]:
    """Return one row for each message of a send: that of a batch is one record with all ids."""
    ids = [part for part in record.message_id.split(",") if part]
    for message_id in ids:
        yield {
            "kind": SENT,
            "time_ms": record.time_ms,
            "group": _text(record.group),
            "topic": record.topic,
            "message_id": message_id,
            "tag": _text(record.tag),
            "keys": _text(record.keys),
            "body_bytes": record.body_bytes // len(ids),
            "cost_ms": record.cost_ms,
            "message_kind": record.kind,
            "success": record.success,
        }
    if not ids:
        yield {"kind": BROKEN}


def _text(value: str) -> str | None:
    """Return None for the word null, which the Java client writes where it has no value."""
    return None if value in ("", "null") else value


def _is_sane(record: Trace) -> bool:
    """Tell whether the numbers are such as clients write; others would only overflow later."""
    names = (name for name in record.__struct_fields__ if name != "time_ms")
    numbers = (n for n in (getattr(record, name) for name in names) if isinstance(n, int))
    return 0 <= record.time_ms <= TIME_MS_MAX and all(-NUMBER_MAX <= n <= NUMBER_MAX for n in numbers)
