"""A server with one handler, its certificates, and raw TLS to it byte by byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.certificates import Issuer, Pair

from rocketspark.protocol import frames
from rocketspark.protocol.frames import Frame
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply
from rocketspark.transport.server import Server
from rocketspark.transport.tls.settings import TlsSettings

ECHO, WHO, LATER = 1, 2, 3


def settings(issuer: Issuer, pair: Pair | None = None, **more: Any) -> TlsSettings:
    cert, key = pair or issuer.pair()
    return TlsSettings(cert_path=cert, key_path=key, **more)


@asynccontextmanager
async def serving(tls: TlsSettings | None, *, tls_names: Iterable[str] = (), **more: Any) -> AsyncIterator[Server]:
    """ECHO answers the body, WHO the address of who asks, LATER the body after a turn of the loop."""

    async def later(request: Any, body: bytes) -> bytes:
        await asyncio.sleep(0.01)
        return reply(request.opaque, body=body)

    routes = Routes()
    routes.add(ECHO, lambda peer, request, body: reply(request.opaque, body=body))
    routes.add(
        WHO, lambda peer, request, body: reply(request.opaque, body=f"{peer.address} {peer.packed_host.hex()}".encode())
    )
    routes.add(LATER, lambda peer, request, body: later(request, body))
    server = Server(routes, tls=tls, **more)
    await server.start("127.0.0.1", 0, tls_names=tls_names)
    try:
        yield server
    finally:
        await server.close()


def place(server: Server) -> tuple[str, int]:
    return server.host, server.port


def request(code: int, body: bytes = b"", opaque: int = 1) -> bytes:
    return frames.encode(Frame(code=code, opaque=opaque, body=body))


def bodies(data: bytes) -> list[bytes]:
    return [body for _, _, body in frames.Splitter().feed(data)]


class RawTls:
    """A client's end, its bytes in the test's hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
        self.reader, self.writer = reader, writer
        self.inside, self.outside = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.inside, self.outside, server_side=False)

    async def shake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                await self.more()
            else:
                await self.flush()
                return

    async def more(self) -> None:
        data = await self.reader.read(65536)
        if not data:
            raise EOFError
        self.inside.write(data)

    async def flush(self, step: int = 0) -> None:
        data = self.outside.read()
        for at in range(0, len(data), step or max(len(data), 1)):
            if self.writer.is_closing():
                raise ConnectionResetError  # uvloop has no error of connections for this.
            self.writer.write(data[at : at + (step or len(data))])
            if step:
                await asyncio.sleep(0)
        await self.writer.drain()

    async def send(self, data: bytes, step: int = 0) -> None:
        self.tls.write(data)
        await self.flush(step)

    async def rest(self) -> bytes:
        """Everything until the server's end."""
        found = b""
        while True:
            try:
                part = self.tls.read(65536)
                if not part:
                    return found
                found += part
            except ssl.SSLWantReadError:
                await self.more()
            except ssl.SSLZeroReturnError:
                return found


async def raw_tls(host: str, port: int, **more: Any) -> RawTls:
    """Connected, and not shaken yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for name, value in more.items():
        setattr(context, name, value)
    reader, writer = await asyncio.open_connection(host, port)
    return RawTls(reader, writer, context)
