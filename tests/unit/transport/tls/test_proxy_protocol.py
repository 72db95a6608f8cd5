"""PROXY headers: the specification's examples, every cut of them, and bytes that are none."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import FrameError
from rocketspark.transport.tls.first_bytes import FirstBytes, Front
from rocketspark.transport.tls.proxy_protocol import ProxyHeader, begins, parse
from rocketspark.transport.tls.server_contexts import ServerContexts
from rocketspark.transport.tls.settings import TlsSettings

pytestmark = pytest.mark.shows("PROXY v1 and v2 before either, from trusted networks")

BINARY = bytes.fromhex("0d0a0d0a000d0a515549540a")
V4 = bytes([10, 1, 2, 3, 10, 0, 0, 1]) + struct.pack(">HH", 51234, 10911)
V6 = ipaddress.ip_address("2001:db8::1").packed + ipaddress.ip_address("2001:db8::2").packed + b"\xc8\x22\x2a\x9f"
HEADERS = [
    (b"PROXY TCP4 10.1.2.3 10.0.0.1 51234 10911\r\n", "10.1.2.3", 51234),
    (b"PROXY TCP6 2001:db8::1 2001:db8::2 51234 10911\r\n", "2001:db8::1", 51234),
    (b"PROXY TCP6 ::ffff:10.1.2.3 ::1 1 2\r\n", "10.1.2.3", 1),
    (b"PROXY UNKNOWN\r\n", "", 0),
    (b"PROXY UNKNOWN ffff:f... 65535 whatever\r\n", "", 0),
    (BINARY + b"\x21\x11\x00\x0c" + V4, "10.1.2.3", 51234),
    (BINARY + b"\x21\x11\x00\x10" + V4 + b"\x04\x00\x01x", "10.1.2.3", 51234),
    (BINARY + b"\x21\x21\x00\x24" + V6, "2001:db8::1", 51234),
    (BINARY + b"\x20\x00\x00\x00", "", 0),
    (BINARY + b"\x20\x11\x00\x0c" + V4, "", 0),
    (BINARY + b"\x21\x31\x00\x02ab", "", 0),
]


@pytest.mark.parametrize(("data", "host", "port"), HEADERS)
def test_a_header_is_read_and_each_part_of_it_waits_for_the_rest(data: bytes, host: str, port: int) -> None:
    assert parse(data) == parse(data + b"more") == ProxyHeader(len(data), host, port)
    for end in range(1, len(data)):
        assert begins(data[:end])
        assert parse(data[:end]) is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"PROXY TCP4 10.1.2.3 10.0.0.1 51234\r\n", "unknown form"),
        (b"PROXY TCP5 10.1.2.3 10.0.0.1 1 2\r\n", "unknown form"),
        (b"PROXY TCP4 10.1.2.3 10.0.0.1 1 2 3\r\n", "unknown form"),
        (b"PROXY TCP4 2001:db8::1 10.0.0.1 1 2\r\n", "address"),
        (b"PROXY TCP4 10.1.2.3 x 1 2\r\n", "address"),
        (b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", "address"),
        (b"PROXY TCP4 10.1.2.3 10.0.0.1 65536 2\r\n", "port"),
        (b"PROXY TCP4 10.1.2.3 10.0.0.1 1 -2\r\n", "port"),
        (b"PROXY TCP4 10.1.2.3 10.0.0.1 1\xff 2\r\n", "ASCII"),
        (b"PROXY " + b"x" * 101, "more than 107 bytes"),
        (b"PROXX", "no PROXY header"),
        (BINARY + b"\x11\x11\x00\x0c" + V4, "version or command"),
        (BINARY + b"\x22\x11\x00\x0c" + V4, "version or command"),
        (BINARY + b"\x21\x11\xff\xff", "over the limit of 4096"),
        (BINARY + b"\x21\x11\x00\x0b" + V4[:11], "too short"),
        (BINARY + b"\x21\x21\x00\x0c" + V4, "too short"),
    ],
)
def test_bytes_that_become_no_header_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        parse(data)


starts = st.sampled_from(
    [b"P", b"PROXY ", b"PROXY TCP4 ", b"\r", BINARY, BINARY + b"\x21\x11", BINARY + b"\x21\x21\x00\x24"]
)


@given(starts, st.binary(max_size=300))
def test_odd_bytes_wait_or_are_refused_and_never_for_long(start: bytes, rest: bytes) -> None:
    data = start + rest
    try:
        found = parse(data)
    except FrameError:
        return
    if found is None:
        assert len(data) < 16 + 4096
    else:
        assert found.end <= len(data)
        if found.host:
            assert ipaddress.ip_address(found.host)
            assert 0 <= found.port <= 65535


@given(st.ip_addresses(), st.integers(0, 65535), st.binary(max_size=40))
def test_what_is_written_is_read(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, more: bytes
) -> None:
    mapped = getattr(address, "ipv4_mapped", None)
    host = str(mapped or address)
    text = f"PROXY TCP{address.version} {address} {address} {port} 1\r\n".encode()
    assert parse(text) == (len(text), host, port)
    ends = struct.pack(">HH", port, 1)
    body = address.packed * 2 + ends + more
    binary = BINARY + b"\x21" + (b"\x11" if address.version == 4 else b"\x21") + struct.pack(">H", len(body)) + body
    assert parse(binary) == (len(binary), host, port)


@pytest.mark.shows("mended: a connection whose PROXY header came in two pieces was closed if its client waited then")
def test_a_header_in_two_pieces_leaves_its_client_as_much_time_as_a_whole_one() -> None:
    async def run() -> None:
        front = Front(ServerContexts(TlsSettings(mode="permissive", proxy_networks="10.0.0.0/8")))
        peer = mock.Mock(remote_host="10.0.0.1")
        first = FirstBytes(peer, front)
        first.connection_made(mock.Mock())
        first.data_received(b"PROXY TCP4 203.0.113.9 ")
        waits = first._timer
        assert waits is not None
        first.data_received(b"10.0.0.1 4711 443\r\n")
        assert waits.cancelled()
        assert peer.mock_calls == [mock.call.connection_made(mock.ANY), mock.call.relayed_from("203.0.113.9", 4711)]

    asyncio.run(run())
