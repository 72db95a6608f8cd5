"""docs/run/machines.md: its table of ports is what the servers listen on, and a broker's address may be a name."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import free_ports
from tests.unit.proxy.conftest import running_proxy

from rocketspark import Producer
from rocketspark.broker.server import VIP_PORT_STEP, BrokerServer
from rocketspark.broker.settings import BrokerSettings
from rocketspark.cli.serving.proxy_process import DEFAULT_PORT
from rocketspark.console.settings import ConsoleSettings
from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import ConfigError
from rocketspark.namesrv.server import NameServer
from rocketspark.namesrv.settings import Settings as NameServerSettings
from rocketspark.proxy.settings import METRICS_PORT
from rocketspark.testing import run_cluster
from rocketspark.testing.cluster import SMALL_FILES

PAGE = (Path(__file__).parents[2] / "docs" / "run" / "machines.md").read_text("utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (\d+|none|a free one) \|", PAGE, re.MULTILINE)


def ports_of(command: str) -> list[str]:
    return [port for name, port in ROWS if name == command]


def listening() -> set[str]:
    """The sockets of this process that listen, by their inodes."""
    own, found = set(), set()
    for number in os.listdir("/proc/self/fd"):
        # The folder itself was open under one of them.
        with suppress(FileNotFoundError):
            own.add(os.readlink(f"/proc/self/fd/{number}"))
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(fields[9])
    return found


@pytest.mark.shows("docs/run/machines.md names every port that a server listens on")
def test_the_defaults_are_those_of_the_page() -> None:
    broker = BrokerSettings()
    port = broker.listen_port
    assert ports_of("namesrv") == [str(NameServerSettings().port)]
    assert ports_of("broker") == [str(each) for each in (port, port + VIP_PORT_STEP, port + 1, broker.metrics_port)]
    assert ports_of("controller") == [str(ControllerSettings().port)]
    assert ports_of("proxy")[0] == str(DEFAULT_PORT)
    assert ports_of("console") == [str(ConsoleSettings().port)]
    assert broker.metrics_port == METRICS_PORT


@pytest.mark.shows("docs/run/machines.md names every port that a server listens on")
def test_no_server_listens_on_more(tmp_path: Path) -> None:
    """Each with all that it can listen on."""
    asyncio.run(each_alone(tmp_path))


async def each_alone(tmp_path: Path) -> None:
    port = free_ports(0, VIP_PORT_STEP, 1)
    settings = BrokerSettings(**SMALL_FILES, listen_port=port, store_root=str(tmp_path / "b"), namesrv_addresses="")
    settings.metrics_exporter, settings.metrics_port = "PROM", 0
    inside = ControllerSettings(listen="127.0.0.1:0", folder=tmp_path / "c")
    servers: dict[str, Any] = {
        "namesrv": NameServer("127.0.0.1", 0),
        "broker": BrokerServer(settings),
        "controller": ControllerServer(inside),
    }
    for command, server in servers.items():
        before = listening()
        await server.start()
        try:
            assert len(listening() - before) == len(ports_of(command)), command
        finally:
            await server.close()


@pytest.mark.shows("docs/run/machines.md names every port that a server listens on")
def test_nor_does_a_proxy() -> None:
    with run_cluster() as cluster:
        before = listening()
        with running_proxy(cluster.namesrv, metrics_port=0, remoting_port=free_ports()):
            assert len(listening() - before) == len(ports_of("proxy"))


@pytest.mark.shows("a broker may be known to clients by a name (brokerIP1), which it looks up at its start")
def test_a_broker_is_reached_by_a_name(tmp_path: Path) -> None:
    with run_cluster(advertised_host="localhost") as cluster, Producer(cluster.namesrv, "P") as producer:
        result = producer.send("t", b"x")
        assert cluster.brokers[0].startswith("localhost:")
        assert result.message_id
    with (
        pytest.raises(ConfigError, match=r"^brokerIP1=no-such-host\.invalid cannot be resolved .*$"),
        run_cluster(advertised_host="no-such-host.invalid"),
    ):
        pass
