"""A blocking connection with many requests in flight. Rule: replies stay in the buffer that received them.

Lean on purpose: bodies of pulls are decoded straight from the receive buffer, so a frame costs microseconds.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from rocketspark.errors import ConnectionLost, FrameError, NoReply, NotSent
from rocketspark.protocol import frames, headers
from rocketspark.protocol.headers import Header
from rocketspark.tables.client_access import Access
from rocketspark.transport.connections import parse_address
from rocketspark.transport.request_frames import RequestForm, request
from rocketspark.transport.tls.client_tls import ClientTls, explain, refusal

BUFFER_BYTES = 8 << 20
CONNECT_TIMEOUT_S = 3.0
# The buffers that were filled last, by any connection of this process: a bound on what it keeps of them.
_used: deque[bytearray] = deque(maxlen=6)


class PipelinedReply(NamedTuple):
    """A reply whose body is `buffer[start:end]`; `ext` is JSON for `headers.decode_ext`.

    `buffer` is a view: what it shows is not written over as long as it, or anything made over it, is there.
    """

    opaque: int
    code: int
    remark: str | None
    ext: bytes | msgspec.Raw
    buffer: memoryview
    start: int
    end: int


class PipelinedConnection:
    """An open connection to "host:port". Raises NotSent if it cannot be made."""

    def __init__(self, address: str, *, timeout_ms: float, access: Access) -> None:
        self.address = address
        self._signer = access.signer()
        tls = access.checked_tls()
        self._timeout_ms = timeout_ms
        self._opaque = 0
        self._waiting: list[bytes] = []
        self._buffer = _buffer(0)
        # The view that replies hold of the buffer: a buffer in use cannot be resized, which `_is_free` tests.
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._taken = 0
        host, port = parse_address(address)
        try:
            self._socket = socket.create_connection((host, port), min(CONNECT_TIMEOUT_S, timeout_ms / 1000))
        except OSError as e:
            text = f"cannot connect to {address}: {e.strerror or e}; check the address and that the server runs"
            raise NotSent(text, address=address) from None
        if tls is not None:
            self._socket = _secured(self._socket, address, tls)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(timeout_ms / 1000)

    def send(self, code: int, header: Header | dict[str, str], body: bytes = b"") -> int:
        """Send a request, at the latest with the next `receive`; return the number its reply will carry.

        `header`: typed, or its ext fields, to which a signature is added.
        """
        self._opaque += 1
        ext = headers.to_ext(header) if isinstance(header, Header) else header
        if self._signer is not None:
            self._signer.before_request(self.address, code, ext, body)
        self._waiting.append(request(code, ext, body, opaque=self._opaque))
        return self._opaque

    def requests(self, code: int, header: Header, *varying: str) -> Callable[..., int]:
        """Return a function that sends a request like this one. Its arguments are the numbers that differ from request
        to request: those of the header's fields `varying`, in this order.
        """
        ext = headers.to_ext_of(header, *varying)
        if self._signer is not None:
            return lambda *values: self.send(code, ext(*values))
        form = RequestForm(code, ext, len(varying))

        def send(*values: int) -> int:
            self._opaque += 1
            self._waiting.append(form.filled(self._opaque, values))
            return self._opaque

        return send

    def flush(self) -> None:
        """Send the requests that were gathered: 32 small ones at once cost as much as two one by one. Raises
        ConnectionLost.
        """
        waiting, self._waiting = self._waiting, []
        if waiting:
            try:
                self._socket.sendall(b"".join(waiting))
            except OSError as e:
                raise self._lost(e) from None

    def receive(self) -> list[PipelinedReply]:
        """Return the next replies, at least one. Raises NoReply, ConnectionLost, FrameError."""
        self.flush()
        replies = self._whole()
        while not replies:
            self._make_room()
            try:
                count = self._socket.recv_into(self._view[self._filled :])
            except TimeoutError:
                raise NoReply(
                    f"no reply from {self.address} in {self._timeout_ms:.0f} ms", address=self.address
                ) from None
            except OSError as e:
                raise self._lost(e) from None
            if not count:
                raise self._lost(None)
            self._filled += count
            replies = self._whole()
        return replies

    def _whole(self) -> list[PipelinedReply]:
        """Return every reply that is whole in the buffer."""
        replies = []
        buffer, at = self._buffer, self._taken
        while self._filled - at >= 8:
            total = int.from_bytes(buffer[at : at + 4], "big")
            frames.check_length(total)
            end = at + 4 + total
            if end > self._filled:
                break
            mark = int.from_bytes(buffer[at + 4 : at + 8], "big")
            body = at + 8 + (mark & 0xFFFFFF)
            if body > end:
                raise FrameError(f"{self.address} sent a header of {mark & 0xFFFFFF} bytes in a frame of {total}")
            reply = self._reply(bytes(buffer[at + 8 : body]), mark >> 24, body, end)
            if reply is not None:
                replies.append(reply)
            at = end
        self._taken = at
        return replies

    def _reply(self, header: bytes, serialization: int, start: int, end: int) -> PipelinedReply | None:
        ext: bytes | msgspec.Raw
        if serialization == frames.JSON:
            try:
                head = headers.head_decoder.decode(header)
            except (msgspec.DecodeError, UnicodeDecodeError) as e:
                raise FrameError(f"{self.address} sent a header that is no JSON of RocketMQ's: {e}") from e
            code, opaque, flag, remark, ext = head.code, head.opaque, head.flag, head.remark, head.ext
        else:
            frame = frames.decode_header(header, serialization)
            code, opaque, flag, remark = frame.code, frame.opaque, frame.flag, frame.remark
            ext = msgspec.json.encode(frame.ext or {})
        if not flag & frames.RESPONSE_FLAG:
            return None  # A broker's notice to its clients; none concerns us.
        return PipelinedReply(opaque, code, remark, ext, self._view, start, end)

    def _make_room(self) -> None:
        """Go on in a new buffer when the rest of a frame would not fit: replies still refer to the old one."""
        held = self._filled - self._taken
        needed = 4 + int.from_bytes(self._buffer[self._taken : self._taken + 4], "big") if held >= 4 else 8
        if self._taken + needed <= len(self._buffer) and self._filled < len(self._buffer):
            return
        full = self._buffer
        fresh = _buffer(needed)
        fresh[:held] = self._view[self._taken : self._filled]
        self._buffer, self._view, self._filled, self._taken = fresh, memoryview(fresh), held, 0
        _used.append(full)

    def _lost(self, error: OSError | None) -> ConnectionLost:
        reason = error.strerror or error if error else "closed by the other side"
        if refused := refusal(error):
            reason = f"it {refused}"
        return ConnectionLost(f"connection to {self.address} ended before the reply: {reason}", address=self.address)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        _used.append(self._buffer)
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._filled = self._taken = 0


def _secured(plain: socket.socket, address: str, tls: ClientTls) -> ssl.SSLSocket:
    """Return the socket with TLS on it. Raises NotSent, ConfigError, with the socket closed."""
    host, _ = parse_address(address)
    try:
        return tls.context().wrap_socket(plain, server_hostname=tls.name_of(host))
    except TimeoutError:
        plain.close()
        raise NotSent(f"{address} did not finish the TLS handshake in time", address=address) from None
    except (OSError, ValueError) as e:
        plain.close()
        raise NotSent(explain(e, address, tls, host), address=address) from None
    except BaseException:
        plain.close()
        raise


def joined(parts: list[memoryview]) -> memoryview:
    """Join parts of a message in one buffer, which is used again once nothing refers to it."""
    size = sum(map(len, parts))
    buffer = _buffer(size)
    whole = memoryview(buffer)[:size]
    at = 0
    for part in parts:
        whole[at : at + len(part)] = part
        at += len(part)
    _used.append(buffer)
    return whole


def _buffer(least: int) -> bytearray:
    """Return a buffer of at least so many bytes: a used one that has no views any more, or a new one.

    New memory costs more than what is received into it: each of its pages is cleared twice and faulted in.
    """
    for _ in range(len(_used)):
        try:
            found = _used.popleft()
        except IndexError:
            break
        if len(found) >= max(least, 1) and _is_free(found):
            return found
        _used.append(found)
    return bytearray(max(BUFFER_BYTES, least))


def _is_free(buffer: bytearray) -> bool:
    """Tell whether no view or array is over a buffer: Python refuses to resize one that has any, on every version."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
