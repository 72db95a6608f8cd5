"""What of a query's filters is left to the broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from rocketspark.tables.scan import narrowed

A = datetime(2026, 1, 1, tzinfo=UTC)
B = datetime(2026, 2, 1, 12, 30, 0, 250_000, tzinfo=UTC)
MS = timedelta(milliseconds=1)
TAG, TIME = pl.col("tag"), pl.col("storeTime")


@pytest.mark.parametrize(
    ("predicate", "found"),
    [
        (TAG == "a", {"tags": "a"}),
        (pl.lit("a") == TAG, {"tags": "a"}),
        (TAG.is_in(["b", "a"]), {"tags": "a || b"}),
        ((TAG == "a") | (TAG == "b"), {"tags": "a || b"}),
        ((TAG == "a") & TAG.is_in(["b", "a"]), {"tags": "a"}),
        (TIME >= A, {"start": A}),
        (TIME > A, {"start": A}),
        (pl.lit(A) < TIME, {"start": A}),
        (TIME < B, {"end": B + MS}),
        (TIME == A, {"start": A, "end": A + MS}),
        (TIME.is_between(A, B), {"start": A, "end": B + MS}),
        ((TIME >= A) & (TIME >= B) & (TAG == "a") & (pl.col("queueId") == 1), {"start": B, "tags": "a"}),
        # Not understood, or true of rows that no option says.
        ((TAG == "a") | (pl.col("queueId") == 1), {}),
        ((TIME >= A) | (TIME < B), {}),
        (TAG != "a", {}),
        (~(TAG == "a"), {}),
        (TAG.is_null(), {}),
        (TAG.is_in(["a", None]), {}),
        (TAG == "a || b", {}),
        (TAG == "*", {}),
        (pl.col("topic") == TAG, {}),
        (TIME.dt.year() == 2026, {}),
        (TAG.str.to_lowercase() == "a", {}),
        (pl.col("bornTime") >= A, {}),
    ],
    ids=str,
)
def test_what_a_filter_leaves_out_is_not_read(predicate: pl.Expr, found: dict[str, Any]) -> None:
    assert narrowed(predicate, {}) == found


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({}, {"tags": "a", "start": A}),
        ({"tags": "b"}, {"start": A}),
        ({"sql": "x = 1"}, {"start": A}),
        ({"end": B}, {"tags": "a"}),
        ({"startingOffsets": "earliest"}, {"tags": "a"}),
        ({"ending_timestamp": "2026-01-01"}, {"tags": "a"}),
        ({"start": None}, {"tags": "a", "start": A}),
    ],
)
def test_what_the_application_asked_for_stays(how: dict[str, Any], found: dict[str, Any]) -> None:
    assert narrowed((TAG == "a") & (TIME >= A), how) == found


def test_no_filter_narrows_nothing() -> None:
    assert narrowed(None, {}) == {}
