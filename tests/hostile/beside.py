"""The frame of the hostile suite: an attacker beside a normal client, on one server in the test's own loop.

Rule: while the attack goes on the normal client sends and pulls without pause, each is answered in time, and its
connection is the one it began with.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.live.support import GROUP, TOPIC, broker, connected, create, create_group, pulled, sent
from tests.support.patience import LIMIT_S

from rocketspark.broker.server import BrokerServer
from rocketspark.protocol import frames
from rocketspark.protocol.frames import Frame
from rocketspark.transport.connections import parse_address
from rocketspark.transport.peer import Peer

# A normal client's send or pull; machines are shared, so only what stands still fails.
SLOWEST_S = 10.0


class Normal:
    """A client that sends one message and pulls it, again and again."""

    def __init__(self, peer: Peer, topic: str = TOPIC) -> None:
        self._peer = peer
        self._topic = topic
        self.rounds = 0
        self.slowest_s = 0.0

    async def once(self) -> None:
        """Send one message and read it back."""
        began_s = time.monotonic()
        body = b"normal %d" % self.rounds
        offset = await sent(self._peer, body, self._topic, 1)
        assert [r.body for r in await pulled(self._peer, self._topic, 1, offset)] == [body]
        self.rounds += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)

    async def for_ever(self) -> None:
        """Go on until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(0.01)


class Beside:
    """A broker under attack. `address`: where; `attacker`: a connection of its own, made by `attack`."""

    def __init__(self, server: BrokerServer, normal: Normal) -> None:
        self.server = server
        self.normal = normal
        self.address = server.address
        self._sockets: list[Raw] = []

    async def raw(self, address: str = "") -> Raw:
        """Return one more connection of the attacker's."""
        raw = await Raw.to(address or self.address)
        self._sockets.append(raw)
        return raw

    def close(self) -> None:
        """End the attacker's connections."""
        for raw in self._sockets:
            raw.close()


class Raw:
    """A connection on which anything may be written."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, address: str) -> Raw:
        """Connect."""
        host, port = parse_address(address)
        return cls(*await asyncio.open_connection(host, port))

    async def write(self, data: bytes) -> None:
        """Write bytes; waits no longer for a server that does not read."""
        self.writer.write(data)
        with suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self.writer.drain(), 1.0)

    async def ask(self, frame: bytes) -> Frame:
        """Send a frame and return the next one that comes."""
        self.writer.write(frame)
        return await self.next()

    async def next(self) -> Frame:
        """Return the next frame."""
        head = await asyncio.wait_for(self.reader.readexactly(4), LIMIT_S)
        rest = await asyncio.wait_for(self.reader.readexactly(int.from_bytes(head, "big")), LIMIT_S)
        return frames.decode(head + rest)

    async def closed(self) -> bool:
        """Wait until the server closed it; whatever comes before is read and thrown away."""
        with suppress(ConnectionError):
            while await asyncio.wait_for(self.reader.read(1 << 16), LIMIT_S):
                pass
        return True

    @property
    def is_closed(self) -> bool:
        """True once the server's end was seen; call the loop before."""
        return self.reader.at_eof() or self.reader.exception() is not None

    def close(self) -> None:
        """Close at once."""
        sock: socket.socket | None = self.writer.get_extra_info("socket")
        if sock is not None:
            self.writer.transport.abort()


@asynccontextmanager
async def beside(root: Path, **settings: Any) -> AsyncIterator[Beside]:
    """Run a broker with a normal client at work; at the end it must have been served throughout, and still be."""
    async with broker(root, **settings) as server, connected(server.address) as peer:
        await create(peer)
        await create_group(peer, GROUP)
        normal = Normal(peer)
        await normal.once()
        work = asyncio.ensure_future(normal.for_ever())
        under = Beside(server, normal)
        try:
            yield under
            rounds = normal.rounds
            await _more(lambda: normal.rounds >= rounds + 2, work)
            assert peer.is_open
            assert normal.slowest_s < SLOWEST_S
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
            under.close()


async def _more(true: Callable[[], bool], work: asyncio.Future[None]) -> None:
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end, "the normal client stands still"
        if work.done():
            work.result()
        await asyncio.sleep(0.005)


def request(
    code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, opaque: int = 1, flag: int = 0
) -> bytes:
    """A whole request frame."""
    return frames.encode(Frame(code=code, opaque=opaque, flag=flag, ext=ext, body=body))
