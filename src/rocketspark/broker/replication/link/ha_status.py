"""How replication stands, as `mqadmin haStatus` reads it (request 907)."""

from __future__ import annotations

import time
from collections.abc import Set
from typing import Any

from rocketspark.broker.replication.link.ha_client import HaClient
from rocketspark.broker.replication.link.ha_listener import HaListener

# As a master of 5.5.0 gives it: without the two fields that only a slave has.
_NO_CLIENT: dict[str, Any] = {
    "transferredByteInSecond": 0,
    "maxOffset": 0,
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
}


def master_status(
    listener: HaListener, end_position: int, now_s: float, members: Set[int] | None = None
) -> dict[str, Any]:
    """Return a master's HARuntimeInfo. `members`: the in-sync set under a controller; else who is close is in sync."""
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
    ahead_ms = time.time() * 1000 - now_s * 1000
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
