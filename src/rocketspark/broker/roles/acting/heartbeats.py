"""A broker's signs of life between its registrations: each brokerHeartbeatInterval, to every NameServer, oneway.

Rule: 904, or with compatibleWithOldNameSrv 322, which older NameServers know and take for the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rocketspark.broker.repeated_work import pause
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import BrokerHeader
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import DataVersion
from rocketspark.transport.connections import Connections

log = LimitedLog("rocketspark.broker")


class Heartbeats:
    """Those of one broker. `version`: that of its topics, now; `may_tell` raises RocketSparkError while it must not."""

    def __init__(
        self,
        settings: BrokerSettings,
        connections: Connections,
        version: Callable[[], DataVersion],
        may_tell: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._may_tell = may_tell
        self._connections = connections
        self._version = version
        self._task: asyncio.Task[None] | None = None

    def start(self, address: str) -> None:
        """Begin, as the broker at "host:port"."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(address))

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self, address: str) -> None:
        s = self._settings
        while True:
            try:
                await asyncio.gather(*(self._beat(namesrv, address) for namesrv in s.namesrvs()))
            except Exception:
                log.exception("the NameServers were not told that this broker lives")
            await pause(lambda: s.heartbeat_interval_ms)

    async def _beat(self, namesrv: str, address: str) -> None:
        s = self._settings
        header = BrokerHeader(broker_name=s.broker_name, address=address, cluster=s.cluster_name, broker_id=s.broker_id)
        try:
            async with asyncio.timeout(s.heartbeat_timeout_ms / 1000):
                peer = await self._connections.get(namesrv)
            self._may_tell()
            if not peer.is_writable:
                return
            if s.old_nameservers:
                peer.oneway(RequestCode.QUERY_DATA_VERSION, header, bodies.encode(self._version()))
            else:
                peer.oneway(RequestCode.BROKER_HEARTBEAT, header)
        except (RocketSparkError, TimeoutError) as e:
            log.info("NameServer %s was not told that this broker lives: %s", namesrv, e)
