"""TLS and plain on one port, over real sockets: modes, who is told what, half ends, odd pieces, and a peer beneath."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import run, until
from tests.support.certificates import Issuer
from tests.support.raw_tls import ECHO, LATER, WHO, bodies, place, raw_tls, request, serving, settings

from rocketspark.errors import ConfigError, NotSent, TransportError
from rocketspark.transport.connections import Connections, dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.server import Server
from rocketspark.transport.tls import ClientTls, TlsSettings, stream

NOBODY = TlsSettings(mode="disabled")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


async def echoed(server: Server, tls: ClientTls | None, body: bytes = b"x") -> bytes:
    peer = await dial(server.address, tls=tls)
    try:
        return bytes((await peer.request(ECHO, None, body)).body)
    finally:
        peer.close()
        await peer.wait_closed()


@pytest.mark.shows("TLS and plain on one port of broker, port - 2, NameServer, controller; the three modes")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize(
    ("mode", "plain", "secure"), [("disabled", True, False), ("permissive", True, True), ("enforcing", False, True)]
)
def test_modes_and_clients(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, mode: str, plain: bool, secure: bool, loop: str
) -> None:
    async def main() -> None:
        async with serving(settings(issuer, mode=mode)) as server:
            for tls, served in ((None, plain), (ClientTls(ca=issuer.ca), secure)):
                for body in (b"x", b"y" * 3_000_000):
                    if served:
                        assert await echoed(server, tls, body) == body
                        continue
                    with pytest.raises(TransportError) as caught:
                        await echoed(server, tls, body)
                    told = "it takes no TLS there" if tls else "if that server takes TLS alone: use_tls"
                    assert told in str(caught.value)
            await until(lambda: not server.peers)

    run(main()) if loop == "uvloop" else asyncio.run(main())
    refused = {"disabled": "speaks TLS, which is off here", "enforcing": "speaks plain, and only TLS is taken here"}
    assert [line for line in caplog.messages if "Traceback" in line] == []
    if mode in refused:
        assert all(refused[mode] in line for line in caplog.messages if "speaks" in line)


def test_permissive_without_a_certificate_is_the_plain_way(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(TlsSettings()) as server:
            assert server._front is None
            assert await echoed(server, None) == b"x"
            with pytest.raises(NotSent, match="it takes no TLS there"):
                await echoed(server, ClientTls(verify="none"))

    run(main())


def test_a_certificate_made_for_a_try_has_the_names_in_it_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with serving(TlsSettings(test_mode=True), tls_names=["broker.example", "10.1.2.3"]) as server:
            raw = await raw_tls(*place(server))
            await raw.shake()
            shown = raw.tls.getpeercert(binary_form=True)
            assert shown is not None
            ca = ssl.DER_cert_to_PEM_cert(shown)
            raw.writer.close()
        assert sum("was made for this start alone" in line for line in caplog.messages) == 1
        file = Path(path) / "made.pem"
        file.write_text(ca)
        import cryptography.x509 as x509

        made = x509.load_pem_x509_certificate(ca.encode())
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {"localhost", "broker.example"} <= set(names.get_values_for_type(x509.DNSName))
        found = {str(ip) for ip in names.get_values_for_type(x509.IPAddress)}
        assert {"127.0.0.1", "::1", "10.1.2.3"} <= found

    import tempfile

    with tempfile.TemporaryDirectory() as path:
        run(main())


def refusals(issuer: Issuer, tmp_path: Path) -> dict[str, tuple[TlsSettings, ClientTls, str]]:
    other = Issuer(tmp_path, "other")
    trusting = ClientTls(ca=issuer.ca)
    return {
        "not trusted": (settings(issuer), ClientTls(ca=other.ca), "its certificate is not trusted by those in"),
        "by the system": (settings(issuer), ClientTls(), "not trusted by the system's .*give the certificate of its"),
        "expired": (settings(issuer, issuer.pair("old", from_days=-9, to_days=-2)), trusting, "has expired"),
        "too early": (settings(issuer, issuer.pair("new", from_days=2)), trusting, "is not valid yet"),
        "wrong address": (settings(issuer, issuer.pair("far", names=["10.9.9.9"])), trusting, "not for 127.0.0.1; set"),
        "wrong name": (settings(issuer), ClientTls(ca=issuer.ca, server_name="else"), "is not for else; set"),
        "expired, chain alone": (
            settings(issuer, issuer.pair("old2", from_days=-9, to_days=-2)),
            ClientTls(ca=issuer.ca, verify="ca"),
            "has expired",
        ),
    }


@pytest.mark.shows(
    "clients that check: not trusted, expired, wrong name or address, a plain server, a refused certificate, "
    "each one line"
)
@pytest.mark.parametrize(
    "which",
    ["not trusted", "by the system", "expired", "too early", "wrong address", "wrong name", "expired, chain alone"],
)
def test_a_server_that_is_not_the_right_one_is_refused_with_a_line(issuer: Issuer, tmp_path: Path, which: str) -> None:
    tls, client, told = refusals(issuer, tmp_path)[which]

    async def main() -> None:
        async with serving(tls) as server:
            with pytest.raises(NotSent, match=told) as caught:
                await echoed(server, client)
            assert "\n" not in str(caught.value)
            assert caught.value.address == server.address
            await until(lambda: not server.peers)
            assert len(server._front.handshakes) == 0  # type: ignore[union-attr]

    run(main())


def test_what_is_checked_less_is_less(issuer: Issuer) -> None:
    async def main() -> None:
        async with serving(settings(issuer, issuer.pair("far", names=["10.9.9.9", "far.example"]))) as server:
            for client in (
                ClientTls(ca=issuer.ca, verify="ca"),
                ClientTls(verify="none"),
                ClientTls(ca=issuer.ca, server_name="far.example"),
                ClientTls(ca=issuer.ca, server_name="10.9.9.9"),
            ):
                assert await echoed(server, client) == b"x"

    run(main())


@pytest.mark.shows(
    "keys of tls.properties, in .conf files, environment, options; encrypted keys; certificates of clients",
)
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_certificates_of_clients(issuer: Issuer, tmp_path: Path, version: str) -> None:
    mine, foreign = issuer.pair("me", password="pw"), Issuer(tmp_path, "foreign").pair("them")
    good = ClientTls(ca=issuer.ca, cert=mine.cert, key=mine.key, key_password="pw")
    bad = ClientTls(ca=issuer.ca, cert=foreign.cert, key=foreign.key)

    async def main() -> None:
        for need in ("optional", "require"):
            tls = settings(issuer, need_client_auth=need, trust_path=issuer.ca, protocols=version)
            async with serving(tls) as server:
                assert await echoed(server, good) == b"x"
                with pytest.raises(TransportError, match="refuses this client's certificate"):
                    await echoed(server, bad)
                if need == "optional":
                    assert await echoed(server, ClientTls(ca=issuer.ca)) == b"x"
                    continue
                with pytest.raises(TransportError, match=r"tls_cert"):
                    await echoed(server, ClientTls(ca=issuer.ca))

    run(main())


def test_servers_that_speak_no_tls_or_nothing(issuer: Issuer) -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> None:
        client = ClientTls(ca=issuer.ca)
        for serve, told in (
            (http, "not in TLS: it is a plain server"),
            (silent, "did not finish the TLS handshake within 100 ms"),
        ):
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(NotSent, match=told):
                await dial(f"127.0.0.1:{port}", tls=client, timeout_ms=100 if serve is silent else 3000)
            server.close()
        with pytest.raises(NotSent, match="cannot connect to"):
            await dial(f"127.0.0.1:{port}", tls=client)
        with pytest.raises(ConfigError, match="is no name that a certificate can be for"):
            await dial(f"127.0.0.1:{port}", tls=ClientTls(ca=issuer.ca, server_name="a..b"))

    run(main())


def test_old_versions_of_tls_are_refused(issuer: Issuer) -> None:
    async def main() -> None:
        async with serving(settings(issuer)) as server:
            with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                old = await raw_tls(
                    *place(server), maximum_version=ssl.TLSVersion.TLSv1_1, minimum_version=ssl.TLSVersion.TLSv1_1
                )
            with pytest.raises((ssl.SSLError, EOFError)):
                await old.shake()
            old.writer.close()
            assert await echoed(server, ClientTls(ca=issuer.ca)) == b"x"

    run(main())


@pytest.mark.parametrize("step", [1, 7, 0])
def test_any_pieces_and_many_frames_in_one_record(issuer: Issuer, step: int) -> None:
    async def main() -> None:
        async with serving(settings(issuer)) as server:
            raw = await raw_tls(*place(server))
            await raw.shake()
            many = b"".join(request(ECHO, b"%d" % n, n + 1) for n in range(40))
            await raw.send(many, step)
            # Half an end: what was asked is answered, then the server ends too.
            await raw.send(request(LATER, b"last"))
            try:
                raw.tls.unwrap()
            except ssl.SSLWantReadError:
                await raw.flush()
            assert bodies(await raw.rest()) == [*(b"%d" % n for n in range(40)), b"last"]
            raw.writer.close()
            await until(lambda: not server.peers)

    run(main())


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_records_of_a_byte_let_others_have_their_turn(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """One read may hold 11,000 of them, which take 25 ms to decrypt."""
    monkeypatch.setattr(stream, "RECORDS_IN_TURN", 16)
    handed, take = list[int](), Peer.data_received

    def noted(self: Peer, data: bytes) -> None:
        handed.append(len(data))
        take(self, data)

    async def main() -> None:
        async with serving(settings(issuer)) as server:
            raw = await raw_tls(*place(server))
            await raw.shake()
            monkeypatch.setattr(Peer, "data_received", noted)
            for byte in b"".join(request(ECHO, b"%d" % n, n + 1) for n in range(40)):
                raw.tls.write(bytes([byte]))
            await raw.flush()
            raw.writer.write_eof()
            assert bodies(await raw.rest()) == [b"%d" % n for n in range(40)]
            assert max(handed) <= 16
            raw.writer.close()
            await until(lambda: not server.peers)

    run(main()) if loop == "uvloop" else asyncio.run(main())


def test_much_that_comes_with_the_end_of_the_handshake_is_served(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "HANDSHAKE_BYTES_MAX", 10_000)

    async def main() -> None:
        async with serving(settings(issuer)) as server:
            raw = await raw_tls(*place(server))
            with pytest.raises(ssl.SSLWantReadError):
                raw.tls.do_handshake()
            await raw.flush()
            while True:
                await raw.more()
                with contextlib.suppress(ssl.SSLWantReadError):
                    raw.tls.do_handshake()
                    break
            body = b"z" * 3_000_000
            # The end of the handshake and the request leave as one.
            await raw.send(request(ECHO, body))
            raw.writer.write_eof()
            assert bodies(await raw.rest()) == [body]
            raw.writer.close()

    run(main())


def test_an_end_without_a_word_still_gets_its_answers(issuer: Issuer) -> None:
    async def main() -> None:
        async with serving(settings(issuer)) as server:
            raw = await raw_tls(*place(server))
            await raw.shake()
            await raw.send(request(LATER, b"last"))
            raw.writer.write_eof()
            assert bodies(await raw.rest()) == [b"last"]
            raw.writer.close()
            await until(lambda: not server.peers)

    run(main())


def test_a_peer_that_does_not_read_is_paused_and_goes_on(issuer: Issuer) -> None:
    async def main() -> None:
        async with serving(settings(issuer)) as server:
            raw = await raw_tls(*place(server))
            await raw.shake()
            body = bytes(range(256)) * 4096
            count = 24
            asked = b"".join(request(ECHO, body, n + 1) for n in range(count))
            sending = asyncio.ensure_future(raw.send(asked))
            peer = await until(lambda: next(iter(server.peers), None))
            await until(lambda: not peer.is_writable)
            assert peer._transport is not None
            assert peer._transport.get_write_buffer_size() < 12 << 20
            found = bytearray()
            while found.count(body) < count if len(found) > count * len(body) else True:
                try:
                    found += raw.tls.read(1 << 20)
                except ssl.SSLWantReadError:
                    await raw.more()
            await sending
            assert peer.is_writable
            assert bodies(bytes(found)) == [body] * count
            raw.writer.close()

    run(main())


def test_broken_records_end_their_connection_alone(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with serving(settings(issuer)) as server:
            good = await dial(server.address, tls=ClientTls(ca=issuer.ca))
            for rubbish in (
                b"\x16\x03\x01" + b"\xff" * 100,
                b"\x16" + b"GET / HTTP/1.1\r\n" * 9,
                b"\x16\x03\x01\x40\x00" + b"\0" * 20_000,
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(rubbish)
                try:
                    await asyncio.wait_for(reader.read(), 60)
                except ConnectionResetError:
                    pass
                writer.close()
            raw = await raw_tls(*place(server))
            await raw.shake()
            raw.writer.write(b"\x17\x03\x03\x00\x20" + b"\0" * 32)
            with pytest.raises((ssl.SSLError, EOFError, ConnectionResetError)):
                await raw.rest()
            raw.writer.close()
            assert (await good.request(ECHO, None, b"still")).body == b"still"
            await until(lambda: len(server.peers) == 1)
            good.close()

    run(main())
    assert [r for r in caplog.records if r.exc_info] == []


def test_connections_of_a_client_are_shared_and_made_anew(issuer: Issuer) -> None:
    async def main() -> None:
        async with serving(settings(issuer, mode="enforcing")) as server:
            connections = Connections(tls=ClientTls(ca=issuer.ca))
            peers = await asyncio.gather(*(connections.get(server.address) for _ in range(5)))
            assert len(set(peers)) == 1
            next(iter(server.peers)).abort()
            await peers[0].wait_closed()
            again = await connections.get(server.address)
            assert (await again.request(ECHO, None, b"again")).body == b"again"
            await connections.close()

    run(main())


def proxied(host: str, port: int) -> bytes:
    return f"PROXY TCP4 {host} 127.0.0.1 {port} 1\r\n".encode()


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("step", [1, 0])
def test_a_trusted_proxy_names_its_client(issuer: Issuer, secure: bool, step: int) -> None:
    async def main() -> None:
        async with serving(settings(issuer, proxy_networks="10.0.0.0/8;127.0.0.0/8")) as server:
            raw = await raw_tls(*place(server))
            header = proxied("10.7.8.9", 4321)
            for at in range(0, len(header), step or len(header)):
                raw.writer.write(header[at : at + (step or len(header))])
                await asyncio.sleep(0)
            if secure:
                await raw.shake()
                await raw.send(request(WHO))
                raw.writer.write_eof()
                found = await raw.rest()
            else:
                raw.writer.write(request(WHO))
                raw.writer.write_eof()
                found = await raw.reader.read()
            assert bodies(found) == [b"10.7.8.9:4321 " + b"0a070809000010e1"]
            raw.writer.close()
            # One without a header, and one that says it is the proxy's own.
            assert (await echoed(server, ClientTls(ca=issuer.ca))) == (await echoed(server, None)) == b"x"

    run(main())


@pytest.mark.parametrize(
    ("networks", "sent", "told"),
    [
        ("10.0.0.0/8", proxied("10.7.8.9", 1), "is no proxy that is trusted"),
        ("10.0.0.0/8", b"\r\n\r\n\x00\r\nQUIT\n\x21\x11", "is no proxy that is trusted"),
        ("127.0.0.1/32", b"PROXY TCP9 x\r\n", "sent a PROXY header of unknown form"),
        ("127.0.0.1/32", b"POST / HTTP/1.1\r\n", "sent no frame"),
        ("127.0.0.1/32", proxied("10.7.8.9", 1) * 2, "sent a broken frame"),
    ],
)
def test_a_header_that_is_not_believed_ends_the_connection_with_one_line(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, networks: str, sent: bytes, told: str
) -> None:
    async def main() -> None:
        async with serving(settings(issuer, proxy_networks=networks)) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent)
            try:
                assert await asyncio.wait_for(reader.read(), 60) == b""
            except ConnectionResetError:
                pass
            writer.close()
            await until(lambda: not server.peers)

    run(main())
    assert len([line for line in caplog.messages if told in line]) == 1
    assert len(caplog.messages) == 1
    assert re.search(r"^(127\.0\.0\.1|10\.7\.8\.9):\d+ ", caplog.messages[0])


def test_proxies_are_believed_without_any_certificate() -> None:
    async def main() -> None:
        async with serving(TlsSettings(mode="disabled", proxy_networks="127.0.0.1")) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(proxied("10.7.8.9", 5) + request(WHO))
            writer.write_eof()
            assert bodies(await reader.read()) == [b"10.7.8.9:5 0a07080900000005"]
            writer.close()

    run(main())


def test_a_cancelled_dial_leaves_nothing(issuer: Issuer) -> None:
    async def main() -> None:
        async with serving(settings(issuer)) as server:
            for turns in range(20):
                dialing = asyncio.ensure_future(dial(server.address, tls=ClientTls(ca=issuer.ca)))
                for _ in range(turns % 7):
                    await asyncio.sleep(0)
                dialing.cancel()
                done: Any = await asyncio.gather(dialing, return_exceptions=True)
                if not isinstance(done[0], BaseException):
                    done[0].close()
            await until(lambda: not server.peers)

    run(main())
