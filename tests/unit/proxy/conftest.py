"""A proxy before an embedded cluster, both in this process, and a gRPC client that knows nothing but the messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf import message_factory

from rocketspark.proxy.server import ProxyServer
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.testing.cluster import Cluster, run_cluster

T = TypeVar("T")


class RawClient:
    """Calls of a client to a proxy: `client.call("SendMessage", request)`, for a stream of answers a list of them."""

    def __init__(self, address: str, client_id: str = "raw-client", **metadata: str) -> None:
        # A connection of its own, as clients in other processes have.
        self.channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.metadata = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON", "x-mq-protocol": "v2"} | {
            name.replace("_", "-"): value for name, value in metadata.items()
        }

    def call(self, rpc: str, request: Any, *, timeout_s: float = 10.0) -> Any:
        """Make a call that begins with one request."""
        method = messages.service().methods_by_name[rpc]
        gives = message_factory.GetMessageClass(method.output_type)
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        call = make(
            f"/{messages.SERVICE}/{rpc}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=gives.FromString,
        )
        answer = call(request, timeout=timeout_s, metadata=tuple(self.metadata.items()))
        return list(answer) if method.server_streaming else answer

    def telemetry(self, requests: Iterator[Any]) -> Any:
        """Open a telemetry stream; iterate over the result for the proxy's commands."""
        call = self.channel.stream_stream(
            f"/{messages.SERVICE}/Telemetry",
            request_serializer=messages.TelemetryCommand.SerializeToString,
            response_deserializer=messages.TelemetryCommand.FromString,
        )
        return call(requests, metadata=tuple(self.metadata.items()))

    def close(self) -> None:
        """End the connection."""
        self.channel.close()


class RunningProxy:
    """A proxy in a thread: `server` itself, `address`, and `run` for what is to be done in its loop."""

    def __init__(self, server: ProxyServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self._loop = loop

    @property
    def address(self) -> str:
        return self.server.address

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine in the proxy's loop."""

        async def made() -> T:
            return await make()

        return asyncio.run_coroutine_threadsafe(made(), self._loop).result(30)


@contextmanager
def running_proxy(namesrv: str, own: dict[str, Any] | None = None, **settings: Any) -> Iterator[RunningProxy]:
    """A proxy before the cluster of a NameServer, on a free port; `own`: its keys, its TLS."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> ProxyServer:
        server = ProxyServer(ProxySettings(namesrv=namesrv, port=0, **settings), **(own or {}))
        await server.start()
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
        try:
            yield RunningProxy(server, loop)
        finally:
            asyncio.run_coroutine_threadsafe(server.close(0), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(cluster: Cluster) -> Iterator[RunningProxy]:
    with running_proxy(cluster.namesrv) as running:
        yield running


@pytest.fixture
def client(proxy: RunningProxy) -> Iterator[RawClient]:
    made = RawClient(proxy.address)
    yield made
    made.close()
