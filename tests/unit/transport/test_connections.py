"""Addresses, dialling, and one shared connection per address."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.live.support import run, until

from rocketspark.errors import ConfigError, ConnectionLost, NotSent
from rocketspark.transport.connections import Connections, dial, in_one_form, parse_address, parse_addresses
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply
from rocketspark.transport.server import Server


def test_addresses() -> None:
    assert parse_address("127.0.0.1:9876") == ("127.0.0.1", 9876)
    assert parse_address(" broker.example:1 ") == ("broker.example", 1)
    assert parse_address("[::1]:65535") == ("::1", 65535)
    assert parse_addresses("a:1;b:2") == parse_addresses(" a:1 , b:2 ;") == ["a:1", "b:2"]
    assert parse_addresses("http://a:1") == ["a:1"]
    assert in_one_form("b:2, A:1;b:2") == in_one_form("http://a:1;b:2") == "a:1;b:2"


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":9876", "host:0", "host:65536", "host:-1", "host:x", "host:9876x", "host:٣", "host:²"],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port is needed, such as 127"):
        parse_address(address)
    with pytest.raises(ConfigError, match="host:port is needed, such as 127"):
        parse_addresses(address)
    if address:
        with pytest.raises(ConfigError, match="host:port is needed"):
            parse_addresses(f"a:1;{address}")


def unused_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def test_nobody_there_is_not_sent_and_names_the_address() -> None:
    async def main() -> None:
        address = f"127.0.0.1:{unused_port()}"
        with pytest.raises(NotSent, match=rf"cannot connect to {address}: .*check the address") as e:
            await dial(address)
        assert e.value.address == address
        assert e.value.retriable
        with pytest.raises(NotSent, match=r"cannot connect to no-such-host\.invalid:9876"):
            await dial("no-such-host.invalid:9876")

    run(main())


def test_a_host_that_does_not_answer_ends_in_time() -> None:
    async def main() -> None:
        # A listening socket whose queue is full takes no connection.
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            address = f"127.0.0.1:{full.getsockname()[1]}"
            fillers = []
            try:
                for _ in range(4):
                    filler = socket.socket()
                    filler.setblocking(False)
                    filler.connect_ex(full.getsockname())
                    fillers.append(filler)
                with pytest.raises(NotSent, match="did not accept the connection within 100 ms"):
                    await dial(address, timeout_ms=100)
            finally:
                for filler in fillers:
                    filler.close()

    run(main())


def echo() -> Routes:
    routes = Routes()
    routes.add(1, lambda peer, request, body: reply(request.opaque, body=body))
    return routes


def test_all_who_ask_share_one_connection() -> None:
    async def main() -> None:
        server = Server(echo())
        await server.start("127.0.0.1", 0)
        connections = Connections()
        assert connections.open_peer(server.address) is None
        peers = await asyncio.gather(*(connections.get(server.address) for _ in range(10)))
        assert len({id(p) for p in peers}) == 1
        assert connections.open_peer(server.address) is peers[0] is await connections.get(server.address)
        assert (await peers[0].request(1, None, b"hello")).body == b"hello"

        # Lost, it is opened anew at the next use.
        next(iter(server.peers)).abort()
        await peers[0].wait_closed()
        assert connections.open_peer(server.address) is None
        again = await connections.get(server.address)
        assert again is not peers[0]
        assert (await again.request(1, None, b"again")).body == b"again"

        connections.forget(server.address)
        await again.wait_closed()
        last = await connections.get(server.address)
        future = last.ask(1, None)
        await connections.close()
        with pytest.raises((NotSent, ConnectionLost)):
            await future
        with pytest.raises(NotSent, match="closed"):
            await connections.get(server.address)
        await until(lambda: not server.peers)
        await server.close()

    run(main())


def test_a_dial_that_failed_is_tried_again_at_the_next_use() -> None:
    async def main() -> None:
        port = unused_port()
        connections = Connections()
        results = await asyncio.gather(
            *(connections.get(f"127.0.0.1:{port}") for _ in range(3)), return_exceptions=True
        )
        assert [type(r) for r in results] == [NotSent] * 3
        server = Server(echo())
        await server.start("127.0.0.1", port)
        assert (await connections.get(server.address)).is_open
        await connections.close()
        await server.close()

    run(main())


def test_one_who_gives_up_does_not_end_the_dial_of_the_others() -> None:
    async def main() -> None:
        server = Server(echo())
        await server.start("127.0.0.1", 0)
        connections = Connections()
        impatient = asyncio.ensure_future(connections.get(server.address))
        patient = asyncio.ensure_future(connections.get(server.address))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).is_open
        await connections.close()
        await server.close()

    run(main())


def test_a_port_in_use_and_an_address_that_is_not_ours() -> None:
    async def main() -> None:
        first = Server(echo())
        await first.start("127.0.0.1", 0)
        with pytest.raises(ConfigError, match=rf"port {first.port} on 127\.0\.0\.1 is in use: stop the other program"):
            await Server(echo()).start("127.0.0.1", first.port)
        with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0.*check the address"):
            await Server(echo()).start("192.0.2.1", 0)
        await first.close()
        # Given back, the port can be taken at once.
        second = Server(echo())
        await second.start("127.0.0.1", first.port)
        await second.close()

    run(main())


@pytest.mark.shows("mended: ports of 5,000 digits or in other digits")
@pytest.mark.parametrize("port", ["9" * 5000, "\u00b2", "\u0661", "-1", "+1", "0", "65536"])
def test_a_port_is_a_bounded_whole_number(port: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        parse_address(f"127.0.0.1:{port}")
