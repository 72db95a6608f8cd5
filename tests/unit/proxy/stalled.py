"""A client of gRPC, of a bare socket, that reads nothing unless it is told to."""

from __future__ import annotations

import socket
import struct


def http2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class Stalled:
    """A client that makes calls and lets no answer come."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self._stream = -1
        # Streams begin with a window of nothing.
        window = http2_frame(4, 0, 0, struct.pack(">HI", 4, 0))
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + window + http2_frame(4, 1, 0))

    def call(self, path: str, request: bytes, *, behind: bytes = b"") -> None:
        """Begin one; `behind`: more messages of its stream."""
        fields = [
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"x"),
            (b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"x-mq-client-id", b"c"),
        ]  # fmt: skip
        head = b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields)
        self._stream += 2
        sent = http2_frame(1, 4, self._stream, head)
        data = b"\0" + struct.pack(">I", len(request)) + request + behind
        for at in range(0, len(data), 16384):
            ends = not behind and at + 16384 >= len(data)
            sent += http2_frame(0, ends, self._stream, data[at : at + 16384])
        self.socket.sendall(sent)

    def frames_until_ping(self) -> list[tuple[int, int, bytes]]:
        """Ask for a sign, and return the frames before it: kind, stream and payload."""
        self.socket.sendall(http2_frame(6, 0, 0, b"8 octets"))
        found, data = [], b""
        while True:
            data += self.socket.recv(1 << 16)
            while len(data) >= 9 and len(data) >= 9 + (size := int.from_bytes(data[:3], "big")):
                kind, flags, stream = data[3], data[4], int.from_bytes(data[5:9], "big")
                if kind == 6 and flags & 1:
                    return found
                found.append((kind, stream, data[9 : 9 + size]))
                data = data[9 + size :]
