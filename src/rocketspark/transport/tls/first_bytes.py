"""What a connection's first bytes are: a PROXY header, TLS, RocketMQ's frames, or HTTP/2. One port takes all of them.

Rule: a connection counts as one of its server's from its first moment, and the plain path pays one look at a byte.
The first byte of a frame is 0 or 1, as none is over 16 MiB; that of TLS is 22, those of PROXY headers 'P' and CR, that
of HTTP/2 is 'P' too, and the third one tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, cast

from rocketspark.errors import FrameError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.transport.peer import Peer
from rocketspark.transport.tls import proxy_protocol
from rocketspark.transport.tls.client_tls import server_side
from rocketspark.transport.tls.handshakes import TIME_MAX_S, Handshakes
from rocketspark.transport.tls.server_contexts import ServerContexts
from rocketspark.transport.tls.stream import Above, TlsStream

log = LimitedLog("rocketspark.transport")

HANDSHAKE_BYTE = 0x16
_PROXY_BYTES = frozenset((ord("P"), ord("\r")))
# How a client begins to speak HTTP/2, and as much of it as no PROXY header begins with.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PREFACE_START = PREFACE[:3]
# Takes over a connection that speaks HTTP/2: its peer, its transport, and what came so far.
TakeHttp2 = Callable[[Peer, asyncio.Transport, bytes], "Http2"]


class Http2(asyncio.Protocol):
    """The protocol of a connection that speaks HTTP/2. `address`: of its client."""

    address = ""

    def eof_received(self) -> bool:
        return False


class Front:
    """What the connections of one server may speak. `http2`: takes over those that speak HTTP/2; None if the server
    does not take it.
    """

    def __init__(self, contexts: ServerContexts, http2: TakeHttp2 | None = None) -> None:
        self.contexts = contexts
        self.http2 = http2
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

    @staticmethod
    def takes_http2(data: bytes) -> bool:
        """Tell whether a connection's first bytes are the beginning of HTTP/2, or may become it."""
        return PREFACE.startswith(data[: len(PREFACE)])


class Undecided(asyncio.Protocol):
    """Stands in for a connection's peer until its first bytes tell what it speaks."""

    def __init__(self, peer: Peer, front: Front) -> None:
        self._peer = peer
        self._front = front
        self._early = b""
        self._timer: asyncio.TimerHandle | None = None

    def _leave(self) -> Any:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._peer.pause_writing()

    def resume_writing(self) -> None:
        self._peer.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._peer.connection_lost(exc)


class FirstBytes(Undecided):
    """The protocol of a connection until its kind is known."""

    def __init__(self, peer: Peer, front: Front) -> None:
        super().__init__(peer, front)
        self._below: asyncio.Transport | None = None
        self._proxied = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._peer.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._early:
            data, self._early = self._early + data, b""
        first = data[0]
        if first == HANDSHAKE_BYTE:
            self._secure(data)
        elif self._front.http2 is not None and len(data) < len(_PREFACE_START) and _PREFACE_START.startswith(data):
            self._wait_for_more(data)
        elif first in _PROXY_BYTES and not self._proxied and not self._begins_http2(data):
            self._relayed(data)
        elif self._front.takes_plain:
            self._plain(data)
        else:
            self._refuse("speaks plain, and only TLS is taken here (tls.server.mode=enforcing)")

    def _begins_http2(self, data: bytes) -> bool:
        return self._front.http2 is not None and data.startswith(_PREFACE_START)

    def _plain(self, data: bytes) -> None:
        if self._front.http2 is not None and self._front.takes_http2(data):
            if len(data) < len(PREFACE):
                self._wait_for_more(data)
            elif (below := self._leave()) is not None:
                taken = self._front.http2(self._peer, below, data)
                below.set_protocol(taken)
            return
        below = self._leave()
        if below is not None and not below.is_closing():
            below.set_protocol(self._peer)
            self._peer.data_received(data)

    def _leave(self) -> asyncio.Transport | None:
        super()._leave()
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
            self._wait_for_more(data)
            return
        self._proxied = True
        # Its client may take its time, as one without a header may.
        super()._leave()
        if header.host:
            self._peer.relayed_from(header.host, header.port)
        if len(data) > header.end and self._below is not None and not self._below.is_closing():
            self.data_received(data[header.end :])

    def _wait_for_more(self, data: bytes) -> None:
        self._early = data
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TIME_MAX_S, self._too_slow)

    def _too_slow(self) -> None:
        self._refuse(f"sent half of what a connection begins with and no more for {TIME_MAX_S:.0f} s")

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
        above: Above = peer if front.http2 is None else FirstDecrypted(peer, front)

        def shaken(error: Exception | None) -> None:
            handshakes.remove(stream)
            if error is not None:
                log.warning("%s: no TLS connection: %s", peer.address, server_side(error))

        stream = TlsStream(above, context, server_side=True, shaken=shaken)
        if isinstance(above, FirstDecrypted):
            above.stream = stream
        peer.go_on_over(stream)
        handshakes.add(stream)
        stream.begin(below, data)


class FirstDecrypted(Undecided):
    """Stands in for the peer of a TLS connection until the first bytes in it tell what it speaks."""

    def __init__(self, peer: Peer, front: Front) -> None:
        super().__init__(peer, front)
        self.stream: TlsStream | None = None

    @property
    def address(self) -> str:
        """The address of the other side, as "host:port"."""
        return self._peer.address

    @address.setter
    def address(self, _: str) -> None:
        raise AttributeError("address")

    def data_received(self, data: bytes) -> None:
        if self._early:
            data, self._early = self._early + data, b""
        stream, http2 = self.stream, self._front.http2
        assert stream is not None
        assert http2 is not None
        if not self._front.takes_http2(data):
            self._leave()
            stream.go_on_with(self._peer)
            self._peer.data_received(data)
        elif len(data) >= len(PREFACE):
            self._leave()
            stream.go_on_with(http2(self._peer, stream, data))
        else:
            self._early = data
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(TIME_MAX_S, self._peer.abort)
