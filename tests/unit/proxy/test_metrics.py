"""What a proxy serves to Prometheus: exact figures after known calls."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator

import pytest
from tests.support.otlp_receiver import Receiver, metered
from tests.unit.proxy.conftest import RawClient, RunningProxy, running_proxy
from tests.unit.proxy.consuming.support import PUSH, Consumer, make_group, make_topic

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from rocketspark import Message, Producer
from rocketspark.errors import ConfigError
from rocketspark.proxy.server import ProxyServer
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import AddressScheme, Code
from rocketspark.testing.cluster import Cluster

pytestmark = pytest.mark.shows(
    "metrics under the proxy's names (`rocketmq_proxy_up` is the only one that its 5.5.0 registers), times of "
    "calls by method and status, clients, streams"
)

LATENCY = "rocketmq_rpc_latency_milliseconds"
OWN = {"cluster": "C1", "node_type": "proxy", "node_id": "p1", "proxy_mode": "cluster"}


@pytest.fixture
def measured(cluster: Cluster) -> Iterator[RunningProxy]:
    named = {"metrics_port": 0, "cluster_name": "C1", "name": "p1", "long_polling_ms_min": 1}
    with running_proxy(cluster.namesrv, **named) as running:
        yield running


@pytest.mark.shows("a proxy's metrics by OTLP, or as lines of its log")
def test_metrics_are_sent_to_a_collector(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    own = {"cluster_name": "C1", "name": "p1", "metrics_label": "zone:eu-1"}
    with Receiver() as receiver:
        otlp = {"metrics_exporter": "OTLP_GRPC", "metrics_target": receiver.target, **own}
        with running_proxy(cluster.namesrv, **otlp) as running:
            assert running.server.metrics is not None
            assert running.server.metrics.address == ""
            client = RawClient(running.address)
            client.call("QueryRoute", messages.QueryRouteRequest())
            client.close()
        (request,) = receiver.requests
    found = metered(request)
    assert found.keys() == {
        *("rocketmq_proxy_up", "rocketmq_rpc_latency", "rocketspark_proxy_calls_at_work"),
        *("rocketspark_proxy_telemetry_streams", "rocketspark_proxy_renewed_handles"),
    }
    labels = frozenset(OWN.items() | {("zone", "eu-1")})
    assert [(each, point.value) for each, point in found["rocketmq_proxy_up"].points.items()] == [(labels, 1)]
    ((of_call, point),) = found["rocketmq_rpc_latency"].points.items()
    assert labels < of_call
    assert (dict(of_call)["request_code"], point.value[0]) == ("query_route", 1)
    (resource,) = request.resource_metrics
    process = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert process == {"service.name": "rocketspark-proxy", "service.instance.id": running.address}
    with caplog.at_level("INFO"), running_proxy(cluster.namesrv, metrics_exporter="LOG", **own):
        pass
    assert any(text.startswith('{"metric":"rocketmq_proxy_up","kind":"gauge",') for text in caplog.messages)


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(proxy: RunningProxy) -> Samples:
    """The samples by name and labels, without those of the proxy itself, which each must have."""
    assert proxy.server.metrics is not None
    with urllib.request.urlopen(f"http://{proxy.server.metrics.address}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            assert OWN.items() <= sample.labels.items()
            found[sample.name, frozenset(sample.labels.items() - OWN.items())] = sample.value
    return found


def counts(found: Samples) -> dict[tuple[str, str, str, str], float]:
    """How many calls there were, by method, status, whether they wait, and result."""
    rows = {}
    for (name, labels), value in found.items():
        if name == f"{LATENCY}_count":
            of = dict(labels)
            assert of["protocol_type"] == "grpc"
            rows[of["request_code"], of["response_code"], of["is_long_polling"], of["result"]] = value
    return rows


def test_nothing_was_called_yet(measured: RunningProxy) -> None:
    assert scraped(measured) == {
        ("rocketmq_proxy_up", frozenset()): 1,
        ("rocketspark_proxy_calls_at_work", frozenset()): 0,
        ("rocketspark_proxy_telemetry_streams", frozenset()): 0,
        ("rocketspark_proxy_renewed_handles", frozenset()): 0,
    }


def test_known_calls_are_counted_by_method_and_status(cluster: Cluster, measured: RunningProxy) -> None:
    make_topic(cluster.brokers[0], "measured")
    make_group(cluster.brokers[0], "measured-group")
    consumer = Consumer(measured.address, "measured-group", "measured", PUSH)
    odd = RawClient(measured.address, "odd", **{"x-mq-language": "odd" * 99})
    try:
        assert consumer.receive(polling_ms=1) == []
        with Producer(namesrv=cluster.namesrv) as producer:
            for _ in range(2):
                producer.send(Message(topic="measured", body=b"1"))
        got = [*consumer.receive(auto_renew=True, count=1), *consumer.receive(auto_renew=True, count=1)]
        assert consumer.ack(got[0]).status.code == Code.OK
        for name in ("a b", "a b", "none-such"):
            request = messages.QueryRouteRequest(topic={"name": name})
            request.endpoints.scheme = AddressScheme.IPv4
            request.endpoints.addresses.add(host="127.0.0.1", port=1)
            odd.call("QueryRoute", request)
        assert odd.call("ReceiveMessage", consumer.request(count=0))[0].status.code == Code.BAD_REQUEST
        found = scraped(measured)
    finally:
        consumer.vanish()
        odd.close()
    assert counts(found) == {
        ("receive_message", "message_not_found", "true", "success"): 1,
        ("receive_message", "ok", "true", "success"): 2,
        ("receive_message", "bad_request", "true", "success"): 1,
        ("ack_message", "ok", "false", "success"): 1,
        ("query_route", "illegal_topic", "false", "success"): 2,
        ("query_route", "topic_not_found", "false", "success"): 1,
    }
    others = {key: value for key, value in found.items() if not key[0].startswith(LATENCY)}
    kind = frozenset({"client_type": "push_consumer", "language": "python"}.items())
    assert others == {
        ("rocketmq_proxy_up", frozenset()): 1,
        ("rocketspark_proxy_calls_at_work", frozenset()): 0,
        ("rocketspark_proxy_telemetry_streams", frozenset()): 1,
        ("rocketspark_proxy_renewed_handles", frozenset()): 1,
        ("rocketspark_proxy_clients", kind): 1,
    }


def test_what_clients_say_of_themselves_makes_no_labels(measured: RunningProxy) -> None:
    told = messages.TelemetryCommand()
    told.settings.publishing.SetInParent()
    odd = [RawClient(measured.address, f"odd-{n}", **{"x-mq-language": f"odd-{n}"}) for n in range(3)]
    try:
        ends = [client.telemetry(iter([told])) for client in odd]
        for stream in ends:
            assert next(stream).status.code == Code.OK
        rows = {key: value for key, value in scraped(measured).items() if key[0] == "rocketspark_proxy_clients"}
    finally:
        for client in odd:
            client.close()
    labels = frozenset({"client_type": "producer", "language": "other"}.items())
    assert rows == {("rocketspark_proxy_clients", labels): 3}


def test_a_port_in_use_is_one_line_and_leaves_nothing(measured: RunningProxy) -> None:
    taken = measured.server.metrics
    assert taken is not None

    async def main() -> None:
        first = ProxyServer(ProxySettings(namesrv="127.0.0.1:1", port=0, metrics_port=taken.port))
        with pytest.raises(ConfigError, match=f"^the metrics' port {taken.port} on 127.0.0.1 cannot be had"):
            await first.start()
        other = ProxyServer(ProxySettings(namesrv="127.0.0.1:1", port=measured.server.port, metrics_port=0))
        with pytest.raises(ConfigError):
            await other.start()
        assert other.metrics is not None
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", other.metrics.port)
        for each in (first, other):
            await each.close()

    asyncio.run(main())
