from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, cast

import grpc
import pytest
from google.protobuf import json_format
from tests.unit.proxy.conftest import RawClient, RunningProxy, running_proxy

from rocketspark.admin.operations import Admin
from rocketspark.errors import ConfigError
from rocketspark.model import QueueData
from rocketspark.proxy.routes import QueryRoutes, permissions
from rocketspark.proxy.server import ProxyServer
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import AddressScheme, ClientType, Code, Permission
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.testing.cluster import Cluster
from rocketspark.transport.processor_table import RpcHooks

R, W, RW = Permission.READ, Permission.WRITE, Permission.READ_WRITE


def endpoints(host: str = "127.0.0.1", port: int = 1) -> Any:
    return messages.Endpoints(scheme=AddressScheme.IPv4, addresses=[messages.Address(host=host, port=port)])


def route_of(client: RawClient, topic: str) -> Any:
    request = messages.QueryRouteRequest(topic=messages.Resource(name=topic), endpoints=endpoints())
    return client.call("QueryRoute", request)


def test_a_route_has_every_queue_behind_this_proxy(cluster: Cluster, proxy: RunningProxy, client: RawClient) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("proxy-route", queue_count=3)
    answer = route_of(client, "proxy-route")
    assert (answer.status.code, answer.status.message) == (Code.OK, "OK")
    assert [(q.id, q.permission, q.broker.name, q.broker.id) for q in answer.message_queues] == [
        (n, Permission.READ_WRITE, "broker-a", 0) for n in range(3)
    ]
    assert {a.port for q in answer.message_queues for a in q.broker.endpoints.addresses} == {proxy.server.port}


def test_routes_have_the_port_that_was_asked_for_where_the_file_says_so() -> None:
    asked = messages.Endpoints(
        scheme=AddressScheme.IPv4, addresses=[{"host": "a", "port": 443}, {"host": "b", "port": 8443}]
    )
    for more, expected in (
        ({}, [("a", 81), ("b", 81)]),
        ({"asked_port": True}, [("a", 443), ("b", 8443)]),
        ({"asked_port": True, "advertised_host": "c"}, [("c", 443)]),
    ):
        routes = QueryRoutes(ProxySettings(namesrv="n:1", port=81, **more), cast(Any, None))
        assert [(each.host, each.port) for each in routes._endpoints(asked).addresses] == expected
        for port in (0, -1, 65536):
            with pytest.raises(Refused, match="port") if more else nullcontext():
                routes._endpoints(endpoints("a", port))


def test_names_and_access_points_that_cannot_be_are_refused_in_the_answer(client: RawClient) -> None:
    codes = {name: route_of(client, name).status.code for name in ("", "no-such", "a b", "TBW102", "t" * 128)}
    assert codes == {
        "": Code.ILLEGAL_TOPIC,
        "no-such": Code.TOPIC_NOT_FOUND,
        "a b": Code.ILLEGAL_TOPIC,
        "TBW102": Code.ILLEGAL_TOPIC,
        "t" * 128: Code.ILLEGAL_TOPIC,
    }
    request = messages.QueryRouteRequest(topic=messages.Resource(name="t"))
    assert client.call("QueryRoute", request).status.code == Code.ILLEGAL_ACCESS_POINT


def test_what_would_stand_in_an_answer_for_each_queue_is_bounded(client: RawClient) -> None:
    many = messages.Endpoints(scheme=AddressScheme.IPv4, addresses=[messages.Address(host="h" * 20)] * 1000)
    long = messages.Resource(name="t", resource_namespace="n" * 20_000)
    for request in (
        messages.QueryRouteRequest(topic={"name": "t"}, endpoints=many),
        messages.QueryRouteRequest(topic=long, endpoints=endpoints()),
    ):
        assert client.call("QueryRoute", request).status.code == Code.BAD_REQUEST
    assignment = messages.QueryAssignmentRequest(topic=long, group={"name": "g"}, endpoints=endpoints())
    assert client.call("QueryAssignment", assignment).status.code == Code.BAD_REQUEST


def test_a_client_without_id_is_told_so(proxy: RunningProxy) -> None:
    client = RawClient(proxy.address, client_id=" ")
    try:
        assert route_of(client, "t").status.code == Code.CLIENT_ID_REQUIRED
    finally:
        client.close()


def test_permissions_are_split_as_apaches_proxy_splits_them() -> None:
    rows = {
        (6, 4, 2): [R, R, RW, RW],
        (6, 1, 3): [W, W, RW],
        (4, 2, 3): [R, R],
        (2, 2, 3): [W, W, W],
        (0, 0, 0): [Permission.NONE],
        (0, 2, 3): [Permission.NONE] * 3,
    }
    assert {
        (perm, r, w): permissions(QueueData("b", read_queue_count=r, write_queue_count=w, perm=perm))
        for perm, r, w in rows
    } == rows


