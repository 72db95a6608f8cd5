"""The proxy's port before a server that keeps what it gets: kinds of connections, addresses, pressure, ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocketspark.protocol import frames
from rocketspark.proxy.port import WAITING_BYTES_MAX, Port
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.server_bounds import Descriptors
from rocketspark.transport.tls import first_bytes
from rocketspark.transport.tls.first_bytes import PREFACE
from rocketspark.transport.tls.settings import TlsSettings

pytestmark = pytest.mark.shows(
    "one port: TLS (h2), plain, PROXY v1 and v2, HTTP/2 and remoting by their first bytes; a certificate made "
    "at the start, or files taken anew; back-pressure, half-closed clients, slow and half beginnings, the "
    "client's address from the connection alone"
)

WAIT_S = 10


class Kept(asyncio.Protocol):
    """A server's connection: what came, and its end."""

    def __init__(self, made: list[Kept]) -> None:
        self.made = made
        self.came = b""
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport: Any = transport
        self.made.append(self)

    def data_received(self, data: bytes) -> None:
        self.came += data
        self.changed.set()

    def eof_received(self) -> bool:
        self.ended.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    async def until(self, size: int) -> bytes:
        async with asyncio.timeout(WAIT_S):
            while len(self.came) < size:
                self.changed.clear()
                await self.changed.wait()
        return self.came


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not happened():
            await asyncio.sleep(0.005)


class Behind:
    """A port, and the connections that it makes to the server behind it."""

    def __init__(self, port: Port) -> None:
        self.port, self.made = port, list[Kept]()

    async def one(self) -> Kept:
        await until(lambda: bool(self.made and self.made[-1].came))
        return self.made[-1]

    def address_of(self, kept: Kept) -> str:
        return self.port.address_of(f"ipv4:127.0.0.1:{kept.transport.get_extra_info('peername')[1]}")


@asynccontextmanager
async def behind(**options: Any) -> AsyncIterator[Behind]:
    port = Port(**options)
    found = Behind(port)
    server = await asyncio.get_running_loop().create_server(lambda: Kept(found.made), "127.0.0.1", 0)
    await port.start("127.0.0.1", 0, server.sockets[0].getsockname()[1])
    try:
        yield found
    finally:
        await port.close()
        server.close()
        for kept in found.made:
            kept.transport.abort()


async def dial(port: Port, context: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port.server.port, ssl=context)


def any_certificate(*alpn: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


async def closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionError):
            return await reader.read() == b""
    return True


PROXY = b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\n"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "PROXY"])
def test_http2_reaches_the_server_with_the_clients_address(tls: bool, proxied: bool) -> None:
    async def run() -> None:
        async with behind(tls=TlsSettings(test_mode=True, proxy_networks="127.0.0.1")) as b:
            reader, writer = await dial(b.port, any_certificate("h2") if tls and not proxied else None)
            if proxied:
                writer.write(PROXY)
                if tls:
                    await writer.start_tls(any_certificate("h2"))
            if tls:
                assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            writer.write(PREFACE + b"settings")
            kept = await b.one()
            assert await kept.until(32) == PREFACE + b"settings"
            own = writer.get_extra_info("sockname")
            assert b.address_of(kept) == ("203.0.113.9:4711" if proxied else f"127.0.0.1:{own[1]}")
            kept.transport.write(b"x" * 100_000)
            assert await asyncio.wait_for(reader.readexactly(100_000), WAIT_S) == b"x" * 100_000
            writer.close()
            await asyncio.wait_for(kept.ended.wait(), WAIT_S)
            kept.transport.close()
            await until(lambda: not b.port.clients.open)
            with pytest.raises(Refused):
                b.address_of(kept)

    asyncio.run(run())


def test_a_preface_may_come_byte_by_byte() -> None:
    async def run() -> None:
        async with behind() as b:
            _reader, writer = await dial(b.port)
            for byte in PREFACE:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.001)
            assert (await b.one()).came == PREFACE

    asyncio.run(run())


def test_a_port_that_is_closed_ends_its_connections_and_takes_none() -> None:
    async def run() -> None:
        async with behind() as b:
            reader, writer = await dial(b.port)
            writer.write(PREFACE)
            kept, port = await b.one(), b.port.server.port
            await b.port.close()
            assert await closed(reader)
            await asyncio.wait_for(kept.ended.wait(), WAIT_S)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(run())


def test_a_proxy_header_may_come_byte_by_byte() -> None:
    async def run() -> None:
        async with behind(tls=TlsSettings(mode="disabled", proxy_networks="127.0.0.1")) as b:
            _reader, writer = await dial(b.port)
            for byte in PROXY + PREFACE:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.001)
            assert b.address_of(await b.one()) == "203.0.113.9:4711"

    asyncio.run(run())


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_remoting_is_answered_on_the_same_port(tls: bool) -> None:
    async def run() -> None:
        async with behind() as b:
            reader, writer = await dial(b.port, any_certificate() if tls else None)
            head = b'{"code":9999,"flag":0,"language":"JAVA","opaque":7,"version":0}'
            writer.write(frames.join(head, b""))
            size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), WAIT_S), "big")
            assert b"request type 9999 not supported" in await reader.readexactly(size)
            assert b.made == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("mode", "first"),
    [
        ("enforcing", PREFACE),
        ("enforcing", b"\0\0\0\x10{}"),
        ("disabled", b"\x16\x03\x01\x00\x05hello"),
        ("permissive", b"GET / HTTP/1.1\r\n\r\n"),
        ("permissive", b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n"),
        ("permissive", PROXY + PREFACE),
    ],
)
def test_what_is_not_taken_is_closed(mode: str, first: bytes) -> None:
    async def run() -> None:
        async with behind(tls=TlsSettings(mode=mode, test_mode=mode != "disabled")) as b:
            reader, writer = await dial(b.port)
            writer.write(first)
            assert await closed(reader)
            assert b.made == []

    asyncio.run(run())


