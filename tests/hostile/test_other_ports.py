"""The same attacks on a NameServer and a controller: who asks beside them is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.hostile.beside import Raw, request
from tests.live.support import connected, name_server, run, until

from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.protocol.codes import RequestCode
from rocketspark.transport.server import Server

pytestmark = pytest.mark.shows(
    "bounds of connections, frames, headers, held pulls, unread replies, log lines, on brokers, NameServers "
    "and controllers: each row of docs/develop/bounds.md is an attack beside a normal client"
)

BEGIN = (16 << 20).to_bytes(4, "big") + (10).to_bytes(4, "big")
# A request that both answer, whatever the answer is.
ASKED = {"NameServer": RequestCode.GET_BROKER_CLUSTER_INFO, "controller": RequestCode.CONTROLLER_GET_METADATA_INFO}


@asynccontextmanager
async def listening(kind: str, root: Path) -> AsyncIterator[Server]:
    """The server of one of them."""
    if kind == "NameServer":
        async with name_server() as names:
            yield names._server
        return
    controller = ControllerServer(ControllerSettings(listen="127.0.0.1:0", folder=root))
    await controller.start()
    try:
        yield controller._server
    finally:
        await controller.close()


@pytest.mark.parametrize("kind", ASKED)
def test_attacks_on_it(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with listening(kind, tmp_path) as server, connected(server.address) as peer:
            server.bounds.bounds.unfinished_s = 0.3
            server.bounds.bounds.unfinished_bytes = 4 << 20
            server.bounds.bounds.per_address = 40
            server.set_idle(120.0)
            strangers = [await Raw.to(server.address) for _ in range(60)]
            await until(lambda: server.refused == 21)
            for number, raw in enumerate(strangers[:39]):
                attacks = (
                    b"\xff" * 64,
                    BEGIN + bytes(1 << 20),
                    BEGIN[:3],
                    request(34, {f"k{n}": "" for n in range(2000)}),
                    b"".join(request(20_000, opaque=n) for n in range(100)),
                )
                await raw.write(attacks[number % len(attacks)])
                assert (await peer.request(ASKED[kind], None)).address == server.address
            assert server.bounds._unfinished_bytes <= 4 << 20
            for raw in strangers[:39]:
                raw.writer.write(b"\0")
            await until(lambda: server.bounds.ended["unfinished"] >= 1)
            await until(lambda: not server.bounds._unfinished)
            assert peer.is_open
            for raw in strangers:
                raw.close()
            await until(lambda: len(server.peers) == 1)
            assert (await peer.request(ASKED[kind], None)).code in (0, 1)

    run(main())
