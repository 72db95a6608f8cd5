"""One HTTP/2 connection on its way to the gRPC server behind the front. Rule: neither side is read faster than the
other takes it, the end of one is the end of the other, and messages that are not whole count as frames that are not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

from rocketspark.model.limited_log import LimitedLog
from rocketspark.proxy.front.unfinished import UnfinishedMessages
from rocketspark.transport.peer import HALF_CLOSED_S, Peer
from rocketspark.transport.tls.first_bytes import Http2

log = LimitedLog("rocketspark.proxy", lines_max=1, period_s=1.0)

HOST = "127.0.0.1"
WAITING_BYTES_MAX = 256 << 10


class RelayedClients:
    """Whose connections the gRPC server's are, by the port that the front connects from. `port`: the server's;
    `when_left`: told the address of a client's connection that has ended.

    A connection of the server that is not here did not come through the front.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.by_port: dict[int, str] = {}
        self.open: set[Relay] = set()
        self.when_left: Callable[[str], None] | None = None

    def take(self, peer: Peer, below: asyncio.Transport, data: bytes) -> Relay:
        """Relay a connection that has begun to speak HTTP/2."""
        return Relay(self, peer, below, data)


class Relay(Http2):
    """The client's side. `data`: what it sent already."""

    def __init__(self, clients: RelayedClients, peer: Peer, below: asyncio.Transport, data: bytes) -> None:
        self.address = peer.address
        self._clients, self._peer, self._below = clients, peer, below
        self._early = data
        self._messages = UnfinishedMessages()
        self._look_at(data)
        self._inner: Inner | None = None
        self._forgotten = False
        self._timer: asyncio.TimerHandle | None = None
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
            log.warning("%s: the gRPC server does not answer: %s", self.address, e.strerror or e)
            self._below.abort()
            return
        if self._below.is_closing():
            inner.end()
            return
        self._inner = inner
        self._clients.by_port[inner.port] = self.address
        early, self._early = self._early, b""
        inner.write(early)
        if not inner.is_paused:
            self._below.resume_reading()

    # -- the client ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        inner = self._inner
        self._look_at(data)
        if inner is None:
            self._early += data
            return
        inner.write(data)
        if inner.is_paused:
            self._below.pause_reading()

    def _look_at(self, data: bytes) -> None:
        messages = self._messages
        messages.feed(data)
        if (oldest := messages.oldest) is not None and self._peer.bounds is not None:
            self._peer.bounds.unfinished(self, oldest, messages.held)

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
        if self._peer.bounds is not None:
            self._peer.bounds.closed(self)
        if self._clients.when_left is not None:
            self._clients.when_left(self.address)
        self._dial.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._inner is not None:
            self._forget()
            self._inner.end()
        self._peer.connection_lost(exc)

    # -- the gRPC server -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send to the client."""
        self._below.write(data)

    def inner_paused(self) -> None:
        """Read no more: the gRPC server does not."""
        self._below.pause_reading()

    def inner_resumed(self) -> None:
        """Read again."""
        if not self._below.is_closing():
            self._below.resume_reading()

    def inner_lost(self) -> None:
        """End the client's connection, once all has left that the gRPC server said."""
        self._forget()
        self._below.close()

    def _forget(self) -> None:
        """Give the inner port free, once: it may be another client's as soon as its connection has ended."""
        if self._inner is not None and not self._forgotten:
            self._forgotten = True
            self._clients.by_port.pop(self._inner.port, None)


class Inner(asyncio.Protocol):
    """The side of the gRPC server. `port`: the one it is connected from; `is_paused`: it does not read."""

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
        """Say that the client sends no more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def pause_writing(self) -> None:
        self.is_paused = True
        self._outer.inner_paused()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._outer.inner_resumed()

    def pause_reading(self) -> None:
        """Take no more from the gRPC server."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on with it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._outer.inner_lost()
