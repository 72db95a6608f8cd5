"""The port two below listenPort serves what listenPort does: Java slaves and clients with the VIP channel ask there."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest
from tests.live.support import TOPIC, beat, broker, connected, create, name_server, pulled, run, send, sent, until
from tests.support.ports import free_ports

from rocketspark.client import AsyncProducer
from rocketspark.errors import ConfigError, ConnectionLost, NotSent
from rocketspark.model import Message
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.transport.connections import dial

pytestmark = pytest.mark.shows("second listener at `listenPort - 2`: the same requests, limits and end")


def test_it_serves_the_same_and_its_clients_are_known(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_ports(-2, 0, 1)
        async with broker(tmp_path, listen_port=port) as server, connected(server.address) as peer:
            async with connected(f"127.0.0.1:{port - 2}") as vip:
                await create(vip)
                assert await sent(vip, b"one") == 0
                assert [m.body for m in await pulled(peer)] == [b"one"]
                for code in (RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS):
                    assert (await vip.request(code)).code == ResponseCode.SUCCESS
                await beat(vip, client_id="c")
                assert "G" in server._clients.consumers
            # Its connection is closed: so it is forgotten.
            await until(lambda: "G" not in server._clients.consumers)
        for closed in (port, port - 2):
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", closed)) != 0

    run(main())


def test_a_producer_with_the_vip_channel_sends_there(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_ports(-2, 0, 1)
        async with (
            name_server() as names,
            broker(tmp_path, listen_port=port, namesrv_addresses=names.address) as server,
            AsyncProducer(group="P", namesrv=names.address, vip_channel=True) as producer,
        ):
            assert (await producer.send(Message(topic=TOPIC, body=b"x"))).queue_offset == 0
            assert port - 2 in {peer._transport.get_extra_info("sockname")[1] for peer in server._server.peers}

    run(main())


def test_both_ports_count_to_one_limit_of_connections(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_ports(-2, 0, 1)
        async with broker(tmp_path, listen_port=port) as server:
            server._server.connections_max = 2
            async with connected(server.address) as first, connected(f"127.0.0.1:{port - 2}") as second:
                await create(first)
                await create(second)
                third = await dial(f"127.0.0.1:{port - 2}")
                # Before or while it is asked something.
                with pytest.raises((NotSent, ConnectionLost)):
                    await send(third)
                assert server._server.refused == 1
                assert await sent(second) == 0

    run(main())


@pytest.mark.parametrize("offset", [-2, 1], ids=["vip", "replication"])
def test_a_taken_port_beside_its_own_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture, offset: int) -> None:
    async def main() -> None:
        port = free_ports(-2, 0, 1)
        with socket.create_server(("127.0.0.1", port + offset)):
            async with broker(tmp_path, listen_port=port) as server, connected(server.address) as peer:
                await create(peer)
                assert await sent(peer) == 0
                if offset == 1:
                    assert server.replication.listener.port not in (0, port + 1)
        lines = [r.getMessage() for r in caplog.records if str(port + offset) in r.getMessage()]
        assert len(lines) == 1
        assert f"port {port + offset} on 127.0.0.1" in lines[0]
        assert "is in use" in lines[0]

    with caplog.at_level(logging.WARNING):
        run(main())


def test_a_taken_port_beside_one_that_the_system_chose_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = other.getsockname()[1]
            monkeypatch.setattr("rocketspark.broker.server.VIP_PORT_STEP", 0)
            async with broker(tmp_path) as server, connected(server.address) as peer:
                await create(peer)
                assert await sent(peer) == 0
                assert server._server.port != taken
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]

    with caplog.at_level(logging.WARNING):
        run(main())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ha_listen_port": 10911}, "haListenPort=10911 is listenPort too: give each a port of its own"),
        ({"ha_listen_port": 10909}, "haListenPort=10909 is listenPort - 2 (vipChannelEnabled) too: give each a port"),
        ({"metrics_exporter": "PROM", "metrics_port": 10909}, "metricsPromExporterPort=10909 is listenPort - 2"),
        (
            {"ha_listen_port": 5557, "metrics_exporter": "PROM", "metrics_port": 5557},
            "metricsPromExporterPort=5557 is haListenPort too",
        ),
    ],
)
def test_ports_of_one_number_refuse_to_start(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    async def main() -> None:
        async with broker(tmp_path, listen_port=10911, **changes):
            raise AssertionError("it started")

    with pytest.raises(ConfigError) as caught:
        run(main())
    assert str(caught.value).startswith(text)
