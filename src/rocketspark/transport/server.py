"""Listens and keeps the connections of one server. Rule: a connection that breaks the rules is closed, no other."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

from rocketspark.errors import ConfigError
from rocketspark.transport.peer import Peer, Routes

log = logging.getLogger("rocketspark.transport")

IDLE_S = 120.0


class Server:
    """A listening socket and its peers.

    Replies name JAVA as their language: it is the dialect spoken, and clients of every language know it.
    `idle_s`: a connection on which nothing came in for that long is closed (rule: serverChannelMaxIdleTimeSeconds).
    """

    def __init__(
        self,
        routes: Routes,
        *,
        on_close: Callable[[Peer], None] | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._routes = routes
        self._on_close = on_close
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.peers: set[Peer] = set()
        self.host = ""
        self.port = 0

    @property
    def address(self) -> str:
        """ "host:port" that it listens on."""
        return f"{self.host}:{self.port}"

    async def start(self, host: str, port: int) -> None:
        """Listen on `host` and `port` (0 takes a free one). Raises ConfigError if the address cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._peer, host, port, backlog=1024)
        except OSError as e:
            if e.errno == errno.EADDRINUSE or "in use" in str(e):
                raise ConfigError(
                    f"port {port} on {host} is in use: stop the other program, or choose another (0 takes a free one)"
                ) from None
            raise ConfigError(f"cannot listen on {host}:{port}: {e.strerror or e}; check the address") from None
        self.host, self.port = host, int(self._server.sockets[0].getsockname()[1])
        self._sweeper = loop.call_later(self._idle_s / 4, self._sweep)

    def _peer(self) -> Peer:
        return Peer(self._routes, language="JAVA", on_open=self.peers.add, on_close=self._closed)

    def _closed(self, peer: Peer) -> None:
        self.peers.discard(peer)
        if self._on_close:
            self._on_close(peer)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for peer in list(self.peers):
            if loop.time() - max(peer.last_read_s, peer.last_write_s) > self._idle_s:
                log.info("%s was idle for %.0f s: connection closed", peer.address, self._idle_s)
                peer.close()
        self._sweeper = loop.call_later(self._idle_s / 4, self._sweep)

    async def close(self) -> None:
        """Stop listening and close every connection once its replies have left."""
        if self._sweeper:
            self._sweeper.cancel()
        if self._server is None:
            return
        self._server.close()
        peers = list(self.peers)
        for peer in peers:
            peer.close()
        if peers:
            await asyncio.wait([asyncio.ensure_future(p.wait_closed()) for p in peers], timeout=2)
        for peer in list(self.peers):
            peer.abort()
        self._server = None
