"""TLS over a transport of the loop: the protocol of the transport below, the transport of the peer above.

Rule: what one read decrypts to reaches the peer in one call, and what one write encrypts to leaves in one. The loop's
own TLS is not used: it cannot go on from bytes that were read already, gives up the connection when the other side has
no more to say, and lets nobody choose when a handshake is worked on.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from rocketspark.errors import NotSent
from rocketspark.model.limited_log import LimitedLog
from rocketspark.transport.tls.client_tls import refusal

log = LimitedLog("rocketspark.transport")

# One record holds no more.
RECORD_BYTES = 16 << 10
# Records that are decrypted in one turn of the loop, some 2 us each: one read may hold 11,000 of a byte.
RECORDS_IN_TURN = 512
# What may come in before the handshake is done: the longest chains of certificates are below.
HANDSHAKE_BYTES_MAX = 256 << 10


class Above(Protocol):
    """What reads and writes over a TLS connection: its peer, or what stands in for the peer."""

    address: str

    def data_received(self, data: bytes, /) -> None: ...

    def eof_received(self) -> bool | None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class TlsStream(asyncio.Transport, asyncio.Protocol):
    """One TLS connection, between the loop's transport and a peer.

    `server_name`: on a client, the name that the server's certificate must be for; None on a server. `shaken`: called
    when the handshake has ended, with its error, or None for success.
    """

    def __init__(
        self,
        peer: Above,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_name: str | None = None,
        shaken: Callable[[Exception | None], None],
    ) -> None:
        super().__init__()
        self._peer = peer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_side=server_side, server_hostname=server_name)
        self._shaken: Callable[[Exception | None], None] | None = shaken
        self._below: asyncio.Transport | None = None
        self._ready = False
        self._closing = False
        self._ended_already = False
        self._received_bytes = 0
        # The peer wants to read no more; the rest of what came waits for its turn.
        self._is_paused = False
        self._next_turn: asyncio.Handle | None = None
        # Why the connection ended, if it is known.
        self.error: Exception | None = None
        # Where a server decides when a step of the handshake is made.
        self.turn: Callable[[TlsStream], None] | None = None

    # -- the protocol of the transport below -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        if not self._object.server_side:
            self.shake()

    def go_on_with(self, above: Above) -> None:
        """Hand what is received from now on to `above`."""
        self._peer = above

    def begin(self, below: asyncio.Transport, data: bytes) -> None:
        """Take over a transport from which `data`, the connection's first bytes, was read already."""
        self._below = below
        below.set_protocol(self)
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        self._in.write(data)
        if self._ready:
            self._read()
            return
        self._received_bytes += len(data)
        if self.turn is None:
            self.shake()
        else:
            self.turn(self)

    def shake(self) -> None:
        """Continue the handshake with the bytes that have come in."""
        if self._ready or self.is_closing():
            return
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            # Not before: what came may be its end, with much behind it.
            if self._received_bytes > HANDSHAKE_BYTES_MAX:
                self._failed(ssl.SSLError(ssl.SSL_ERROR_SSL, "more bytes than a handshake has"))
            else:
                self._flush()
            return
        except (ssl.SSLError, ValueError) as e:
            self._failed(e)
            return
        self._ready = True
        self._flush()
        self._tell(None)
        if self._in.pending or self._object.pending():
            self._read()

    def _tell(self, error: Exception | None) -> None:
        told, self._shaken = self._shaken, None
        if told is not None:
            told(error)

    def _failed(self, error: Exception) -> None:
        self.error = error
        self._flush()
        self._tell(error)
        if self._below is not None:
            # The other side learns why: the alert leaves before the end.
            self._below.close()

    def _read(self) -> None:
        read, pending, within = self._object.read, self._in, self._object.pending
        chunks: list[bytes] = []
        ended = False
        try:
            while True:
                chunk = read(RECORD_BYTES)
                if not chunk:
                    ended = True
                    break
                chunks.append(chunk)
                if not pending.pending and not within():
                    break
                if len(chunks) >= RECORDS_IN_TURN:
                    self._read_later()
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as e:
            self.error = e
        if self._out.pending:
            self._flush()
        if chunks:
            self._peer.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if self.error is not None:
            self._broken()
        elif ended:
            self._ended()

    def _read_later(self) -> None:
        """Decrypt the rest of what came once other connections had a turn; nothing more is received until then."""
        if self._below is not None and self._next_turn is None:
            self._below.pause_reading()
            self._next_turn = asyncio.get_running_loop().call_soon(self._read_rest)

    def _read_rest(self) -> None:
        self._next_turn = None
        if self.is_closing():
            return
        self._read()
        if self._next_turn is None and not self._is_paused:
            self.resume_reading()

    def _broken(self) -> None:
        if self._below is not None and not self._below.is_closing():
            log.info("%s: TLS ended with an error: %s", self._peer.address, getattr(self.error, "reason", self.error))
            self._below.close()

    def _ended(self) -> None:
        """The other side sends no more: what it asked for is still answered."""
        if self._below is not None and not self._below.is_closing():
            self.eof_received()

    def abandon(self, reason: str) -> None:
        """Give up the handshake and close the connection; `error` keeps the reason."""
        self.error = ConnectionAbortedError(reason)
        self.abort()

    def eof_received(self) -> bool:
        if not self._ready:
            self._failed(ConnectionResetError("the connection ended during the TLS handshake"))
            return False
        if self._ended_already:
            return not self.is_closing()
        self._ended_already = True
        keep = bool(self._peer.eof_received())
        if not keep:
            self.close()
        return keep

    def pause_writing(self) -> None:
        if self._ready:
            self._peer.pause_writing()

    def resume_writing(self) -> None:
        if self._ready:
            self._peer.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._below = None
        if self._next_turn is not None:
            self._next_turn.cancel()
        error = self.error or exc
        if refused := refusal(error):
            error = NotSent(f"{self._peer.address} {refused}", address=self._peer.address)
        self._tell(error or ConnectionResetError("the connection ended during the TLS handshake"))
        if self._ready or self._object.server_side:
            self._peer.connection_lost(error)

    # -- the transport of the peer above -----------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Encrypt and send. Before the handshake is done and after the end the data is dropped."""
        if not self._ready or self._closing or self._below is None or not data:
            return
        try:
            written = self._object.write(data)
            if written < len(data):
                view = memoryview(data)
                while written < len(view):
                    written += self._object.write(view[written:])
        except ssl.SSLError as e:
            self.error = e
            self._broken()
            return
        self._below.write(self._out.read())

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        """Encrypt and send what several buffers hold, in full records."""
        self.write(b"".join(list_of_data))

    def _flush(self) -> None:
        if self._out.pending and self._below is not None:
            self._below.write(self._out.read())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the peer is told to pause: counted in encrypted bytes."""
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes wait."""
        return self._below.get_write_buffer_size() if self._below is not None else 0

    def pause_reading(self) -> None:
        """Receive no more from the other side. What was decrypted already is still handed over."""
        self._is_paused = True
        if not self.is_closing():
            assert self._below is not None
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """Take data from the other side again, after `pause_reading`."""
        self._is_paused = False
        if not self.is_closing() and self._next_turn is None:
            assert self._below is not None
            self._below.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `ssl_object`, `sslcontext`, or what the transport below knows."""
        if name == "ssl_object":
            return self._object
        if name == "sslcontext":
            return self._object.context
        return self._below.get_extra_info(name, default) if self._below is not None else default

    def is_closing(self) -> bool:
        """True from `close` on."""
        return self._closing or self._below is None or self._below.is_closing()

    def close(self) -> None:
        """Tell the other side that the connection ends, and close it once all that was written is sent."""
        if self._below is None or self._closing:
            return
        self._closing = True
        if self._ready and self.error is None:
            try:
                self._object.unwrap()
            except (ssl.SSLError, ValueError):
                pass  # It would wait for the other side's end, which nobody needs.
            self._flush()
        self._below.close()

    def abort(self) -> None:
        """Close at once."""
        if self._below is not None:
            self._below.abort()