def test_a_stream_gets_its_settings_back_and_a_heartbeat_needs_none(client: RawClient, proxy: RunningProxy) -> None:
    beat = messages.HeartbeatRequest(client_type=int(ClientType.PRODUCER))
    assert client.call("Heartbeat", beat).status.code == Code.OK
    assert proxy.server.clients.get("/raw-client") is None
    said: queue.Queue[Any] = queue.Queue()
    settings = messages.Settings(client_type=int(ClientType.PRODUCER))
    settings.publishing.topics.add().name = "proxy-route"
    settings.user_agent.hostname = "here"
    said.put(messages.TelemetryCommand(settings=settings))
    answers: Iterator[Any] = client.telemetry(iter(said.get, None))
    answer = next(answers)
    assert answer.status.code == Code.OK
    assert answer.settings.user_agent.hostname == "here"
    assert answer.settings.backoff_policy.max_attempts == 3
    assert answer.settings.publishing.max_body_size == 4 << 20
    assert client.call("Heartbeat", beat).status.code == Code.OK
    end = messages.NotifyClientTerminationRequest()
    assert client.call("NotifyClientTermination", end).status.code == Code.OK
    assert proxy.server.clients.get("/raw-client") is None
    said.put(None)


@pytest.mark.parametrize(("collector", "told"), [("", (False, [])), ("h.example:4317", (True, [("h.example", 4317)]))])
def test_clients_are_told_where_their_own_metrics_go(collector: str, told: tuple[bool, list[tuple[str, int]]]) -> None:
    settings = ProxySettings(namesrv="127.0.0.1:1", metric_collector=collector)

    async def merged() -> Any:
        server = ProxyServer(settings)
        try:
            client = json_format.ParseDict({"publishing": {}, "metric": {"on": True}}, messages.Settings())
            return await server._telemetry.merged(client)
        finally:
            await server.close()

    metric = asyncio.run(merged()).metric
    assert (metric.on, [(a.host, a.port) for a in metric.endpoints.addresses]) == told


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"publishing": {"topics": [{"name": "a b"}]}}, "40002 topic a b holds"),
        ({"publishing": {"topics": [{"name": "TBW102"}]}}, "40002 topic TBW102 is a system topic"),
        ({"publishing": {"topics": [{"name": f"t{n}"} for n in range(1001)]}}, "40000 settings name 1001 topics"),
        ({"publishing": {}, "userAgent": {"hostname": "h" * (256 << 10)}}, "40000 settings have 262"),
        ({"subscription": {"group": {"name": ""}}}, "40003 consumer group is blank"),
        ({"subscription": {"group": {"name": "g" * 121}}}, "40003 consumer group has 121 characters"),
    ],
)
def test_settings_that_cannot_be_end_the_stream_and_leave_nothing(
    client: RawClient, proxy: RunningProxy, settings: dict[str, Any], text: str
) -> None:
    told = json_format.ParseDict(settings, messages.Settings())
    with pytest.raises(grpc.RpcError) as caught:
        next(client.telemetry(iter([messages.TelemetryCommand(settings=told)])))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith(text)
    assert proxy.server.clients.get("raw-client") is None
    assert not proxy.server.brokers._groups._found.keys() & {"", "g" * 121}


def test_open_streams_are_bounded(client: RawClient, proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    deadline_s = time.monotonic() + 10
    while proxy.server.service.streams:
        # Those of other tests' clients, which have ended.
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    # Of one host three quarters.
    monkeypatch.setattr(proxy.server.service.work.streams, "most", 4 / 3)
    settings = json_format.ParseDict({"publishing": {}}, messages.Settings())
    said: queue.Queue[Any] = queue.Queue()
    said.put(messages.TelemetryCommand(settings=settings))
    first = client.telemetry(iter(said.get, None))
    assert next(first).status.code == Code.OK
    with pytest.raises(grpc.RpcError) as caught:
        next(client.telemetry(iter([messages.TelemetryCommand(settings=settings)])))
    assert caught.value.details().startswith("42900 flow limit")
    said.put(None)
    assert list(first) == []
    assert next(client.telemetry(iter([messages.TelemetryCommand(settings=settings)]))).status.code == Code.OK


def test_a_port_in_use_is_refused_and_leaves_no_server_behind(proxy: RunningProxy) -> None:
    second = ProxyServer(ProxySettings(namesrv="127.0.0.1:1", port=proxy.server.port))
    with pytest.raises(ConfigError, match="is in use"):
        proxy.run(second.start)
    assert second._server is None


def test_its_address_is_one_that_clients_of_grpc_take_where_it_is_of_ipv6(cluster: Cluster) -> None:
    with running_proxy(cluster.namesrv, host="::1") as proxy:
        client = RawClient(proxy.address)
        assert client.call("Heartbeat", messages.HeartbeatRequest()).status.code == Code.OK
        client.close()


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("authentication", [None, False, True])
@pytest.mark.parametrize("authorization", [None, False, True])
def test_a_proxy_that_signs_asks_its_clients_unless_it_is_told_not_to(
    signs: bool, authentication: bool | None, authorization: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ProxySettings(namesrv="127.0.0.1:1", port=0, authentication=authentication, authorization=authorization)
    access = ProxyServer(settings, signer=cast(RpcHooks, object()) if signs else None).access
    wanted = [signs if told is None else told for told in (authentication, authorization)]
    assert (access is not None) == any(wanted)
    assert access is None or [access._authenticates, access._authorizes] == wanted
    assert ("whoever names a user is taken for him" in caplog.text) == (wanted == [False, True])
