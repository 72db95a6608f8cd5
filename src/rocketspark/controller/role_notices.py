"""Tells the brokers of a set who is their master now. Rule: each broker is told the newest master alone, and one that
cannot be reached asks by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.controller import ElectMasterReply
from rocketspark.transport.connections import Connections

log = LimitedLog("rocketspark.controller")


class RoleNotices:
    """Tells brokers about new masters by one-way requests, over the controller's own `connections`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def tell(self, addresses: Iterable[str], header: ElectMasterReply, body: bytes) -> None:
        """Send NOTIFY_BROKER_ROLE_CHANGED to brokers; an older notice that has not been sent yet is dropped."""
        for address in addresses:
            before = self._tasks.get(address)
            if before is not None:
                before.cancel()
            task = self._tasks[address] = asyncio.create_task(self._tell(address, header, body))
            task.add_done_callback(lambda done, a=address: self._done(a, done))  # type: ignore[misc]

    def _done(self, address: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(address) is task:
            del self._tasks[address]

    async def _tell(self, address: str, header: ElectMasterReply, body: bytes) -> None:
        try:
            peer = await self._connections.get(address)
            peer.oneway(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header, body)
        except RocketSparkError as e:
            log.warning("broker %s was not told of its master: %s; it will ask", address, e)

    async def close(self) -> None:
        """Cancel the notices that are on their way, and close the connections."""
        for task in list(self._tasks.values()):
            task.cancel()
        await self._connections.close()
