"""A listening server and its connections. Rule: a connection that breaks the rules is closed, no other.

All servers of a process share its file descriptors (`server_bounds.Descriptors`): one that takes no more says so and
closes.
"""

from __future__ import annotations

import asyncio
import errno
import math
import weakref
from collections.abc import Callable, Iterable

from rocketspark.errors import ConfigError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.server_bounds import OF_PROCESS, WAITING_BYTES_MAX, Bounds, ConnectionBounds, Descriptors
from rocketspark.transport.tls.first_bytes import FirstBytes, Front, TakeHttp2
from rocketspark.transport.tls.server_contexts import ServerContexts
from rocketspark.transport.tls.settings import TlsSettings

log = LimitedLog("rocketspark.transport", lines_max=1, period_s=1.0)

IDLE_S = 120.0


class Server:
    """A listening socket and its peers.

    Replies name JAVA as their language: it is the dialect spoken, and clients of every language know it.
    `idle_s`: a connection on which nothing came in for that long is closed (rule: serverChannelMaxIdleTimeSeconds);
    infinity for none.
    `connections_max`: one more is closed at once, and so is one that `descriptors` has no room for. `refused`: how many
    were. `tls`: whether TLS is taken, and with which certificate; None for plain alone. `bounds`: what its
    connections may hold, each and together. `http2`: takes over the connections that speak it; each counts as one of
    the server's. `share_port`: other processes may listen on the port too.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        on_close: Callable[[Peer], None] | None = None,
        idle_s: float = IDLE_S,
        connections_max: float = math.inf,
        descriptors: Descriptors = OF_PROCESS,
        tls: TlsSettings | None = None,
        bounds: Bounds | None = None,
        http2: TakeHttp2 | None = None,
        share_port: bool = False,
    ) -> None:
        self._routes = routes
        self._on_close = on_close
        self._idle_s = idle_s
        self.connections_max = connections_max
        self._descriptors = descriptors
        self.bounds = ConnectionBounds(bounds)
        self._waiting_bytes_max = WAITING_BYTES_MAX
        self.refused = 0
        self._http2 = http2
        self._share_port = share_port
        alpn = ("h2",) if http2 is not None else ()
        self._contexts = ServerContexts(tls or TlsSettings(), alpn=alpn)
        # None where no connection has to be looked at: plain, and no proxy is believed.
        self._front: Front | None = None
        self._server: asyncio.Server | None = None
        self._others: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self.peers: set[Peer] = set()
        # Connections whose other side sends no more, and that wait for their last replies.
        self._leaving: weakref.WeakSet[Peer] = weakref.WeakSet()
        self.host = ""
        self.port = 0

    @property
    def address(self) -> str:
        """ "host:port" that it listens on."""
        return f"{self.host}:{self.port}"

    async def start(self, host: str, port: int, *, tls_names: Iterable[str] = ()) -> None:
        """Listen on `host` and `port` (0 takes a free one).

        `tls_names`: names and addresses besides `host` that a certificate which is made for a try is for.
        Raises ConfigError if the address cannot be had, and for a certificate that cannot be used.
        """
        if self._contexts.settings.concerns_first_bytes or self._http2 is not None:
            self._contexts.load([host, *tls_names])
            self._front = Front(self._contexts, self._http2)
        self._server = await self._listen(host, port)
        self.host, self.port = host, int(self._server.sockets[0].getsockname()[1])
        self._contexts.watch()
        self.set_idle(self._idle_s)

    async def listen_also(self, host: str, port: int) -> None:
        """Take connections on one more port, with the same routes, limits and end. Raises ConfigError."""
        assert self._server is not None, "not started"
        self._others.append(await self._listen(host, port))

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        try:
            return await asyncio.get_running_loop().create_server(
                self._peer, host, port, backlog=1024, reuse_port=self._share_port or None
            )
        except OSError as e:
            if e.errno == errno.EADDRINUSE or "in use" in str(e):
                raise ConfigError(
                    f"port {port} on {host} is in use: stop the other program, or choose another (0 takes a free one)"
                ) from None
            raise ConfigError(f"cannot listen on {host}:{port}: {e.strerror or e}; check the address") from None

    def set_idle(self, idle_s: float) -> None:
        """Set how long a connection may be silent; also while the server runs."""
        self._idle_s = idle_s
        if self._sweeper:
            self._sweeper.cancel()
            self._sweeper = None
        if self._server is not None:
            self._sweep_later()

    def _sweep_later(self) -> None:
        pause_s = min(self._idle_s, self.bounds.bounds.unfinished_s) / 4
        self._sweeper = asyncio.get_running_loop().call_later(pause_s, self._sweep)

    def _peer(self) -> Peer | FirstBytes:
        peer = Peer(self._routes, language="JAVA", on_open=self._opened, on_close=self._closed)
        return peer if self._front is None else FirstBytes(peer, self._front)

    def _opened(self, peer: Peer) -> None:
        if len(self.peers) + len(self._leaving) >= self.connections_max:
            self._refuse_as_full(peer)
            return
        host = peer.remote_host
        if not self._admits(host):
            self._refuse(peer, "as many of its address are open here as are allowed (connectionsPerAddressMax)")
            return
        peer.when_closed(lambda: self._leave(host))
        if not self._descriptors.take():
            self._refuse_as_full(peer)
            return
        peer.when_closed(self._descriptors.give_back)
        peer.bounds = self.bounds
        self.peers.add(peer)
        self._limit_waiting(peer)

    def _counts(self, host: str) -> bool:
        # Behind a proxy there are many.
        return self._front is None or not self._front.believes(host)

    def _admits(self, host: str) -> bool:
        most = min(self.connections_max, self._descriptors.count_max)
        return not self._counts(host) or self.bounds.admits(host, most)

    def _leave(self, host: str) -> None:
        if self._counts(host):
            self.bounds.leave(host)

    def take_descriptors(self, peer: Peer, count: int) -> Callable[[], None] | None:
        """Count `count` more descriptors for a connection, as if they were connections of its address. Returns what
        gives them back.

        None if there is no room for so many.
        """
        host, given = peer.remote_host, 0

        def give_back() -> None:
            for _ in range(given):
                self._leave(host)
                self._descriptors.give_back()

        for _ in range(count):
            if not self._admits(host):
                break
            if not self._descriptors.take():
                self._leave(host)
                break
            given += 1
        if given == count:
            return give_back
        give_back()
        return None

    def _limit_waiting(self, peer: Peer) -> None:
        wanted = self.bounds.waiting_bytes_max(len(self.peers))
        if not self._waiting_bytes_max // 2 < wanted < 2 * self._waiting_bytes_max:
            self._waiting_bytes_max = wanted
            for each in self.peers:
                each.limit_waiting(wanted)
        elif self._waiting_bytes_max < WAITING_BYTES_MAX:
            peer.limit_waiting(self._waiting_bytes_max)

    def _refuse_as_full(self, peer: Peer) -> None:
        self._refuse(
            peer,
            f"{len(self.peers)} connections are open here, as many as are allowed ({self._descriptors.taken} in this"
            f" process, {self.refused + 1} refused so far); raise the limit of open files (ulimit -n) if all of them"
            " are wanted",
        )

    def _refuse(self, peer: Peer, why: str) -> None:
        peer.abort()
        self.refused += 1
        log.warning("%s refused: %s", peer.address, why)

    def _closed(self, peer: Peer) -> None:
        if peer not in self.peers:
            return
        self.peers.remove(peer)
        if peer.is_open:
            self._leaving.add(peer)
        if self._on_close:
            self._on_close(peer)

    def _sweep(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for peer in list(self.peers):
            if now_s - max(peer.last_read_s, peer.last_write_s) > self._idle_s:
                log.info("connections idle for %.0f s are closed, such as that of %s", self._idle_s, peer.address)
                peer.close()
        self.bounds.sweep(now_s)
        self._sweep_later()

    def abort(self) -> None:
        """Stop listening and end every connection at once; replies that are not sent are lost."""
        if self._sweeper:
            self._sweeper.cancel()
        self._stop_tls()
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in [*self.peers, *self._leaving]:
            peer.abort()

    def _stop_tls(self) -> None:
        self._contexts.stop()
        if self._front is not None:
            self._front.handshakes.close()

    async def close(self) -> None:
        """Stop listening and close every connection once its replies have left."""
        if self._sweeper:
            self._sweeper.cancel()
        if self._server is None:
            return
        for listening in (self._server, *self._others):
            listening.close()
        self._others.clear()
        self._stop_tls()
        peers = [*self.peers, *self._leaving]
        for peer in peers:
            peer.close()
        if peers:
            await asyncio.wait([asyncio.ensure_future(p.wait_closed()) for p in peers], timeout=2)
        for peer in peers:
            peer.abort()
        self._server = None
