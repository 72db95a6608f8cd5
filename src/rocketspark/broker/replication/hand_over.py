"""What a master that is about to end waits for: slaves that have its whole log and its tables.

The master is fenced while it waits, so nothing is added to its log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set

from rocketspark.broker.replication.link.ha_listener import HaListener
from rocketspark.broker.replication.master_api import HaInfo, tell_ha_info
from rocketspark.broker.replication.members import MemberGroup
from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.store.store import Store
from rocketspark.transport.connections import Connections

log = LimitedLog("rocketspark.broker.replication")

LOOK_S = 0.02


async def all_copied(store: Store, listener: HaListener) -> None:
    """Wait until each slave that is connected holds the whole log."""
    while any(c.is_open and 0 <= c.link.acked < store.written_position for c in listener.connections):
        await asyncio.sleep(LOOK_S)


async def tables_taken(members: MemberGroup, connections: Connections, info: HaInfo) -> None:
    """Tell each slave where this master is: one of ours answers once it has taken its tables."""
    try:
        await members.ask()
    except RocketSparkError as e:
        log.info("the slaves are those known before: %s", e)
    told = (tell_ha_info(connections, address, info) for address in members.others())
    for failed in await asyncio.gather(*told, return_exceptions=True):
        if failed is not None:
            log.warning("a slave may lack what changed in the last seconds in topics, groups and users: %s", failed)


async def heirs(store: Store, listener: HaListener, others: Set[int], limit_s: float) -> list[int]:
    """Wait, at most so long, until one of these slaves holds the whole log; return them, the best copies first.

    One that is not connected is not waited for: what it holds is not known.
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
