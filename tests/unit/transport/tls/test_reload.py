"""Certificates replaced on the disk: new connections get them, open ones live on, what is broken changes nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import run, until
from tests.support.certificates import Issuer
from tests.support.raw_tls import ECHO, place, raw_tls, serving

from rocketspark.errors import ConfigError, NotSent
from rocketspark.transport.connections import dial
from rocketspark.transport.server import Server
from rocketspark.transport.tls import ClientTls, TlsSettings, server_contexts

pytestmark = pytest.mark.shows("certificates replaced without a restart, under load")


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_contexts, "LOOK_S", 0.01)


async def shown(server: Server) -> bytes | None:
    raw = await raw_tls(*place(server))
    await raw.shake()
    raw.writer.close()
    return raw.tls.getpeercert(binary_form=True)


async def until_other(server: Server, before: bytes | None) -> bytes | None:
    while (found := await shown(server)) == before:
        await asyncio.sleep(0.005)
    return found


def test_a_new_pair_is_taken_whichever_file_comes_first_and_a_broken_one_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer(tmp_path)
    used, new = issuer.pair("used"), [issuer.pair(f"new{n}") for n in range(3)]
    client = ClientTls(ca=issuer.ca)

    async def main() -> None:
        async with serving(TlsSettings(cert_path=used.cert, key_path=used.key)) as server:
            old = await dial(server.address, tls=client)
            first = await shown(server)
            for pair, order in ((new[0], ("cert", "key")), (new[1], ("key", "cert"))):
                before = await shown(server)
                for what in order:
                    shutil.copy(getattr(pair, what), getattr(used, what))
                    if what == order[0]:
                        await until(lambda: caplog.text.count("cannot be used, the one before stays") == 1)
                        assert await shown(server) == before
                assert await until_other(server, before) != first
                caplog.clear()
            # Nonsense, and nothing at all.
            kept = await shown(server)
            Path(used.cert).write_text("nonsense")
            await until(lambda: "cannot be used" in caplog.text)
            await asyncio.sleep(0.1)
            assert caplog.text.count("cannot be used") == 1
            os.unlink(used.cert)
            await until(lambda: caplog.text.count("cannot be used") == 2)
            assert await shown(server) == kept
            # Renamed into place, as tools do.
            for what in ("key", "cert"):
                os.replace(getattr(new[2], what), getattr(used, what))
            await until_other(server, kept)
            assert (await old.request(ECHO, None, b"old")).body == b"old"
            old.close()

    run(main())


def test_who_is_trusted_changes_too(tmp_path: Path) -> None:
    issuer, other = Issuer(tmp_path), Issuer(tmp_path, "other")
    mine, trust = other.pair("mine"), tmp_path / "trust.pem"
    shutil.copy(issuer.ca, trust)
    pair = issuer.pair()
    client = ClientTls(ca=issuer.ca, cert=mine.cert, key=mine.key)
    tls = TlsSettings(cert_path=pair.cert, key_path=pair.key, need_client_auth="require", trust_path=str(trust))

    async def accepted(server: Server) -> bool:
        try:
            peer = await dial(server.address, tls=client)
            await peer.request(ECHO, None, b"x")
        except Exception:
            return False
        peer.close()
        return True

    async def main() -> None:
        async with serving(tls) as server:
            assert not await accepted(server)
            shutil.copy(other.ca, trust)
            while not await accepted(server):
                await asyncio.sleep(0.005)

    run(main())


def test_a_client_whose_files_are_away_for_a_while_tries_again(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    pair, ca = issuer.pair(), tmp_path / "mine.pem"
    client = ClientTls(ca=str(ca))

    async def main() -> None:
        async with serving(TlsSettings(cert_path=pair.cert, key_path=pair.key)) as server:
            with pytest.raises(NotSent, match=r"tls_ca=.*mine.pem cannot be read"):
                await dial(server.address, tls=client)
            shutil.copy(issuer.ca, ca)
            (await dial(server.address, tls=client)).close()

    run(main())


def test_no_connection_fails_while_pairs_are_replaced(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    used = issuer.pair("used")
    client = ClientTls(ca=issuer.ca)

    async def main() -> None:
        async with serving(TlsSettings(cert_path=used.cert, key_path=used.key)) as server:
            stop = asyncio.Event()
            done = 0

            async def calls() -> None:
                nonlocal done
                while not stop.is_set():
                    peer = await dial(server.address, tls=client)
                    assert (await peer.request(ECHO, None, b"x" * 5000)).body == b"x" * 5000
                    peer.close()
                    done += 1

            callers = [asyncio.create_task(calls()) for _ in range(4)]
            seen = set()
            for n in range(6):
                pair = issuer.pair(f"next{n}")
                before = await shown(server)
                shutil.copy(pair.key, used.key)
                await asyncio.sleep(0.02)
                shutil.copy(pair.cert, used.cert)
                seen.add(await until_other(server, before))
            stop.set()
            await asyncio.gather(*callers)
            assert len(seen) == 6
            assert done > 10

    run(main())


def test_a_pair_that_could_not_be_read_for_a_moment_is_taken_without_another_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = Issuer(tmp_path)
    used, new = issuer.pair("used"), issuer.pair("new")
    real, failed = server_contexts.certificate_files.load_pair, list[str]()

    def load_pair(context: ssl.SSLContext, cert: str, *rest: Any) -> None:
        if len(failed) < 3:
            failed.append(cert)
            raise ConfigError(f"certificate={cert} cannot be read: {os.strerror(errno.EMFILE)}")
        real(context, cert, *rest)

    async def main() -> None:
        async with serving(TlsSettings(cert_path=used.cert, key_path=used.key)) as server:
            first = await shown(server)
            monkeypatch.setattr(server_contexts.certificate_files, "load_pair", load_pair)
            # Of yesterday, as a tool leaves them that keeps the times of files.
            for old, name in ((new.key, used.key), (new.cert, used.cert)):
                os.utime(old, (1, 1))
                os.replace(old, name)
            assert await until_other(server, first) is not None
            assert len(failed) == 3

    run(main())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes of a name here")
def test_a_server_ends_while_the_file_of_its_certificate_hangs(tmp_path: Path) -> None:
    used = Issuer(tmp_path).pair("used")

    async def main() -> None:
        async with serving(TlsSettings(cert_path=used.cert, key_path=used.key)):
            os.unlink(used.cert)
            # Whoever opens it waits for a writer, as for a disk that is away.
            os.mkfifo(used.cert)
            while not any(thread.name == "rocketspark-certificates" for thread in threading.enumerate()):
                await asyncio.sleep(0.005)

    try:
        run(main())
        # What the end of the process waits for.
        hanging = [each for each in threading.enumerate() if each.name == "rocketspark-certificates"]
        assert [each.daemon for each in hanging] == [True]
    finally:
        os.close(os.open(used.cert, os.O_RDWR))
