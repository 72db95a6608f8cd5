"""Servers that are hostile to our client: what they send is an error in time, for their own connection alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.live.support import run

from rocketspark.client.connection.nameserver_discovery import fetch_addresses
from rocketspark.errors import ConnectionLost, NoReply, RocketSparkError
from rocketspark.protocol import frames
from rocketspark.protocol.frames import Frame
from rocketspark.transport.connections import Connections
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply
from rocketspark.transport.server import Server

pytestmark = pytest.mark.shows(
    "servers that are hostile to our client: giant and deep frames, foreign answers, slow bodies, silence, "
    "NameServer lists that drip or redirect"
)

Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BEGIN = (16 << 20).to_bytes(4, "big") + (10).to_bytes(4, "big")


async def giant(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((1 << 31).to_bytes(4, "big") * 2)


async def deep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(frames.join(b'{"code":0,"flag":1,"extFields":' + b"[" * 5000 + b"]" * 5000 + b"}"))


async def fields(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(frames.encode(Frame(code=0, flag=1, ext={f"k{n}": "" for n in range(5000)})))


async def foreign(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers to what nobody asked."""
    for opaque in range(1000, 3000):
        writer.write(reply(opaque))


async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A body in drops."""
    writer.write(BEGIN)
    while not writer.is_closing():
        writer.write(b"x")
        await asyncio.sleep(0.01)


async def asking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Requests instead of an answer."""
    for opaque in range(2000):
        writer.write(frames.encode(Frame(code=220, opaque=opaque)))


async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """No answer at all, and what is asked is not read."""
    reader._transport.pause_reading()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (giant, ConnectionLost),
        (deep, ConnectionLost),
        (fields, ConnectionLost),
        (foreign, NoReply),
        (slow, NoReply),
        (asking, NoReply),
        (nothing, NoReply),
    ],
    ids=["giant frame", "deep header", "many fields", "wrong opaque", "slow body", "requests", "silence"],
)
def test_a_server_that_is_none(act: Act, error: type[RocketSparkError]) -> None:
    async def main() -> None:
        routes = Routes()
        routes.add(1, lambda peer, request, body: reply(request.opaque, body=body))
        good = Server(routes)
        await good.start("127.0.0.1", 0)

        async def bad(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(8)
            try:
                await act(reader, writer)
                await reader.read()
            except ConnectionError:
                pass
            finally:
                writer.close()

        listening = await asyncio.start_server(bad, "127.0.0.1", 0)
        host, port = listening.sockets[0].getsockname()[:2]
        connections = Connections()
        try:
            beside = await connections.get(good.address)
            peer = await connections.get(f"{host}:{port}")
            asked = peer.ask(1, None, b"x", timeout_ms=400)
            for _ in range(20):
                assert (await beside.request(1, None, b"y")).body == b"y"
            with pytest.raises(error):
                await asked
            assert not peer._pending
            assert (await beside.request(1, None, b"z")).body == b"z"
            assert beside.is_open
        finally:
            await connections.close()
            listening.close()
            await good.close()

    run(main())


async def drip_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"1")
        await asyncio.sleep(0.02)


async def drip_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(120):
        writer.write(b"X%d: y\r\n" % number)
        await asyncio.sleep(0.02)


async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    port = writer.get_extra_info("sockname")[1]
    writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n" % port)
    writer.close()


async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x1b[2J nonsense\r\n\r\n")
    writer.close()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (1 << 20))
    writer.close()


@pytest.mark.parametrize("act", [drip_body, drip_head, redirect, nonsense, endless])
def test_a_list_of_nameservers_that_is_none(act: Act) -> None:
    async def main() -> None:
        async def bad(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                await act(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        listening = await asyncio.start_server(bad, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        try:
            with pytest.raises(RocketSparkError) as raised:
                await asyncio.wait_for(fetch_addresses(f"http://127.0.0.1:{port}/", 300), 20)
            assert "\n" not in str(raised.value)
            assert "\x1b" not in str(raised.value)
            assert len(str(raised.value)) < 1000
        finally:
            listening.close()

    run(main())
