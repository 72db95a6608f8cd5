"""A NameServer's loop and its share of what the process has."""

from __future__ import annotations

import pytest
from tests.live.support import run, until
from tests.unit.namesrv import registering

from rocketspark.namesrv import handlers
from rocketspark.namesrv import server as server_module
from rocketspark.namesrv.server import SHARE_ALONE, SHARE_BESIDE_A_BROKER, NameServer
from rocketspark.protocol.json.bodies import DataVersion, TopicConfigTable
from rocketspark.transport.server_bounds import connections_max

pytestmark = pytest.mark.shows(
    "mended: idle connections to the NameServer, half HTTP requests to the metrics port use all descriptors",
)


def test_beside_a_broker_it_leaves_connections_to_the_broker() -> None:
    async def main() -> None:
        for share in (SHARE_ALONE, SHARE_BESIDE_A_BROKER):
            server = NameServer(port=0, share=share)
            await server.start()
            assert server._server.connections_max == connections_max(share)
            await server.close()

    run(main())
    assert SHARE_BESIDE_A_BROKER < 0.5


def test_a_look_for_silent_brokers_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    async def main() -> None:
        server = NameServer(port=0, scan_s=0.001)

        def expire(now_ms: int) -> list[object]:
            looks.append(now_ms)
            raise RuntimeError("broken")

        monkeypatch.setattr(server.registry, "expire", expire)
        await server.start()
        await until(lambda: len(looks) >= 3)
        await server.close()

    run(main())


@pytest.mark.shows("a NameServer that was halted drops no broker for what it could not hear")
def test_a_server_that_stood_still_drops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [0]

    async def main() -> None:
        server = NameServer(port=0, scan_s=10)
        for module in (server_module, handlers):
            monkeypatch.setattr(module, "now_ms", lambda: times[0])
        await server.start()

        def looked(at_ms: int) -> bool:
            times[0] = at_ms
            server._scan()
            return server.registry.members("a") is not None

        registering.register(
            server.registry,
            cluster="c",
            broker_name="a",
            broker_id=0,
            address="h:1",
            ha_address="h:2",
            topics=TopicConfigTable(data_version=DataVersion()),
            now_ms=0,
            connection="c",
        )
        assert looked(10_000)
        # For a day it heard nobody. What comes after it counts.
        day = 86_400_000
        assert all(looked(day + at_ms) for at_ms in range(20_000, 140_001, 10_000))
        assert not looked(day + 150_000)
        await server.close()

    run(main())
