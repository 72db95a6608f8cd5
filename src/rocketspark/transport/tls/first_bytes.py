"""What a connection's first bytes are: a PROXY header, TLS, or RocketMQ's frames. One port takes all of them.

Rule: a connection counts as one of its server's from its first moment, and the plain path pays one look at a byte.
The first byte of a frame is 0 or 1, as none is over 16 MiB; that of TLS is 22, those of PROXY headers 'P' and CR.
"""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import cast

from rocketspark.errors import FrameError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.transport.peer import Peer
from rocketspark.transport.tls import proxy_protocol
from rocketspark.transport.tls.failures import server_side
from rocketspark.transport.tls.handshakes import TIME_MAX_S, Handshakes
from rocketspark.transport.tls.server_contexts import ServerContexts
from rocketspark.transport.tls.stream import TlsStream

log = LimitedLog("rocketspark.transport")

HANDSHAKE_BYTE = 0x16
_PROXY_BYTES = frozenset((ord("P"), ord("\r")))


class Front:
    """What one server takes. `proxy_networks`: whose PROXY headers are believed."""

    def __init__(self, contexts: ServerContexts) -> None:
        self.contexts = contexts
        self.handshakes = Handshakes()
        settings = contexts.settings
        self.takes_plain = settings.mode != "enforcing"
        self.takes_tls = settings.mode != "disabled"
        self._proxies: tuple[IPv4Network | IPv6Network, ...] = settings.networks()

    def believes(self, host: str) -> bool:
        """Tell whether a PROXY header from an address is believed."""
        try:
            address = ip_address(host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any(a in network for a in (address, mapped) if a is not None for network in self._proxies)


class FirstBytes(asyncio.Protocol):
    """The protocol of a connection until its kind is known."""

    def __init__(self, peer: Peer, front: Front) -> None:
        self._peer = peer
        self._front = front
        self._below: asyncio.Transport | None = None
        self._early = b""
        self._proxied = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._peer.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._early:
            data, self._early = self._early + data, b""
        first = data[0]
        if first == HANDSHAKE_BYTE:
            self._secure(data)
        elif first in _PROXY_BYTES and not self._proxied:
            self._relayed(data)
        elif self._front.takes_plain:
            self._plain(data)
        else:
            self._refuse("speaks plain, and only TLS is taken here (tls.server.mode=enforcing)")

    def _plain(self, data: bytes) -> None:
        below = self._leave()
        if below is not None and not below.is_closing():
            below.set_protocol(self._peer)
            self._peer.data_received(data)

    def _leave(self) -> asyncio.Transport | None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        below, self._below = self._below, None
        return below

    def _refuse(self, why: str) -> None:
        log.warning("%s %s; connection closed", self._peer.address, why)
        self._peer.abort()

    def _relayed(self, data: bytes) -> None:
        """Take a PROXY header: from then on the peer is the client that it names."""
        if not proxy_protocol.begins(data):
            self._refuse("sent no frame")
            return
        if not self._front.believes(self._peer.remote_host):
            self._refuse("sent a PROXY header and is no proxy that is trusted (proxyProtocolNetworks)")
            return
        try:
            header = proxy_protocol.parse(data)
        except FrameError as e:
            self._refuse(f"sent {e}")
            return
        if header is None:
            self._early = data
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(TIME_MAX_S, self._too_slow)
            return
        self._proxied = True
        if header.host:
            self._peer.relayed_from(header.host, header.port)
        if len(data) > header.end and self._below is not None and not self._below.is_closing():
            self.data_received(data[header.end :])

    def _too_slow(self) -> None:
        self._refuse(f"sent half a PROXY header and no more for {TIME_MAX_S:.0f} s")

    def _secure(self, data: bytes) -> None:
        front = self._front
        if not front.takes_tls:
            self._refuse("speaks TLS, which is off here (tls.server.mode=disabled)")
            return
        context = front.contexts.context
        if context is None:
            self._refuse("speaks TLS, and there is no certificate here (tls.server.certPath, tls.test.mode.enable)")
            return
        below = self._leave()
        if below is None:
            return
        peer, handshakes = self._peer, front.handshakes

        def shaken(error: Exception | None) -> None:
            handshakes.remove(stream)
            if error is not None:
                log.warning("%s: no TLS connection: %s", peer.address, server_side(error))

        stream = TlsStream(peer, context, server_side=True, shaken=shaken)
        peer.go_on_over(stream)
        handshakes.add(stream)
        stream.begin(below, data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._peer.pause_writing()

    def resume_writing(self) -> None:
        self._peer.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._peer.connection_lost(exc)
