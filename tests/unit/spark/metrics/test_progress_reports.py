"""Progress reports: right values of right ones, a value of any other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from rocketspark.model import MessageQueue
from rocketspark.spark.metrics.progress_reports import OFFSET_MAX, Report, parse_offsets, parse_report
from rocketspark.tables.offset_ranges import to_json

pytestmark = pytest.mark.shows(
    "bad rows of option `decode` in `pipeline sql`: its metrics, `bad_rows` of each sink, an alert",
    "mended: metrics of `dedupe` had neither messages nor lag: its offsets hold the time too; one topic of "
    "more than 4,096 queues hid the lag of all after it",
)

names = st.text(min_size=1, max_size=20).filter(lambda name: not name.startswith("@"))
queues = st.builds(MessageQueue, names, names, st.integers(0, 2**31 - 1).filter(lambda n: n < 10**9))
offsets = st.dictionaries(queues, st.integers(0, OFFSET_MAX), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
FIELDS = [
    "numInputRows",
    "batchId",
    "batchDuration",
    "durationMs",
    "sources",
    "sink",
    "stateOperators",
    "observedMetrics",
]
SOURCE_FIELDS = ["startOffset", "endOffset", "latestOffset", "numInputRows", "metrics"]


@given(offsets, offsets)
def test_offsets_come_back_as_json_and_as_text_of_python(own: Any, begun: Any) -> None:
    table: dict[str, Any] = {**to_json(own), "@start": to_json(begun)}
    for text in (json.dumps(table), str(table), table, {**table, "@seen": 5, "@by": "key"}):
        assert parse_offsets(text) == (own, begun)


@given(values)
def test_any_offset_is_a_value(value: Any) -> None:
    for text in (value, repr(value)):
        parsed = parse_offsets(text)
        assert parsed is None or all(0 <= offset <= OFFSET_MAX for part in parsed for offset in part.values())


@given(
    st.dictionaries(st.sampled_from(FIELDS), values), st.lists(st.dictionaries(st.sampled_from(SOURCE_FIELDS), values))
)
def test_any_report_is_a_value_of_counts(report: dict[str, Any], sources: list[Any]) -> None:
    for told in (report, {**report, "sources": sources}):
        parsed = parse_report(told)
        assert all(
            n >= 0 for n in (parsed.rows, parsed.output_rows, parsed.bytes, parsed.state_rows, parsed.state_bytes)
        )
        assert all(seconds >= 0 for seconds in parsed.steps_s.values())
        parsed.positions()


def test_what_is_no_report_is_an_empty_one() -> None:
    assert parse_report(None) == parse_report({}) == Report(0, 0, None, None, {}, 0, 0, 0, ())
    deep = "[" * 100_000
    assert parse_offsets(deep) is None
    assert parse_offsets('{"t":{"b":{"0":-1}}}') is None
    assert parse_offsets('{"t":{"b":{"x":1}}}') is None
    assert parse_offsets('{"t":{"0":5}}') is None, "Kafka's"
    assert parse_report({"numInputRows": 1, "observedMetrics": {"x": {"bytes": 10**400}}}).bytes == OFFSET_MAX


def test_a_first_micro_batch_then_an_idle_trigger() -> None:
    end = {"t": {"a": {"0": 30, "1": 5}}, "@start": {"t": {"a": {"0": 10, "1": 5}}}}
    latest = {"t": {"a": {"0": 50, "1": 6}}}
    first = {"endOffset": json.dumps(end), "startOffset": None, "latestOffset": json.dumps(latest)}
    told = {
        "numInputRows": 18,
        "batchId": 0,
        "durationMs": {"triggerExecution": 1500, "addBatch": 1200, "walCommit": 30, "new": 7, "newer": 1},
        "sources": [first],
        "sink": {"numOutputRows": -1},
        "stateOperators": [{"numRowsTotal": 7, "memoryUsedBytes": 1000}],
        "observedMetrics": {
            "a": Row(bytes=40, rows=3, bad_rows=2),
            "b": {"key_bytes": 2, "megabytes": 9, "bytes": None, "order_bad_rows": 5, "bad": 9},
        },
    }
    report = parse_report(told)
    (source,) = report.sources
    assert (report.rows, report.output_rows, report.batch_id, report.duration_s) == (18, 0, 0, 1.5)
    assert report.steps_s == {"addBatch": 1.2, "walCommit": 0.03, "other": 0.008}
    assert (report.bytes, report.state_rows, report.state_bytes, report.bad_rows) == (42, 7, 1000, 7)
    assert source.messages() == {"t": 20}
    assert source.lag() == {"t": 21}
    # The trigger after it found nothing: its start is that end, with its @start.
    (idle,) = parse_report({"sources": [{**first, "startOffset": json.dumps(end)}]}).sources
    assert idle.messages() == {"t": 0}


def test_rows_of_sources_count_where_the_sum_is_left_out_and_metrics_of_sources_are_texts() -> None:
    sources = [{"numInputRows": 3, "metrics": {"read_bytes": "70"}}, {"numInputRows": 4, "endOffset": "{'0': 3}"}]
    report = parse_report({"sources": sources})
    assert (report.rows, report.bytes, report.sources) == (7, 70, ())
