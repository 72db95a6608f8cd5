"""A rack whose machines all lose their power at once: what was answered under SYNC_FLUSH is on the master's disk.

`among_faults`: some of them do, or all, while other faults go on.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.simulation import mixed
from tests.simulation.failover import SETTLE_S, check, compare_logs, read_all
from tests.simulation.nodes import Cluster
from tests.simulation.plan import Faults, draw_faults
from tests.simulation.world import Node, Process, World, wait_until

from rocketspark import AsyncProducer, Message, RocketSparkError, SendStatus

CUTS = 3
FAULTS_FROM_S, FAULTS_UNTIL_S = 3.0, 30.0


async def pair(world: World) -> dict[str, Any]:
    """Two or three replicas under one controller or three, all in one rack."""
    chance = world.random("plan")
    replicas = chance.choice([2, 2, 3])
    controllers = chance.choice([1, 3])
    return await _run(Cluster(world, replicas=replicas, controllers=controllers, flush_disk_type="SYNC_FLUSH"))


async def alone(world: World) -> dict[str, Any]:
    """One broker."""
    return await _run(Cluster(world, flush_disk_type="SYNC_FLUSH"))


async def all_kinds(world: World) -> dict[str, Any]:
    """One broker with clients of all kinds, whose readers live on when its machine loses its power."""
    chance, cuts = world.random("cuts"), []
    for number in range(CUTS):
        kind = chance.choice(["power", "power at call"])
        at = round(chance.uniform(6 + 10 * number, 13 + 10 * number), 3)
        cuts.append({"at": at, "kind": kind, "node": "broker-a-1", "seconds": 1.5, "value": chance.randint(1, 30)})
    faults = world.planned("faults", cuts)
    return await mixed.run(world, replicas=1, flush_disk_type="SYNC_FLUSH", stands=[], faults=faults)


async def two_brokers(world: World) -> dict[str, Any]:
    """Two brokers, and nobody else: the controller knows who was in sync."""
    return await _run(Cluster(world, replicas=2, flush_disk_type="SYNC_FLUSH"), brokers_alone=True)


async def among_faults(world: World) -> dict[str, Any]:
    """Two or three replicas, of which some or all lose their power while links are cut and machines killed or halted.

    A cut ends processes alone where the master has not flushed yet what it had copied before it was elected.
    """
    chance = world.random("plan")
    cluster = Cluster(
        world, replicas=chance.choice([2, 2, 3]), controllers=chance.choice([1, 1, 3]), flush_disk_type="SYNC_FLUSH"
    )
    sending = _Sending(cluster)
    drawn = draw_faults(world.random("faults"), cluster, sending.nodes, begin_s=FAULTS_FROM_S, end_s=FAULTS_UNTIL_S)
    own = "power", "wipe", "remove"
    faults = world.planned("faults", [fault for fault in drawn if not fault["kind"].startswith(own)])
    cuts = world.planned("cuts", [_draw_cut(world.random(f"cut {number}"), cluster) for number in range(CUTS)])
    await cluster.start()
    sending.begin()
    others = Faults(cluster)
    world.may_lose_power = lambda node: True
    cutting = [asyncio.ensure_future(_cut(cluster, cut)) for cut in cuts]
    await others.run(faults)
    await asyncio.gather(*cutting)
    others.mend()
    await cluster.wait_in_sync(len(cluster.brokers), SETTLE_S)
    return await _ended(sending)


async def failed_flushes(world: World) -> dict[str, Any]:
    """One broker whose disk fails, that is started again, maybe too early, once the disk is well, and then loses its
    power.
    """
    cluster = Cluster(world, flush_disk_type="SYNC_FLUSH")
    chance = world.random("cuts")
    await cluster.start()
    # Of some pages each, or the page that a flush did not write is changed by the next message.
    sending = _Sending(cluster, body_bytes=9000)
    sending.begin()
    (node,) = cluster.brokers
    for _ in range(CUTS):
        await asyncio.sleep(chance.uniform(0.5, 4))
        node.disk.failing = {"sync"}
        await asyncio.sleep(chance.uniform(0.1, 1))
        for number in range(chance.choice([1, 1, 2, 3])):
            if number:
                cluster.restart(node)
                await asyncio.sleep(chance.uniform(0.2, 1))
            node.kill()
        node.disk.failing = set()
        cluster.restart(node)
        await asyncio.sleep(chance.uniform(0.5, 4))
        node.power_loss()
        await asyncio.sleep(0.5)
        cluster.restart(node)
    before = len(sending.sent)
    async with asyncio.timeout(SETTLE_S):
        while len(sending.sent) == before:
            await asyncio.sleep(0.1)
    return await _ended(sending)


def _draw_cut(chance: random.Random, cluster: Cluster) -> dict[str, Any]:
    names = [node.name for node in chance.choice([cluster.servers, cluster.brokers])]
    lost = names if chance.random() < 0.6 else chance.sample(names, chance.randint(2, len(names)))
    at = round(chance.uniform(FAULTS_FROM_S, FAULTS_UNTIL_S), 3)
    return {"at": at, "nodes": lost, "back_s": _backs(chance, cluster)}


async def _cut(cluster: Cluster, cut: dict[str, Any]) -> None:
    world = cluster.world
    await wait_until(world, cut["at"])
    nodes = [world.node(name) for name in cut["nodes"]]
    is_whole = _has_flushed_all_of_others(cluster)
    world.record("cut", nodes=cut["nodes"], power=is_whole)
    for node in nodes:
        node.power_loss() if is_whole else node.kill()
    for node in sorted(nodes, key=lambda node: cut["back_s"][node.name]):
        await wait_until(world, cut["at"] + cut["back_s"][node.name])
        cluster.restart(node)


def _has_flushed_all_of_others(cluster: Cluster) -> bool:
    """Tell whether the master of the latest epoch has on its disk what was acknowledged before it was elected."""
    known = cluster.known_set()
    for node in cluster.brokers:
        for process in node.processes:
            manager = process.server.replication.manager if process.server is not None else None
            if manager is not None and known is not None and manager.own_id == known.master:
                last = manager._epochs.last
                return last is not None and (
                    last.epoch == known.master_epoch and process.server.store.flushed_position >= last.start
                )
    return False


class _Sending:
    """Two senders, and what came of what they sent: bodies of `body_bytes` at least."""

    def __init__(self, cluster: Cluster, body_bytes: int = 0) -> None:
        self.cluster = cluster
        self._body_bytes = body_bytes
        self.nodes = [cluster.world.node(f"sender-{number}") for number in range(2)]
        self.sent: dict[str, tuple[int, int]] = {}
        self.tried: set[str] = set()
        self.is_over = False
        self.running: list[Process] = []

    def begin(self) -> None:
        self.running = [node.start(self._send) for node in self.nodes]

    async def _send(self, node: Node) -> None:
        async with AsyncProducer(self.cluster.namesrv_address, "senders", send_timeout_ms=1500, retries=0) as producer:
            number = 0
            while not self.is_over:
                number += 1
                body = f"{node.name}:{number}".ljust(self._body_bytes, ".")
                self.tried.add(body)
                try:
                    result = await producer.send(Message("t", body.encode()))
                except (RocketSparkError, OSError):
                    pass
                else:
                    if result.status is SendStatus.SEND_OK:
                        self.sent[body] = result.queue.queue_id, result.queue_offset
                await asyncio.sleep(0.05)


async def _run(cluster: Cluster, *, brokers_alone: bool = False) -> dict[str, Any]:
    world, count = cluster.world, len(cluster.brokers)
    chance = world.random("cuts")
    cuts = world.planned(
        "cuts", [{"after_s": round(chance.uniform(1, 8), 3), "back_s": _backs(chance, cluster)} for _ in range(CUTS)]
    )
    await cluster.start()
    sending = _Sending(cluster)
    sending.begin()
    sent = sending.sent
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
    return await _ended(sending)


async def _ended(sending: _Sending) -> dict[str, Any]:
    """Look for all that was sent, once all is well."""
    cluster = sending.cluster
    sending.is_over = True
    for process in sending.running:
        await process.wait()
    if cluster.council is not None:
        await cluster.wait_in_sync(len(cluster.brokers), SETTLE_S, shown=True)
    else:
        await asyncio.sleep(1)
    there = await cluster.world.node("reader").run(lambda node: read_all(cluster))
    check(sending.sent, sending.tried, {}, there)
    if cluster.council is not None:
        compare_logs(cluster)
    await cluster.stop()
    return {"sent": len(sending.sent), "tried": len(sending.tried)}


def _backs(chance: random.Random, cluster: Cluster) -> dict[str, float]:
    return {node.name: round(chance.choice([0.1, chance.uniform(0.1, 6)]), 3) for node in cluster.servers}
