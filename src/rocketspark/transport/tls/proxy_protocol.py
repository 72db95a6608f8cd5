"""The PROXY protocol, versions 1 and 2: what a proxy says of its client before the client's first byte. Pure.

Rule: bytes that are no whole header yet give None, bytes that can become none raise FrameError.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from rocketspark.errors import FrameError
from rocketspark.model.text import whole_number

TEXT_START = b"PROXY "
BINARY_START = b"\r\n\r\n\x00\r\nQUIT\n"
# The longest of version 1, line end included.
TEXT_BYTES_MAX = 107
# Of version 2, whose additional fields are passed over.
BINARY_BYTES_MAX = 4096
_BINARY_HEAD = struct.Struct(">12sBBH")
_FAMILIES = {"TCP4": 4, "TCP6": 6}


class ProxyHeader(NamedTuple):
    """`end`: bytes of the header; `host`, `port`: the client's; empty and 0 where the proxy speaks for itself."""

    end: int
    host: str
    port: int


def begins(data: bytes) -> bool:
    """Tell whether a connection's first bytes are a PROXY header, or may become one."""
    return any(data[: len(start)] == start[: len(data)] for start in (TEXT_START, BINARY_START))


def parse(data: bytes) -> ProxyHeader | None:
    """Return the PROXY header at the beginning of `data`; None if it is not whole yet. Raises FrameError."""
    if data[:1] == b"P":
        return _parse_text(data)
    return _parse_binary(data)


def _parse_text(data: bytes) -> ProxyHeader | None:
    if data[:6] != TEXT_START[: len(data)]:
        raise FrameError("no PROXY header")
    at = data.find(b"\r\n", 0, TEXT_BYTES_MAX)
    if at < 0:
        if len(data) >= TEXT_BYTES_MAX:
            raise FrameError(f"a PROXY header of more than {TEXT_BYTES_MAX} bytes")
        return None
    try:
        words = data[6:at].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise FrameError("a PROXY header that is not ASCII") from None
    if words[0] == "UNKNOWN":
        return ProxyHeader(at + 2, "", 0)
    version = _FAMILIES.get(words[0])
    if version is None or len(words) != 5:
        raise FrameError("a PROXY header of unknown form")
    _address(words[2], version)
    port = whole_number(words[3], low=0, high=65535)
    if port is None or whole_number(words[4], low=0, high=65535) is None:
        raise FrameError("a PROXY header with a port that is none")
    return ProxyHeader(at + 2, _address(words[1], version), port)


def _address(text: str, version: int) -> str:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        found = None
    if found is None or found.version != version or "%" in text:
        raise FrameError("a PROXY header with an address that is none")
    return _plain(found)


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return an address as rules and records know it: IPv4 also where a proxy wrote it as IPv6."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _parse_binary(data: bytes) -> ProxyHeader | None:
    if data[:12] != BINARY_START[: len(data)]:
        raise FrameError("no PROXY header")
    if len(data) < 16:
        return None
    _, version_and_command, family, size = _BINARY_HEAD.unpack_from(data)
    if version_and_command not in (0x20, 0x21):
        raise FrameError("a PROXY header of unknown version or command")
    if size > BINARY_BYTES_MAX:
        raise FrameError(f"a PROXY header of {size} bytes, over the limit of {BINARY_BYTES_MAX}")
    end = 16 + size
    if len(data) < end:
        return None
    if version_and_command == 0x20 or family not in (0x11, 0x21):
        # The proxy's own check of health, or a family without addresses of the internet.
        return ProxyHeader(end, "", 0)
    length = 4 if family == 0x11 else 16
    if size < 2 * length + 4:
        raise FrameError("a PROXY header too short for its addresses")
    address = ipaddress.ip_address(data[16 : 16 + length])
    return ProxyHeader(end, _plain(address), int.from_bytes(data[16 + 2 * length : 18 + 2 * length], "big"))
