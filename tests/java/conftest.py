"""Fixtures of the Java tests: official clients and servers, each started once per test run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheCluster, ApacheNamesrv
from tests.java.driver import JavaDriver, missing_tools
from tests.java.mqadmin import Stage, staged
from tests.support.patience import PATIENT

from rocketspark.testing.process import run_server_process

DriverFactory = Callable[..., JavaDriver]

# What the tests change of a broker's defaults: waits shortened, and SQL92 allowed.
QUICK = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "enablePropertyFilter": "true",
    "messageDelayLevel": "1s 2s" + " 1s" * 16,
    # One a second: a slow machine would see the last of them.
    "transactionCheckMax": "300",
    **PATIENT,
}


@pytest.fixture(scope="session")
def java_tools() -> None:
    """Without JDK or jars the tests are skipped by hand-run pytest; with CI=true that is a failure."""
    if missing := missing_tools():
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(missing)
        pytest.skip(missing)


@pytest.fixture(scope="session", autouse=True)
def tools_are_there(java_tools: None) -> None:
    """Every test of this folder needs them."""


@pytest.fixture(scope="session")
def java_driver(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverFactory]:
    """java_driver(version, serialization): the JVM of that client; started at its first use, then shared."""
    drivers: dict[tuple[str, str], JavaDriver] = {}

    def get(version: str, serialization: str = "JSON") -> JavaDriver:
        key = version, serialization
        if key not in drivers:
            folder = tmp_path_factory.mktemp(f"java-{version}-{serialization}")
            drivers[key] = JavaDriver(version, folder, serialization)
        return drivers[key]

    yield get
    for driver in drivers.values():
        driver.close()


@pytest.fixture(scope="session")
def java_client_55(java_driver: DriverFactory) -> JavaDriver:
    """The 5.5.0 client with JSON headers."""
    return java_driver("5.5.0")


@pytest.fixture(scope="session")
def java_client_497(java_driver: DriverFactory) -> JavaDriver:
    """The 4.9.7 client with JSON headers."""
    return java_driver("4.9.7")


@pytest.fixture(scope="session")
def apache(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """The official NameServer and broker 5.5.0."""
    cluster = ApacheCluster(tmp_path_factory.mktemp("apache"), config=QUICK)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Our server. JAVA_TESTS_ON=apache takes the official one instead: that proves the tests, not us."""
    if os.environ.get("JAVA_TESTS_ON") == "apache":
        yield request.getfixturevalue("apache")
        return
    store = tmp_path_factory.mktemp("ours") / "store"
    with run_server_process(store, config={"brokerName": "broker-a"} | QUICK) as server:
        yield server


@pytest.fixture(scope="session")
def stage(java_client_55: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Servers of its own in a known state, and mqadmin. JAVA_TESTS_ON=apache as with `ours`."""
    with ExitStack() as stack:
        on_apache = os.environ.get("JAVA_TESTS_ON") == "apache"
        yield _stage(stack, java_client_55, tmp_path_factory.mktemp("stage"), on_apache=on_apache)


@pytest.fixture(scope="session")
def apache_stage(java_client_55: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The same on the official servers."""
    with ExitStack() as stack:
        yield _stage(stack, java_client_55, tmp_path_factory.mktemp("apache-stage"), on_apache=True)


@pytest.fixture(scope="module", params=["ours", "apache"])
def each_stage(request: pytest.FixtureRequest) -> Stage:
    """Each of the two."""
    found: Stage = request.getfixturevalue("stage" if request.param == "ours" else "apache_stage")
    return found


def _stage(stack: ExitStack, java: JavaDriver, folder: Path, *, on_apache: bool) -> Stage:
    config = {"traceTopicEnable": "true"} | PATIENT
    server: Any
    if on_apache:
        server = ApacheCluster(folder / "apache", config=config)
        stack.callback(server.close)
    else:
        server = stack.enter_context(run_server_process(folder / "store", config={"brokerName": "broker-a"} | config))
    return stack.enter_context(staged(java, server, folder / "mqadmin"))


@pytest.fixture(scope="module")
def namesrv(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheNamesrv]:
    """An official NameServer, for brokers that a test starts itself."""
    server = ApacheNamesrv(tmp_path_factory.mktemp("namesrv"))
    yield server
    server.kill()
