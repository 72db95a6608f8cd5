"""A broker's metrics by OTLP: what a collector gets is what a scrape of the same moment shows, and RocketMQ's names."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.live.support import TOPIC, broker, connected, create, run, sent
from tests.live.test_metric_names import LABEL_NOT_THERE, NOT_THERE
from tests.support.metric_load import loaded
from tests.support.otlp_receiver import Labels, Metered, Receiver, metered

from rocketspark.broker.operations.metrics import Metrics
from rocketspark.testing import run_cluster
from rocketspark.transport.metrics.families import Collected
from rocketspark.transport.metrics.server import _page

# tests/java/test_otlp_metrics.py holds the official broker to it.
RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "metrics_otlp_5.5.0.json").read_text()
)


def of_prometheus(name: str, unit: str) -> str:
    """The name that OpenTelemetry's exporter for Prometheus gives it."""
    word = {"ms": "milliseconds"}.get(unit, unit)
    return name if not word or name.endswith(f"_{word}") else f"{name}_{word}"


Shown = dict[tuple[str, str], dict[Labels, Any]]


def scraped(found: Collected) -> Shown:
    """What a scrape shows, by name and kind: numbers, or (count, sum, counts up to each bound) of histograms."""
    shown: Shown = {}
    for family in text_string_to_metric_families(_page(found, set(), {}).partition(b"\r\n\r\n")[2].decode()):
        rows: dict[Labels, Any] = {}
        buckets: dict[Labels, dict[str, float]] = defaultdict(dict)
        parts: dict[tuple[str, Labels], float] = {}
        for sample in family.samples:
            labels = frozenset((k, v) for k, v in sample.labels.items() if v and k != "le")
            if sample.name.endswith("_bucket") and family.type == "histogram":
                buckets[labels][sample.labels["le"]] = sample.value
            elif family.type == "histogram":
                parts[sample.name.rpartition("_")[2], labels] = sample.value
            else:
                rows[labels] = sample.value
        for labels, up_to in buckets.items():
            rows[labels] = parts["count", labels], parts["sum", labels], tuple(up_to.values())
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown[name, family.type] = rows
    return shown


def taken(found: dict[str, Metered]) -> Shown:
    """The same of what a collector got."""
    shown: Shown = {}
    for name, metric in found.items():
        rows = {}
        for labels, point in metric.points.items():
            value = point.value
            if metric.kind == "histogram":
                value = value[0], value[1], tuple(sum(value[2][: n + 1]) for n in range(len(value[2])))
            rows[frozenset((k, v) for k, v in labels if v)] = value
        shown[of_prometheus(name, metric.unit), metric.kind] = rows
    return shown


@pytest.mark.shows("metrics by OTLP: names, kinds, units, labels and values, the same as a scrape's of the same moment")
def test_a_collector_gets_what_a_scrape_shows_under_rocketmqs_names(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Collected] = []
    collect = Metrics.collect
    monkeypatch.setattr(Metrics, "collect", lambda self: kept.append(collect(self)) or kept[-1])
    settings = {"metrics_interval_ms": 200, "metrics_points_max": 20, "metrics_label": "zone:eu-1"}
    with Receiver() as receiver:
        otlp = {"metrics_exporter": "OTLP_GRPC", "metrics_target": receiver.target, **settings}
        with run_cluster(**otlp) as cluster, loaded(cluster.namesrv):
            receiver.wait_until(lambda r: RECORDED.keys() - NAMES_NOT_THERE <= metered(*r.requests).keys())
    moments: dict[int, list[Any]] = defaultdict(list)
    for request in receiver.requests:
        (metric, *_) = (m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics)
        (point, *_) = getattr(metric, metric.WhichOneof("data")).data_points
        moments[point.time_unix_nano].append(request)
    # Each collection came, in requests of at most 20 values.
    assert len(moments) == len(kept)
    rounds = [(metered(*requests), found) for requests, found in zip(moments.values(), kept, strict=True)]
    for found, shown in (max(rounds, key=lambda pair: len(pair[0])), rounds[-1]):
        assert taken(found) == scraped(shown)
        assert all(("zone", "eu-1") in labels for metric in found.values() for labels in metric.points)
    ours = {
        name: {"kind": m.kind, "unit": m.unit, "labels": [x for x in m.labels if x != "zone"], "bounds": list(m.bounds)}
        for name, m in metered(*receiver.requests).items()
        if name.startswith("rocketmq_")
    }
    wanted = {
        name: each | {"labels": [x for x in each["labels"] if x != LABEL_NOT_THERE.get(name.removesuffix("_total"))]}
        for name, each in RECORDED.items()
        if name not in NAMES_NOT_THERE
    }
    assert ours == wanted
    (resource,) = receiver.requests[0].resource_metrics
    process = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert process == {"service.name": "rocketspark-broker", "service.instance.id": cluster.brokers[0]}


NAMES_NOT_THERE = {
    name for name in RECORDED if of_prometheus(name, RECORDED[name]["unit"]).removesuffix("_total") in NOT_THERE
}


@pytest.mark.shows("metricsInDelta: what a collector adds up is what the broker counted, the last sends too")
def test_deltas_add_up_to_what_the_broker_counted(tmp_path: Path) -> None:
    async def main() -> None:
        with Receiver() as receiver:
            otlp = {"metrics_exporter": "OTLP_GRPC", "metrics_target": receiver.target, "metrics_delta": True}
            async with (
                broker(tmp_path, **otlp, metrics_interval_ms=100) as server,
                connected(server.address) as peer,
            ):
                await create(peer, queues=1)
                for size in (10, 2000):
                    await sent(peer, b"x" * size)
                await asyncio.to_thread(receiver.wait_until, _messages_came)
                await sent(peer, b"x" * 3000)
        messages: dict[str, float] = defaultdict(float)
        sizes = [0] * 7
        told = 0
        for found in map(metered, receiver.requests):
            for labels, point in found["rocketmq_messages_in_total"].points.items() if _messages_in(found) else ():
                messages[dict(labels)["topic"]] += point.value
                told += 1
                assert ("aggregation", "delta") in labels
            for point in found["rocketmq_message_size"].points.values() if "rocketmq_message_size" in found else ():
                sizes = [a + b for a, b in zip(sizes, point.value[2], strict=True)]
            assert all(m.delta for m in found.values() if m.kind != "gauge")
        assert dict(messages) == {TOPIC: 3}
        # Those that came later came alone.
        assert told >= 2
        assert sizes == [1, 2, 0, 0, 0, 0, 0]

    run(main())


def _messages_in(found: dict[str, Metered]) -> bool:
    return "rocketmq_messages_in_total" in found


def _messages_came(receiver: Receiver) -> bool:
    return any(map(_messages_in, map(metered, receiver.requests)))
