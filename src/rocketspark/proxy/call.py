"""One call of a client: who calls and from where, how long it may take, how it ends, and how long it took.

Rule: what a client says of its address is not believed; the connection says it. A client is told the outcome in the
message and not as an error of gRPC, as by RocketMQ 5.5.0. A call is measured only where metrics are served.
"""

from __future__ import annotations

import asyncio
import functools
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from rocketspark import machine
from rocketspark.model.histogram import Histogram
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.server_bounds import host_of

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
VERSION = "x-mq-client-version"
NAMESPACE = "x-mq-namespace"
# So long a stream's answer waits for a client that does not read.
WRITE_S = 30.0
# For so long brokers are asked at most for one call that sends something.
ASK_TIMEOUT_MS = 2000.0
# The code of a call whose client has gone.
CANCELLED = -1
# What gRPC says of the other side to an address "host:port"; a front on the same port puts the real client in.
AddressOf = Callable[[str], str]


def address_of(peer: str) -> str:
    """Return "host:port" of what gRPC calls a peer, "ipv4:127.0.0.1:5000" or "ipv6:%5B::1%5D:5000"."""
    return unquote(peer.partition(":")[2])


class Call:
    """A client's call that is being served. `rpc`: the method's name; `metadata`: the call's, names in lower case;
    `context`: gRPC's own object of the call; `code`: for a stream of answers, the status that was written to it.
    """

    code = 0

    def __init__(self, rpc: str, context: Any, address_of: AddressOf = address_of) -> None:
        self.rpc = rpc
        self.context = context
        self.metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
        self._address_of = address_of
        # Whose call it is, once that is known.
        self.user = ""
        # Raises Refused if that user may not make the call any more; None where nobody checks.
        self.check_again: Callable[[], Awaitable[None]] | None = None

    async def write(self, answer: Any) -> None:
        """Write to the stream of answers. Raises TimeoutError if the client does not read it."""
        async with asyncio.timeout(WRITE_S):
            await self.context.write(answer)

    @property
    def client_id(self) -> str:
        """The client's id. Raises Refused if it named none."""
        found: str = self.metadata.get(CLIENT_ID, "").strip()
        if not found:
            raise Refused(Code.CLIENT_ID_REQUIRED, "client id is missing: the metadata field x-mq-client-id is needed")
        return found

    @property
    def identity(self) -> str:
        """The user's name, "/" and the client's id: two users with the same client id are two clients."""
        return f"{self.user}/{self.client_id}"

    @property
    def language(self) -> str:
        """What the client is written in, as it says: JAVA, PYTHON, GO, HTTP, …"""
        return str(self.metadata.get(LANGUAGE, ""))

    @property
    def version(self) -> str:
        """The client's release, as it says."""
        return str(self.metadata.get(VERSION, ""))

    @property
    def namespace(self) -> str:
        """The namespace that the client named; topics and groups are taken as named, without it."""
        return str(self.metadata.get(NAMESPACE, ""))

    @functools.cached_property
    def remote_address(self) -> str:
        """ "host:port" of the client."""
        return self._address_of(self.context.peer())

    @property
    def remote_host(self) -> str:
        """The client's address without its port."""
        return host_of(self.remote_address)

    @property
    def remaining_ms(self) -> float | None:
        """How long the client still waits; None if it set no deadline."""
        remaining_s = self.context.time_remaining()
        return None if remaining_s is None else remaining_s * 1000

    @property
    def ask_timeout_ms(self) -> float:
        """For how long brokers may be asked: what the client still waits, within the proxy's own bound."""
        remaining_ms = self.remaining_ms
        return ASK_TIMEOUT_MS if remaining_ms is None else min(ASK_TIMEOUT_MS, remaining_ms)


# In ms.
CALL_BOUNDS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)

Serve = Callable[[Any, Any], Awaitable[Any]]


class CallTimes:
    """How long calls took, by method and status; a call that the client gave up has the status `cancelled`."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, Histogram]] = {}

    def unary(self, rpc: str, serve: Serve) -> Serve:
        """Return a function that serves a method as `serve` does, and measures each call, at some 0.7 us."""
        rows = self.rows[rpc] = _Rows()

        async def timed(request: Any, context: Any) -> Any:
            code = CANCELLED
            began = machine.perf_counter()
            try:
                answer = await serve(request, context)
                code = answer.status.code
                return answer
            finally:
                row, took_ms = rows[code], (machine.perf_counter() - began) * 1000
                # As Histogram.add, without its call.
                row.counts[bisect_left(CALL_BOUNDS, took_ms)] += 1
                row.total += took_ms

        return timed

    def streaming(self, rpc: str, serve: Serve) -> Serve:
        """Do as `unary` for a method with a stream of answers: its `serve` returns the status of the call."""
        rows = self.rows[rpc] = _Rows()

        async def timed(request: Any, context: Any) -> None:
            code = CANCELLED
            began = machine.perf_counter()
            try:
                code = await serve(request, context)
            finally:
                rows[code].add((machine.perf_counter() - began) * 1000)

        return timed


class _Rows(dict[int, Histogram]):
    def __missing__(self, code: int) -> Histogram:
        row = self[code] = Histogram(CALL_BOUNDS)
        return row
