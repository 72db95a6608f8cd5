"""An operator's client: its life, and the brokers of the cluster. Rule: what is done there stands in the operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar, Unpack, cast

from rocketspark.admin.states import BrokerState
from rocketspark.client.base import AsyncClient
from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.options import AccessOptions, ClientOptions
from rocketspark.errors import ServerError, TransportError, UsageError
from rocketspark.transport.peer import Peer

T = TypeVar("T")


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

    async def _each(
        self, targets: Iterable[BrokerState], doing: str, act: Callable[[Peer], Awaitable[T]]
    ) -> dict[str, T]:
        """Do it on each; returns what came of it by name. Raises as `done_or_raise` once all were asked."""
        came: dict[str, T | ServerError | TransportError] = {}
        for target in targets:
            try:
                came[target.broker_name] = await act(await self._broker(target.address))
            except (ServerError, TransportError) as e:
                came[target.broker_name] = e
        return done_or_raise(doing, came)


def done_or_raise(doing: str, came: Mapping[str, T | ServerError | TransportError]) -> dict[str, T]:
    """Return what was done, by broker. Raises the first failure, which says where else it failed and was done."""
    done = {name: one for name, one in came.items() if not isinstance(one, (ServerError, TransportError))}
    failed = [(name, one) for name, one in came.items() if isinstance(one, (ServerError, TransportError))]
    if not failed:
        return done
    where, error = failed[0]
    also = "".join(f"; {name} too" for name, _ in failed[1:])
    but = f", done on {', '.join(done)}" if done else ""
    if isinstance(error, ServerError):
        raise ServerError(
            error.code, error.remark, address=error.address, doing=f"{doing} refused by {where}{also}{but}"
        )
    raise type(error)(f"{doing} failed on {where}{also}{but}: {error}", address=error.address)
