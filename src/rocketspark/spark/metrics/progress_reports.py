"""Reads progress reports of streaming queries. Rule: pure; whatever a report holds, the outcome is a value and no
error.

A source is RocketMQ's if its offsets have the form of ours: topic to broker to queue id to offset. Offsets of Kafka
have two levels, those of files one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rocketspark.model import MessageQueue
from rocketspark.spark.spark_features import reported_offset
from rocketspark.tables.offset_ranges import START_KEY, Offsets

OFFSET_MAX = 2**63 - 1
# Much longer texts are no offsets that anybody parses for a figure.
OFFSET_TEXT_MAX = 16 << 20
# The steps of a micro-batch that Spark times; others count together.
STEPS = ("latestOffset", "queryPlanning", "getBatch", "walCommit", "addBatch", "commitOffsets", "commitBatch")
OTHER = "other"


class SourceReport(NamedTuple):
    """What a report says of a source that reads RocketMQ: the offsets between which the micro-batch read, and `latest`,
    where the topics ended then, if Spark tells it.
    """

    start: Offsets
    end: Offsets
    latest: Offsets

    def messages(self) -> dict[str, int]:
        """Return how many messages the micro-batch read, by topic."""
        return by_topic({queue: max(0, end - self.start.get(queue, end)) for queue, end in self.end.items()})

    def lag(self) -> dict[str, int]:
        """Return how many messages were left to read, by topic; empty if Spark did not tell where the topics ended."""
        return by_topic(
            {queue: max(0, newest - self.end[queue]) for queue, newest in self.latest.items() if queue in self.end}
        )


class Report(NamedTuple):
    """One progress report of a query. Durations are in seconds; `bytes` and `bad_rows` are sums of observed metrics and
    what sources tell; `rows_per_s`: rows a second as they came in since the micro-batch before.
    """

    rows: int
    output_rows: int
    batch_id: int | None
    duration_s: float | None
    steps_s: dict[str, float]
    bytes: int
    state_rows: int
    state_bytes: int
    sources: tuple[SourceReport, ...]
    bad_rows: int = 0
    rows_per_s: float = 0.0

    def positions(self) -> Offsets:
        """Return the offset up to which the query has read each queue; the lower one where two sources read the same
        queue.
        """
        found: Offsets = {}
        for source in self.sources:
            for queue, offset in source.end.items():
                found[queue] = min(offset, found.get(queue, offset))
        return found


def parse_report(report: Any) -> Report:
    """Return the values of a StreamingQueryProgress; a part that is missing, or of an unexpected form, counts as 0,
    None or empty.
    """
    sources = [_mapping(source) for source in _sequence(_get(report, "sources"))]
    operators = [_mapping(operator) for operator in _sequence(_get(report, "stateOperators"))]
    steps = _mapping(_get(report, "durationMs"))
    timed = {str(name): _count(ms) for name, ms in steps.items()}
    whole_ms = timed.pop("triggerExecution", None)
    if whole_ms is None and _is_number(_get(report, "batchDuration")):
        whole_ms = _count(_get(report, "batchDuration"))
    steps_s: dict[str, float] = {}
    for name, ms in timed.items():
        step = name if name in STEPS else OTHER
        steps_s[step] = steps_s.get(step, 0.0) + ms / 1000
    batch_id = _get(report, "batchId")
    rows = _rows(report, sources)
    return Report(
        rows=rows,
        output_rows=_count(_mapping(_get(report, "sink")).get("numOutputRows")),
        batch_id=_count(batch_id) if _is_number(batch_id) else None,
        duration_s=None if whole_ms is None else whole_ms / 1000,
        steps_s=steps_s,
        bytes=_told(report, sources, "bytes"),
        state_rows=sum(_count(operator.get("numRowsTotal")) for operator in operators),
        state_bytes=sum(_count(operator.get("memoryUsedBytes")) for operator in operators),
        sources=tuple(found for source in sources if (found := _source(source)) is not None),
        bad_rows=_told(report, sources, "bad_rows"),
        rows_per_s=_rows_per_s(report, sources, rows, whole_ms),
    )


def _rows(report: Any, sources: Sequence[Mapping[Any, Any]]) -> int:
    """Return the rows read: Connect's reports leave out the query's sum."""
    rows = _get(report, "numInputRows")
    return _count(rows) if _is_number(rows) else sum(_count(source.get("numInputRows")) for source in sources)


def _rows_per_s(report: Any, sources: Sequence[Mapping[Any, Any]], rows: int, whole_ms: float | None) -> float:
    """Return the rate at which rows came in; that of the micro-batch by itself where Spark does not tell it."""
    told = [_get(report, "inputRowsPerSecond"), *(source.get("inputRowsPerSecond") for source in sources)]
    if _is_number(told[0]):
        return max(0.0, float(told[0]))
    if any(_is_number(rate) for rate in told):
        return sum(max(0.0, float(rate)) for rate in told if _is_number(rate))
    return rows * 1000 / whole_ms if whole_ms else 0.0


def parse_offsets(text: Any) -> tuple[Offsets, Offsets] | None:
    """Return a source's offsets, and those that it keeps under the key @start, from their JSON; None for a source that
    does not read RocketMQ.
    """
    if isinstance(text, str):
        if len(text) > OFFSET_TEXT_MAX:
            return None
        try:
            text = reported_offset(text)
        except (RecursionError, MemoryError):
            return None
    if not isinstance(text, Mapping):
        return None
    starts = text.get(START_KEY, {})
    # Marks of ours, such as the time of `dedupe`, begin as no topic does.
    own = _queues({topic: brokers for topic, brokers in text.items() if not str(topic).startswith("@")})
    begun = _queues(starts) if isinstance(starts, Mapping) else None
    return None if own is None or begun is None else (own, begun)


def by_topic(counts: Mapping[MessageQueue, int]) -> dict[str, int]:
    """Add up counts by queue to counts by topic."""
    sums: dict[str, int] = {}
    for queue, count in counts.items():
        sums[queue.topic] = sums.get(queue.topic, 0) + count
    return sums


def _source(source: Mapping[Any, Any]) -> SourceReport | None:
    parsed = parse_offsets(source.get("endOffset"))
    if parsed is None or not (parsed[0] or parsed[1]):
        return None
    end, begun = parsed
    start, _ = parse_offsets(source.get("startOffset")) or ({}, {})
    latest, _ = parse_offsets(source.get("latestOffset")) or ({}, {})
    # An idle trigger's start and end are the same text, with the @start of the micro-batch before.
    return SourceReport(begun | start, end, latest)


def _queues(table: Mapping[Any, Any]) -> Offsets | None:
    offsets: Offsets = {}
    for topic, brokers in table.items():
        if not isinstance(topic, str) or not isinstance(brokers, Mapping):
            return None
        for broker, queues in brokers.items():
            if not isinstance(broker, str) or not isinstance(queues, Mapping):
                return None
            for queue, offset in queues.items():
                if not _is_queue(queue) or not _is_whole(offset) or not 0 <= offset <= OFFSET_MAX:
                    return None
                offsets[MessageQueue(topic, broker, int(queue))] = offset
    return offsets


def _is_queue(queue: Any) -> bool:
    return isinstance(queue, str) and queue.isascii() and queue.isdigit() and len(queue) <= 9


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _told(report: Any, sources: Sequence[Mapping[Any, Any]], wanted: str) -> int:
    """Return the sum of what observed metrics and sources have under a name (`bytes` or `…_bytes`)."""
    total = 0
    observed = _mapping(_get(report, "observedMetrics"))
    metrics = [_fields(row) for row in observed.values()] + [_mapping(source.get("metrics")) for source in sources]
    for fields in metrics:
        for name, value in fields.items():
            if isinstance(name, str) and (name == wanted or name.endswith(f"_{wanted}")):
                total += _count(value)
    return total


def _fields(row: Any) -> Mapping[Any, Any]:
    """Return the fields of an observation: a Row, or a dict."""
    if isinstance(row, tuple) and hasattr(row, "__fields__"):
        return dict(zip(row.__fields__, row, strict=False))
    return _mapping(row)


def _get(report: Any, name: str) -> Any:
    return report.get(name) if isinstance(report, Mapping) else None


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Iterator[Any]:
    return iter(value) if isinstance(value, list | tuple) else iter(())


def _is_number(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _count(value: Any) -> int:
    """Return a count, 0 for what is none: Spark says -1 where it does not know. A source's metrics are texts."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    return min(max(0, int(value)), OFFSET_MAX) if _is_number(value) else 0
