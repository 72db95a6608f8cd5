"""`server --secure` with gRPC: its proxy is locked as the broker is."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.support.patience import LIMIT_S
from tests.unit.proxy.conftest import RawClient
from tests.unit.proxy.consuming.test_consuming import wait_until
from tests.unit.proxy.test_guard import route_of, signed

from rocketspark.proxy.wire.enumerations import Code
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("`server --secure` with gRPC; a proxy with keys asks its clients for theirs")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    store = tmp_path_factory.mktemp("locked")
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--grpc-port", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "rocketspark.cli.main", "server", "--store", str(store), "--secure", *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"ROCKETMQ_ACCESS_KEY": "someone", "ROCKETMQ_SECRET_KEY": "else"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " grpc=" in line
        yield store / "secure", line.rpartition(" grpc=")[2].strip()
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def client(served: tuple[Path, str], **metadata: str) -> RawClient:
    made = RawClient(served[1], **metadata)
    made.channel.close()
    credentials = grpc.ssl_channel_credentials((served[0] / "cert.pem").read_bytes())
    made.channel = grpc.secure_channel(served[1], credentials)
    return made


@pytest.mark.shows("users of gRPC in an audit: who was refused what")
def test_nobody_comes_in_without_keys(served: tuple[Path, str]) -> None:
    made = client(served)
    assert made.call("QueryRoute", route_of("orders")).status.code == Code.UNAUTHORIZED
    made.close()
    on_record = served[0].parent / "proxy-audit.log"
    wait_until(lambda: b'"server":"proxy","event":"refused"' in on_record.read_bytes())
    assert stat.S_IMODE(on_record.stat().st_mode) == 0o600


def test_nobody_comes_in_without_tls(served: tuple[Path, str]) -> None:
    made = RawClient(served[1], **signed("admin", (served[0] / "admin.secret").read_text().strip()))
    with pytest.raises(grpc.RpcError) as caught:
        made.call("QueryRoute", route_of("orders"), timeout_s=2)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    made.close()


def test_a_proxy_with_the_folder_takes_what_else_is_said_of_its_port(tmp_path: Path) -> None:
    with run_cluster(secure=True, store=tmp_path) as cluster:
        folder = tmp_path / "secure"
        own = ["--secure", str(folder), "--proxy-networks", "127.0.0.0/8", "--port-tls-mode", "permissive"]
        process = subprocess.Popen(
            [sys.executable, "-m", "rocketspark.cli.main", "proxy", "-n", cluster.namesrv, "--grpc-port", "0", *own],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("ready proxy=").split()[0]
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), LIMIT_S) as link:
                link.sendall(b"PROXY TCP4 10.1.2.3 10.0.0.1 1234 80\r\n")
                trusts = ssl.create_default_context(cafile=str(folder / "cert.pem"))
                assert trusts.wrap_socket(link, server_hostname=host).version()
            plain = RawClient(address)
            assert plain.call("QueryRoute", route_of("orders")).status.code == Code.UNAUTHORIZED
            plain.close()
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def test_the_administrator_comes_in(served: tuple[Path, str]) -> None:
    made = client(served, **signed("admin", (served[0] / "admin.secret").read_text().strip()))
    assert made.call("QueryRoute", route_of("orders")).status.code == Code.TOPIC_NOT_FOUND
    made.close()


KEYS_ALONE = """
authenticationEnabled=true
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
initAuthenticationUser={"username":"shop","password":"shop-secret"}
innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"inner-secret"}
"""


@pytest.mark.shows("mended: the proxy beside a broker that asks for keys alone refused every call")
def test_beside_a_broker_that_asks_for_keys_alone_a_proxy_does_too(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(KEYS_ALONE)
    given = ("--namesrv-port", "0", "--broker-port", "0", "--grpc-port", "0", "--store", str(tmp_path / "store"))
    process = subprocess.Popen(
        [sys.executable, "-m", "rocketspark.cli.main", "server", "-c", str(conf), *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().rpartition(" grpc=")[2].strip()
        for secret, code in (("shop-secret", Code.TOPIC_NOT_FOUND), ("wrong-secret", Code.UNAUTHORIZED)):
            made = RawClient(address, **signed("shop", secret))
            assert made.call("QueryRoute", route_of("orders")).status.code == code
            made.close()
    finally:
        process.terminate()
        process.wait(LIMIT_S)
