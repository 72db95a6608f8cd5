"""The official C++ client, as the PyPI package `rocketmq` ships it, on our server.

It runs in a process of its own: the library writes to its own logs and threads, and dies with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocketspark.testing import run_cluster

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="the C++ client's package is for Linux on x86-64"
)

CLIENT = Path(__file__).with_name("client.py")


def ran(namesrv: str, what: str, home: Path) -> Any:
    """What the client's process printed last, as JSON."""
    done = subprocess.run(
        [sys.executable, str(CLIENT), namesrv, what],
        capture_output=True,
        text=True,
        timeout=90,
        env=os.environ | {"HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_cpp_client_sends_consumes_and_gets_failures_again(tmp_path: Path) -> None:
    with run_cluster(delay_levels="1s 1s 1s 1s") as cluster:
        found = ran(cluster.namesrv, "all", tmp_path)
    assert found["sync"] == [0, 0]
    assert found["orderly"] == [0, 0, 0]
    # Three of one orderly argument went to one queue, in call order.
    assert found["orderly_offsets"] == [0, 1, 2]
    bodies = sorted(m[0] for m in found["received"])
    assert bodies == ["batch-0", "batch-1", "fails once", "one-way", "ordered-0", "ordered-1", "ordered-2", "plain"]
    again = next(m for m in found["received"] if m[0] == "fails once")
    assert again == ["fails once", "TagB", "k1", "v1", 1]
    assert "filtered out" not in bodies
