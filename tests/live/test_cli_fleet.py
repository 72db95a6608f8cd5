"""`rocketspark server --brokers N`: several broker processes, one cluster; one that is killed comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_commands import forked

pytestmark = pytest.mark.shows("more cores: `server --brokers N`")

COMMAND = [sys.executable, "-m", "rocketspark.cli.main"]


class Fleet:
    """A running server command with its addresses."""

    def __init__(self, process: subprocess.Popen[str], namesrv: str, brokers: list[str]) -> None:
        self.process = process
        self.namesrv = namesrv
        self.brokers = brokers

    def children(self) -> dict[str, int]:
        """Process ids of the brokers, by name."""
        found = {}
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if "--name" in words:
                found[words[words.index("--name") + 1]] = int(child)
        return found

    def run(self, *arguments: str, text: str | None = None) -> Any:
        """What a command prints as JSON."""
        done = forked().run(*arguments, "--namesrv", self.namesrv, "--json", stdin=(text or "").encode())
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def fleet(store: Path, count: int) -> Iterator[Fleet]:
    command = [*COMMAND, "server", "--no-grpc", "--brokers", str(count), "--namesrv-port", "0", "--broker-port", "0"]
    with (store.parent / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--store", str(store)], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"ready namesrv=(\S+) broker=(\S+)\n", process.stdout.readline())
        assert found, (store.parent / "server.log").read_text()
        yield Fleet(process, found[1], found[2].split(","))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def until(true: Any, limit_s: float = 120) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"not so within {limit_s} s"
        time.sleep(0.05)


@pytest.mark.shows("mended: two tests time out on a busy machine")
def test_a_topic_spreads_over_the_brokers_and_one_that_is_killed_comes_back(tmp_path: Path) -> None:
    with fleet(tmp_path / "store", 2) as servers:
        assert len(set(servers.brokers)) == 2
        assert set(servers.children()) == {"broker-a", "broker-b"}
        servers.run("topic", "create", "spread", "--queues", "2")

        def brokers() -> list[str]:
            (shown,) = servers.run("topic", "show", "spread")
            return sorted({q["broker_name"] for q in shown["queues"]})

        assert brokers() == ["broker-a", "broker-b"]
        servers.run("produce", "spread", text="".join(f"before {i}\n" for i in range(20)))
        killed = servers.children()["broker-a"]
        os.kill(killed, signal.SIGKILL)
        until(lambda: servers.children().get("broker-a", killed) != killed)
        until(lambda: brokers() == ["broker-a", "broker-b"])
        servers.run("produce", "spread", text="".join(f"after {i}\n" for i in range(20)))
        read = servers.run("consume", "spread", "--from", "first", "--count", "40")
        assert len(read) == 40
        assert {m["broker_name"] for m in read} == {"broker-a", "broker-b"}
        assert (tmp_path / "store" / "broker-a" / "commitlog").is_dir()
        assert (tmp_path / "store" / "broker-b" / "commitlog").is_dir()
        left = servers.children()
    for pid in left.values():
        assert not Path(f"/proc/{pid}").exists()


def test_brokers_end_with_their_parent(tmp_path: Path) -> None:
    command = [*COMMAND, "server", "--no-grpc", "--brokers", "2", "--namesrv-port", "0", "--broker-port", "0"]
    process = subprocess.Popen(
        [*command, "--store", str(tmp_path / "store")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")
    children = Fleet(process, "", []).children()
    process.kill()
    process.wait()
    until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in children.values()))
