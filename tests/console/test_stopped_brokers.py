"""A broker that is stopped, killed and back beneath a console: pages answer, and say which one is silent."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.console.scene import until
from tests.console.support import opened
from tests.java.our_controller import OurServer

from rocketspark import machine
from rocketspark.admin import Admin
from rocketspark.console.cluster import pace
from rocketspark.console.cluster.pace import Silence
from rocketspark.console.navigation import NAVIGATION
from rocketspark.errors import NotSent
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "the console: a broker that is stopped keeps a page waiting once, and each page names it"
)
PATHS = [path for _, path in NAVIGATION] + [
    *("/topic?name=orders", "/messages?topic=orders", "/message?topic=orders&at=broker-z/0/0", "/group?name=readers"),
    *("/clients?role=producer", "/dead-letters?group=readers", "/topic/edit?name=orders"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running:
        yield running


@pytest.fixture
def second(cluster: Cluster, tmp_path: Path) -> Iterator[OurServer]:
    """A broker in a process of its own."""
    lines = {"brokerName": "broker-z", "namesrvAddr": cluster.namesrv, "listenPort": 0, "brokerIP1": "127.0.0.1"}
    lines["storePathRootDir"] = tmp_path / "store"
    server = OurServer(tmp_path, "broker", "".join(f"{key}={value}\n" for key, value in lines.items()))
    try:
        yield server
    finally:
        server.kill()


def answers(client: TestClient, path: str) -> str:
    client.app.state.console.own.forget()  # type: ignore[attr-defined]
    answer = client.get(path)
    assert answer.status_code in (200, 502), (path, answer.status_code)
    return answer.text


def test_pages_answer_and_name_a_broker_that_is_stopped(cluster: Cluster, second: OurServer) -> None:
    found = re.search(r"broker=(\S+)", second.ready)
    assert found is not None
    told = f"The broker at {found[1]} has not answered for "
    with Admin(cluster.namesrv) as admin:
        until(lambda: len(admin.cluster_info()) == 2)
        admin.create_topic("orders", queue_count=1)
        admin.put_group("readers")
    with opened(cluster.namesrv, requests_per_second=200, sample_interval_s=0.2) as client:
        assert told not in answers(client, "/")
        second.signal(signal.SIGSTOP)
        try:
            until(lambda: told in answers(client, "/"))
            for path in PATHS:
                assert told in answers(client, path), path
            assert "is asked again in some seconds" in answers(client, "/quarantine")
        finally:
            second.signal(signal.SIGCONT)
        until(lambda: told not in answers(client, "/"))
        assert client.get("/quarantine").status_code == 200
        second.kill()
        with Admin(cluster.namesrv) as admin:
            until(lambda: len(admin.cluster_info()) == 1)
        for path in PATHS:
            if "broker-z" not in path:
                assert answers(client, path)
                assert client.get(path).status_code == 200, path


def test_a_broker_is_silent_if_nothing_came_since_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(machine, "monotonic", lambda: now_s)
    silence = Silence()
    silence.heard("a")
    silence.unheard("a", 99.0)
    silence.check("a")
    now_s = 103.0
    silence.unheard("a", 100.5)
    with pytest.raises(NotSent, match=r"at a has not answered for 2 s, and is asked again"):
        silence.check("a")
    silence.check("b")
    assert silence.told() == {"a": 2.5}
    now_s = 103.0 + pace.SILENT_S
    silence.check("a")
    silence.unheard("a", 106.0)
    assert silence.told() == {"a": 6.5}
    now_s += pace.TOLD_S
    assert silence.told() == {}
    silence.heard("a")
    silence.check("a")
