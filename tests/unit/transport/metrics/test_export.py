"""Metrics on their way to a collector that is there, away, slow or unwilling: what comes, and what the log says."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from tests.live.support import run, until
from tests.support.certificates import Issuer
from tests.support.otlp_receiver import Labels, Point, Receiver, metered

from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError
from rocketspark.model.histogram import Histogram
from rocketspark.transport.metrics import export, otlp
from rocketspark.transport.metrics.export import Exporter
from rocketspark.transport.metrics.exporters import exporter_of
from rocketspark.transport.metrics.families import COUNTER, GAUGE, HISTOGRAM, Collected, Family, histograms
from rocketspark.transport.metrics.settings import ExportSettings
from rocketspark.transport.tls.client_tls import ClientTls

pytestmark = pytest.mark.shows(
    "metrics by OTLP: a collector that is away, slow or refuses costs the server nothing but two lines of its log; what"
    " was counted meanwhile comes with the next request; the last values are sent at the end"
)

PLAIN = ExportSettings.of(BrokerSettings(metrics_exporter="OTLP_GRPC", metrics_interval_ms=100))
A: Labels = frozenset({("cluster", "c"), ("topic", "a")})


class Counts:
    """What a server counts: messages of topics, and their sizes."""

    def __init__(self) -> None:
        self.messages = {"a": 0}
        self.sizes = Histogram((10, 100))
        self.collected = 0

    def add(self, size: float, topic: str = "a") -> None:
        self.messages[topic] = self.messages.get(topic, 0) + 1
        self.sizes.add(size)

    def collect(self) -> Collected:
        self.collected += 1
        families = [
            Family(COUNTER, "in", "In.", [({"topic": topic}, count) for topic, count in self.messages.items()]),
            Family(HISTOGRAM, "size_bytes", "Sizes.", histograms([({"topic": "a"}, self.sizes)])),
            Family(GAUGE, "waiting", "Waiting.", [({"is_system": "false", "queue_id": "3"}, 0.5)]),
        ]
        return Collected({"cluster": "c"}, families)


def exporter(counts: Counts, target: str, tls: ClientTls | None = None, **changes: object) -> Exporter:
    settings = PLAIN._replace(metrics_target=target, **changes)  # type: ignore[arg-type]
    made = exporter_of(settings, counts.collect, {"service.name": "s"}, tls)
    assert made is not None
    return made


async def came(receiver: Receiver, count: int) -> None:
    """Wait until so many requests more have come."""
    wanted = len(receiver.requests) + count
    await asyncio.to_thread(receiver.wait_until, lambda r: len(r.requests) >= wanted)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "rocketspark.metrics"]
    assert found[0][1].startswith("metrics go to ")
    return found[1:]


def test_each_kind_comes_with_its_labels_and_since_when_it_counts() -> None:
    async def main() -> None:
        counts = Counts()
        for size in (5, 50, 500):
            counts.add(size)
        with Receiver() as receiver:
            sender = exporter(counts, receiver.target, metrics_header="Api-Key:k, b:2")
            sender.start()
            await came(receiver, 2)
            await sender.close()
        first, last = metered(receiver.requests[0]), metered(receiver.requests[-1])
        begun_ns, time_ns = first["in_total"].points[A][1:]
        assert first["in_total"] == ("counter", "", False, (), {A: Point(3, begun_ns, time_ns)})
        sizes = Point((3, 555.0, (1, 1, 1)), begun_ns, time_ns)
        assert first["size"] == ("histogram", "bytes", False, (10.0, 100.0), {A: sizes})
        waiting = frozenset({("cluster", "c"), ("is_system", "false"), ("queue_id", "3")})
        assert first["waiting"] == ("gauge", "", False, (), {waiting: Point(0.5, 0, time_ns)})
        assert last["in_total"].points[A].start_ns == begun_ns < time_ns < last["in_total"].points[A].time_ns
        assert {"api-key": "k", "b": "2"}.items() <= receiver.headers[0].items()
        (resource,) = receiver.requests[0].resource_metrics
        assert [(pair.key, pair.value.string_value) for pair in resource.resource.attributes] == [("service.name", "s")]

    run(main())


def test_deltas_are_what_was_added_and_add_up() -> None:
    async def main() -> None:
        counts = Counts()
        counts.add(5)
        with Receiver() as receiver:
            sender = exporter(counts, receiver.target, metrics_delta=True)
            sender.start()
            await came(receiver, 1)
            counts.add(50)
            counts.add(500)
            counts.add(7, "new")
            await came(receiver, 2)
            # A topic that is made anew begins anew.
            counts.messages["new"] = 0
            await came(receiver, 1)
            counts.messages["a"] = 2
            await sender.close()
        found = [metered(each) for each in receiver.requests]
        assert all(each["waiting"].points for each in found)
        told = [each["in_total"] for each in found if "in_total" in each]
        assert [{dict(labels)["topic"]: p.value for labels, p in each.points.items()} for each in told] == [
            {"a": 1},
            {"a": 2, "new": 1},
            {"a": 2},
        ]
        assert all(each.delta for each in told)
        # Each begins where the one before ended.
        assert told[1].points[A].start_ns == told[0].points[A].time_ns
        assert [p.value for each in found if "size" in each for p in each["size"].points.values()] == [
            (1, 5.0, (1, 0, 0)),
            (3, 557.0, (1, 1, 1)),
        ]

    run(main())


def test_a_collector_that_is_away_and_back_costs_two_lines_and_no_delta(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        counts = Counts()
        with caplog.at_level(logging.INFO), Receiver() as receiver:
            port = receiver.port
            sender = exporter(counts, receiver.target, metrics_delta=True, metrics_points_max=1)
            sender.start()
            counts.add(5)
            await came(receiver, 3)
        seen = sum(len(each) for each in (metered(r)["in_total"].points for r in receiver.requests if _counts(r)))
        assert seen == 1
        await until(lambda: len(lines(caplog)) == 1)
        begun = counts.collected
        counts.add(50)
        await until(lambda: counts.collected >= begun + 5)
        assert len(sender._series._sent) == 2
        with caplog.at_level(logging.INFO), Receiver(port) as back:
            await asyncio.to_thread(back.wait_until, lambda r: any(map(_counts, r.requests)))
            await until(lambda: len(lines(caplog)) == 2)
            await sender.close()
        assert [p.value for r in back.requests if _counts(r) for p in metered(r)["in_total"].points.values()] == [1]
        (away, reason), (is_back, text) = lines(caplog)
        assert (away, is_back) == ("WARNING", "INFO")
        assert reason.startswith(f"the collector at 127.0.0.1:{port} takes no metrics: UNAVAILABLE: ")
        assert reason.endswith("; it is tried again every 0.1 s")
        assert text == f"the collector at 127.0.0.1:{port} takes metrics again"

    run(main())


def _counts(request: object) -> bool:
    return "in_total" in metered(request)  # type: ignore[arg-type]


def _no_key(context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "no\x1b[31m key" + "!" * 900)


def test_one_that_refuses_is_quoted_in_short_and_not_with_our_keys(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        counts = Counts()
        with caplog.at_level(logging.INFO), Receiver(answer=_no_key) as receiver:
            sender = exporter(counts, receiver.target, metrics_header="key:marker-secret")
            sender.start()
            await until(lambda: counts.collected >= 4)
            await sender.close()
        ((level, text),) = lines(caplog)
        assert level == "WARNING"
        assert r"takes no metrics: UNAUTHENTICATED: no\x1b[31m key!!!" in text
        assert len(text) < 350
        assert "marker-secret" not in caplog.text

    run(main())


def test_values_that_a_collector_refuses_are_not_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        counts = Counts()
        counts.add(5)
        with caplog.at_level(logging.INFO), Receiver() as receiver:
            receiver.rejected = 1
            sender = exporter(counts, receiver.target, metrics_delta=True, metrics_points_max=2)
            sender.start()
            await came(receiver, 3)
            await sender.close()
        assert [_counts(each) for each in receiver.requests].count(True) == 1
        # The second request of a round is sent all the same.
        assert "waiting" in metered(receiver.requests[1])
        ((_, text),) = lines(caplog)
        assert "takes no metrics: it refused 1 of 2 values: no room; " in text

    run(main())


def _hanging(free: threading.Event) -> Callable[[grpc.ServicerContext], None]:
    return lambda context: free.wait(60) and None


def test_one_that_hangs_holds_neither_the_loop_nor_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        counts, free, loop = Counts(), threading.Event(), asyncio.get_running_loop()
        with caplog.at_level(logging.INFO), Receiver(answer=_hanging(free)) as receiver:
            sender = exporter(counts, receiver.target, metrics_timeout_ms=600)
            sender.start()
            await until(lambda: bool(lines(caplog)))
            # One at a time: nothing was collected meanwhile.
            assert counts.collected <= 2
            assert "takes no metrics: DEADLINE_EXCEEDED" in lines(caplog)[0][1]
            begun = loop.time()
            await sender.close()
            assert loop.time() - begun < 60
            free.set()
        assert len(lines(caplog)) == 1

    run(main())


def test_the_last_values_are_sent_at_the_end() -> None:
    async def main() -> None:
        counts = Counts()
        with Receiver() as receiver:
            sender = exporter(counts, receiver.target, metrics_interval_ms=3_600_000)
            sender.start()
            counts.add(5)
            await sender.close()
            await sender.close()
        assert [metered(each)["in_total"].points[A].value for each in receiver.requests] == [1]

    run(main())


@pytest.mark.shows("metrics by OTLP over TLS, with the certificates of tls.client.trustCertPath beside the system's")
def test_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer(tmp_path)
    pair = issuer.pair("server")
    credentials = grpc.ssl_server_credentials([(Path(pair.key).read_bytes(), Path(pair.cert).read_bytes())])

    async def main() -> None:
        counts = Counts()
        with caplog.at_level(logging.INFO), Receiver(credentials=credentials) as receiver:
            target = f"127.0.0.1:{receiver.port}"
            sender = exporter(counts, target, ClientTls(ca=issuer.ca), metrics_interval_ms=3_600_000)
            sender.start()
            await sender.close()
            assert len(receiver.requests) == 1
            stranger = exporter(counts, target, ClientTls(), metrics_interval_ms=3_600_000)
            stranger.start()
            await stranger.close()
            assert len(receiver.requests) == 1
        assert "takes no metrics: UNAVAILABLE" in lines(caplog)[-1][1]

    run(main())
    with pytest.raises(ConfigError, match=r"metricsGrpcExporterTarget: .*nosuch.* cannot be read: No such file"):
        exporter(Counts(), "https://127.0.0.1:1", ClientTls(ca="nosuch"))


@pytest.mark.shows("metricsExporterType=LOG: each value a line of JSON in the log")
def test_lines_of_the_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        counts = Counts()
        counts.add(5)
        counts.add(500, "b\u202e")
        with caplog.at_level(logging.INFO):
            sender = exporter(counts, "", metrics_exporter="LOG", metrics_log_interval_ms=3_600_000)
            sender.start()
            await sender.close()
        found = [json.loads(text) for _, text in lines(caplog)]
        since, now = found[0]["since_ms"], found[0]["time_ms"]
        counted = {"metric": "in_total", "kind": "counter", "value": 1, "since_ms": since, "time_ms": now}
        size = {"metric": "size", "kind": "histogram", "unit": "bytes", "count": 2, "sum": 505.0}
        labels = {"cluster": "c", "is_system": "false", "queue_id": "3"}
        assert found == [
            counted | {"labels": {"cluster": "c", "topic": "a"}},
            counted | {"labels": {"cluster": "c", "topic": r"b\u202e"}},
            size
            | {"labels": {"cluster": "c", "topic": "a"}, "since_ms": since, "time_ms": now}
            | {"buckets": {"10.0": 1, "100.0": 1, "+Inf": 2}},
            {"metric": "waiting", "kind": "gauge", "labels": labels, "value": 0.5, "time_ms": now},
        ]

    run(main())


def test_a_label_of_an_operator_s_that_has_a_number_s_name_is_sent_as_text() -> None:
    found = Collected({"queue_id": "all"}, [Family(GAUGE, "g", "G.", [({}, 1), ({"queue_id": "3"}, 1)])])
    points = [point for point, _ in export.Series(delta=False, start_ns=0).points(found)]
    request = otlp.request_of(points, 1, otlp.Resource(), delta=False)
    rows = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    assert [row.attributes[0].value.string_value or row.attributes[0].value.int_value for row in rows] == ["all", 3]


def test_series_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "GONE_MAX", 10)
    series = export.Series(delta=True, start_ns=0)
    for number in range(100):
        family = Family(COUNTER, "in", "In.", [({"topic": f"{number}-{n}"}, 1) for n in range(5)])
        pairs = list(series.points(Collected({}, [family])))
        assert [point.value for point, _ in pairs] == [1] * 5
        series.sent(pairs)
        series.ended(number)
        assert len(series._sent) <= 20
