"""gRPC itself through the proxy's port: TLS beside plain, and addresses that nobody can forge."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tests.support.patience import LIMIT_S
from tests.unit.proxy.conftest import RawClient, RunningProxy, running_proxy
from tests.unit.proxy.stalled import http2_frame

from rocketspark.proxy.call import Call
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import status
from rocketspark.testing.cluster import Cluster

pytestmark = pytest.mark.shows(
    "one port: TLS (h2), plain, PROXY v1 and v2, HTTP/2 and remoting by their first bytes; a certificate made "
    "at the start, or files taken anew; back-pressure, half-closed clients, slow and half beginnings, the "
    "client's address from the connection alone"
)

FORGED = {
    "rpc-remote-address": "198.51.100.1:1",
    "x-forwarded-for": "198.51.100.1",
    "x-mq-channel-id": "forged",
}


@pytest.fixture(scope="module")
def echo(proxy: RunningProxy) -> Iterator[RunningProxy]:
    """Answers one call with the client's address."""

    async def tell(call: Call, request: Any) -> Any:
        return messages.SyncLiteSubscriptionResponse(status=status(Code.OK, call.remote_address))

    proxy.server.service.serve("SyncLiteSubscription", tell)
    return proxy


def secure_client(address: str) -> RawClient:
    host, _, port = address.rpartition(":")
    certificate = ssl.get_server_certificate((host, int(port))).encode()
    made = RawClient(address)
    made.channel.close()
    made.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(certificate))
    return made


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_the_address_is_the_connections(echo: RunningProxy, tls: bool) -> None:
    client = secure_client(echo.address) if tls else RawClient(echo.address)
    client.metadata |= FORGED
    answer = client.call("SyncLiteSubscription", messages.SyncLiteSubscriptionRequest())
    known = {peer.address for peer in echo.server.front.server.peers}
    client.close()
    assert answer.status.code == Code.OK
    assert answer.status.message in known


def test_the_inner_port_takes_no_calls(echo: RunningProxy) -> None:
    client = RawClient(f"127.0.0.1:{echo.server.front.clients.port}")
    answer = client.call("SyncLiteSubscription", messages.SyncLiteSubscriptionRequest())
    client.close()
    assert answer.status.code == Code.UNAUTHORIZED


@pytest.mark.shows(
    "keep-alives: pings are answered, idle connections end after the time that a client may be silent (120 s)",
)
def test_a_connection_without_calls_ends_after_its_time_and_pings_are_answered(cluster: Cluster) -> None:
    """By the time that a client may be silent, here a second."""

    with running_proxy(cluster.namesrv, client_idle_ms=1000) as proxy:
        host, _, port = proxy.address.rpartition(":")
        with socket.create_connection((host, int(port)), LIMIT_S) as idle:
            sent = http2_frame(4, 0, 0) + http2_frame(4, 1, 0) + http2_frame(6, 0, 0, b"8 octets")
            idle.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + sent)
            kinds, answered = [], b""
            received = idle.makefile("rb")
            while head := received.read(9):
                payload = received.read(int.from_bytes(head[:3], "big"))
                kinds.append(head[3])
                if head[3] == 6 and head[4] & 1:
                    answered = payload
            assert answered == b"8 octets"
            # GOAWAY, and then the end.
            assert 7 in kinds
