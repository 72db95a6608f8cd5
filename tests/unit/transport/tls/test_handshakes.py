"""Handshakes that are begun and not ended, and many at once: bounded in time, number and work; others go on."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import run, until
from tests.support.certificates import Issuer
from tests.support.raw_tls import ECHO, place, raw_tls, serving, settings
from tests.support.stand_ins import like

from rocketspark import machine
from rocketspark.transport.connections import dial
from rocketspark.transport.server import Server
from rocketspark.transport.tls import ClientTls
from rocketspark.transport.tls import handshakes as handshakes_module
from rocketspark.transport.tls.handshakes import Handshakes


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


def bounded(server: Server, **bounds: Any) -> Handshakes:
    assert server._front is not None
    made = server._front.handshakes = Handshakes(**bounds)
    return made


async def begun(server: Server) -> asyncio.StreamWriter:
    """A client that says hello and nothing more."""
    raw = await raw_tls(*place(server))
    with pytest.raises(ssl.SSLWantReadError):
        raw.tls.do_handshake()
    await raw.flush()
    return raw.writer


async def ended(writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65536):
            pass
    except ConnectionResetError:
        pass
    writer.close()


@pytest.mark.parametrize("first", [b"\x16", b"\x16\x03\x01\x02\x00\x01", b"PROXY TCP4 ", b"\r\n"])
def test_who_stalls_in_the_first_bytes_is_closed_in_time(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    from rocketspark.transport.tls import first_bytes

    monkeypatch.setattr(first_bytes, "TIME_MAX_S", 0.2)

    async def main() -> None:
        async with serving(settings(issuer, proxy_networks="127.0.0.1")) as server:
            bounded(server, time_max_s=0.2)
            good = await dial(server.address, tls=ClientTls(ca=issuer.ca))
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(first)
            await until(lambda: len(server.peers) == 2)
            await ended(writer, reader)
            await until(lambda: len(server.peers) == 1)
            assert (await good.request(ECHO, None, b"x")).body == b"x"
            good.close()

    run(main())
    assert len(caplog.messages) == 1
    told = "the handshake was not done after 0.2 s", "half of what a connection begins with"
    assert any(text in caplog.text for text in told)


def test_the_oldest_half_handshake_makes_room_and_nobody_else_does(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(settings(issuer)) as server:
            bound = bounded(server, count_max=8)
            good = await dial(server.address, tls=ClientTls(ca=issuer.ca))
            writers = []
            for _ in range(40):
                writers.append(await begun(server))
                assert len(bound) <= 8
                if len(writers) % 10 == 5:
                    # Who means it gets in among them.
                    other = await dial(server.address, tls=ClientTls(ca=issuer.ca))
                    assert (await other.request(ECHO, None, b"y")).body == b"y"
                    other.close()
            assert (await good.request(ECHO, None, b"x")).body == b"x"
            await until(lambda: bound.dropped >= 32 and len(server.peers) == 9)
            assert len(bound) == 8
            for writer in writers:
                writer.close()
            await until(lambda: len(bound) == 0)
            good.close()

    run(main())
    assert len([line for line in caplog.messages if "as many as are allowed" in line]) <= 10


def test_handshakes_count_as_connections_from_their_first_byte(issuer: Issuer) -> None:
    async def main() -> None:
        async with serving(settings(issuer), connections_max=3) as server:
            writers = [await begun(server) for _ in range(3)]
            await until(lambda: len(server.peers) == 3)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await ended(writer, reader)
            assert server.refused == 1
            for writer in writers:
                writer.close()
            await until(lambda: not server.peers)
            # Their end gives the places back.
            peer = await dial(server.address, tls=ClientTls(ca=issuer.ca))
            assert (await peer.request(ECHO, None, b"x")).body == b"x"
            peer.close()

    run(main())


def test_work_on_handshakes_leaves_time_for_others_and_all_come_through(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes_module, "BURST_S", 0.0)
    clock = {"now": 1000.0}

    async def main() -> None:
        async with serving(settings(issuer)) as server:
            bound = bounded(server)
            dialing = [dial(server.address, tls=ClientTls(ca=issuer.ca), timeout_ms=60_000) for _ in range(30)]
            peers = await asyncio.gather(*dialing)
            assert [(await p.request(ECHO, None, b"x")).body for p in peers] == [b"x"] * 30
            assert not bound._queued
            for peer in peers:
                peer.close()

    run(main())
    # The rule itself, on a clock of its own: a step of 10 ms is followed by 30 ms without.
    monkeypatch.setattr(handshakes_module, "machine", like(machine, monotonic=lambda: clock["now"]))

    class Step:
        def shake(self) -> None:
            clock["now"] += 0.010

        def pause_reading(self) -> None:
            clock["paused"] = 1.0

        def resume_reading(self) -> None:
            clock["paused"] = 0.0

    async def rule() -> None:
        bound = Handshakes()
        one: Any = Step()
        two: Any = Step()
        bound._step(one)
        assert clock["now"] == pytest.approx(1000.010)
        bound._step(two)
        assert list(bound._queued) == [two]
        assert clock["paused"] == 1.0
        assert bound._free_at_s == pytest.approx(1000.040)
        clock["now"] = 1000.041
        bound._go_on()
        assert not bound._queued
        assert clock["now"] == pytest.approx(1000.051)
        bound.close()

    asyncio.run(rule())


def test_a_server_that_ends_ends_handshakes_too(issuer: Issuer) -> None:
    async def main() -> None:
        async with serving(settings(issuer)) as server:
            raw = await raw_tls(*place(server))
            with pytest.raises(ssl.SSLWantReadError):
                raw.tls.do_handshake()
            await raw.flush()
            await until(lambda: server._front is not None and len(server._front.handshakes) == 1)
        await ended(raw.writer, raw.reader)

    run(main())


def test_nothing_grows_before_the_handshake_is_done(issuer: Issuer, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(settings(issuer)) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            # Whole records of a hello that never ends: 16 MiB is its length.
            part = b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff\x03\x03" + b"\0" * (0x4000 - 6)
            more = b"\x16\x03\x01\x40\x00" + b"\0" * 0x4000
            writer.write(part + more * 100)
            await ended(writer, reader)
            await until(lambda: not server.peers)

    run(main())
