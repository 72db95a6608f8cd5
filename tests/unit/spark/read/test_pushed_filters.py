"""Filters handed over by Spark: what is read holds every row they are true for, and exactly those of the ones taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from rocketspark.spark.spark_features import FILTERS

if not FILTERS:
    pytest.skip("this PySpark passes no filters to a Python source", allow_module_level=True)

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
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
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from rocketspark.arrow.decode_request import INT64_MAX
from rocketspark.model import MessageQueue
from rocketspark.spark.read.pushed_filters import Pushed, push, pushing
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.read.read_filter import NumberRange, ReadFilter

pytestmark = pytest.mark.shows("`where` pushed down, shown by `explain`, every test query with and without")


# In Berlin two moments an hour apart are both 2:30 in that night.
START = datetime(2025, 10, 25, 23, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Row(NamedTuple):
    topic: str
    broker: str
    queueId: int
    queueOffset: int
    tag: str | None
    storeTime: datetime


ROWS = [
    Row(topic, broker, queue_id, offset, tag, START + HOUR * (offset % 4))
    for topic in ("T", "U")
    for broker in ("a", "b")
    for queue_id in (0, 1, 2)
    for offset, tag in enumerate(["Aa", None, "BB", "C", "Aa", "", "C", None], 5)
]


def utc(value: Any) -> Any:
    """Times of one zone: Python holds times of two zones unequal if one of them is ambiguous."""
    if isinstance(value, tuple):
        return tuple(map(utc, value))
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def is_true(one: Filter, row: Row) -> bool | None:
    """A filter of one row, as SQL has it: true, false or unknown."""
    if isinstance(one, Not):
        found = is_true(one.child, row)
        return None if found is None else not found
    value = getattr(row, one.attribute[0])  # type: ignore[attr-defined]
    if isinstance(one, IsNull):
        return value is None
    if isinstance(one, IsNotNull):
        return value is not None
    other = utc(one.value)  # type: ignore[attr-defined]
    if isinstance(one, EqualNullSafe):
        return bool(value == other)
    if isinstance(one, In):
        if value is None:
            return None
        return True if value in [v for v in other if v is not None] else None if None in other else False
    if value is None or other is None:
        return None
    match one:
        case EqualTo():
            return bool(value == other)
        case GreaterThan():
            return bool(value > other)
        case GreaterThanOrEqual():
            return bool(value >= other)
        case LessThan():
            return bool(value < other)
        case LessThanOrEqual():
            return bool(value <= other)
        case StringStartsWith():
            return bool(value.startswith(other))
        case StringEndsWith():
            return bool(value.endswith(other))
        case StringContains():
            return other in value
    raise AssertionError(one)


def given_by(pushed: Pushed) -> list[Row]:
    """The rows that a read gives with these filters pushed down."""
    rows = ReadFilter().narrowed(pushed.tags, pushed.stored_us)
    kept = []
    for row in ROWS:
        queue = MessageQueue(row.topic, row.broker, row.queueId)
        whole = OffsetRange(queue, 5, 13)
        parts = pushed.narrow([whole])
        assert len(parts) <= 1
        if not parts or not parts[0].first <= row.queueOffset < parts[0].end:
            continue
        stored = round(row.storeTime.timestamp() * 1_000_000)
        if (rows.tags is None or row.tag in rows.tags) and rows.stored_us.first <= stored <= rows.stored_us.last:
            kept.append(row)
    return kept


NUMBERS = st.sampled_from([None, -(1 << 63), -1, 0, 1, 2, 5, 6, 8, 12, 13, (1 << 63) - 1, True, 1.5, "1"])
TEXTS = st.sampled_from([None, "", "Aa", "BB", "C", "T", "U", "a", "b", "A", 1])
BERLIN = ZoneInfo("Europe/Berlin")
TIMES = st.sampled_from(
    [
        *(START + HOUR * n + timedelta(microseconds=us) for n in range(4) for us in (-1, 0, 1)),
        *((START + HOUR * n).astimezone(BERLIN) for n in range(4)),
        *(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), None),
    ]
)
VALUES = {
    **dict.fromkeys(("queueId", "queueOffset"), NUMBERS),
    **dict.fromkeys(("topic", "broker", "tag"), TEXTS),
    "storeTime": TIMES,
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    kinds = [EqualTo, EqualNullSafe, In, IsNull, IsNotNull]
    fits = VALUES[column].filter(lambda v: not isinstance(v, bool | float))
    if column in ("queueId", "queueOffset", "storeTime"):
        kinds += [GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
        fits = fits.filter(lambda v: not isinstance(v, str))
    else:
        kinds += [StringStartsWith, StringEndsWith, StringContains]
        fits = fits.filter(lambda v: not isinstance(v, int))
    kind = draw(st.sampled_from(kinds))
    one: Filter
    if kind in (IsNull, IsNotNull):
        one = kind((column,))
    elif kind is In:
        one = In((column,), tuple(draw(st.lists(fits, max_size=4))))
    else:
        one = kind((column,), draw(fits))
    return Not(one) if draw(st.booleans()) else one


@given(st.lists(filters(), max_size=4))
def test_rows_are_never_lost_and_filters_taken_hold(several: list[Filter]) -> None:
    pushed, rest = push(several)
    assert all(any(one is given for given in several) for one in rest)
    taken = [one for one in several if not any(one is left for left in rest)]
    read = given_by(pushed)
    assert [row for row in read if all(is_true(one, row) for one in rest)] == [
        row for row in ROWS if all(is_true(one, row) for one in several)
    ]
    assert all(is_true(one, row) for row in read for one in taken)


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("tag",), None),
        EqualTo(("tag",), 1),
        EqualTo(("queueId",), "1"),
        EqualTo(("queueId",), True),
        GreaterThan(("queueOffset",), 1.5),
        GreaterThan(("tag",), "A"),
        GreaterThan(("storeTime",), datetime(2026, 1, 1)),
        EqualTo(("body",), b"x"),
        EqualTo(("keys",), ["k"]),
        EqualTo(("bornTime",), START),
        EqualTo(("properties", "tag"), "A"),
        In(("tag",), "Aa"),
        In(("tag",), ("Aa", 1)),
        Not(In(("queueId",), (1, None))),
        Not(EqualTo(("tag",), "Aa")),
        Not(GreaterThan(("queueId",), 1)),
        Not(EqualTo(("queueOffset",), 7)),
        IsNull(("tag",)),
        IsNotNull(("tag",)),
        StringStartsWith(("tag",), "A"),
        StringStartsWith(("topic",), "T"),
    ],
    ids=str,
)
def test_what_is_not_understood_goes_back_and_leaves_all_to_be_read(one: Filter) -> None:
    pushed, rest = push([one])
    assert rest == [one]
    assert pushed == Pushed()


@pytest.mark.parametrize(
    ("several", "rest"),
    [
        ([EqualTo(("tag",), "A"), IsNotNull(("tag",))], []),
        ([In(("queueOffset",), (7, 9))], [In(("queueOffset",), (7, 9))]),
        ([In(("queueOffset",), (8, 7, 9, 8))], []),
        ([IsNotNull(("tag",)), In(("queueId",), (1, 5))], [IsNotNull(("tag",))]),
    ],
    ids=str,
)
def test_what_spark_still_does(several: list[Filter], rest: list[Filter]) -> None:
    assert push(several)[1] == rest


def test_the_narrowest_range_is_read() -> None:
    pushed, _ = push([GreaterThan(("queueOffset",), 6), In(("queueOffset",), (3, 9, 11)), EqualTo(("queueId",), 1)])
    queues = [MessageQueue("T", "a", n) for n in range(3)]
    assert pushed.narrow([OffsetRange(queue, 0, 10) for queue in queues]) == [OffsetRange(queues[1], 7, 10)]
    assert pushed.narrow([OffsetRange(queue, 8, 100) for queue in queues]) == [OffsetRange(queues[1], 8, 12)]
    assert pushed.texts == ("GreaterThan(queueOffset, 6)", "In(queueOffset, (3, 9, 11))", "EqualTo(queueId, 1)")


@pytest.mark.parametrize(
    "several",
    [
        [EqualTo(("tag",), "A"), EqualTo(("tag",), "B")],
        [GreaterThan(("queueOffset",), 3), LessThan(("queueOffset",), 4)],
        [GreaterThan(("queueOffset",), INT64_MAX)],
        [In(("tag",), (None,))],
        [In(("queueOffset",), ())],
        [IsNull(("queueId",))],
        [Not(IsNotNull(("storeTime",)))],
        [LessThan(("storeTime",), START), GreaterThan(("storeTime",), START)],
    ],
    ids=str,
)
def test_contradictions_read_nothing(several: list[Filter]) -> None:
    pushed, rest = push(several)
    assert rest == []
    assert pushed.reads_nothing
    assert pushed.narrow([OffsetRange(MessageQueue("T", "a", 0), 0, 10)]) == []


def test_times_of_every_zone_are_exact() -> None:
    second = (START + 2 * HOUR).astimezone(BERLIN)
    assert second.fold == 1
    pushed, _ = push([EqualTo(("storeTime",), second)])
    us = round((START + 2 * HOUR).timestamp()) * 1_000_000
    assert pushed.stored_us == NumberRange(us, us)


def test_push_filters_is_offered_where_pyspark_calls_it_alone() -> None:
    found: dict[str, Any] = {}
    call = "def call(): return pushing()"
    for name in ("pyspark.sql.worker.data_source_pushdown_filters", "pyspark.sql.worker.plan_data_source_read"):
        space: dict[str, Any] = {"__name__": name, "pushing": pushing}
        exec(call, space)  # As a module of that name would call it.
        # Without PySpark's daemon the module is the main one.
        main: dict[str, Any] = {"__name__": "__main__", "__spec__": ModuleSpec(name, None), "pushing": pushing}
        exec(call, main)
        found[name.rpartition(".")[2]] = space["call"](), main["call"]()
    assert found == {"data_source_pushdown_filters": (True, True), "plan_data_source_read": (False, False)}
    assert not pushing()
