"""The proxy's one port: it looks at the first bytes of a connection, ends TLS, and relays HTTP/2 to the gRPC server.

Rule: a client is known by its connection to this port; the gRPC server takes calls of no other connection. Neither
side is read faster than the other takes it, and the end of one is the end of the other. A gRPC server gathers a message
before anybody is asked who sent it: so messages that are not whole are counted on their way, and bounded.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import cast

from rocketspark.errors import ConfigError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.proxy.call import address_of
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.http2 import DATA, END_STREAM, HEADERS, RST_STREAM, Frames, UnfinishedMessages
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.peer import HALF_CLOSED_S, Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.server import IDLE_S, Server
from rocketspark.transport.server_bounds import OF_PROCESS, Bounds, Descriptors, place_of
from rocketspark.transport.tls.first_bytes import Http2
from rocketspark.transport.tls.settings import TlsSettings

log = LimitedLog("rocketspark.proxy")
relay_log = LimitedLog("rocketspark.proxy", lines_max=1, period_s=1.0)

HOST = "127.0.0.1"
WAITING_BYTES_MAX = 256 << 10
# Calls of one connection, and of one host, that nothing was answered to yet: they wait for the loop in one line with
# those of all others. One read may hold 4,000.
PENDING_MAX, PENDING_OF_HOST_MAX = 128, 256
# Frames of one connection that are looked at in one turn of the loop, some 2 us each: one read may hold 30,000.
FRAMES_IN_TURN = 512
# As many calls may wait for their message. Each costs the server its beginning all the same, and messages may stand
# behind further calls: beyond them so many calls of a host come in each such span.
ENTERED_SLOWLY, ENTER_S = 8, 0.01
# A call that its client gave up may still wait there.
GIVEN_UP_S = 0.2


class RelayedClients:
    """The client connections that the front relays to the gRPC server. `port`: the gRPC server's; `when_left`: called
    with the address of a client whose connection has ended.

    The gRPC server knows a client's connection by the local port that the front relays it from. A connection from any
    other port did not come through the front.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.by_port: dict[int, str] = {}
        self.open: set[Relay] = set()
        self.when_left: Callable[[str], None] | None = None
        # Calls that nothing was answered to yet, by host, and connections whose next call waits for one.
        self.pending = Counter[str]()
        self.waiting: dict[Relay, None] = {}
        self._woken: asyncio.Handle | None = None
        # Messages that are not whole, and connections whose next call is to come slowly, by host.
        self.unfinished, self.slowed = Counter[str](), Counter[str]()

    def take(self, peer: Peer, below: asyncio.Transport, data: bytes) -> Relay:
        """Begin to relay a client's connection that speaks HTTP/2. `below`: its transport; `data`: the bytes that
        arrived so far.
        """
        return Relay(self, peer, below, data)

    def room(self, relay: Relay) -> int:
        """Return how many calls a connection may begin now."""
        return max(min(PENDING_MAX - relay.pending_count, PENDING_OF_HOST_MAX - self.pending[relay.host]), 0)

    def may_enter(self, relay: Relay) -> int:
        """Return how many calls without their message a connection may begin at once now."""
        own, of_host = relay.unfinished_count, self.unfinished[relay.host]
        return max(min(PENDING_MAX - own, PENDING_OF_HOST_MAX - of_host), 0)

    def changed(self, host: str, count: int) -> None:
        """Count `count` more calls of a host that wait for their first answer; fewer if it is negative."""
        _add(self.pending, host, count)
        if count < 0 and self.waiting and self._woken is None:
            self._woken = asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._woken = None
        waiting, self.waiting = self.waiting, {}
        late: dict[Relay, None] = {}
        for relay in waiting:
            if self.room(relay):
                relay.go_on()
            else:
                late[relay] = None
        # Those that had no turn are first in the next one.
        self.waiting = late | self.waiting

    def close(self, address: str) -> None:
        """End the connections of the client at an address at once."""
        for relay in [one for one in self.open if one.address == address]:
            relay.abort()


