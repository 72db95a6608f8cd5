"""Two proxies before a cluster: clients before RocketMQ 5 know nothing but them, and change from one to the other.

What is behind gRPC is left out: its server is the machine's own (`grpc_calls` calls the service itself).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.simulation import mixed
from tests.simulation.world import World

from rocketspark.proxy import server
from rocketspark.proxy.call import address_of
from rocketspark.proxy.server import ProxyServer
from rocketspark.proxy.settings import ProxySettings
from rocketspark.transport.request_signer import RequestSigner
from rocketspark.transport.tls.settings import TlsSettings


async def clients(world: World) -> dict[str, Any]:
    """Every client of `mixed` and every fault, those of proxies too."""
    return await mixed.run(world, proxies=2, adds=False)


async def calm(world: World) -> dict[str, Any]:
    """The same without a fault."""
    return await mixed.run(world, proxies=2, adds=False, faulty=False)


# Settings of each proxy that a scenario gives; `access`: name and secret that it signs with.
given: dict[str, Any] = {}


def proxy(host: str, port: int, namesrv: str) -> ProxyServer:
    """Return a proxy that listens without gRPC behind its port."""
    server.grpc = SimpleNamespace(aio=SimpleNamespace(server=_NoGrpc))
    more = dict(given)
    keys = more.pop("access", None)
    settings = ProxySettings(namesrv=namesrv, host=host, port=port, **more)
    signer = RequestSigner(*keys) if keys else None
    made = ProxyServer(settings, signer=signer, front_tls=TlsSettings(mode="disabled"))
    # Calls do not come through its port here.
    made.service.address_of = address_of
    return made


class _NoGrpc:
    """In place of a gRPC server."""

    def __init__(self, **options: Any) -> None:
        pass

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Serve nothing."""

    def add_insecure_port(self, address: str) -> int:
        return 1

    async def start(self) -> None:
        """Begin nothing."""

    async def stop(self, grace_s: float | None) -> None:
        """End nothing."""
