"""The filters that Spark hands to a read. Rule: a filter is taken only if it is fully understood, so that the read
gives exactly the rows for which it is true (null is not, as in SQL); else it goes back to Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from rocketspark.model import MessageQueue
from rocketspark.spark.spark_features import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.read.read_filter import NumberRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
# The process in which PySpark calls pushFilters; it runs only while spark.sql.python.filterPushdown.enabled is on.
_PUSHING_MODULE = "pyspark.sql.worker.data_source_pushdown_filters"

_QUEUE_COLUMNS: dict[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "broker": lambda queue: queue.broker_name,
    "queueId": lambda queue: queue.queue_id,
}
_TYPES: dict[str, type] = {
    "topic": str,
    "broker": str,
    "queueId": int,
    "queueOffset": int,
    "storeTime": datetime,
    "tag": str,
}
# Columns without nulls.
_FULL = ("topic", "broker", "queueId", "queueOffset", "storeTime")


class QueueTest(NamedTuple):
    """A condition on a column whose value is the same for a whole queue: it is one of `values`, or none of them if
    `excluded`; without `values` it lies in `span`.
    """

    column: str
    values: frozenset[Any] | None = None
    excluded: bool = False
    span: NumberRange = NumberRange()

    def takes(self, queue: MessageQueue) -> bool:
        """Tell whether a queue meets the condition."""
        value = _QUEUE_COLUMNS[self.column](queue)
        if self.values is not None:
            return (value in self.values) != self.excluded
        return bool(self.span.first <= value <= self.span.last)


class Pushed(NamedTuple):
    """The part of a read that the filters taken over from Spark leave; by default everything.

    Attributes:
        queues: conditions on the queues.
        offsets: the queue offsets to read.
        stored_us: the store times to read, in us since 1970.
        tags: the tags to read; None for any tag, or none.
        nothing: true if no row can pass.
        texts: the filters that were taken over, for people.
    """

    queues: tuple[QueueTest, ...] = ()
    offsets: NumberRange = NumberRange()
    stored_us: NumberRange = NumberRange()
    tags: frozenset[str] | None = None
    nothing: bool = False
    texts: tuple[str, ...] = ()

    @property
    def reads_nothing(self) -> bool:
        """True if no row can pass."""
        return self.nothing or self.offsets.empty or self.stored_us.empty or self.tags == frozenset()

    def narrow(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of the ranges that must be read. Store times are not looked at here: the caller asks the
        broker for them.
        """
        if self.reads_nothing:
            return []
        kept = []
        for queue, first, end in ranges:
            if all(test.takes(queue) for test in self.queues):
                first, end = max(first, self.offsets.first), min(end, self.offsets.last + 1)
                if first < end:
                    kept.append(OffsetRange(queue, first, end))
        return kept


def pushing() -> bool:
    """Tell whether PySpark is about to call pushFilters.

    PySpark refuses a reader that has the method in any other case while the setting is off, and calls it in no other
    case while it is on.
    """
    frame = sys._getframe()
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if _PUSHING_MODULE in (frame.f_globals.get("__name__"), getattr(spec, "name", None)):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def push(filters: list[Filter]) -> tuple[Pushed, list[Filter]]:
    """Divide a query's filters: return what the read can apply, as one value, and the filters that Spark must apply
    itself.
    """
    pushed = Pushed()
    rest = []
    for one in filters:
        narrowed, exact = _take(pushed, one)
        if exact or narrowed != pushed:
            narrowed = narrowed._replace(texts=(*narrowed.texts, _text(one)))
        if not exact:
            rest.append(one)
        pushed = narrowed
    # `tag IS NOT NULL`, which Spark adds to most comparisons, follows from a set of tags.
    if pushed.tags is not None:
        rest = [one for one in rest if one != IsNotNull(("tag",))]
    return pushed, rest


def _values(one: Filter, column: str, *, negated: bool) -> list[Any] | None:
    """Return the values that a filter compares a column with, times in us; None if it cannot be pushed down."""
    if isinstance(one, In):
        values = list(one.value) if isinstance(one.value, list | tuple) else [object()]
        if negated and None in values:
            return None
        # Null in the list makes nothing true.
        values = [value for value in values if value is not None]
    else:
        values = [getattr(one, "value", None)]
    if not all(_is(value, _TYPES[column]) for value in values):
        return None
    return [(value - _EPOCH) // _US for value in values] if column == "storeTime" else values


def _take(pushed: Pushed, one: Filter) -> tuple[Pushed, bool]:
    """Return `pushed` narrowed by one filter, and whether the filter says no more than that."""
    negated = isinstance(one, Not)
    inner = one.child if isinstance(one, Not) else one
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in _TYPES:
        return pushed, False
    column = path[0]
    if isinstance(inner, IsNull | IsNotNull):
        if column not in _FULL:
            return pushed, False
        return pushed._replace(nothing=pushed.nothing or isinstance(inner, IsNull) != negated), True
    values = _values(inner, column, negated=negated)
    if values is None:
        return pushed, False
    if isinstance(inner, EqualTo | EqualNullSafe | In):
        return _among(pushed, column, frozenset(values), negated)
    if negated or column not in ("queueId", "queueOffset", "storeTime"):
        return pushed, False
    span = _span(inner, values[0])
    return (pushed, False) if span is None else (_within(pushed, column, span), True)


def _is(value: object, kind: type) -> bool:
    return type(value) is kind and (not isinstance(value, datetime) or value.tzinfo is not None)


def _among(pushed: Pushed, column: str, values: frozenset[Any], excluded: bool) -> tuple[Pushed, bool]:
    """Add the test that the column is one of the values, or none of them."""
    if column in _QUEUE_COLUMNS:
        return pushed._replace(queues=(*pushed.queues, QueueTest(column, values, excluded))), True
    if excluded:
        return pushed, False
    if column == "tag":
        return pushed._replace(tags=values if pushed.tags is None else values & pushed.tags), True
    if not values:
        return pushed._replace(nothing=True), True
    span = NumberRange(min(values), max(values))
    # If other values lie between them, Spark leaves those out.
    return _within(pushed, column, span), span.last - span.first < len(values)


def _within(pushed: Pushed, column: str, span: NumberRange) -> Pushed:
    if column == "queueId":
        return pushed._replace(queues=(*pushed.queues, QueueTest(column, span=span)))
    if column == "queueOffset":
        return pushed._replace(offsets=pushed.offsets.both(span))
    return pushed._replace(stored_us=pushed.stored_us.both(span))


def _span(one: Filter, value: int) -> NumberRange | None:
    match one:
        case GreaterThan():
            return NumberRange(first=value + 1)
        case GreaterThanOrEqual():
            return NumberRange(first=value)
        case LessThan():
            return NumberRange(last=value - 1)
        case LessThanOrEqual():
            return NumberRange(last=value)
    return None


def _text(one: Filter) -> str:
    inner = one.child if isinstance(one, Not) else one
    value = getattr(inner, "value", None)
    shown = "" if isinstance(inner, IsNull | IsNotNull) else f", {value}"
    text = f"{type(inner).__name__}({inner.attribute[0]}{shown})"  # type: ignore[attr-defined]
    return f"Not({text})" if isinstance(one, Not) else text
