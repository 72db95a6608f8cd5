"""The board and the alerts in examples/grafana: every metric and label that they name is in what our servers tell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import pytest
import yaml
from pyspark.sql import SparkSession
from tests.spark.scrapes import Scrape, scrape, scrape_until
from tests.support.ports import free_ports
from tests.support.prometheus import plain, prometheus

from rocketspark.client import Producer, PushConsumer
from rocketspark.model import Message
from rocketspark.spark.metrics.listening import listen_to_pipeline
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.tables.client_access import Access
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("Grafana board and alerts, their queries held to what is told")

FOLDER = Path(__file__).parents[2] / "examples" / "grafana"
BOARD: dict[str, Any] = json.loads((FOLDER / "rocketspark.json").read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
ALERTS = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))
# The others: tests/live/test_boards.py.
GROUPS = ("rocketspark-streams", "rocketspark-brokers")
RULES = [rule for group in ALERTS["groups"] if group["name"] in GROUPS for rule in group["rules"]]
VARIABLES = {each["name"]: each for each in BOARD["templating"]["list"]}
# What Grafana puts in their place.
BUILT_IN = {"$__rate_interval": "1m", "$__interval": "1m", "$__range": "1h"}


class Told(NamedTuple):
    """What a broker and a listener tell; where they do."""

    samples: Scrape
    urls: tuple[str, ...]


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    port = free_ports()
    with run_cluster(metrics_exporter="PROM", metrics_port=port) as cluster, Producer(cluster.namesrv) as producer:
        consumer = PushConsumer(cluster.namesrv, "board", consume_from="first")
        for number in range(20):
            producer.send(Message(topic="orders", body=b"%d" % number))
        consumer.subscribe("orders")
        consumer.listen(lambda message: None)
        consumer.start()
        source = spark.readStream.format("rocketmq").options(namesrv=cluster.namesrv, topic="orders")
        stream = source.option("startingOffsets", "earliest").schema("body binary").load()
        checkpoint = tmp_path_factory.mktemp("board")
        progress = Progress("archive")
        progress.update(1, lag=2)
        with listen_to_pipeline(spark, cluster.namesrv, Access(), progress, 0) as listening:
            writer = stream.writeStream.format("noop").queryName("board").option("checkpointLocation", str(checkpoint))
            query = writer.trigger(processingTime="0 seconds").start()
            broker = f"http://127.0.0.1:{port}/metrics"
            try:
                streams = scrape_until(listening.url, lambda s: s.labels("rocketspark_stream_lag_messages"))
                brokers = scrape_until(broker, lambda s: s.labels("rocketmq_messages_out_total"))
                yield Told(Scrape(streams | brokers), (listening.url, broker))
            finally:
                query.stop()
                consumer.close()


class Use(NamedTuple):
    """One selector of an expression: the metric's name, its matchers, and labels by which it is grouped."""

    name: str
    matchers: dict[str, str]
    exact: dict[str, str]
    grouped: frozenset[str]


def uses(expression: str) -> list[Use]:
    """The selectors of an expression. Fails if it is no PromQL."""
    for name, value in BUILT_IN.items():
        expression = expression.replace(name, value)
    found: list[Use] = []
    _walk(promql.parse(expression), frozenset(), found)
    return found


def _walk(node: Any, grouped: frozenset[str], found: list[Use]) -> None:
    if isinstance(node, promql.VectorSelector):
        matchers = {each.name: each.value for each in node.matchers.matchers}
        exact = {each.name: each.value for each in node.matchers.matchers if each.op == promql.MatchOp.Equal}
        found.append(Use(node.name or "", matchers, exact, grouped))
        return
    if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
        grouped |= set(node.modifier.labels)
    for part in ("expr", "vector_selector", "lhs", "rhs", "param"):
        inner = getattr(node, part, None)
        if inner is not None and not isinstance(inner, int | float | str):
            _walk(inner, grouped, found)
    for inner in getattr(node, "args", None) or ():
        _walk(inner, grouped, found)


def check(use: Use, told: Told, shown: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Fails unless what it names is told."""
    names = [use.name] if use.name else use.matchers["__name__"].split("|")
    for name in names:
        labels = told.samples.labels(name)
        assert labels, f"{name} is not told"
        wanted = (use.matchers.keys() - {"__name__"}) | use.grouped | shown
        assert all(wanted <= each.keys() for each in labels), f"{name} has no label of {wanted - labels[0].keys()}"
        for label, value in use.exact.items():
            assert value in {each[label] for each in labels}, f"{name} has no {label} {value!r}"
        for value in use.matchers.values():
            assert not value.startswith("$") or value[1:] in VARIABLES, value


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_draws_what_is_told(panel: dict[str, Any], told: Told) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["description"]
    for target in panel["targets"]:
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        found = uses(target["expr"])
        assert found
        for use in found:
            check(use, told, shown)
            # What is summed up has only the labels that it is grouped by.
            assert not use.grouped or shown <= use.grouped, target["expr"]


def test_prometheus_draws_each_panel(told: Told, tmp_path: Path) -> None:
    targets = [url.removeprefix("http://").removesuffix("/metrics") for url in told.urls]
    with prometheus(tmp_path, targets) as server:
        for panel in PANELS:
            for target in panel["targets"]:
                assert server.await_rows(plain(target["expr"], {f"${name}": ".*" for name in VARIABLES}))


def test_variables_take_their_values_from_labels_that_are_told(told: Told) -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    for name in VARIABLES.keys() - {"datasource"}:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", VARIABLES[name]["query"]["query"])
        assert asked is not None
        (use,) = uses(asked[1])
        check(use, told, {asked[2]})


def test_the_board_can_be_imported_anywhere() -> None:
    sources = [each["datasource"] for panel in PANELS for each in (panel, *panel["targets"])]
    assert {json.dumps(each) for each in sources} == {'{"type": "prometheus", "uid": "${datasource}"}'}
    assert BOARD["id"] is None
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    for i, one in enumerate(places):
        assert one["x"] + one["w"] <= 24
        for other in places[:i]:
            apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert apart_x or apart_y


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r["alert"])
def test_an_alert_asks_for_what_is_told(rule: dict[str, Any], told: Told) -> None:
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    for use in uses(rule["expr"]):
        check(use, told, shown)


def test_what_the_listener_tells_is_in_the_board_or_is_left_out_on_purpose(told: Told) -> None:
    named = {use.name for panel in PANELS for target in panel["targets"] for use in uses(target["expr"])}
    named |= {use.name for rule in RULES for use in uses(rule["expr"])}
    ours = {name for name, _ in scrape(told.urls[0]) if name.startswith("rocketspark_")}
    rest = {name for name in ours - named if not name.endswith(("_created", "_sum", "_count"))}
    assert rest == {
        "rocketspark_stream_batch_id",
        "rocketspark_stream_reported_lag_messages",
        "rocketspark_stream_starts_total",
        "rocketspark_stream_state_rows",
    }
