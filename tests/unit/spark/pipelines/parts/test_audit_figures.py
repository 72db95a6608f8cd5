"""What of an audit's figures is a finding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import UsageError
from rocketspark.spark.pipelines.parts.audit_figures import (
    FINDINGS,
    GroupFigures,
    TopicFigures,
    check_kinds,
    find,
    missing_offsets,
)


def topic(**figures: int) -> TopicFigures:
    return TopicFigures("orders", 10, 0, 0, 0, 1, 2, [])._replace(**figures)


def group(**figures: int) -> GroupFigures:
    return GroupFigures("orders", "billing", 10, 10, 0, 0, 0, 0, 0, None, [], [])._replace(**figures)


def test_nothing_is_found_where_all_is_in_order() -> None:
    # What was deleted by age, waits to be tried again or came after the range is no finding.
    assert find([topic(deleted=7)], [group(lag=3, retrying=2)]) == []


def test_every_kind() -> None:
    found = find([topic(missing=1, duplicates=2)], [group(lost=3, unconsumed=4, dead=5)])
    assert [(f.kind, f.topic, f.group, f.number) for f in found] == [
        ("missing", "orders", "", 1),
        ("lost", "orders", "billing", 3),
        ("duplicates", "orders", "", 2),
        ("unconsumed", "orders", "billing", 4),
        ("dead", "orders", "billing", 5),
    ]
    assert found[1].text == "orders, billing: 3 messages were deleted before the group consumed them"


def test_lag_within_the_limit_and_what_is_ignored() -> None:
    assert find([], [group(unconsumed=4)], max_lag=4) == []
    assert [f.number for f in find([], [group(unconsumed=5)], max_lag=4)] == [5]
    everything = ([topic(missing=1, duplicates=1)], [group(lost=1, unconsumed=1, dead=1)])
    for kind in FINDINGS:
        assert kind not in [f.kind for f in find(*everything, ignore=[kind])]
    assert find(*everything, ignore=list(FINDINGS)) == []


def test_kinds_are_checked() -> None:
    assert check_kinds(["dead", "dead"]) == {"dead"}
    with pytest.raises(UsageError, match="'late' is no kind of finding: missing, lost"):
        check_kinds(["late"])


@given(st.sets(st.integers(0, 30), min_size=1))
def test_missing_is_what_is_not_there(offsets: set[int]) -> None:
    first, last = min(offsets), max(offsets)
    between = set(range(first, last + 1)) - offsets
    assert missing_offsets(len(offsets), first, last, None) == len(between)
    assert missing_offsets(len(offsets), first, last, (0, 31)) == len(set(range(31)) - offsets)


def test_nothing_read() -> None:
    assert missing_offsets(0, None, None, None) == 0
    assert missing_offsets(0, None, None, (5, 8)) == 3
    assert missing_offsets(0, None, None, (8, 8)) == 0
