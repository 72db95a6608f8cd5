"""One call of a client: who calls, from where, and how long it may take. Rule: what a client says of its address is not
believed; the connection says it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from rocketspark.proxy.calls.statuses import Refused
from rocketspark.proxy.wire.codes import Code

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
VERSION = "x-mq-client-version"
NAMESPACE = "x-mq-namespace"
# So long a stream's answer waits for a client that does not read.
WRITE_S = 30.0
# The code of a call whose client has gone.
CANCELLED = -1
# What gRPC says of the other side to an address "host:port"; a front on the same port puts the real client in.
AddressOf = Callable[[str], str]


def address_of(peer: str) -> str:
    """Return "host:port" of what gRPC calls a peer, "ipv4:127.0.0.1:5000" or "ipv6:%5B::1%5D:5000"."""
    return unquote(peer.partition(":")[2])


class Call:
    """A call at hand. `rpc`: the method's name; `metadata`: lower-case names; `context`: gRPC's own; `code`: the status
    of a stream of answers, once it is written.
    """

    code = 0

    def __init__(self, rpc: str, context: Any, address_of: AddressOf = address_of) -> None:
        self.rpc = rpc
        self.context = context
        self.metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
        self._address_of = address_of
        # Whose call it is, once that is known.
        self.user = ""

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
        """The client's id, with its user's name, which holds no slash: ids of two users are two clients."""
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
        """The namespace that the client named; names are not changed by it."""
        return str(self.metadata.get(NAMESPACE, ""))

    @functools.cached_property
    def remote_address(self) -> str:
        """ "host:port" of the client."""
        return self._address_of(self.context.peer())

    @property
    def remote_host(self) -> str:
        """The client's address without its port."""
        return self.remote_address.rpartition(":")[0].strip("[]")

    @property
    def remaining_ms(self) -> float | None:
        """How long the client still waits; None if it set no deadline."""
        remaining_s = self.context.time_remaining()
        return None if remaining_s is None else remaining_s * 1000
