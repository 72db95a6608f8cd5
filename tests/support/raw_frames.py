"""Frames over a plain socket, written and read by hand, so that they depend on none of our code."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any


def write_frame(link: socket.socket, head: dict[str, Any], body: bytes = b"") -> None:
    """Send one frame with a JSON header."""
    header = json.dumps(head, ensure_ascii=False).encode()
    link.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)


def read_frame(link: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The JSON header and the body of the next frame. Raises ConnectionError if the other side ends."""
    (total,) = struct.unpack(">I", _read(link, 4))
    frame = _read(link, total)
    header_bytes = struct.unpack(">I", frame[:4])[0] & 0xFFFFFF
    header: dict[str, Any] = json.loads(frame[4 : 4 + header_bytes])
    return header, frame[4 + header_bytes :]


def _read(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            raise ConnectionError("closed by the other side")
        data += part
    return data
