"""What the pipeline `trace` works with: the rows that trace messages become, and the figures of its report.

Rule: nothing in a message fails the job; one that cannot be read becomes a row of kind BROKEN. Times and latencies are
in ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from rocketspark.protocol.trace import Broken, Consumed, Ended, Published, Received, Trace, Unknown, decode_each

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

_KINDS: dict[type, str] = {Published: SENT, Received: RECEIVED, Consumed: CONSUMED, Ended: ENDED}
# Fields for which the Java client writes the word null where it has no value.
_OPTIONAL = ("group", "tag", "keys")


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
        else:
            yield _row(record)


def _row(record: Trace) -> Row:
    """Return the row of a record: each field in the column of its name; `kind` is `message_kind` there."""
    row: Row = {"kind": _KINDS[type(record)]}
    for field in record.__struct_fields__:
        column = "message_kind" if field == "kind" else field
        if column in COLUMNS:
            value = getattr(record, field)
            row[column] = _text(value) if field in _OPTIONAL else value
    if isinstance(record, Consumed):
        row["time_ms"] = record.time_ms or None
    elif isinstance(record, Ended):
        row["state"] = record.state[:NAME_MAX]
    return row


def _sends(record: Published) -> Iterator[Row]:
    """Return one row for each message of a send: that of a batch is one record with all ids."""
    ids = [part for part in record.message_id.split(",") if part]
    if not ids:
        yield {"kind": BROKEN}
        return
    row = _row(record) | {"body_bytes": record.body_bytes // len(ids)}
    for message_id in ids:
        yield row | {"message_id": message_id}


def _text(value: str) -> str | None:
    """Return None for a field without a value."""
    return None if value in ("", "null") else value


def _is_sane(record: Trace) -> bool:
    """Tell whether the numbers are such as clients write; others would only overflow later."""
    names = (name for name in record.__struct_fields__ if name != "time_ms")
    numbers = (n for n in (getattr(record, name) for name in names) if isinstance(n, int))
    return 0 <= record.time_ms <= TIME_MS_MAX and all(-NUMBER_MAX <= n <= NUMBER_MAX for n in numbers)


# The points of a latency curve; those named in Latency are among them.
QUANTILES = (0.0, 0.01, 0.05, *(n / 10 for n in range(1, 10)), 0.95, 0.99, 0.995, 0.999, 1.0)
CONTEXTS = {0: "success", 1: "timeout", 2: "exception", 3: "returned null", 4: "failed"}
# Widths of a time line's steps.
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 604800)
STEPS_MS = (100, 250, 500, *(1000 * step for step in _STEPS_S))


class Latency(NamedTuple):
    """Percentiles in ms of `measured` values, interpolated linearly between two; None where there is none."""

    measured: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    curve: list[float] = []  # At QUANTILES.


class Sends(NamedTuple):
    """The figures of one producer group's sends to a topic. `failed`: messages of which no send succeeded."""

    topic: str
    group: str
    messages: int
    failed: int
    bytes: int
    cost_ms: Latency


class Deliveries(NamedTuple):
    """The figures of one topic's deliveries to one consumer group; topic "" where no trace names the send.

    `deliveries` to listeners, of them `retried` (not the first time), `failed` and `unfinished` (no end was traced);
    `failures` by reason; `messages`: how many different ones, of them `unconsumed` never with success; `most_retries`
    of one message. `store_to_consume_ms`: from when the broker stored a message (RocketMQ's estimate: begin of the send
    and half its cost) to the first listener; `end_to_end_ms`: from the begin of the send to the end of the first
    listener with success; `listener_ms`: a listener's time. Delayed messages are left out of the first two (`delayed`).
    `clock_skew`: messages received before they were sent; counted as 0 ms.
    """

    topic: str
    group: str
    messages: int
    deliveries: int
    retried: int
    failed: int
    unfinished: int
    unconsumed: int
    delayed: int
    most_retries: int
    clock_skew: int
    failures: dict[str, int]
    listener_ms: Latency
    store_to_consume_ms: Latency
    end_to_end_ms: Latency


class TransactionFigures(NamedTuple):
    """The figures of one producer group's transactions in a topic. `open`: half messages whose end was not traced.

    `checked`: ends that followed a check by the broker; `half_to_end_ms`: from the send of the half message to the last
    end.
    """

    topic: str
    group: str
    committed: int
    rolled_back: int
    unknown: int
    checked: int
    open: int
    half_to_end_ms: Latency


class Slow(NamedTuple):
    """One of the slowest messages, or one that no listener has consumed with success (then `end_to_end_ms` is None)."""

    message_id: str
    topic: str
    group: str
    keys: str
    sent_ms: int | None
    first_received_ms: int | None
    consumed_ms: int | None
    end_to_end_ms: int | None
    store_to_consume_ms: float | None
    deliveries: int
    failed: int
    last_failure: str


class Moment(NamedTuple):
    """The messages sent within one step of the report's time line, with percentiles of their end-to-end latency; with
    `group` "" those of the sends.
    """

    start_ms: int
    topic: str
    group: str
    messages: int
    failed: int
    retried: int
    p50: float | None
    p99: float | None


class TraceReport(NamedTuple):
    """The result of the pipeline `trace`. `records`: how many, by kind; `malformed`: how many of them could not be
    read.
    """

    trace_topic: str
    since_ms: int | None
    until_ms: int | None
    first_ms: int | None
    last_ms: int | None
    trace_messages: int
    records: dict[str, int]
    malformed: int
    sends: list[Sends]
    deliveries: list[Deliveries]
    transactions: list[TransactionFigures]
    slowest: list[Slow]
    unconsumed: list[Slow]
    step_ms: int
    timeline: list[Moment]


def latency(count: int, mean: float | None, quantiles: Sequence[float] | None) -> Latency:
    """Return the Latency of `count` values. `quantiles`: those that Spark computed at QUANTILES."""
    if not count or quantiles is None or mean is None:
        return Latency()
    of = dict(zip(QUANTILES, quantiles, strict=True))
    return Latency(
        measured=count,
        mean=round(mean, 3),
        p50=round(of[0.5], 3),
        p90=round(of[0.9], 3),
        p95=round(of[0.95], 3),
        p99=round(of[0.99], 3),
        p999=round(of[0.999], 3),
        max=round(of[1.0], 3),
        curve=[round(q, 3) for q in quantiles],
    )


def step_for(first_ms: int | None, last_ms: int | None, steps_max: int) -> int:
    """Return the narrowest step of a time line that covers the time in at most `steps_max` steps; it is a week at most,
    even if that takes more steps.
    """
    span_ms = (last_ms or 0) - (first_ms or 0)
    return next((step for step in STEPS_MS if span_ms // step < steps_max), STEPS_MS[-1])
