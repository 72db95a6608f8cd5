"""A whole cluster over TLS: NameServer, broker and its other port, controller, replicas, clients; certificates replaced
under load; who a message came from behind a proxy."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import broker, create, pull, records, run, sent, settings, until
from tests.support.certificates import Issuer
from tests.support.ports import free_ports

from rocketspark.broker.inner_connections import inner_connections
from rocketspark.cli import main
from rocketspark.client import AsyncProducer, AsyncPushConsumer
from rocketspark.errors import NotSent
from rocketspark.namesrv.server import NameServer
from rocketspark.tables.client_access import Access
from rocketspark.tables.read.pipelined_connection import PipelinedConnection
from rocketspark.transport.connections import dial
from rocketspark.transport.tls import ClientTls, TlsSettings, server_contexts
from rocketspark.transport.tls.settings import from_values


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


def keys(issuer: Issuer, **more: str) -> dict[str, str]:
    pair = issuer.pair()
    found = {"server.mode": "enforcing", "server.certPath": pair.cert, "server.keyPath": pair.key}
    found |= {"client.trustCertPath": issuer.ca} | {key.replace("_", "."): value for key, value in more.items()}
    return {f"tls.{key}": value for key, value in found.items()}


@asynccontextmanager
async def secure_names(tls: TlsSettings) -> AsyncIterator[NameServer]:
    server = NameServer("127.0.0.1", 0, tls=tls)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@pytest.mark.shows("TLS and plain on one port of broker, port - 2, NameServer, controller; the three modes")
def test_a_cluster_that_takes_tls_alone(issuer: Issuer, tmp_path: Path) -> None:
    tls = from_values(keys(issuer))
    trust: dict[str, Any] = {"use_tls": True, "tls_ca": issuer.ca}

    async def scene() -> None:
        port = free_ports(-2, 0, 1)
        async with (
            secure_names(tls) as names,
            broker(tmp_path, listen_port=port, namesrv_addresses=names.address, tls=tls) as server,
            AsyncProducer(names.address, "P", vip_channel=True, **trust) as producer,
        ):
            got: list[bytes] = []
            consumer = AsyncPushConsumer(names.address, "C", consume_from="first", **trust)
            consumer.subscribe("T")
            consumer.listen(lambda message: got.append(message.body))
            await producer.send("T", b"0")
            async with consumer:
                for n in range(1, 20):
                    await producer.send("T", b"%d" % n)
                await until(lambda: len(got) == 20)
            assert sorted(got, key=int) == [b"%d" % n for n in range(20)]
            assert port - 2 in {p._transport.get_extra_info("sockname")[1] for p in server._server.peers}  # type: ignore[union-attr]
            # Executors of Spark: blocking, straight into their buffer.
            await asyncio.to_thread(blocking, server.address, issuer)
            with pytest.raises(NotSent):
                await dial(server.address, tls=ClientTls())

    run(scene())


def blocking(address: str, issuer: Issuer) -> None:
    made = PipelinedConnection(address, timeout_ms=60_000, access=Access(tls=ClientTls(ca=issuer.ca)))
    for _ in range(64):
        made.send(105, {"topic": "T"})
    seen = 0
    while seen < 64:
        seen += len(made.receive())
    made.close()
    for tls, told in (
        (ClientTls(), "give the certificate of its issuer"),
        (ClientTls(ca=issuer.ca, server_name="n"), "not for n"),
    ):
        with pytest.raises(NotSent, match=told):
            PipelinedConnection(address, timeout_ms=60_000, access=Access(tls=tls))


def test_a_server_whose_others_it_cannot_trust_says_what_to_do(
    issuer: Issuer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    named = from_values(keys(issuer))
    blind = from_values(keys(issuer, client_trustCertPath=Issuer(tmp_path, "other").ca))

    async def scene() -> None:
        async with secure_names(named) as names, broker(tmp_path / "s", namesrv_addresses=names.address, tls=blind):
            await until(lambda: "its certificate is not trusted" in caplog.text)
            assert names.registry is not None

    run(scene())
    assert "Traceback" not in caplog.text


def test_inner_connections_follow_the_settings(issuer: Issuer, tmp_path: Path) -> None:
    def how(use_tls: bool = False, **more: Any) -> ClientTls | None:
        made = settings(tmp_path, use_tls=use_tls, tls=TlsSettings(**more))
        return inner_connections(made)._tls

    assert how() is None
    assert how(use_tls=True) == how(enable=True) == how(mode="enforcing") == ClientTls()
    assert how(use_tls=True, auth_server=False) == ClientTls(verify="none")


@pytest.mark.shows("certificates replaced without a restart, under load")
def test_sends_go_on_while_certificates_are_replaced(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_contexts, "LOOK_S", 0.01)
    tls = from_values(keys(issuer))
    used = issuer.pair("used")
    mine = from_values(keys(issuer) | {"tls.server.certPath": used.cert, "tls.server.keyPath": used.key})

    async def scene() -> None:
        async with (
            secure_names(tls) as names,
            broker(tmp_path, namesrv_addresses=names.address, tls=mine) as server,
            AsyncProducer(names.address, "P", use_tls=True, tls_ca=issuer.ca, retries=0) as producer,
        ):
            stop = asyncio.Event()
            counts = [0, 0]

            async def old() -> None:
                while not stop.is_set():
                    assert (await producer.send("T", b"x" * 2000)).status.name == "SEND_OK"
                    counts[0] += 1

            async def new() -> None:
                while not stop.is_set():
                    peer = await dial(server.address, tls=ClientTls(ca=issuer.ca))
                    assert (await peer.request(106)).code >= 0
                    peer.close()
                    counts[1] += 1

            tasks = [asyncio.create_task(work()) for work in (old, old, new)]
            contexts = server._server._contexts
            for n in range(5):
                pair, before = issuer.pair(f"next{n}"), contexts.context
                shutil.copy(pair.cert, used.cert)
                await asyncio.sleep(0.03)
                shutil.copy(pair.key, used.key)
                await until(lambda b=before: contexts.context is not b)
            stop.set()
            await asyncio.gather(*tasks)
            assert min(counts) > 5

    run(scene())


@pytest.mark.shows("PROXY v1 and v2 before either, from trusted networks")
def test_a_message_through_a_proxy_was_born_at_its_client(tmp_path: Path) -> None:
    async def scene() -> None:
        async with broker(tmp_path, tls=TlsSettings(proxy_networks="127.0.0.0/8")) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server._server.port)
            peer = await dial(server.address)
            assert peer._transport is not None
            peer._transport.write(b"PROXY TCP4 10.20.30.40 127.0.0.1 5555 1\r\n")
            await create(peer)
            assert await sent(peer, b"one") == 0
            assert [record.born_host for record in records(await pull(peer))] == [
                bytes([10, 20, 30, 40]) + (5555).to_bytes(4, "big")
            ]
            writer.close()

    run(scene())


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        (["--tls-mode", "enforcing"], {}, "enforcing needs a certificate"),
        (["--tls-cert", "/absent"], {}, "tls.server.certPath needs tls.server.keyPath"),
        (["--tls-cert", "/absent", "--tls-key", "/absent"], {}, "tls.server.certPath=/absent cannot be read"),
        (["--tls-config", "/absent"], {}, "tls.config.file=/absent cannot be read"),
        ([], {"ROCKETMQ_TLS_SERVER_MODE": "on"}, "tls.server.mode='on'"),
        ([], {"ROCKETMQ_PROXY_PROTOCOL_NETWORKS": "x"}, "proxyProtocolNetworks='x'"),
    ],
)
def test_commands_say_in_a_line_what_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    variables: dict[str, str],
    told: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    for command in (["namesrv", "-p", "0"], ["controller", "--listen", "127.0.0.1:0"], ["broker", "-p", "0"]):
        assert main.run([*command, *arguments]) == 1
        said = capsys.readouterr().err
        assert told in said
        assert said.count("\n") == 1


@pytest.mark.shows("Java client, `mqadmin`, our client on RocketMQ's servers, replicas")
@pytest.mark.soak
def test_replicas_under_a_controller_over_tls(issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in keys(issuer).items()))
    port = free_ports(-2, 0, 1, 8, 10, 11)
    command = [
        sys.executable,
        "-m",
        "rocketspark.cli.main",
        *("server", "--no-grpc"),
        "--store",
        str(tmp_path / "s"),
        "--replicas",
        "2",
    ]
    command += ["--namesrv-port", "0", "--controller-port", "0", "--broker-port", str(port), "--tls-config", str(file)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("ready namesrv="), line if line else server.communicate(timeout=60)[1]
        namesrv = line.split()[1].partition("=")[2]

        async def scene() -> None:
            async with AsyncProducer(namesrv, "P", use_tls=True, tls_ca=issuer.ca) as producer:
                assert (await producer.send("T", b"x")).status.name == "SEND_OK"

        run(scene())
    finally:
        server.terminate()
        server.communicate(timeout=60)
