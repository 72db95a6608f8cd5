"""An operator's client: its life, and the brokers of the cluster. Rule: what is done there stands in the operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack, cast

from rocketspark.admin.states import BrokerState
from rocketspark.client.base import AsyncClient
from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.options import AccessOptions, ClientOptions
from rocketspark.errors import UsageError
from rocketspark.transport.peer import Peer


class ClusterClient(AsyncClient):
    """What all operations stand on: connections to brokers, and which brokers there are."""

    kind = "operations object"

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        timeout_ms: float = client_api.TIMEOUT_MS,
        **access: Unpack[AccessOptions],
    ) -> None:
        super().__init__(namesrv, cast(ClientOptions, {"timeout_ms": timeout_ms, **access}))
        self._timeout_ms = timeout_ms
        self._routes = self._instance.routes

    async def start(self) -> None:
        """Begin. Raises NotSent if no NameServer answers."""
        self._begin()
        await self._instance.start()
        try:
            await self._instance.check_namesrv()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connections. May be called again."""
        if self._state == "started":
            await self._instance.close()
        self._state = "closed"

    async def _broker(self, address: str) -> Peer:
        self._check_started()
        return await self._instance.broker(address)

    async def cluster_info(self) -> list[BrokerState]:
        """Return every broker the NameServer knows, ordered by cluster, name and id."""
        info = await self._routes.ask(lambda peer: admin_api.cluster_info(peer, timeout_ms=self._timeout_ms))
        return sorted(
            BrokerState(cluster, name, number, address)
            for cluster, names in info.cluster_addr_table.items()
            for name in names
            if name in info.broker_addr_table
            for number, address in info.broker_addr_table[name].broker_addrs.items()
        )

    async def _masters(self, cluster: str | None, brokers: Iterable[str] | None) -> list[BrokerState]:
        masters = [b for b in await self.cluster_info() if b.broker_id == 0]
        names = {b.broker_name for b in masters}
        clusters = {b.cluster for b in masters}
        wanted = names if brokers is None else set(brokers)
        if wanted - names:
            missing = ", ".join(sorted(wanted - names))
            raise UsageError(f"no broker {missing}: these are up: {', '.join(sorted(names)) or 'none'}")
        if cluster is not None and cluster not in clusters:
            raise UsageError(f"no cluster {cluster!r}: these are up: {', '.join(sorted(clusters)) or 'none'}")
        if not masters:
            raise UsageError("no broker is up: start one that names this NameServer")
        return [b for b in masters if b.broker_name in wanted and cluster in (None, b.cluster)]
