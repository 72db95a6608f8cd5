"""A rack whose machines all lose their power at once: what was answered under SYNC_FLUSH is on the master's disk."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.failover import SETTLE_S, check, compare_logs, read_all
from tests.simulation.nodes import Cluster
from tests.simulation.world import Node, World, wait_until

from rocketspark import AsyncProducer, Message, RocketSparkError, SendStatus

CUTS = 3


async def pair(world: World) -> dict[str, Any]:
    """Two or three replicas under one controller or three, all in one rack."""
    chance = world.random("plan")
    replicas = chance.choice([2, 2, 3])
    controllers = chance.choice([1, 3])
    return await _run(Cluster(world, replicas=replicas, controllers=controllers, flush_disk_type="SYNC_FLUSH"))


async def alone(world: World) -> dict[str, Any]:
    """One broker."""
    return await _run(Cluster(world, flush_disk_type="SYNC_FLUSH"))


async def two_brokers(world: World) -> dict[str, Any]:
    """Two brokers, and nobody else: the controller knows who was in sync."""
    return await _run(Cluster(world, replicas=2, flush_disk_type="SYNC_FLUSH"), brokers_alone=True)


async def _run(cluster: Cluster, *, brokers_alone: bool = False) -> dict[str, Any]:
    world, count = cluster.world, len(cluster.brokers)
    chance = world.random("cuts")
    cuts = world.planned(
        "cuts", [{"after_s": round(chance.uniform(1, 8), 3), "back_s": _backs(chance, cluster)} for _ in range(CUTS)]
    )
    await cluster.start()
    sent: dict[str, tuple[int, int]] = {}
    tried: set[str] = set()
    is_over = False

    async def send(node: Node) -> None:
        async with AsyncProducer(cluster.namesrv_address, "senders", send_timeout_ms=1500, retries=0) as producer:
            number = 0
            while not is_over:
                number += 1
                body = f"{node.name}:{number}"
                tried.add(body)
                try:
                    result = await producer.send(Message("t", body.encode()))
                except (RocketSparkError, OSError):
                    pass
                else:
                    if result.status is SendStatus.SEND_OK:
                        sent[body] = result.queue.queue_id, result.queue_offset
                await asyncio.sleep(0.05)

    running = [world.node(f"sender-{number}").start(send) for number in range(2)]
    nodes = cluster.brokers if brokers_alone else cluster.servers
    for cut in cuts:
        await asyncio.sleep(cut["after_s"])
        began_s = world.now_s
        for node in nodes:
            node.power_loss()
        for node in sorted(nodes, key=lambda node: cut["back_s"][node.name]):
            await wait_until(world, began_s + cut["back_s"][node.name])
            cluster.restart(node)
        before = len(sent)
        async with asyncio.timeout(SETTLE_S):
            if cluster.council is not None:
                await cluster.wait_in_sync(count, SETTLE_S)
            while len(sent) == before:
                await asyncio.sleep(0.1)
    is_over = True
    for process in running:
        await process.wait()
    if cluster.council is not None:
        await cluster.wait_in_sync(count, SETTLE_S, shown=True)
    else:
        await asyncio.sleep(1)
    there = await world.node("reader").run(lambda node: read_all(cluster))
    check(sent, tried, {}, there)
    if cluster.council is not None:
        compare_logs(cluster)
    await cluster.stop()
    return {"sent": len(sent), "tried": len(tried)}


def _backs(chance: Any, cluster: Cluster) -> dict[str, float]:
    return {node.name: round(chance.choice([0.1, chance.uniform(0.1, 6)]), 3) for node in cluster.servers}