class Relay(Http2):
    """The client's side of a relayed connection. `data`: the bytes that the client sent before the relay began."""

    def __init__(self, clients: RelayedClients, peer: Peer, below: asyncio.Transport, data: bytes) -> None:
        self.address, self.host = peer.address, place_of(peer.remote_host)
        self._clients, self._peer, self._below = clients, peer, below
        # What is not given to the gRPC server yet, and whether the client's end follows.
        self._held, self._ends = data, False
        self._messages = UnfinishedMessages()
        # How many of these are counted for the host.
        self.unfinished_count = 0
        self._is_slowed = False
        # Streams of calls that the gRPC server has answered nothing to.
        self._pending: set[int] = set()
        self._answers = Frames()
        self._inner: Inner | None = None
        self._forgotten = False
        self._timer: asyncio.TimerHandle | None = None
        # Set while the rest of what is held waits for its turn.
        self._next_turn: asyncio.Handle | None = None
        # How long it may be silent is the gRPC server's to say.
        peer.last_read_s = math.inf
        clients.open.add(self)
        below.set_write_buffer_limits(high=WAITING_BYTES_MAX)
        below.pause_reading()
        self._dial = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, inner = await loop.create_connection(lambda: Inner(self), HOST, self._clients.port)
        except OSError as e:
            relay_log.warning("%s: the gRPC server does not answer: %s", self.address, e.strerror or e)
            self._below.abort()
            return
        if self._below.is_closing():
            inner.end()
            return
        self._inner = inner
        self._clients.by_port[inner.port] = self.address
        self.go_on()

    # -- the client ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._held = self._held + data if self._held else data
        if self._inner is not None and self not in self._clients.waiting and self._next_turn is None:
            self.go_on()

    def go_on(self) -> None:
        """Hand the client's bytes to the gRPC server, up to as many calls as may begin now, and as many frames as one
        turn takes; then read from the client again.
        """
        self._next_turn = None
        self._slow(by=False)
        inner, messages, data = self._inner, self._messages, self._held
        if inner is None:
            return
        room, at_once = self._clients.room(self), self._clients.may_enter(self)
        at = messages.feed(data, room, FRAMES_IN_TURN, at_once or ENTERED_SLOWLY)
        self._count_unfinished(messages.count)
        if messages.begun:
            self._pending.update(messages.begun)
            self._clients.changed(self.host, len(messages.begun))
        for stream in messages.given_up:
            if stream in self._pending:
                asyncio.get_running_loop().call_later(GIVEN_UP_S, self._answered, stream)
        if (oldest := messages.oldest) is not None and self._peer.bounds is not None:
            self._peer.bounds.unfinished(self, oldest, messages.held)
        self._held = data[at:]
        inner.write(data if at == len(data) else data[:at])
        if self._held and len(messages.begun) > room:
            self._clients.waiting[self] = None
        elif self._held and not at_once and len(messages.entered) == ENTERED_SLOWLY:
            self._slow(by=True)
            wait_s = ENTER_S * self._clients.slowed[self.host]
            self._next_turn = asyncio.get_running_loop().call_later(wait_s, self.go_on)
        elif self._held:
            self._next_turn = asyncio.get_running_loop().call_soon(self.go_on)
        elif self._ends:
            inner.write_eof()
        self._read_on()

    def _count_unfinished(self, count: int) -> None:
        _add(self._clients.unfinished, self.host, count - self.unfinished_count)
        self.unfinished_count = count

    def _slow(self, *, by: bool) -> None:
        """Note whether the next call waits for a while."""
        _add(self._clients.slowed, self.host, by - self._is_slowed)
        self._is_slowed = by

    @property
    def pending_count(self) -> int:
        """How many of this connection's calls the gRPC server has not begun to answer."""
        return len(self._pending)

    def _answered(self, stream: int) -> None:
        if stream in self._pending:
            self._pending.remove(stream)
            self._clients.changed(self.host, -1)

    def _read_on(self) -> None:
        """Read from the client if the gRPC server has taken what came, and takes more."""
        if self._held or self._inner is None or self._inner.is_paused:
            self._below.pause_reading()
        elif not self._below.is_closing():
            self._below.resume_reading()

    @property
    def unfinished_frame(self) -> int | None:
        """The number of the message that has begun to arrive; None if there is none."""
        return self._messages.oldest

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait for the client."""
        return self._below.get_write_buffer_size()

    def abort(self) -> None:
        """Close at once."""
        self._below.abort()

    def eof_received(self) -> bool:
        """Answer what was asked for: the gRPC server ends the connection."""
        if self._inner is None:
            return False
        self._ends = True
        if not self._held:
            self._inner.write_eof()
        self._timer = asyncio.get_running_loop().call_later(HALF_CLOSED_S, self._below.abort)
        return True

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_reading()
        self._peer.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_reading()
        self._peer.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.open.discard(self)
        self._clients.waiting.pop(self, None)
        self._count_unfinished(0)
        self._slow(by=False)
        pending, self._pending = len(self._pending), set()
        if pending:
            self._clients.changed(self.host, -pending)
        if self._peer.bounds is not None:
            self._peer.bounds.closed(self)
        if self._clients.when_left is not None:
            self._clients.when_left(self.address)
        self._dial.cancel()
        for timer in (self._timer, self._next_turn):
            if timer is not None:
                timer.cancel()
        if self._inner is not None:
            self._forget()
            self._inner.end()
        self._peer.connection_lost(exc)

    # -- the gRPC server -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send to the client."""
        for kind, flags, stream in self._answers.feed(data):
            if kind in (DATA, HEADERS, RST_STREAM):
                self._answered(stream)
                if kind == RST_STREAM or flags & END_STREAM:
                    self._messages.answered(stream)
                    self._count_unfinished(self._messages.count)
        self._below.write(data)

    def inner_changed(self) -> None:
        """Read from the client only while the gRPC server reads: called when it has stopped or begun to read."""
        self._read_on()

    def inner_lost(self) -> None:
        """End the client's connection once all bytes of the gRPC server have left: its side of the relay has ended."""
        self._forget()
        self._below.close()

    def _forget(self) -> None:
        """Give the inner port free, once: it may be another client's as soon as its connection has ended."""
        if self._inner is not None and not self._forgotten:
            self._forgotten = True
            self._clients.by_port.pop(self._inner.port, None)


