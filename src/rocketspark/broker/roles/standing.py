"""How replication stands on one broker: for `mqadmin haStatus`, for metrics, and for who counts copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from typing import Any

from rocketspark.broker.replication.figures import ReplicationFigures, SlaveFigures
from rocketspark.broker.replication.link.ha_client import HaClient
from rocketspark.broker.replication.link.ha_listener import HaListener
from rocketspark.broker.replication.link.ha_status import master_status, slave_status
from rocketspark.broker.replication.link.slave_link import State
from rocketspark.broker.replication.replica_waits import ReplicaWaits
from rocketspark.broker.replication.role import BrokerRole, Role
from rocketspark.store.store import Store


class Standing:
    """`in_sync`: the in-sync set under a controller while this broker is master, None without one."""

    def __init__(
        self,
        store: Store,
        role: BrokerRole,
        listener: HaListener,
        client: HaClient,
        waits: ReplicaWaits,
        in_sync: Callable[[], Set[int] | None],
    ) -> None:
        self._store = store
        self._role = role
        self._listener = listener
        self._client = client
        self._waits = waits
        self._in_sync = in_sync

    def status(self) -> dict[str, Any]:
        """Return how replication stands, as `mqadmin haStatus` reads it."""
        store, now_s = self._store, asyncio.get_running_loop().time()
        if self._role.kind is Role.MASTER:
            return master_status(self._listener, store.end_position, now_s, self._in_sync())
        return slave_status(self._client, store.end_position, now_s, store.master_flushed_position)

    def figures(self) -> ReplicationFigures:
        """Return how replication stands, for metrics."""
        end, now_s = self._store.written_position, asyncio.get_running_loop().time()
        members = self._in_sync()
        slaves = []
        for connection in self._listener.connections:
            link = connection.link
            lag = max(end - max(link.acked, 0), 0)
            in_sync = link.is_in_sync(end) if members is None else link.replica_id in members
            name = connection.host if link.replica_id is None else str(link.replica_id)
            since_s = 0.0 if lag == 0 else now_s - (link.caught_up_s or link.began_s)
            slaves.append(SlaveFigures(name, lag, since_s, in_sync))
        return ReplicationFigures(
            self._role.kind,
            self._role.epoch,
            slaves,
            self._client.state is State.TRANSFER,
            self._listener.troubles.counts,
            self._waits.timeouts_count,
        )
