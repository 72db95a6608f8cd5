"""TLS between ours and the official software, both ways: modes and clients, mqadmin, and Java's own broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheCluster, _JavaServer
from tests.java.driver import JavaDriver, JavaError, message
from tests.java.mqadmin import MqAdmin
from tests.support.certificates import Issuer, Pair
from tests.support.patience import LIMIT_MS

from rocketspark.client import Producer, PullConsumer
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.testing.process import run_server_process

pytestmark = pytest.mark.shows(
    "TLS and plain on one port of broker, port - 2, NameServer, controller; the three modes",
    "Java client, `mqadmin`, our client on RocketMQ's servers, replicas",
)

MODES = [("disabled", True, False), ("permissive", True, True), ("enforcing", False, True)]


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


def trusting(issuer: Issuer, client: Pair) -> tuple[str, ...]:
    """Flags of a JVM whose clients check servers, and show a certificate."""
    found = {"test.mode.enable": "false", "client.authServer": "true", "client.trustCertPath": issuer.ca}
    found |= {"client.certPath": client.cert, "client.keyPath": client.key}
    return tuple(f"-Dtls.{key}={value}" for key, value in found.items())


@pytest.fixture(scope="module")
def java(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    driver = JavaDriver("5.5.0", tmp_path_factory.mktemp("java"), flags=trusting(issuer, issuer.pair("java")))
    yield driver
    driver.close()


def body_at(puller: PullConsumer, queue: MessageQueue, offset: int) -> bytes:
    puller.assign([queue])
    puller.seek(queue, offset)
    got = puller.poll(LIMIT_MS)
    assert got, "nothing came"
    return got[0].body


@pytest.mark.parametrize(("mode", "plain", "secure"), MODES)
def test_the_java_client_in_each_mode(
    java: JavaDriver, issuer: Issuer, tmp_path: Path, mode: str, plain: bool, secure: bool
) -> None:
    pair = issuer.pair(password="pass word")
    keys = {
        "tls.server.mode": mode,
        "tls.server.certPath": pair.cert,
        "tls.server.keyPath": pair.key,
        "tls.server.keyPassword": "pass word",
        "tls.client.trustCertPath": issuer.ca,
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": issuer.ca,
        "tls.client.certPath": issuer.pair("inner").cert,
        "tls.client.keyPath": str(Path(issuer.ca).with_name("inner.key")),
    }
    with run_server_process(tmp_path / "store", config=keys) as server:
        for use_tls, served in ((False, plain), (True, secure)):
            options: dict[str, Any] = {"namesrv": server.namesrv, "group": "g", "use_tls": use_tls}
            options["send_timeout_ms"] = LIMIT_MS if served else 3000
            if not served:
                with java.started("producer", **options) as producer, pytest.raises(JavaError):
                    java.call("send", name=producer, messages=[message("T", "no")])
                continue
            with java.started("producer", **options) as producer:
                sent = java.call("send", name=producer, messages=[message("T", "x" * 300_000)] * 3)
            assert [result["status"] for result in sent] == ["SEND_OK"] * 3
            # What our client reads by the other way is what it sent.
            trust = {"use_tls": True, "tls_ca": issuer.ca, "tls_cert": pair.cert, "tls_key": pair.key}
            own: dict[str, Any] = trust | {"tls_key_password": "pass word"} if secure else {}
            with PullConsumer(server.namesrv, "look", auto_commit=False, **own) as puller:
                queue = MessageQueue("T", "broker-a", sent[0]["queue"]["queue_id"])
                assert body_at(puller, queue, sent[0]["queue_offset"]) == b"x" * 300_000
        if not secure:
            return
        flags = (*trusting(issuer, pair)[:3], "-Dtls.enable=true", *trusting(issuer, issuer.pair("java"))[3:])
        admin = MqAdmin(tmp_path / "mqadmin", server.namesrv, server.broker, flags)
        try:
            assert any("broker-a" in line and "BROKER" in line for line in admin("clusterList"))
        finally:
            admin.close()


def test_our_client_on_the_official_servers(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java_tools: None
) -> None:
    pair = issuer.pair("theirs")
    found = {"test.mode.enable": "false", "server.certPath": pair.cert, "server.keyPath": pair.key}
    found["server.mode"] = "permissive"
    flags = tuple(f"-Dtls.{key}={value}" for key, value in found.items())
    monkeypatch.setattr(_JavaServer, "jvm_flags", (*_JavaServer.jvm_flags, *flags))
    cluster = ApacheCluster(tmp_path)
    try:
        trust: dict[str, Any] = {"use_tls": True, "tls_ca": issuer.ca}
        with Producer(cluster.namesrv, "g", send_timeout_ms=LIMIT_MS, **trust) as producer:
            sent = [producer.send("T", b"%d" % n * 100_000) for n in range(5)]
        with PullConsumer(cluster.namesrv, "look", auto_commit=False, **trust) as puller:
            for n, result in enumerate(sent):
                assert body_at(puller, result.queue, result.queue_offset) == b"%d" % n * 100_000
        told = pytest.raises(RocketSparkError, match="its certificate is not trusted")
        with Producer(cluster.namesrv, "g", use_tls=True) as producer, told:
            producer.send("T", b"x")
    finally:
        cluster.close()
