"""Fixtures of the tests of our clients, each run on our server and on the official one: what differs is a mistake."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.clients.scene import Cluster, Scene
from tests.java.apache import ApacheCluster
from tests.java.conftest import QUICK, DriverFactory, java_driver, java_tools
from tests.java.driver import JavaDriver

from rocketspark.testing.process import run_server_process

__all__ = ["java_driver", "java_tools"]

# Lite topics are light queues.
CONFIG = {"recallMessageEnable": "true", "enableLmq": "true", "enableMultiDispatch": "true"} | QUICK


@pytest.fixture(
    scope="session",
    params=["ours", pytest.param("apache", marks=pytest.mark.java)],
)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A NameServer and a broker, ours or the official ones, shared by all tests of a run."""
    folder = tmp_path_factory.mktemp(f"clients-{request.param}")
    if request.param == "ours":
        with run_server_process(folder / "store", config={"brokerName": "broker-a"} | CONFIG) as server:
            yield Cluster("ours", server.namesrv, server.broker)
        return
    request.getfixturevalue("java_tools")
    apache = ApacheCluster(folder, config=dict(CONFIG))
    yield Cluster("apache", apache.namesrv, apache.broker)
    apache.close()


@pytest.fixture
def java(java_driver: DriverFactory) -> JavaDriver:
    """The official client that stands beside ours: 5.5.0, or the one that JAVA_CLIENT names, such as 4.9.7."""
    return java_driver(os.environ.get("JAVA_CLIENT", "5.5.0"))


@pytest.fixture
def scene(request: pytest.FixtureRequest, cluster: Cluster) -> Scene:
    """The cluster, with a topic of 4 queues and a group of the test's own."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.removeprefix("test_"))
    return Scene(cluster, name[:80])
