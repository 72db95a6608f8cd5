"""A broker more, with an empty disk, and then one less, while everything goes on: a machine that is replaced.

`renew` gives an empty disk to a slave that needs what its master has removed, as its master's log asks for.

Rule: a broker is taken out for good only where that loses nothing: all are in sync, and nothing was wrong for a while.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.simulation.checker import View, rule
from tests.simulation.histories import kind, noted
from tests.simulation.nodes import Cluster
from tests.simulation.world import Node, wait_until

from rocketspark.admin.operations import AsyncAdmin
from rocketspark.errors import RocketSparkError
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.controller import CleanBrokerDataHeader
from rocketspark.transport.connections import Connections

Move = dict[str, Any]
QUIET_S = 8.0


@kind
class Known(NamedTuple):
    """Which brokers a server knew at the end, by the names of their machines."""

    by: str
    names: tuple[str, ...]


def draw_moves(chance: random.Random, cluster: Cluster, *, begin_s: float, end_s: float) -> list[Move]:
    """Draw whether a broker is added, and which one is taken out then, so long after all are in sync: "" for none."""
    leaves = chance.choice([*(node.name for node in cluster.brokers), ""])
    at, after_s = round(chance.uniform(begin_s, end_s), 3), round(chance.uniform(0, 10), 3)
    return [{"at": at, "leaves": leaves, "after_s": after_s}] if chance.random() < 0.3 else []


async def move(cluster: Cluster, moves: list[Move]) -> None:
    """Do what was drawn, and note who is known to whom in the end."""
    for step in moves:
        await wait_until(cluster.world, step["at"])
        await _add(cluster)
        if step["leaves"]:
            await asyncio.sleep(step["after_s"])
            await _take_out(cluster, cluster.world.node(step["leaves"]))


async def _add(cluster: Cluster) -> None:
    world, count = cluster.world, len(cluster.brokers) + 1
    node = world.node(f"{cluster.name}-{count}")
    cluster.brokers.append(node)
    world.record("added", node=node.name)
    world.states["brokers added"] += 1
    cluster.start_server(node)
    await cluster.wait_in_sync(count, 300.0)


async def _take_out(cluster: Cluster, node: Node) -> None:
    world = cluster.world
    while not _is_well(cluster):
        await asyncio.sleep(0.5)
    # It is of the brokers until it is out of the set: so long no other may lose its power.
    cluster.taken_out.add(node.name)
    world.states["brokers taken out"] += 1
    world.record("fault", what="taken out", node=node.name)
    numbers = _numbers(cluster, node)
    node.kill()
    while not numbers.isdisjoint(cluster.known_set().in_sync):
        await asyncio.sleep(0.5)
    for number in sorted(numbers):
        while not await _is_cleaned(cluster, number):
            await asyncio.sleep(0.5)
    cluster.brokers.remove(node)
    world.record("mended", what="taken out", node=node.name)


def _is_well(cluster: Cluster) -> bool:
    """Tell whether all run and are in sync, and nothing was wrong for some seconds."""
    for line in reversed(cluster.world.history):
        if line["t"] < cluster.world.now_s - QUIET_S:
            break
        if line["kind"] in ("fault", "kill", "power loss", "mended", "ready"):
            return False
    is_one_down = any(not node.processes for node in cluster.servers)
    return not is_one_down and cluster.known_in_sync() == len(cluster.brokers)


async def renew(cluster: Cluster) -> None:
    """Look for slaves whose log ends before their master's begins, for ever."""
    while True:
        await asyncio.sleep(1)
        running = {node: process.server for node in cluster.brokers for process in node.processes if process.is_ready}
        begins_at = max((each.store.min_position for each in running.values() if each.role.is_master), default=0)
        for node, server in running.items():
            ends_at = server.store.written_position
            if (
                server.role.is_master
                or not 0 < ends_at < begins_at
                or not _numbers(cluster, node).isdisjoint(cluster.known_set().in_sync)
            ):
                continue
            cluster.world.record("fault", what="renewed", node=node.name)
            cluster.world.states["slaves that begin anew"] += 1
            node.kill()
            node.wipe()
            cluster.start_server(node)
            cluster.world.record("mended", what="renewed", node=node.name)


def _numbers(cluster: Cluster, node: Node) -> set[int]:
    """Return the numbers that the controllers gave a broker: another one for each empty disk that it came with."""
    replicas = cluster.known_set().replicas.items()
    return {number for number, replica in replicas if replica.address.startswith(f"{node.ip}:")}


async def _is_cleaned(cluster: Cluster, number: int) -> bool:
    """Have the controllers forget a broker, as `cleanBrokerMetadata` does; False if they do not, or do not answer."""
    assert cluster.council is not None
    header = CleanBrokerDataHeader(
        cluster_name="DefaultCluster", broker_name=cluster.name, broker_controller_ids_to_clean=str(number)
    )
    connections = Connections()
    try:
        peer = await connections.get(cluster.council.addresses[0])
        (await peer.request(RequestCode.CLEAN_BROKER_DATA, header, timeout_ms=3000)).raise_for_code("clean")
    except (RocketSparkError, OSError) as e:
        cluster.world.record("not cleaned", number=number, error=str(e)[:200])
        return False
    finally:
        await connections.close()
    return True


async def note_known(cluster: Cluster) -> None:
    """Note which brokers the controllers and the NameServer know."""
    world = cluster.world
    addresses = {"controller": [replica.address for replica in cluster.known_set().replicas.values()]}
    async with AsyncAdmin(cluster.servers_address) as operator:
        addresses["namesrv"] = [broker.address for broker in await operator.cluster_info()]
    for by, found in addresses.items():
        names = sorted(world.by_ip[address.partition(":")[0]].name for address in found)
        world.record("saw", **noted(Known(by, tuple(names))))


@rule
def who_was_taken_out_is_known_to_nobody(view: View) -> Iterator[str]:
    """Controllers and NameServer know the brokers that are there, one that was added too, and no other."""
    there = sorted(view.history.logs)
    for known in view.history.more.get("known", ()):
        # One that began anew has two numbers.
        if sorted(set(known.names)) != there:
            yield f"{known.by} knows {list(known.names)}, and there are {there}"
