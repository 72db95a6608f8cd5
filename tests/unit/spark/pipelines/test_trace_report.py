"""The HTML report: one file, whole or not at all; names from messages are text and nothing else."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines import trace_report
from rocketspark.spark.pipelines.parts.trace_records import (
    QUANTILES,
    Deliveries,
    Latency,
    Moment,
    Sends,
    Slow,
    TraceReport,
    TransactionFigures,
    latency,
    step_for,
)

pytestmark = pytest.mark.shows("`trace`: latency, failures, retries, HTML report; also of the Java client's traces")

T0 = 1_700_000_000_000
HOSTILE = '<script>alert("1")</script>&$\\frac{x}$'


def measured(seed: int, median_ms: float) -> Latency:
    values = np.random.default_rng(seed).lognormal(np.log(median_ms), 0.8, 5000)
    return latency(len(values), float(values.mean()), [float(q) for q in np.quantile(values, QUANTILES)])


def report(name: str = "orders") -> TraceReport:
    """A made-up hour: two topics, three groups, one of them in trouble for ten minutes."""
    places = [(name, "billing", 40.0), (name, "stock", 160.0), ("returns", "billing", 25.0)]
    deliveries = [
        Deliveries(
            topic=topic,
            group=group,
            messages=5000,
            deliveries=5200,
            retried=200,
            failed=210,
            unfinished=3,
            unconsumed=2,
            delayed=0,
            most_retries=4,
            clock_skew=0,
            failures={"timeout": 10, "exception": 200},
            listener_ms=measured(n, median / 3),
            store_to_consume_ms=measured(n + 10, median / 4),
            end_to_end_ms=measured(n + 20, median),
        )
        for n, (topic, group, median) in enumerate(places)
    ]
    timeline = [
        Moment(T0 + 60_000 * step, "", "", 160 + 9 * (step % 7), 4 if 20 <= step < 30 else 0, 0, 2.0, 9.0)
        for step in range(60)
    ] + [
        Moment(
            T0 + 60_000 * step,
            topic,
            group,
            80,
            12 if late else 0,
            10 if late else 0,
            median * (3 if late else 1),
            median * (30 if late else 6),
        )
        for topic, group, median in places
        for step in range(60)
        for late in [group == "stock" and 20 <= step < 30]
    ]
    slow = Slow(
        message_id="7F0000010A0B18B4AAC2000000000001",
        topic=name,
        group="stock",
        keys=f"order-1 {name}",
        sent_ms=T0,
        first_received_ms=T0 + 5,
        consumed_ms=T0 + 4000,
        end_to_end_ms=4000,
        store_to_consume_ms=4.5,
        deliveries=3,
        failed=2,
        last_failure="exception",
    )
    return TraceReport(
        trace_topic="RMQ_SYS_TRACE_TOPIC",
        since_ms=None,
        until_ms=None,
        first_ms=T0,
        last_ms=T0 + 3_600_000,
        trace_messages=900,
        records={"Pub": 10_000, "SubAfter": 15_600, "SubBefore": 15_600},
        malformed=1,
        sends=[Sends(t, "shop", 5000, 4, 640_000, measured(9, 3.0)) for t in (name, "returns")],
        deliveries=deliveries,
        transactions=[TransactionFigures(name, "bank", 90, 7, 1, 2, 1, measured(8, 12.0))],
        slowest=[slow],
        unconsumed=[slow._replace(consumed_ms=None, end_to_end_ms=None)],
        step_ms=step_for(T0, T0 + 3_600_000 - 1, 60),
        timeline=timeline,
    )


class Seen(HTMLParser):
    """Which elements a page has, how they nest, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_all_is_in_one_file_and_names_are_text(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("an old one")
    trace_report.write_html(report(HOSTILE), path)
    page = Seen(path.read_text(encoding="utf-8"))
    assert page.open == []
    assert {tag for tag, _ in page.elements} <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "b", "figure", "figcaption", "img"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }
    assert HOSTILE in page.text
    sources = [attributes["src"] or "" for tag, attributes in page.elements if tag == "img"]
    assert len(sources) == 4
    for source in sources:
        assert base64.b64decode(source.removeprefix("data:image/png;base64,"), validate=True).startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_figures_stand_in_the_tables() -> None:
    page = Seen(trace_report.html(report()))
    text = " ".join(page.text)
    assert "200 exception" in text
    assert "7F0000010A0B18B4AAC2000000000001" in text
    assert "2023-11-14 22:13:20.000" in text
    assert re.search(r"10,000\s+messages sent", text)


def test_nothing_traced_is_a_page_too() -> None:
    empty = report()._replace(
        first_ms=None, last_ms=None, sends=[], deliveries=[], transactions=[], slowest=[], unconsumed=[], timeline=[]
    )
    page = Seen(trace_report.html(empty))
    assert "No traces." in page.text
    assert not any(tag == "img" for tag, _ in page.elements)


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("an old one")
    monkeypatch.setattr("os.replace", lambda a, b: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trace_report.write_html(report(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "an old one"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rocketspark\[pipelines\]'"):
        trace_report.plots(report())


@pytest.mark.parametrize(
    ("span_ms", "step_ms"), [(0, 100), (5_999, 100), (6_000, 250), (3_599_999, 60_000), (10**13, 604_800_000)]
)
def test_steps_of_a_time_line(span_ms: int, step_ms: int) -> None:
    assert step_for(T0, T0 + span_ms, 60) == step_ms


def test_a_latency_of_nothing() -> None:
    assert latency(0, None, None) == Latency()
