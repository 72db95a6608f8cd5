"""Offsets: their JSON form, where a read begins, how much a micro-batch takes, how ranges are split."""

from __future__ import annotations

import asyncio
import bisect
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue
from rocketspark.tables.offset_ranges import (
    OffsetRange,
    admit,
    admit_bytes,
    first_at_or_after,
    from_json,
    place,
    split,
    to_json,
)

pytestmark = pytest.mark.shows(
    "offsets: earliest, latest, committed of a group, JSON by queue; times, exact at every edge",
    "partitions, limits per micro-batch (messages, bytes, a minimum with a delay), AvailableNow and ProcessingTime",
)

Q = [MessageQueue("t", "a", i) for i in range(12)]


def test_json_form_is_ordered_and_comes_back() -> None:
    offsets = {MessageQueue("u", "b", 0): 3, Q[10]: 1, Q[2]: 7}
    text = json.dumps(to_json(offsets))
    assert text == '{"t": {"a": {"2": 7, "10": 1}}, "u": {"b": {"0": 3}}}'
    assert from_json(json.loads(text)) == offsets
    assert json.dumps(to_json(from_json(json.loads(text)))) == text


@pytest.mark.shows("mended: a stream's checkpoint of another source or version was an AttributeError")
@pytest.mark.parametrize(
    "table",
    [
        {"t": {"0": 5}},  # Kafka's connector
        {"t": 5},
        {"t": {"a": {"x": 5}}},
        {"t": {"a": {"0": "5"}}},
        {"t": {"a": {"0": None}}},
        {"@version": {"a": {"0": 5}}, "t": {"a": {"0": 5}}},
        {"logOffset": 3},
        [1],
    ],
)
def test_a_checkpoint_of_others_is_one_line(table: Any) -> None:
    with pytest.raises(ConfigError, match=r"is none of a stream of format.*a checkpointLocation of its own"):
        from_json(table)


def test_place() -> None:
    oldest, newest = {Q[0]: 5, Q[1]: 0}, {Q[0]: 50, Q[1]: 10}
    assert place("earliest", oldest, newest, option="o", default="earliest") == oldest
    assert place("latest", oldest, newest, option="o", default="earliest") == newest
    named = {"t": {"a": {"0": 7}}}
    assert place(named, oldest, newest, option="o", default="earliest") == {Q[0]: 7, Q[1]: 0}
    assert place(named, oldest, newest, option="o", default="latest") == {Q[0]: 7, Q[1]: 10}
    marks = {"t": {"a": {"0": -2, "1": -1}}}
    assert place(marks, oldest, newest, option="o", default="latest") == {Q[0]: 5, Q[1]: 10}
    with pytest.raises(ConfigError, match=r"option o names queue 2 .* there are: t/a/0, t/a/1"):
        place({"t": {"a": {"2": 7}}}, oldest, newest, option="o", default="latest")


def test_admit_shares_by_lag() -> None:
    start = dict.fromkeys(Q[:3], 100)
    newest = {Q[0]: 200, Q[1]: 400, Q[2]: 100}
    assert admit(start, newest, 1000) == newest
    assert admit(start, newest, 40) == {Q[0]: 110, Q[1]: 130, Q[2]: 100}
    assert sum(admit(start, newest, 7).values()) == 307


@pytest.mark.shows("mended: a limit per micro-batch passes quiet queues over while another has a backlog")
@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=6),
    st.integers(1, 7),
    st.sampled_from(["rows", "bytes"]),
)
def test_each_queue_gets_on_however_much_others_hold(quiet: list[int], most: int, limit: str) -> None:
    """The first queue grows by more than a micro-batch takes."""
    names = Q[: len(quiet) + 1]
    start, backlog = dict.fromkeys(names, 0), 1_000_000
    newest = {names[0]: backlog} | dict(zip(names[1:], quiet, strict=True))
    for _ in range(len(names) * (max(quiet) + 1)):
        sizes = dict.fromkeys(names, 10.0)
        ends = admit(start, newest, most) if limit == "rows" else admit_bytes(start, newest, sizes, 10 * most)
        assert 0 < sum(ends.values()) - sum(start.values()) <= most
        start, newest = ends, newest | {names[0]: newest[names[0]] + most}
    assert {queue: start[queue] for queue in names[1:]} == dict(zip(names[1:], quiet, strict=True))


