"""How replication stands on one broker: for `mqadmin haStatus` (request 907), for metrics, and for sends that wait.

It only reads: which slaves are connected, how far each one has copied, and which of them count as in sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

from rocketspark import machine
from rocketspark.broker.replication.in_sync_set import InSyncSet
from rocketspark.broker.replication.link.ha_client import HaClient
from rocketspark.broker.replication.link.ha_listener import HaListener
from rocketspark.broker.replication.link.links import LinkState
from rocketspark.broker.replication.members import MemberGroup
from rocketspark.broker.replication.role import BrokerRole, Role
from rocketspark.broker.replication.waits import ReplicaWaits
from rocketspark.broker.settings import BrokerSettings
from rocketspark.store.store import Store

# As a master of 5.5.0 gives it: without the two fields that only a slave has.
_NO_CLIENT: dict[str, Any] = {
    "transferredByteInSecond": 0,
    "maxOffset": 0,
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
}

# How often a master that ends looks at how far its slaves are.
LOOK_S = 0.02
# A slave that said nothing for so many intervals may hang.
HEARTBEATS_HEARD = 2


class SlaveFigures(NamedTuple):
    """One slave as its master sees it. `lag_s`: seconds since it last held the whole log, 0 while it holds it."""

    name: str
    lag_bytes: int
    lag_s: float
    in_sync: bool


class ReplicationFigures(NamedTuple):
    """The replication of one broker. `copying`: its link as a slave is up; `troubles`: how often, by reason."""

    role: Role
    epoch: int
    slaves: list[SlaveFigures]
    copying: bool
    troubles: Mapping[str, int]
    timeouts: int


def master_status(
    listener: HaListener, end_position: int, now_s: float, members: Set[int] | None = None
) -> dict[str, Any]:
    """Return a master's HARuntimeInfo. `now_s`: the loop's time.

    `members`: the in-sync set under a controller; without it the slaves close to the log's end are in sync.
    """
    connections = []
    for connection in listener.connections:
        link = connection.link
        in_sync = link.is_in_sync(end_position) if members is None else link.replica_id in members
        connections.append(
            {
                "addr": connection.address,
                "slaveAckOffset": link.acked,
                "diff": end_position - link.acked,
                "inSync": in_sync,
                "transferredByteInSecond": link.window.rate(now_s),
                "transferFromWhere": link.position,
            }
        )
    return {
        "master": True,
        "masterCommitLogMaxOffset": end_position,
        "inSyncSlaveNums": sum(c["inSync"] for c in connections) if members is None else len(members) - 1,
        "haConnectionInfo": connections,
        "haClientRuntimeInfo": _NO_CLIENT,
    }


def slave_status(client: HaClient, end_position: int, now_s: float, master_flushed: int = 0) -> dict[str, Any]:
    """Return a slave's HARuntimeInfo. `now_s`: the loop's time."""
    link = client.link
    ahead_ms = machine.time() * 1000 - now_s * 1000
    return {
        "master": False,
        "masterCommitLogMaxOffset": 0,
        "inSyncSlaveNums": 0,
        "haConnectionInfo": [],
        "haClientRuntimeInfo": {
            "masterAddr": client.address,
            "transferredByteInSecond": 0 if link is None else link.window.rate(now_s),
            "maxOffset": end_position,
            "lastReadTimestamp": 0 if link is None else int(link.last_read_s * 1000 + ahead_ms),
            "lastWriteTimestamp": 0 if link is None else int(link.last_write_s * 1000 + ahead_ms),
            "masterFlushOffset": master_flushed,
            "activated": link is not None,
        },
    }


def lately_s(settings: BrokerSettings) -> float:
    """Return the time (of the loop, in s) since which a slave must have sent something to count as alive."""
    return asyncio.get_running_loop().time() - HEARTBEATS_HEARD * settings.ha_heartbeat_interval_ms / 1000


class Standing:
    """Tells how replication stands on one broker.

    `sync_set`: returns the in-sync set under a controller while this broker is the master, else None.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        role: BrokerRole,
        listener: HaListener,
        client: HaClient,
        waits: ReplicaWaits,
        members: MemberGroup,
        sync_set: Callable[[], InSyncSet | None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._role = role
        self._listener = listener
        self._client = client
        self._waits = waits
        self._members = members
        self._sync_set = sync_set

    # -- who holds copies -----------------------------------------------------------------------------------------

    def in_sync_slaves(self) -> int:
        """Return how many slaves are connected and close to the log's end."""
        return self._listener.in_sync_count(self._store.end_position)

    def heard_slaves(self) -> int:
        """Return how many slaves close to the log's end sent something lately, as each haSendHeartbeatInterval."""
        return self._listener.in_sync_count(self._store.end_position, lately_s(self._settings))

    def alive_members(self) -> int:
        """Return how many brokers with this broker's name a NameServer counts as alive, this one among them."""
        return self._members.alive_count

    def sync_set_size(self) -> int:
        """Return how many brokers count as the in-sync set, this one among them."""
        found = self._sync_set()
        return found.size if found is not None else 1

    # -- for operators --------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return how replication stands, as `mqadmin haStatus` reads it."""
        store, now_s = self._store, asyncio.get_running_loop().time()
        if self._role.kind is Role.MASTER:
            found = self._sync_set()
            return master_status(self._listener, store.end_position, now_s, None if found is None else found.members)
        return slave_status(self._client, store.end_position, now_s, store.master_flushed_position)

    def figures(self) -> ReplicationFigures:
        """Return how replication stands, for metrics."""
        end, now_s = self._store.written_position, asyncio.get_running_loop().time()
        found = self._sync_set()
        members = None if found is None else found.members
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
            self._client.state is LinkState.TRANSFER,
            self._listener.troubles.counts,
            self._waits.timeouts_count,
        )


# -- what a master that is about to end waits for ----------------------------------------------------------------------


async def all_copied(store: Store, listener: HaListener) -> None:
    """Wait until each slave that is connected holds the whole log."""
    while any(c.is_open and 0 <= c.link.acked < store.written_position for c in listener.connections):
        await asyncio.sleep(LOOK_S)


async def heirs(store: Store, listener: HaListener, others: Set[int], limit_s: float) -> list[int]:
    """Wait until one of the slaves `others` holds the whole log, `limit_s` at most; return them, the best copies first.

    Slaves that are not connected are not waited for, as it is not known what they hold.
    """
    end_s = asyncio.get_running_loop().time() + limit_s
    while True:
        end = store.written_position
        known = {
            c.link.replica_id: c.link.acked >= end for c in listener.connections if c.is_open and c.link.acked >= 0
        }
        if (
            not known.keys() & others
            or any(known.get(member) for member in others)
            or asyncio.get_running_loop().time() >= end_s
        ):
            return sorted(others, key=lambda member: (not known.get(member), member not in known))
        await asyncio.sleep(LOOK_S)
