"""The official Java clients before RocketMQ 5 at the proxy's port, which is all of the cluster that they know."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.java.conftest import DriverFactory
from tests.java.driver import body_of, message
from tests.support.patience import LIMIT_MS
from tests.unit.proxy.conftest import RunningProxy, running_proxy

from rocketspark.admin.operations import Admin
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "remoting through the port: routes that name the proxy, requests to the named broker, heartbeats, waiting "
    "pulls, what brokers ask of clients, locked clusters"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # A first retry comes by the third level.
    with run_cluster(2, delay_levels="1s 1s 1s 1h") as running:
        yield running


@pytest.fixture(scope="module")
def proxy(cluster: Cluster) -> Iterator[RunningProxy]:
    with running_proxy(cluster.namesrv) as running:
        yield running


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_what_java_sends_through_it_java_consumes_through_it(
    java_driver: DriverFactory, cluster: Cluster, proxy: RunningProxy, version: str
) -> None:
    java, topic = java_driver(version, "JSON"), f"through-{version.replace('.', '')}"
    with Admin(cluster.namesrv) as operations:
        operations.create_topic(topic, queue_count=2)
        # A consumer that finds it at its start need not look again, 30 s later.
        operations.create_topic(f"%RETRY%{topic}-group", queue_count=1)
    wanted = {"namesrv": proxy.address, "group": f"{topic}-group", "subscriptions": [{"topic": topic, "tags": "a"}]}
    with java.started("push", fail_first=1, **wanted) as consumer:
        with java.started("producer", namesrv=proxy.address, group=f"{topic}-producers") as producer:
            sent = java.call(
                "send",
                name=producer,
                messages=[message(topic, f"{tag} {n}", tag=tag, keys=f"k{n}") for n in range(8) for tag in ("a", "b")],
            )
        assert {one["status"] for one in sent} == {"SEND_OK"}
        assert {one["queue"]["broker"] for one in sent} == {"broker-a", "broker-b"}
        # Each of them fails once, and comes again by the retry topic.
        found = java.call("push_await", name=consumer, count=16, timeout_ms=LIMIT_MS)
    deliveries = sorted((body_of(one).decode(), one["reconsume_times"]) for one in found)
    assert deliveries == [(f"a {n}", times) for n in range(8) for times in (0, 1)]
