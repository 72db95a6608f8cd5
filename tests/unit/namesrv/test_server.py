"""A NameServer's loop and its share of what the process has."""

from __future__ import annotations

import pytest
from tests.live.support import run, until

from rocketspark.namesrv.server import SHARE_ALONE, SHARE_BESIDE_A_BROKER, NameServer
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
