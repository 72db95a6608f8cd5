"""Histograms: counted one by one, many at once, and less what others counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker.statistics.histograms import RPC_BOUNDS, SIZE_BOUNDS
from rocketspark.model.histogram import Histogram

pytestmark = pytest.mark.shows("Prometheus metrics, histograms and timers too")

VALUES = st.lists(st.integers(0, 5 << 20) | st.sampled_from(SIZE_BOUNDS), max_size=50)


def filled(values: list[int]) -> Histogram:
    made = Histogram(SIZE_BOUNDS)
    for value in values:
        made.add(value)
    return made


def test_a_bound_belongs_to_its_own_bucket() -> None:
    made = Histogram(RPC_BOUNDS)
    for value in (0.2, 1, 1.001, 3000, 3000.5):
        made.add(value)
    assert made.buckets() == [
        ("1.0", 2.0),
        *((f"{bound}.0", 3.0) for bound in (3, 5, 7, 10, 100, 1000, 2000)),
        ("3000.0", 4.0),
        ("+Inf", 5.0),
    ]
    assert (made.count, made.total) == (5, 6002.701)


@given(VALUES)
def test_many_at_once_are_as_one_by_one(values: list[int]) -> None:
    made = Histogram(SIZE_BOUNDS)
    half = len(values) // 2
    for part in (values[:half], values[half:]):
        made.add_all(np.array(part, np.int32))
    single = filled(values)
    assert (made.counts, made.total, made.count) == (single.counts, single.total, len(values))


@given(VALUES, VALUES, VALUES)
def test_what_others_counted_is_taken_away(mine: list[int], first: list[int], second: list[int]) -> None:
    left = filled(mine + first + second).without(filled(first), None, filled(second))
    assert (left.counts, left.total) == (filled(mine).counts, sum(mine))
