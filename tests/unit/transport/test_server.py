"""A listening socket: how many connections it takes, and how those end that only half close."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
import sys
from typing import Any

import pytest
import uvloop
from tests.live.support import run, until

from rocketspark.protocol import frames
from rocketspark.protocol.frames import Frame
from rocketspark.transport import peer as peer_module
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply
from rocketspark.transport.server import Server
from rocketspark.transport.server_bounds import Descriptors

pytestmark = pytest.mark.shows("SYSTEM_BUSY when the broker is behind, a maximum of connections")

ECHO, SLOW, PROMISED, NEVER, LONG = 1, 2, 3, 4, 5


class Made:
    """A server, what its handlers wait for, and who closed."""

    def __init__(self, **arguments: Any) -> None:
        self.release = asyncio.Event()
        self.promises: list[tuple[Peer, int]] = []
        self.closed: list[Peer] = []
        routes = Routes()
        routes.add(ECHO, lambda peer, request, body: reply(request.opaque, body=body))
        routes.add(SLOW, self.slow)
        routes.add(PROMISED, self.promised)
        routes.add(NEVER, lambda peer, request, body: None)
        self.server = Server(routes, on_close=self.closed.append, **arguments)

    async def slow(self, peer: Peer, request: Any, body: bytes) -> bytes:
        await self.release.wait()
        return reply(request.opaque, body=body)

    def promised(self, peer: Peer, request: Any, body: bytes) -> None:
        peer.promise()
        self.promises.append((peer, request.opaque))


async def bodies(reader: asyncio.StreamReader) -> list[bytes]:
    """The bodies of all frames until the other side closed."""
    return [body for _, _, body in frames.Splitter().feed(await asyncio.wait_for(reader.read(), 120))]


def request(code: int, body: bytes = b"") -> bytes:
    return frames.encode(Frame(code=code, opaque=1, body=body))


def test_one_connection_too_many_is_closed_at_once_and_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        made = Made(connections_max=2)
        await made.server.start("127.0.0.1", 0)
        first, second = await dial(made.server.address), await dial(made.server.address)
        await until(lambda: len(made.server.peers) == 2)
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
            try:
                assert await asyncio.wait_for(reader.read(), 120) == b""
            except ConnectionResetError:
                pass
            writer.close()
        assert (await first.request(ECHO, None, b"a")).body == (await second.request(ECHO, None, b"a")).body == b"a"
        assert made.closed == []
        second.close()
        await until(lambda: len(made.closed) == 1)
        third = await dial(made.server.address)
        assert (await third.request(ECHO, None, b"b")).body == b"b"
        for peer in (first, third):
            peer.close()
        await made.server.close()

    run(main())
    lines = caplog.messages
    # At most one a second.
    assert 1 <= len(lines) <= 3
    # Connections that other tests left to their loops' end count in the process, too.
    said = r"refused: 2 connections are open here, as many as are allowed \(\d+ in this process, 1 refused so far\)"
    assert re.search(said, lines[0])


def test_what_came_before_a_broken_frame_in_the_same_read_is_answered() -> None:
    async def main() -> None:
        made = Made()
        await made.server.start("127.0.0.1", 0)
        for broken in (b"\xff" * 8, b"\0\0\0\x14\0\0\0\x20" + bytes(16), frames.join(b"no json", b"")):
            reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
            writer.write(request(ECHO, b"one") + request(ECHO, b"two") + broken + request(ECHO, b"never"))
            assert await bodies(reader) == [b"one", b"two"]
            writer.close()
        await made.server.close()

    run(main())


def test_a_client_that_half_closes_gets_what_it_asked_for() -> None:
    async def main() -> None:
        made = Made()
        await made.server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        writer.write(request(SLOW, b"slow") + request(PROMISED) + request(ECHO, b"echo"))
        writer.write_eof()
        # It has left for whoever keeps count of clients, but is still written to.
        await until(lambda: len(made.closed) == 1)
        assert made.server.peers == set()
        made.release.set()
        ((peer, opaque),) = made.promises
        await until(lambda: not peer._tasks)
        assert peer.is_open
        peer.answer(reply(opaque, body=b"promised"))
        assert await bodies(reader) == [b"echo", b"slow", b"promised"]
        await peer.wait_closed()
        assert made.closed == [peer]
        writer.close()
        await made.server.close()

    run(main())


def test_a_half_closed_connection_that_waits_for_nothing_sure_ends_at_once() -> None:
    async def main() -> None:
        made = Made()
        await made.server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        writer.write(request(NEVER) + request(ECHO, b"echo"))
        writer.write_eof()
        assert await bodies(reader) == [b"echo"]
        writer.close()
        await made.server.close()

    run(main())


def test_a_half_closed_connection_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "HALF_CLOSED_S", 0.05)

    async def main() -> None:
        made = Made()
        await made.server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        writer.write(request(PROMISED))
        writer.write_eof()
        assert await bodies(reader) == []
        writer.close()
        await made.server.close()

    run(main())


def test_a_server_that_closes_ends_half_closed_connections_too() -> None:
    async def main() -> None:
        made = Made()
        await made.server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        writer.write(request(PROMISED))
        writer.write_eof()
        await until(lambda: len(made.closed) == 1)
        await made.server.close()
        assert await bodies(reader) == []
        writer.close()

    run(main())


def test_a_server_out_of_file_descriptors_goes_on() -> None:
    """Connections that cannot be taken are closed; those that are open, and later ones, are served."""
    command = [sys.executable, "-m", "rocketspark.cli.main", "namesrv", "-p", "0"]
    shell = ["sh", "-c", 'ulimit -n 48; exec "$@"', "sh", *command]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            ask = frames.encode(Frame(code=318, opaque=1))

            def ask_all(count: int) -> int:
                """How many of `count` connections, open side by side, are answered; the others are closed."""
                lines = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(count)]
                answered = 0
                for line in lines:
                    try:
                        line.sendall(ask)
                        answered += bool(line.recv(1))
                    except OSError:
                        pass
                for line in lines:
                    line.close()
                return answered

            assert 10 < ask_all(80) < 48
            end = 200
            while ask_all(1) == 0:
                # What was closed here is not closed there yet.
                end -= 1
                assert end
        finally:
            process.terminate()
            _, log = process.communicate(timeout=120)
    assert "Traceback" not in log


@pytest.mark.shows("mended: connections take all descriptors of a process")
def test_all_servers_of_a_process_leave_descriptors_for_files(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        shared = Descriptors(3)
        one, other = Made(descriptors=shared), Made(descriptors=shared)
        await one.server.start("127.0.0.1", 0)
        await other.server.start("127.0.0.1", 0)
        peers = [await dial(one.server.address) for _ in range(3)]
        await until(lambda: len(one.server.peers) == 3)
        late = await dial(other.server.address)
        await late.wait_closed()
        assert (other.server.refused, shared.refused, shared.taken) == (1, 1, 3)
        peers.pop().close()
        await until(lambda: shared.taken == 2)
        late = await dial(other.server.address)
        assert (await late.request(ECHO, None, b"in")).body == b"in"
        for peer in (*peers, late):
            peer.close()
        await one.server.close()
        await other.server.close()
        await until(lambda: shared.taken == 0)

    run(main())
    assert "refused: 0 connections are open here, as many as are allowed (3 in this process, 1" in caplog.messages[0]


@pytest.mark.shows("mended: connections of closed loops hold descriptors of the process")
def test_connections_of_a_loop_that_was_closed_count_no_more() -> None:
    shared = Descriptors(2)

    async def take() -> bool:
        return shared.take()

    async def give_back() -> None:
        shared.give_back()

    ended, other = asyncio.new_event_loop(), uvloop.new_event_loop()
    try:
        assert [ended.run_until_complete(take()) for _ in range(3)] == [True, True, False]
        assert not other.run_until_complete(take())
        # Nobody was told that they ended.
        ended.close()
        assert shared.taken == 0
        assert [other.run_until_complete(take()) for _ in range(3)] == [True, True, False]
        other.run_until_complete(give_back())
        assert (shared.taken, shared.refused) == (1, 3)
    finally:
        ended.close()
        other.close()


def test_a_server_whose_loop_ended_under_it_leaves_no_count() -> None:
    shared = Descriptors(2)

    async def connect() -> None:
        made = Made(descriptors=shared)
        await made.server.start("127.0.0.1", 0)
        links.append(socket.create_connection((made.server.host, made.server.port)))
        await until(lambda: shared.taken == 1)

    for _ in range(5):
        links: list[socket.socket] = []
        loop = asyncio.new_event_loop()
        loop.run_until_complete(connect())
        loop.close()
        links[0].close()
    assert (shared.taken, shared.refused) == (0, 0)


@pytest.mark.shows("what waits for a later turn is answered though the client ended its side")
def test_what_waits_for_a_later_turn_is_answered_though_the_client_ended_its_side() -> None:
    async def main() -> None:
        made = Made()

        def long(peer: Peer, request: Any, body: bytes) -> bytes:
            peer.rest()
            return reply(request.opaque, body=body)

        made.server._routes.add(LONG, long)
        await made.server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        writer.write(b"".join(request(LONG, b"%d" % number) for number in range(5)))
        writer.write_eof()
        assert await bodies(reader) == [b"0", b"1", b"2", b"3", b"4"]
        writer.close()
        await made.server.close()

    run(main())


@pytest.mark.shows("mended: `_flush` rebinds `out`")
def test_what_is_sent_besides_a_run_that_ends_is_written_once() -> None:
    async def main() -> None:
        made = Made()

        def run_of(peer: Peer, data: bytes, at: int, out: list[bytes]) -> int:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if data[at:end].endswith(b"odd"):
                return at
            out.append(reply(2, body=b"run"))
            return end

        def large(peer: Peer, request: Any, body: bytes) -> bytes:
            return reply(request.opaque, body=bytes(12 << 20))

        made.server._routes.add_run(999, run_of)
        made.server._routes.add(999, large)
        await made.server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        await until(lambda: len(made.server.peers) == 1)
        (peer,) = made.server.peers
        # As when a held pull is answered in the turn in which sends are read, and more than is read after them.
        peer.send(reply(1, body=b"held"))
        peer.data_received(request(999) + request(999, b"odd"))
        writer.write_eof()
        assert await bodies(reader) == [b"held", b"run", bytes(12 << 20)]
        writer.close()
        await made.server.close()

    run(main())
