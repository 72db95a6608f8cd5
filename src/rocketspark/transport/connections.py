"""Connections to servers, one per address, opened when first needed.

Rule: a lost one is opened anew at the next use.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable

from rocketspark.errors import ConfigError, NotSent
from rocketspark.model.text import shown, whole_number
from rocketspark.transport.dialing import connect_protocol
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes, RpcHooks
from rocketspark.transport.shared_task import outcome_of
from rocketspark.transport.tls.client_tls import ClientTls
from rocketspark.transport.tls.dial import secured


def parse_address(address: str) -> tuple[str, int]:
    """Return (host, port) of "host:port" or "[v6]:port". Raises ConfigError."""
    host, colon, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = whole_number(port, low=1, high=65535)
    if not colon or not host or number is None:
        raise ConfigError(f"{shown(address)!r} is no address: host:port is needed, such as 127.0.0.1:9876")
    return host, number


def is_ip(host: str) -> bool:
    """Tell whether a host is given by its number."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_addresses(addresses: str) -> list[str]:
    """Return the addresses of a ";" or "," separated list. Raises ConfigError if there is none or one is wrong."""
    if not isinstance(addresses, str):
        raise ConfigError(f"{addresses!r} is no address: a text host:port is needed, several with ; between")
    found = [a.strip().removeprefix("http://") for a in addresses.replace(",", ";").split(";") if a.strip()]
    if not found:
        raise ConfigError("no NameServer address was given: host:port is needed, such as 127.0.0.1:9876")
    for address in found:
        parse_address(address)
    return found


def in_one_form(addresses: str) -> str:
    """Return a list of addresses as text that is the same however the same ones are listed. Raises ConfigError."""
    return ";".join(sorted({address.lower() for address in parse_addresses(addresses)}))


async def dial(
    address: str,
    routes: Routes | None = None,
    *,
    timeout_ms: float = 3000,
    language: str = "PYTHON",
    on_close: Callable[[Peer], None] | None = None,
    hooks: RpcHooks | None = None,
    tls: ClientTls | None = None,
) -> Peer:
    """Connect to "host:port" and return the connection. `tls` None: without TLS. Raises NotSent if no server answers
    within `timeout_ms`.
    """
    host, port = parse_address(address)
    peer = Peer(routes, language=language, on_close=on_close)
    peer.address = address
    peer.hooks = hooks
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            if tls is None:
                await connect_protocol(lambda: peer, host, port)
            else:
                await secured(peer, host, port, tls)
    except TimeoutError:
        what = "did not accept the connection" if tls is None else "did not finish the TLS handshake"
        raise NotSent(f"{address} {what} within {timeout_ms:.0f} ms", address=address) from None
    except OSError as e:
        raise NotSent(
            f"cannot connect to {address}: {e.strerror or e}; check the address and that the server runs",
            address=address,
        ) from None
    return peer


class Connections:
    """One connection per address, shared by all its users."""

    def __init__(
        self,
        routes: Routes | None = None,
        *,
        connect_timeout_ms: float = 3000,
        language: str = "PYTHON",
        hooks: RpcHooks | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._routes = routes
        self._timeout_ms = connect_timeout_ms
        self._language = language
        self._hooks = hooks
        self._tls = tls
        self._peers: dict[str, Peer] = {}
        self._dialing: dict[str, asyncio.Task[Peer]] = {}
        self._closed = False

    def open_peer(self, address: str) -> Peer | None:
        """Return the open connection to an address, if there is one."""
        peer = self._peers.get(address)
        return peer if peer is not None and peer.is_open else None

    async def get(self, address: str) -> Peer:
        """Return the connection to "host:port", opened if need be. Raises NotSent or ConfigError."""
        peer = self._peers.get(address)
        if peer is not None and peer.is_open:
            return peer
        if self._closed:
            raise NotSent("the client is closed", address=address)
        task = self._dialing.get(address)
        if task is None:
            task = asyncio.ensure_future(self._dial(address))
            self._dialing[address] = task
        return await outcome_of(task)

    async def _dial(self, address: str) -> Peer:
        try:
            peer = await dial(
                address,
                self._routes,
                timeout_ms=self._timeout_ms,
                language=self._language,
                hooks=self._hooks,
                tls=self._tls,
            )
            self._peers[address] = peer
            return peer
        finally:
            del self._dialing[address]

    def forget(self, address: str) -> None:
        """Close the connection to an address that is no longer of use."""
        peer = self._peers.pop(address, None)
        if peer is not None:
            peer.close()

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for task in list(self._dialing.values()):
            task.cancel()
        peers = list(self._peers.values())
        self._peers.clear()
        for peer in peers:
            peer.close()
        if peers:
            await asyncio.wait([asyncio.ensure_future(p.wait_closed()) for p in peers], timeout=1)