@pytest.mark.parametrize("first", [PREFACE[:23], b"P", b"PRI"], ids=["23", "1", "3"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_half_a_preface_does_not_hold_a_connection(first: bytes, tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_bytes, "TIME_MAX_S", 0.05)

    async def run() -> None:
        async with behind() as b:
            reader, writer = await dial(b.port, any_certificate("h2") if tls else None)
            writer.write(first)
            assert await closed(reader)
            assert b.made == []
            assert not b.port.server.peers

    asyncio.run(run())


def test_a_client_is_read_no_faster_than_the_server_takes() -> None:
    async def run() -> None:
        async with behind() as b:
            _reader, writer = await dial(b.port)
            writer.write(PREFACE)
            kept = await b.one()
            kept.transport.pause_reading()
            # Frames of 16 KiB, as large as they may be.
            block = ((16375).to_bytes(3, "big") + b"\x06" + bytes(5 + 16375)) * 64
            sent = 0
            with contextlib.suppress(TimeoutError):
                for _ in range(64):
                    writer.write(block)
                    await asyncio.wait_for(writer.drain(), 0.3)
                    sent += len(block)
            assert sent < 32 << 20
            [relay] = b.port.clients.open
            assert relay._inner is not None and relay._inner._transport is not None  # noqa: PT018
            assert relay._inner._transport.get_write_buffer_size() < WAITING_BYTES_MAX + (1 << 20)
            kept.transport.resume_reading()
            await asyncio.wait_for(writer.drain(), WAIT_S)
            await kept.until(24 + sent + len(block))

    asyncio.run(run())


def test_an_inner_port_that_is_anothers_by_now_stays_his() -> None:
    async def run() -> None:
        async with behind() as b:
            _reader, writer = await dial(b.port)
            writer.write(PREFACE)
            kept = await b.one()
            number = kept.transport.get_extra_info("peername")[1]
            [relay] = b.port.clients.open
            relay.inner_lost()
            assert number not in b.port.clients.by_port
            # While the client's side still ends, the system gives the port to another connection.
            b.port.clients.by_port[number] = "another client"
            await until(lambda: not b.port.clients.open)
            assert b.address_of(kept) == "another client"
            with pytest.raises(Refused):
                b.port.address_of(f"ipv4:127.0.0.2:{number}")

    asyncio.run(run())


def test_the_server_is_read_no_faster_than_a_client_takes() -> None:
    async def run() -> None:
        async with behind() as b:
            reader, writer = await dial(b.port)
            writer.write(PREFACE)
            kept = await b.one()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            said = (b"\xff\xff\xff" + bytes(6 + 0xFFFFFF)) * 4
            kept.transport.write(said)
            await asyncio.sleep(0.3)
            [relay] = b.port.clients.open
            assert kept.transport.get_write_buffer_size() > 32 << 20
            assert relay._below.get_write_buffer_size() < 2 << 20
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert await asyncio.wait_for(reader.readexactly(len(said)), WAIT_S) == said

    asyncio.run(run())


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_a_client_that_ended_its_side_is_answered(tls: bool) -> None:
    async def run() -> None:
        async with behind() as b:
            reader, writer = await dial(b.port, any_certificate("h2") if tls else None)
            writer.write(PREFACE + b"last words")
            kept = await b.one()
            if not tls:
                writer.write_eof()
                await asyncio.wait_for(kept.ended.wait(), WAIT_S)
            kept.transport.write(b"answer")
            kept.transport.close()
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b"answer"

    asyncio.run(run())


def test_connections_take_three_descriptors_each() -> None:
    async def run() -> None:
        descriptors = Descriptors(5)
        async with behind(descriptors=descriptors) as b:
            _reader, writer = await dial(b.port)
            writer.write(PREFACE)
            kept = await b.one()
            assert descriptors.taken == 3
            second, other = await dial(b.port)
            other.write(PREFACE)
            assert await closed(second)
            kept.transport.close()
            await until(lambda: not descriptors.taken)

    asyncio.run(run())


def test_a_server_that_is_gone_ends_the_connection() -> None:
    async def run() -> None:
        async with behind() as b:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                b.port.clients.port = free.getsockname()[1]
                reader, writer = await dial(b.port)
                writer.write(PREFACE)
                assert await closed(reader)

    asyncio.run(run())


def test_an_unreadable_frame_ends_its_connection_alone() -> None:
    async def run() -> None:
        async with behind() as b:
            _, other = await dial(b.port)
            other.write(PREFACE)
            kept = await b.one()
            reader, writer = await dial(b.port)
            writer.write(b"\x00\xff\xff\xff\x00")
            writer.write_eof()
            assert await closed(reader)
            other.write(b"more")
            assert await kept.until(28) == PREFACE + b"more"

    asyncio.run(run())
