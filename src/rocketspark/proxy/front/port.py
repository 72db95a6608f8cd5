"""The proxy's one port: it looks at the first bytes of a connection, ends TLS, and relays HTTP/2 to the gRPC server.

Rule: who a client is, its connection to this port says; the gRPC server takes calls of no other connection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from rocketspark.errors import ConfigError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.proxy.calls.call import address_of
from rocketspark.proxy.calls.statuses import Refused
from rocketspark.proxy.front.relay import HOST, Relay, RelayedClients
from rocketspark.proxy.wire.codes import Code
from rocketspark.transport.bounds.connection_bounds import Bounds
from rocketspark.transport.bounds.descriptors import OF_PROCESS, Descriptors
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.server import IDLE_S, Server
from rocketspark.transport.tls.settings import TlsSettings

log = LimitedLog("rocketspark.proxy")

# A connection that is relayed has three descriptors: the client's, and both ends of the one behind the front.
DESCRIPTORS_BEHIND = 2


def default_tls() -> TlsSettings:
    """Return TLS beside plain, with a certificate made for this start (rule: tlsTestModeEnable of Apache's proxy)."""
    return TlsSettings(test_mode=True)


class Port:
    """Where clients come in. `tls`: None for what `default_tls` says, if a certificate can be made; `routes`: the
    requests of remoting that are served; `on_close`: hears of connections whose client sends no more.
    """

    def __init__(
        self,
        *,
        tls: TlsSettings | None = None,
        routes: Routes | None = None,
        on_close: Callable[[Peer], None] | None = None,
        names: Iterable[str] = (),
        connections_max: float = math.inf,
        bounds: Bounds | None = None,
        idle_s: float = IDLE_S,
        descriptors: Descriptors = OF_PROCESS,
        share_port: bool = False,
    ) -> None:
        self.clients = RelayedClients()
        self._descriptors = descriptors
        self._make_certificate = tls is None
        self._server_options = {
            "connections_max": connections_max,
            "on_close": on_close,
            "bounds": bounds,
            "idle_s": idle_s,
            "descriptors": descriptors,
            "tls_names": list(names),
            "share_port": share_port,
        }
        self._routes = routes or Routes()
        self.server = self._made(default_tls() if tls is None else tls)

    def _made(self, tls: TlsSettings) -> Server:
        return Server(self._routes, tls=tls, http2=self._take, **self._server_options)  # type: ignore[arg-type]

    async def start(self, host: str, port: int, inner_port: int) -> int:
        """Listen, before a gRPC server on loopback; return the port. Raises ConfigError."""
        self.clients.port = inner_port
        try:
            await self.server.start(host, port)
        except ConfigError as e:
            if not self._make_certificate or "cryptography" not in str(e):
                raise
            log.warning("no TLS on %s:%d, plain alone: %s", host, port, e)
            self.server = self._made(TlsSettings(mode="disabled"))
            await self.server.start(host, port)
        return self.server.port

    def _take(self, peer: Peer, below: asyncio.Transport, data: bytes) -> Relay:
        relay = self.clients.take(peer, below, data)
        for _ in range(DESCRIPTORS_BEHIND):
            if not self._descriptors.take():
                log.warning("%s refused: as many connections are open in this process as are allowed", peer.address)
                below.abort()
                break
            peer.when_closed(self._descriptors.give_back)
        return relay

    def address_of(self, peer: str) -> str:
        """Return "host:port" of the client of a connection, by what gRPC calls its other side. Raises Refused."""
        host, _, port = address_of(peer).rpartition(":")
        # Whoever is on this machine may have the same port at another loopback address.
        found = self.clients.by_port.get(int(port or 0)) if host == HOST else None
        if found is None:
            raise Refused(Code.UNAUTHORIZED, "this port is the proxy's own: come in by the one that it tells")
        return found

    async def close(self) -> None:
        """Stop listening and end all connections."""
        await self.server.close()
