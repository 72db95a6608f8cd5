"""Calls of RocketMQ 5's clients to a simulated proxy: the service itself is called, and the network carries both ways.

What gRPC does between, HTTP/2 and its connections, is left out: its server is the machine's own.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from google.protobuf import message_factory
from tests.simulation.world import Node, Process

from rocketspark.proxy.wire import messages

DATE = "20260101T000000Z"


class NotServed(OSError):
    """The proxy is not there, or has not answered in time."""


class RpcClient:
    """A client of one proxy, on a machine of its own. Each call is a connection of its own."""

    def __init__(self, node: Node, proxy: Node, user: str, secret: str) -> None:
        self._node, self._proxy = node, proxy
        made = hmac.new(secret.encode(), DATE.encode(), hashlib.sha1).hexdigest().upper()
        self._metadata = (
            ("x-mq-client-id", f"client-of-{user}"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-date-time", DATE),
            ("authorization", f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={made}"),
        )

    async def call(
        self, rpc: str, request: Any, *, timeout_s: float = 8.0, came: Callable[[Any], None] | None = None
    ) -> list[Any]:
        """Make a call; return its answers, of which `came` hears at once. Raises NotServed."""
        loop: Any = asyncio.get_running_loop()
        gives = message_factory.GetMessageClass(messages.service().methods_by_name[rpc].output_type)
        ended: asyncio.Future[bool] = loop.create_future()
        found: list[Any] = []

        def answered(data: bytes) -> None:
            found.append(gives.FromString(data))
            if came is not None:
                came(found[-1])

        def over(is_served: bool) -> None:
            if not ended.done():
                ended.set_result(is_served)

        serving = _Serving(self._node, self._proxy, rpc, request.SerializeToString(), self._metadata, timeout_s)
        serving.answered = partial(loop.call_outside, answered)
        serving.over = partial(loop.call_outside, over)
        self._node.world.network.carry(self._node.ip, self._proxy.ip, serving.arrive)
        try:
            async with asyncio.timeout(timeout_s):
                is_served = await ended
        except TimeoutError:
            is_served = False
        finally:
            self._node.world.network.carry(self._node.ip, self._proxy.ip, serving.gone)
        if not is_served:
            raise NotServed(f"{rpc} was not answered")
        return found


class _Serving:
    """One call at the proxy: what the service takes for gRPC's context of it."""

    answered: Callable[[bytes], None]
    over: Callable[[bool], None]

    def __init__(
        self, node: Node, proxy: Node, rpc: str, data: bytes, metadata: tuple[tuple[str, str], ...], timeout_s: float
    ) -> None:
        self._node, self._proxy = node, proxy
        self._rpc, self._data, self._metadata, self._timeout_s = rpc, data, metadata, timeout_s
        self._address = f"ipv4:{node.ip}:{node.next_port()}"
        self._callbacks: list[Callable[[Any], None]] = []
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._at_s = 0.0
        self._last_s = 0.0

    def arrive(self) -> None:
        ready = [process for process in self._proxy.processes if process.is_ready]
        if not ready:
            self._back(partial(self.over, False))
            return
        (self._process,) = ready
        self._process.loop.call_outside(self._begin)

    def gone(self) -> None:
        """Hear that the client waits no more."""
        if self._process is not None:
            self._process.loop.call_outside(lambda: self._task.cancel() if self._task is not None else None)

    def _begin(self) -> None:
        self._at_s = asyncio.get_running_loop().time()
        self._task = asyncio.ensure_future(self._serve())

    async def _serve(self) -> None:
        assert self._process is not None
        path = f"/{messages.SERVICE}/{self._rpc}"
        handler = self._process.server.service.service(SimpleNamespace(method=path))
        try:
            asked = handler.request_deserializer(self._data)
            if handler.response_streaming:
                self._gives = handler.response_serializer
                await handler.unary_stream(asked, self)
            else:
                data = await handler.unary_unary(asked, self)
                self._back(partial(self.answered, data))
            self._back(partial(self.over, True))
        finally:
            for callback in self._callbacks:
                callback(self)

    def _back(self, tell: Callable[[], None]) -> None:
        # In the order of a connection.
        self._last_s = self._node.world.network.carry(self._proxy.ip, self._node.ip, tell, self._last_s)

    # -- what gRPC's context has

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def peer(self) -> str:
        return self._address

    def time_remaining(self) -> float:
        return self._timeout_s - (asyncio.get_running_loop().time() - self._at_s)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Nothing comes of it here."""

    async def write(self, answer: Any) -> None:
        self._back(partial(self.answered, self._gives(answer)))

    async def abort(self, code: Any, text: str) -> None:
        raise NotServed(text)
