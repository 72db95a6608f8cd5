"""Fixtures of the Go tests: the program with the client, and a server, each started once per test run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.go.driver import GoDriver, missing_program
from tests.java.apache import ApacheCluster
from tests.java.conftest import QUICK

from rocketspark.testing.process import run_server_process


@pytest.fixture(scope="session")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoDriver]:
    """Without the program the tests are skipped by hand-run pytest; with CI=true that is a failure."""
    if missing := missing_program():
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(missing)
        pytest.skip(missing)
    driver = GoDriver(tmp_path_factory.mktemp("go"))
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Our server. JAVA_TESTS_ON=apache takes the official one instead: that proves the tests, not us."""
    if os.environ.get("JAVA_TESTS_ON") == "apache":
        cluster = ApacheCluster(tmp_path_factory.mktemp("apache"), config=dict(QUICK))
        yield cluster
        cluster.close()
        return
    store = tmp_path_factory.mktemp("ours") / "store"
    with run_server_process(store, config={"brokerName": "broker-a"} | QUICK) as server:
        yield server
