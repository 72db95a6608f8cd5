"""What the connections of a server may hold together, and which of them end past it."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest
from tests.live.support import run, until

from rocketspark.transport import peer as peers
from rocketspark.transport.connections import dial
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply
from rocketspark.transport.server import Server
from rocketspark.transport.server_bounds import LOOK_S, Bounds, ConnectionBounds, Descriptors, place_of

pytestmark = pytest.mark.shows(
    "bounds of connections, frames, headers, held pulls, unread replies, log lines, on brokers, NameServers "
    "and controllers: each row of docs/develop/bounds.md is an attack beside a normal client"
)

ECHO, LARGE, SLOW, ALONE = 9001, 9002, 9003, 9004
# The head of a frame of 1 MiB.
BEGIN = (1 << 20).to_bytes(4, "big") + (10).to_bytes(4, "big")


class Made:
    """A server that echoes, answers with much, or waits."""

    def __init__(self, bounds: Bounds | None = None, **options: Any) -> None:
        self.go_on = asyncio.Event()
        self.waiting = 0
        routes = Routes()
        routes.add(ECHO, lambda peer, request, body: reply(request.opaque, body=body))
        routes.add(LARGE, lambda peer, request, body: reply(request.opaque, body=bytes(1 << 20)))
        routes.add(SLOW, lambda peer, request, body: self._slow(request.opaque))
        routes.add(ALONE, lambda peer, request, body: peer.alone(self._slow(request.opaque)))
        self.server = Server(routes, bounds=bounds, **options)

    async def _slow(self, opaque: int) -> bytes:
        self.waiting += 1
        await self.go_on.wait()
        return reply(opaque)

    async def __aenter__(self) -> Made:
        await self.server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    def stranger(self) -> socket.socket:
        made = socket.create_connection((self.server.host, self.server.port))
        made.setblocking(False)
        return made


async def ended(stranger: socket.socket) -> bool:
    """Whether the server ended the connection."""
    try:
        return not await asyncio.wait_for(asyncio.get_running_loop().sock_recv(stranger, 100), 10)
    except OSError:
        return True


async def send(stranger: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(stranger, data)


async def echoes(made: Made) -> None:
    peer = await dial(made.server.address)
    assert (await peer.request(ECHO, None, b"x")).body == b"x"
    peer.close()


def test_frames_that_do_not_end_are_bounded_in_all_and_the_oldest_give_way(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Made(Bounds(unfinished_bytes=1_200_000)) as made:
            honest = await dial(made.server.address)
            strangers = [made.stranger() for _ in range(4)]
            for stranger in strangers:
                await send(stranger, BEGIN + bytes(500_000))
                await until(lambda: made.server.bounds._unfinished_bytes > 0)
            assert await ended(strangers[0])
            assert await ended(strangers[1])
            # Its frame is larger than what is left to the others, and whole in a moment.
            assert (await honest.request(ECHO, None, bytes(800_000))).body == bytes(800_000)
            assert made.server.bounds._unfinished_bytes <= 1_200_000
            for stranger in strangers:
                stranger.close()
            honest.close()
            await until(lambda: not made.server.peers)
            assert (made.server.bounds._unfinished, made.server.bounds._unfinished_bytes) == ({}, 0)

    run(main())
    assert "of a frame that does not end, and all such frames are over 1200000: connection closed" in caplog.text


def test_a_frame_in_drops_ends_after_its_time_and_whole_ones_never(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Made(Bounds(unfinished_s=0.3)) as made:
            honest, stranger = await dial(made.server.address), made.stranger()

            async def drip() -> None:
                for byte in BEGIN + bytes(10_000):
                    await send(stranger, bytes([byte]))
                    await asyncio.sleep(0.01)

            dripping = asyncio.create_task(drip())
            assert await ended(stranger)
            dripping.cancel()
            assert made.server.bounds.ended == {"unfinished": 0, "slow": 1, "unread": 0}
            # Many frames, each begun in a read of its own, are no slow one.
            assert (await honest.request(ECHO, None, bytes(2 << 20))).body == bytes(2 << 20)
            assert honest.is_open
            stranger.close()
            honest.close()

    run(main())
    assert "and no whole one: connection closed" in caplog.text


def test_replies_that_nobody_reads_are_bounded_in_all(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Made(Bounds(unread_bytes=20 << 20)) as made:
            ask = b'{"code":%d,"flag":0,"language":"JAVA","opaque":1,"version":1}' % LARGE
            frame = (len(ask) + 4).to_bytes(4, "big") + len(ask).to_bytes(4, "big") + ask
            strangers = [made.stranger() for _ in range(6)]
            for stranger in strangers:
                # Some 5 MiB stay in the process for each of them.
                await send(stranger, frame * 30)
            await until(lambda: made.server.bounds.ended["unread"] > 0)
            await echoes(made)
            await until(lambda: sum(peer.unread_bytes for peer in made.server.peers) <= 26 << 20)
            assert made.server.bounds.ended["unread"] < 6
            for stranger in strangers:
                stranger.close()
            await until(lambda: not made.server.bounds._unread)

    run(main())
    assert "of replies unread, and all such replies are over 20971520: connection closed" in caplog.text


def test_what_grows_after_the_first_look_is_bounded_too() -> None:
    """Whatever is sent to one that does not read, beyond what it asked for."""

    class Slow:
        address = "10.0.0.7:1"

        def __init__(self) -> None:
            self.unread_bytes, self.ended = 10, False

        def abort(self) -> None:
            self.ended = True

    async def main() -> None:
        bounds = ConnectionBounds(Bounds(unread_bytes=100))
        first, second = Slow(), Slow()
        bounds.paused(first)
        bounds.paused(second)
        await asyncio.sleep(2 * LOOK_S)
        assert not first.ended
        first.unread_bytes = 200
        await until(lambda: first.ended)
        assert not second.ended
        bounds.resumed(second)
        await until(lambda: bounds._look is None)

    run(main())


def test_where_no_number_is_set_one_address_leaves_descriptors_to_others() -> None:
    """Proxies and controllers set none."""

    async def main() -> None:
        descriptors = Descriptors(8)
        async with Made(descriptors=descriptors) as made:
            strangers = [made.stranger() for _ in range(4)]
            await until(lambda: len(made.server.peers) == 4)
            first, second, *_ = made.server.peers
            give_back = made.server.take_descriptors(first, 2)
            assert give_back is not None
            assert descriptors.taken == 6
            # Of its address there are six; nothing is taken in part.
            assert made.server.take_descriptors(second, 1) is None
            strangers.append(made.stranger())
            await until(lambda: made.server.refused == 1)
            give_back()
            assert made.server.take_descriptors(second, 3) is None
            assert descriptors.taken == 4
            other = socket.socket()
            other.bind(("127.0.0.2", 0))
            other.connect((made.server.host, made.server.port))
            await until(lambda: len(made.server.peers) == 5)
            for stranger in (*strangers, other):
                stranger.close()
            await until(lambda: not made.server.peers)
            assert (made.server.bounds._by_host, descriptors.taken) == ({}, 0)

    run(main())


def test_one_address_cannot_take_every_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        async with Made(connections_max=8) as made:
            strangers = [made.stranger() for _ in range(7)]
            await until(lambda: made.server.refused == 1)
            assert len(made.server.peers) == 6
            other = socket.socket()
            other.bind(("127.0.0.2", 0))
            other.connect((made.server.host, made.server.port))
            await until(lambda: len(made.server.peers) == 7)
            for stranger in (*strangers, other):
                stranger.close()
            await until(lambda: not made.server.peers)
            assert made.server.bounds._by_host == {}
            await echoes(made)
        async with Made(Bounds(per_address=1)) as made:
            first = await dial(made.server.address)
            assert (await first.request(ECHO, None, b"x")).body == b"x"
            late = await dial(made.server.address)
            await late.wait_closed()
            first.close()
            await until(lambda: not made.server.peers)
            await echoes(made)

    run(main())
    assert "connectionsPerAddressMax" in caplog.text


def test_requests_worked_on_in_tasks_are_bounded_and_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "TASKS_MAX", 10)

    async def main() -> None:
        async with Made() as made:
            peer = await dial(made.server.address)
            asked = [peer.ask(SLOW, None) for _ in range(30)]
            await until(lambda: made.waiting == 10)
            asked += [peer.ask(SLOW, None) for _ in range(30)]
            await echoes(made)
            assert made.waiting == 10
            made.go_on.set()
            assert [r.code for r in await asyncio.gather(*asked)] == [0] * 60
            assert made.waiting == 60
            peer.close()

    run(main())


@pytest.mark.shows("no request holds the loop for long; bytes of requests in work, held requests by host")
def test_bytes_of_requests_worked_on_are_bounded_for_a_connection_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "TASK_BYTES_MAX", 10_000)
    body = bytes(4000)

    async def main() -> None:
        async with Made(Bounds(unfinished_bytes=11_000)) as made:
            bounds = made.server.bounds
            one, other, third = [await dial(made.server.address) for _ in range(3)]
            asked = [peer.ask(SLOW, None, body) for peer in (one,) * 6 + (other,) * 6]
            # A connection's own 10,000 are full with the third; all connections' 11,000 are, with the other's first.
            await until(lambda: made.waiting == 4)
            await echoes(made)
            assert (made.waiting, bounds.is_busy) == (4, True)
            assert 16_000 < bounds.worked_on_bytes < 17_000
            # Who holds nothing is served.
            await third.request(ECHO, None)
            made.go_on.set()
            assert [r.code for r in await asyncio.gather(*asked)] == [0] * 12
            await until(lambda: not bounds.worked_on_bytes)
            for peer in (one, other, third):
                peer.close()

    run(main())


def test_what_follows_a_request_that_is_answered_alone_waits_for_it() -> None:
    async def main() -> None:
        async with Made() as made:
            peer = await dial(made.server.address)
            first, then = peer.ask(ALONE, None), [peer.ask(ECHO, None), peer.ask(SLOW, None)]
            await until(lambda: made.waiting == 1)
            await echoes(made)
            then.append(peer.ask(ECHO, None))
            await echoes(made)
            assert (made.waiting, [each.done() for each in then]) == (1, [False] * 3)
            made.go_on.set()
            assert [r.code for r in await asyncio.gather(first, *then)] == [0] * 4
            peer.close()

    run(main())


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    assert place_of("10.0.0.1") == "10.0.0.1"
    assert place_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert place_of("2001:db8::1") == place_of("2001:db8::ffff:2%eth0") == "2001:db8::/64"
    assert place_of("2001:db8:0:1::1") == place_of("[2001:db8:0:1::2]") == "2001:db8:0:1::/64"
    assert place_of("odd:") == "odd:"


def test_what_may_wait_for_each_shrinks_as_connections_become_many() -> None:
    async def main() -> None:
        async with Made(Bounds(unread_bytes=8 << 20)) as made:
            strangers = [made.stranger() for _ in range(64)]
            await until(lambda: len(made.server.peers) == 64)
            limits = {p._transport.get_write_buffer_limits()[1] for p in made.server.peers if p._transport}
            assert limits == {128 << 10}
            for stranger in strangers:
                stranger.close()

    run(main())