def _add(counts: Counter[str], host: str, count: int) -> None:
    if count:
        counts[host] += count
        if not counts[host]:
            del counts[host]


class Inner(asyncio.Protocol):
    """The gRPC server's side of a relayed connection. `port`: the local port that it is made from; `is_paused`: true
    while the gRPC server does not read.
    """

    def __init__(self, outer: Relay) -> None:
        self._outer = outer
        self._transport: asyncio.Transport | None = None
        self.port = 0
        self.is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)
        self.port = int(transport.get_extra_info("sockname")[1])

    def data_received(self, data: bytes) -> None:
        self._outer.write(data)

    def write(self, data: bytes) -> None:
        """Send to the gRPC server."""
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> None:
        """Tell the gRPC server that the client sends no more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def pause_writing(self) -> None:
        self.is_paused = True
        self._outer.inner_changed()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._outer.inner_changed()

    def pause_reading(self) -> None:
        """Stop reading from the gRPC server."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the gRPC server again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._outer.inner_lost()


# A connection that is relayed has three descriptors: the client's, and both ends of the one behind the front.
DESCRIPTORS_BEHIND = 2


def default_tls() -> TlsSettings:
    """Return settings by which a port takes TLS and plain connections, with a certificate made at this start (rule:
    tlsTestModeEnable of Apache's proxy).
    """
    return TlsSettings(test_mode=True)


class Port:
    """The port that clients connect to.

    `tls`: None for what `default_tls` returns, if a certificate can be made; `routes`: handlers of remoting requests;
    `on_close`: called with a connection whose client sends no more.
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
        self._make_certificate = tls is None
        self._tls_names = list(names)
        self._server_options = {
            "connections_max": connections_max,
            "on_close": on_close,
            "bounds": bounds,
            "idle_s": idle_s,
            "descriptors": descriptors,
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
            await self.server.start(host, port, tls_names=self._tls_names)
        except ConfigError as e:
            if not self._make_certificate or "cryptography" not in str(e):
                raise
            log.warning("no TLS on %s:%d, plain alone: %s", host, port, e)
            self.server = self._made(TlsSettings(mode="disabled"))
            await self.server.start(host, port)
        return self.server.port

    def _take(self, peer: Peer, below: asyncio.Transport, data: bytes) -> Relay:
        relay = self.clients.take(peer, below, data)
        give_back = self.server.take_descriptors(peer, DESCRIPTORS_BEHIND)
        if give_back is None:
            text = "%s refused: as many connections are open of its address, or in this process, as are allowed"
            log.warning(text, peer.address)
            below.abort()
        else:
            peer.when_closed(give_back)
        return relay

    def address_of(self, peer: str) -> str:
        """Return the "host:port" of the client behind a connection of the gRPC server. `peer`: gRPC's name of the
        connection. Raises Refused if it did not come through the front.
        """
        host, _, port = address_of(peer).rpartition(":")
        # Whoever is on this machine may have the same port at another loopback address.
        found = self.clients.by_port.get(int(port or 0)) if host == HOST else None
        if found is None:
            raise Refused(Code.UNAUTHORIZED, "this port is the proxy's own: come in by the one that it tells")
        return found

    async def close(self) -> None:
        """Stop listening and end all connections."""
        await self.server.close()
