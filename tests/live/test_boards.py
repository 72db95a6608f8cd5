"""The boards and alerts in examples/grafana, asked of a Prometheus that scrapes a broker, a pair and a proxy in use."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.live.test_replication import pair
from tests.support.metric_load import GROUP, TOPIC, loaded
from tests.support.ports import free_ports
from tests.support.prometheus import Prometheus, plain, program, prometheus
from tests.unit.proxy.conftest import running_proxy
from tests.unit.proxy.consuming.support import Consumer

from rocketspark import Producer
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("Grafana boards of broker, groups, replication and proxy; alerts with promtool's tests")

FOLDER = Path(__file__).parents[2] / "examples" / "grafana"
BOARDS = {
    name: json.loads((FOLDER / f"{name}.json").read_text()) for name in ("broker", "groups", "replication", "proxy")
}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]
ALERTS = FOLDER / "alerts.yaml"
DOCUMENTED = (Path(__file__).parents[2] / "docs" / "run" / "statistics.md").read_text()
METRIC = r"\b(?:rocketmq|rocketspark)_\w+"
ALL = {"$cluster": ".*", "$node": ".*", "$topic": ".*", "$group": ".*"}


@asynccontextmanager
async def metered_pair(folder: Path) -> AsyncIterator[list[str]]:
    async with pair(folder, metrics_exporter="PROM", metrics_port=0) as brokers:
        servers = (brokers.master.metrics, brokers.slave.metrics)
        yield [f"127.0.0.1:{server.port}" for server in servers if server is not None]


@contextmanager
def running_pair(folder: Path) -> Iterator[list[str]]:
    """A master and its slave in a thread; the addresses of their metrics."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    context = metered_pair(folder)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@contextmanager
def again_and_again(act: Callable[[], object]) -> Iterator[None]:
    """Do it some times a second while the block lasts."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.2):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


class Used(NamedTuple):
    """What stands in for a scrape's targets."""

    server: Prometheus
    targets: int


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    port = free_ports()
    with (
        run_cluster(metrics_exporter="PROM", metrics_port=port) as cluster,
        loaded(cluster.namesrv),
        running_pair(tmp_path_factory.mktemp("pair")) as of_pair,
        running_proxy(cluster.namesrv, metrics_port=0) as proxy,
        Producer(cluster.namesrv, "boards") as producer,
    ):
        consumer = Consumer(proxy.address, f"{GROUP}-grpc", TOPIC)

        def use() -> None:
            producer.send(TOPIC, b"x")
            consumer.beat()
            consumer.receive(count=1, polling_ms=10)

        metrics = proxy.server.metrics
        assert metrics is not None
        targets = [f"127.0.0.1:{port}", *of_pair, metrics.address]
        try:
            with again_and_again(use), prometheus(tmp_path_factory.mktemp("prometheus"), targets, ALERTS) as server:
                yield Used(server, len(targets))
        finally:
            consumer.vanish()


def test_all_are_scraped(used: Used) -> None:
    used.server.await_numbers(f"sum(up) == {used.targets}")


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=[f"{board}: {panel['title']}" for board, panel in PANELS])
def test_a_panel_draws_numbers(board: str, panel: dict[str, Any], used: Used) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["description"]
    for target in panel["targets"]:
        rows = used.server.await_numbers(plain(target["expr"], ALL))
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert all(shown <= row["metric"].keys() or not row["metric"] for row in rows), target["expr"]
        for name in re.findall(METRIC, target["expr"]):
            assert re.sub("_(bucket|count|sum)$", "", name) in DOCUMENTED, name


@pytest.mark.parametrize("board", BOARDS)
def test_variables_have_values(board: str, used: Used) -> None:
    for variable in BOARDS[board]["templating"]["list"]:
        if variable["type"] == "datasource":
            continue
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert asked is not None
        rows = used.server.await_numbers(plain(asked[1], ALL))
        assert any(row["metric"].get(asked[2]) for row in rows)


def test_a_board_can_be_imported_anywhere() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    for board in BOARDS.values():
        panels = [panel for panel in board["panels"] if panel["type"] != "row"]
        sources = {json.dumps(each["datasource"]) for panel in panels for each in (panel, *panel["targets"])}
        assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}
        assert board["id"] is None
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        taken = [
            (x, y)
            for place in (panel["gridPos"] for panel in board["panels"])
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(taken) == len(set(taken))
        assert max(x for x, _ in taken) < 24


def test_prometheus_takes_the_alerts_and_none_fails(used: Used) -> None:
    used.server.await_numbers("up == 1")
    groups = used.server.ask("rules")["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert rules.keys() == {
        rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    }
    assert {rule["name"]: rule.get("lastError", "") for rule in rules.values()} == dict.fromkeys(rules, "")


def test_alerts_ask_for_what_is_told(used: Used) -> None:
    groups = {group["name"]: group["rules"] for group in yaml.safe_load(ALERTS.read_text())["groups"]}
    names = {name: set(re.findall(METRIC, " ".join(rule["expr"] for rule in rules))) for name, rules in groups.items()}
    for name in sorted(names["rocketspark-replication"] - {"rocketspark_replication_troubles_total"}):
        used.server.await_rows(name)
    used.server.await_rows('rocketmq_rpc_latency_milliseconds_count{node_type="proxy"}')
    # The rest is there once something is wrong.
    assert all(re.sub("_(bucket|count|sum)$", "", each) in DOCUMENTED for each in names["rocketspark-trouble"])


def test_alerts_fire_when_they_should_and_only_then() -> None:
    done = subprocess.run(
        [program("promtool"), "test", "rules", "alerts_test.yaml"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tests = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
    fires = {rule["alertname"] for test in tests for rule in test["alert_rule_test"] if rule.get("exp_alerts")}
    quiet = {rule["alertname"] for test in tests for rule in test["alert_rule_test"] if not rule.get("exp_alerts")}
    every = {rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    assert fires == quiet == every
