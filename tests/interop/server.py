"""The server that the tests of other languages' clients run on: ours, or the official one to prove the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.java.apache import ApacheCluster
from tests.java.conftest import QUICK

from rocketspark.testing.process import run_server_process


@contextmanager
def interop_server(folder: Path) -> Iterator[Any]:
    """`namesrv` and `broker` are its addresses. JAVA_TESTS_ON=apache takes the official servers."""
    if os.environ.get("JAVA_TESTS_ON") == "apache":
        cluster = ApacheCluster(folder / "apache", config=QUICK)
        try:
            yield cluster
        finally:
            cluster.close()
        return
    with run_server_process(folder / "store", config={"brokerName": "broker-a"} | QUICK) as server:
        yield server
