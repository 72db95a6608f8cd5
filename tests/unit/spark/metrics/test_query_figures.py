"""Counts of queries: under bounded labels, nothing lost, whatever comes in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rocketspark.model import MessageQueue
from rocketspark.spark.metrics.exposition import families, pipeline_families
from rocketspark.spark.metrics.listening import QueryListener
from rocketspark.spark.metrics.progress_reports import Report, SourceReport
from rocketspark.spark.metrics.query_figures import NO_REPORT, RUNS_MAX, QueryFigures


def figures_of(queries_max: int = 3, topics_max: int = 2) -> QueryFigures:
    return QueryFigures(queries_max=queries_max, topics_max=topics_max, now_s=lambda: 100.0)


def report(rows: int = 0, **topics: int) -> Report:
    queues = {MessageQueue(topic, "a", 0): count for topic, count in topics.items()}
    source = SourceReport(dict.fromkeys(queues, 0), queues, {})
    return NO_REPORT._replace(rows=rows, duration_s=0.2, sources=(source,))


events = st.lists(
    st.tuples(st.sampled_from(["start", "progress", "idle", "end", "fail"]), st.integers(0, 7), st.integers(0, 3)),
    max_size=60,
)


@given(events)
def test_sums_hold_and_labels_are_bounded(steps: list[tuple[str, int, int]]) -> None:
    figures = figures_of()
    rows = 0
    started: set[str] = set()
    ended: set[str] = set()
    for kind, query, turn in steps:
        run, name = f"{query}/{turn}", f"q{query}"
        if kind == "start":
            figures.started(run, name, name)
        elif kind == "progress":
            figures.progressed(run, name, name, report(5, t=2))
            rows += 5
        elif kind == "idle":
            figures.idled(run)
        else:
            figures.ended(run, name, failed=kind == "fail")
            ended.add(run)
        if kind != "idle":
            started.add(run)
    counts = figures.counts()
    assert sum(each.rows for each in counts.values()) == rows
    assert sum(each.messages["t"] for each in counts.values()) == rows // 5 * 2
    assert sum(each.starts for each in counts.values()) == len(started)
    assert sum(each.failed + each.stopped for each in counts.values()) == len(ended)
    assert len(counts.keys() - {"other"}) <= 3
    assert sum(each.running for each in figures.gauges().values()) == len(started - ended)


def test_a_query_that_ended_gives_its_label_to_a_new_one() -> None:
    figures = figures_of(queries_max=2)
    for name in ("a", "b", "c"):
        figures.progressed(name, name, name, report(1))
    assert figures.counts().keys() == {"a", "b", "other"}
    figures.ended("a", "a", failed=True)
    figures.progressed("d", "d", "d", report(10))
    counts = figures.counts()
    assert {name: each.rows for name, each in counts.items()} == {"b": 1, "d": 10, "other": 2}
    assert counts["other"].failed == 1


def test_topics_beyond_the_bound_are_other_and_queries_without_name_have_their_id() -> None:
    figures = figures_of(topics_max=2)
    figures.progressed("run", "0123456789ab", None, report(1, a=1, b=2, c=3, d=4))
    assert figures.counts()["query-01234567"].messages == {"a": 1, "b": 2, "other": 7}


def test_runs_that_never_end_are_bounded() -> None:
    figures = figures_of()
    for number in range(RUNS_MAX + 50):
        figures.started(str(number), "q", "q")
    assert figures.gauges()["q"].running == RUNS_MAX


def test_a_report_after_the_end_counts_and_revives_nothing() -> None:
    figures = figures_of()
    figures.ended("r", "q", failed=False)
    figures.progressed("r", "q", "q", report(4, t=1))
    figures.started("r", "q", "q")
    assert figures.gauges() == {}
    assert sum(each.rows for each in figures.counts().values()) == 4
    assert figures.positions() == []


@given(st.text(max_size=200), st.text(min_size=1, max_size=200))
def test_any_name_is_exposed_and_read_back(query: str, topic: str) -> None:
    figures = figures_of()
    figures.progressed("r", "id", query, report(3, **{topic: 2}))
    registry = CollectorRegistry(auto_describe=False)

    class Collected:
        def collect(self) -> list[object]:
            return [*families(figures, None), *pipeline_families(query, 1, None, 2.0)]

    registry.register(Collected())  # type: ignore[arg-type]
    text = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    (found,) = [sample for sample in samples if sample.name == "rocketspark_stream_messages_total"]
    assert found.value == 2
    assert [found.labels["topic"]] == list(figures.counts()[found.labels["query"]].messages)


def test_an_event_that_cannot_be_counted_is_counted_as_that() -> None:
    figures = figures_of()
    listener = QueryListener(figures)
    for hear in (listener.onQueryStarted, listener.onQueryProgress, listener.onQueryIdle, listener.onQueryTerminated):
        hear(None)
    assert figures.listener_errors() == {"started": 1, "progress": 1, "idle": 1, "terminated": 1}
