"""gRPC itself through the proxy's port: TLS beside plain, and addresses that nobody can forge."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tests.unit.proxy.conftest import RawClient, RunningProxy

from rocketspark.proxy.call import Call
from rocketspark.proxy.statuses import status
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.codes import Code

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
