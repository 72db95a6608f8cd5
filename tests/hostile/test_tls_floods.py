"""Handshakes as an attack: begun and left, made again and again, proxies that are none; a plain client goes on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from pathlib import Path

import pytest
from tests.hostile.beside import beside
from tests.live.support import run, until
from tests.support.certificates import Issuer
from tests.support.raw_tls import raw_tls

from rocketspark.transport.connections import dial, parse_address
from rocketspark.transport.tls import ClientTls, TlsSettings
from rocketspark.transport.tls.handshakes import Handshakes


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


def settings(issuer: Issuer) -> TlsSettings:
    cert, key = issuer.pair()
    return TlsSettings(cert_path=cert, key_path=key, proxy_networks="10.0.0.0/8")


def test_half_handshakes_are_few_and_end_by_themselves(issuer: Issuer, tmp_path: Path) -> None:
    async def scene() -> None:
        async with beside(tmp_path, tls=settings(issuer)) as under:
            front = under.server._server._front
            assert front is not None
            bound = front.handshakes = Handshakes(count_max=50, time_max_s=1.0)
            kept = []
            for _ in range(200):
                with contextlib.suppress(OSError):
                    raw = await raw_tls(*parse_address(under.address))
                    with contextlib.suppress(ssl.SSLWantReadError):
                        raw.tls.do_handshake()
                    await raw.flush()
                    kept.append(raw)
                assert len(bound) <= 50
            # Who means it still comes in.
            peer = await dial(under.address, tls=ClientTls(ca=issuer.ca), timeout_ms=60_000)
            peer.close()
            assert bound.dropped > 0
            # Nobody ends them but their time.
            await until(lambda: len(bound) == 0)
            await until(lambda: len(under.server._server.peers) <= 1)
            for raw in kept:
                raw.writer.close()

    run(scene())


def test_whole_handshakes_one_after_the_other_leave_time_for_others(issuer: Issuer, tmp_path: Path) -> None:
    async def scene() -> None:
        async with beside(tmp_path, tls=settings(issuer)) as under:
            end_s = time.monotonic() + 2.0
            made = 0

            async def again() -> None:
                nonlocal made
                while time.monotonic() < end_s:
                    with contextlib.suppress(OSError, EOFError, ssl.SSLError):
                        raw = await raw_tls(*parse_address(under.address))
                        await raw.shake()
                        raw.writer.transport.abort()
                        made += 1

            await asyncio.gather(*(again() for _ in range(8)))
            assert made > 8

    run(scene())


@pytest.mark.parametrize(
    "sent",
    [
        b"PROXY TCP4 10.1.2.3 127.0.0.1 1 2\r\n",
        b"\r\n\r\n\x00\r\nQUIT\n" + b"\x21\x11\x00\x0c" + bytes(12),
        b"PROXY ",
        b"\x16\x03\x01\xff\xff" + b"\xff" * 70_000,
        b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(0x3FFC),
    ],
)
def test_beginnings_that_are_none_end_their_connection(issuer: Issuer, tmp_path: Path, sent: bytes) -> None:
    async def scene() -> None:
        async with beside(tmp_path, tls=settings(issuer)) as under:
            raw = await under.raw()
            await raw.write(sent)
            assert await raw.closed()

    run(scene())
