"""Sockets towards servers, on both loops."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from rocketspark.transport.dialing import connect_protocol, number_of, own_ip

pytestmark = pytest.mark.shows(
    "mended: a forked process that ends by `sys.exit` while its parent's client runs on uvloop died of "
    "SIGSEGV as it ended"
)

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def on(loop: str, work: Any) -> Any:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(work)


class Echoed(asyncio.Protocol):
    def __init__(self) -> None:
        self.ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.nodelay = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        self.transport = transport
        transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self.ended.set_result(data)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "localhost")]
)
def test_a_number_and_a_name(loop: str, family: int, host: str) -> None:
    with socket.socket(family) as server:
        try:
            server.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        server.listen()

        async def main() -> tuple[bytes, int]:
            made = Echoed()
            await connect_protocol(lambda: made, host, server.getsockname()[1])
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(accepted.recv(5).upper())
                found = await made.ended
            made.transport.close()
            return found, made.nodelay

        assert on(loop, main()) == (b"HELLO", 1)


@pytest.mark.parametrize("loop", LOOPS)
def test_nobody_there(loop: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        with pytest.raises(ConnectionRefusedError, match="Connection refused"):
            on(loop, connect_protocol(asyncio.Protocol, "127.0.0.1", held.getsockname()[1]))
        assert not before or len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "host", ["a" * 64, "a..b", "1.2.3.4\0", "\ud800", "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 64]
)
def test_what_can_be_no_name_is_nobodys(loop: str, host: str) -> None:
    with pytest.raises(OSError, match="can be no name of a host"):
        on(loop, connect_protocol(asyncio.Protocol, host, 9))
    with pytest.raises(OSError, match="can be no name of a host"):
        on(loop, own_ip(host, 9))


@pytest.mark.parametrize("loop", LOOPS)
def test_who_gives_up_waiting_leaves_no_socket(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose queue of connections is full answers nobody."""
    made: list[socket.socket] = []

    class Noted(socket.socket):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        monkeypatch.setattr("rocketspark.transport.dialing.socket.socket", Noted)
        with pytest.raises(TimeoutError):
            on(loop, asyncio.wait_for(connect_protocol(asyncio.Protocol, *server.getsockname()), 0.2))
    assert [each.fileno() for each in made if each.family == socket.AF_INET][-1:] == [-1]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_own_address_towards_a_server(loop: str, host: str) -> None:
    assert on(loop, own_ip(host, 9)) in ("127.0.0.1", "::1")


@pytest.mark.shows("a broker may be known to clients by a name (brokerIP1), which it looks up at its start")
@pytest.mark.parametrize("loop", LOOPS)
def test_the_number_behind_a_name(loop: str) -> None:
    assert on(loop, number_of("localhost")) == "127.0.0.1"
    assert on(loop, number_of("10.1.2.3")) == "10.1.2.3"
    assert on(loop, number_of("2001:db8::1")) == "2001:db8::1"
    for wrong in ("no-such-host.invalid", "a\0b", "x" * 300):
        with pytest.raises(OSError, match=r"."):
            on(loop, number_of(wrong))