def test_admit_lets_a_queue_made_anew_be_seen() -> None:
    assert admit({Q[0]: 100, Q[1]: 0}, {Q[0]: 5, Q[1]: 50}, 10) == {Q[0]: 5, Q[1]: 10}


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=12), st.integers(1, 500))
def test_admit_reaches_the_end_in_as_few_steps_as_may_be(lags: list[tuple[int, int]], rows_max: int) -> None:
    start = {q: first for q, (first, _) in zip(Q, lags, strict=False)}
    newest = {q: first + lag for q, (first, lag) in zip(Q, lags, strict=False)}
    total = sum(lag for _, lag in lags)
    steps = 0
    while start != newest:
        end = admit(start, newest, rows_max)
        taken = sum(end.values()) - sum(start.values())
        assert taken == min(rows_max, sum(newest.values()) - sum(start.values()))
        assert all(start[q] <= end[q] <= newest[q] for q in start)
        start = end
        steps += 1
    assert steps == -(-total // rows_max)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), max_size=6),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(1, 100)),
)
def test_split_covers_every_offset_once(
    lengths: list[tuple[int, int]], partitions_min: int, rows_max: int | None
) -> None:
    ranges = [OffsetRange(q, first, first + rows) for q, (first, rows) in zip(Q, lengths, strict=False)]
    parts = split(ranges, partitions_min, rows_max)
    assert [(p.queue, o) for p in parts for o in range(p.first, p.end)] == [
        (r.queue, o) for r in ranges for o in range(r.first, r.end)
    ]
    assert all(p.end > p.first for p in parts)
    assert rows_max is None or all(p.end - p.first <= rows_max for p in parts)
    assert len(parts) >= min(partitions_min, sum(rows for _, rows in lengths))


def test_split_makes_enough_parts_of_one_queue() -> None:
    parts = split([OffsetRange(Q[0], 0, 100), OffsetRange(Q[1], 7, 7)], 4, None)
    assert [(p.first, p.end) for p in parts] == [(0, 25), (25, 50), (50, 75), (75, 100)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500), st.floats(1, 5000)), min_size=1, max_size=6),
    st.integers(1, 2_000_000),
)
def test_bytes_are_shared_and_something_goes_on(queues: list[tuple[int, int, float]], bytes_max: int) -> None:
    names = [MessageQueue("t", "b", i) for i in range(len(queues))]
    start = {q: first for q, (first, _, _) in zip(names, queues, strict=True)}
    newest = {q: first + rows for q, (first, rows, _) in zip(names, queues, strict=True)}
    sizes = {q: size for q, (_, _, size) in zip(names, queues, strict=True)}
    ends = admit_bytes(start, newest, sizes, bytes_max)
    assert ends.keys() == newest.keys()
    assert all(start[q] <= ends[q] <= newest[q] for q in names)
    taken = {q: ends[q] - start[q] for q in names}
    held = sum(newest[q] - start[q] for q in names)
    assert (sum(taken.values()) > 0) == (held > 0)
    assert sum(taken.values()) <= 1 or sum(taken[q] * sizes[q] for q in names) <= bytes_max * 1.000001


def test_queues_of_unknown_size_count_as_the_others() -> None:
    one, two = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
    start, newest = {one: 0, two: 10}, {one: 100, two: 110}
    assert admit_bytes(start, newest, {one: 10.0}, 1000) == {one: 50, two: 60}
    assert admit_bytes(start, newest, {}, 1) == newest
    # Made anew: its end comes before its start, and is kept.
    assert admit_bytes({one: 50, two: 10}, {one: 3, two: 110}, {one: 1.0, two: 10.0}, 100) == {one: 3, two: 20}


def find(times: list[int], oldest: int, time_ms: int, guess: int) -> tuple[int, int]:
    """What is found in a queue that holds `times` from `oldest` on, and how many questions it took."""
    asked = []

    async def stored_ms(offset: int) -> float:
        asked.append(offset)
        assert oldest <= offset < oldest + len(times)
        return times[offset - oldest]

    return asyncio.run(first_at_or_after(time_ms, oldest, oldest + len(times), guess, stored_ms)), len(asked)


@given(st.lists(st.integers(0, 9)).map(sorted), st.integers(0, 5), st.integers(-1, 10), st.integers(-3, 30))
def test_it_is_the_first_at_or_after_whatever_the_guess(
    times: list[int], oldest: int, time_ms: int, guess: int
) -> None:
    assert find(times, oldest, time_ms, guess)[0] == oldest + bisect.bisect_left(times, time_ms)


@given(st.lists(st.integers(0, 9)).map(sorted), st.integers(-1, 10))
def test_a_right_guess_takes_two_questions_at_most(times: list[int], time_ms: int) -> None:
    right = bisect.bisect_left(times, time_ms)
    assert find(times, 0, time_ms, right) in [(right, n) for n in range(3)]


def test_what_was_deleted_meanwhile_is_before_and_what_is_not_there_yet_after() -> None:
    async def stored_ms(offset: int) -> float:
        return -math.inf if offset < 4 else 50 if offset < 8 else math.inf

    assert asyncio.run(first_at_or_after(20, 0, 10, 0, stored_ms)) == 4
    assert asyncio.run(first_at_or_after(60, 0, 10, 10, stored_ms)) == 8
