"""Fixtures of the Go tests: the program with the client, and a server, each started once per test run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.go.driver import GoDriver, missing_program
from tests.interop.server import interop_server


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
    """Our server, or the official one: see interop_server."""
    with interop_server(tmp_path_factory.mktemp("go-server")) as server:
        yield server
