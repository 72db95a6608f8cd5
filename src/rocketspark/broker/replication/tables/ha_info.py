"""Where a master's log is to be had: EXCHANGE_BROKER_HA_INFO (906), in both directions.

Rules (AdminBrokerProcessor, BrokerOuterAPI 5.5.0): told with an address, the receiver takes it, whatever its role;
asked without one, a master answers with its own and any other broker with nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.topics import HaInfoHeader
from rocketspark.transport.connections import Connections

TIMEOUT_MS = 3000


class HaInfo(NamedTuple):
    """A master's addresses of replication and of requests; `flush_offset`: the end of its log at its start."""

    ha_address: str
    flush_offset: int
    master_address: str | None


@dataclass(slots=True)
class HaInfoExchange:
    """What a broker tells and is told. `own`: its addresses while it is the master, else None.

    `told`: called with a master's addresses, which is answered once what it returns has ended; `reset_flush_offset`:
    called with the number an operator sets on a slave; `epoch`: of the master that this broker is or follows, 0 without
    a controller.
    """

    own: Callable[[], HaInfo | None]
    told: Callable[[HaInfo], Awaitable[None] | None] = lambda info: None
    reset_flush_offset: Callable[[int], None] = lambda offset: None
    epoch: Callable[[], int] = lambda: 0


def header_of(info: HaInfo | None) -> HaInfoHeader:
    """Return the fields of a request or reply; none of them for None."""
    if info is None:
        return HaInfoHeader()
    return HaInfoHeader(ha_address=info.ha_address, flush_offset=info.flush_offset, master_address=info.master_address)


def info_of(header: HaInfoHeader) -> HaInfo | None:
    """Return what a request or reply holds; None without an address."""
    if header.ha_address is None:
        return None
    return HaInfo(header.ha_address, header.flush_offset or 0, header.master_address)


async def ask_ha_info(connections: Connections, address: str) -> HaInfo | None:
    """Ask a broker for its addresses; None if it is no master now. Raises RocketSparkError."""
    peer = await connections.get(address)
    reply = await peer.request(RequestCode.EXCHANGE_BROKER_HA_INFO, HaInfoHeader(), timeout_ms=TIMEOUT_MS)
    return info_of(reply.raise_for_code("ask for the address of replication").header(HaInfoHeader))


async def tell_ha_info(connections: Connections, address: str, info: HaInfo) -> None:
    """Tell a slave where its master is now. Raises RocketSparkError."""
    peer = await connections.get(address)
    reply = await peer.request(RequestCode.EXCHANGE_BROKER_HA_INFO, header_of(info), timeout_ms=TIMEOUT_MS)
    reply.raise_for_code("tell the address of replication")
