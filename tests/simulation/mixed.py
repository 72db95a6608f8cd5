"""All kinds of clients beside all kinds of faults, and the checker's word on what came of it.

A seed has some of the `parts` too; with `parts` given it has these and no other clients.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from tests.simulation import checker, workloads
from tests.simulation.histories import ends_of, gather
from tests.simulation.moves import draw_moves, move, note_known, renew
from tests.simulation.nodes import Cluster
from tests.simulation.parts import PARTS
from tests.simulation.plan import Faults, draw_faults, draw_stands, stand
from tests.simulation.workloads import Workload
from tests.simulation.world import NodeDied, World, wait_until

from rocketspark.admin.operations import AsyncAdmin
from rocketspark.errors import UsageError

FAULTS_FROM_S, FAULTS_UNTIL_S = 5.0, 40.0
OPERATIONS = 120
SETTLE_S = 100.0
# The longest that something waits by itself: an open transaction, an invisible time, a retry.
QUIET_S = 45.0


async def mixed(world: World) -> dict[str, Any]:
    """One broker or replicas under a controller; every client, every fault."""
    return await run(world)


async def calm(world: World) -> dict[str, Any]:
    """The same without a fault."""
    return await run(world, faulty=False)


async def run(
    world: World,
    *,
    faulty: bool = True,
    replicas: int | None = None,
    retries: int | None = None,
    splits: list[dict[str, Any]] | None = None,
    faults: list[dict[str, Any]] | None = None,
    stands: list[dict[str, Any]] | None = None,
    moves: list[dict[str, Any]] | None = None,
    parts: Sequence[str] | None = None,
    adds: bool = True,
    proxies: int = 0,
    **settings: Any,
) -> dict[str, Any]:
    """Run the clients beside faults. What is given is not drawn.

    With `splits` there are no faults but those that are given. `adds`: whether parts are drawn; `proxies`: how many are
    between clients and brokers.
    """
    chance = world.random("plan")
    is_whole = parts is None
    if parts is None:
        parts = _draw_parts(world.random("parts")) if adds else []
    for name in parts:
        settings = {**PARTS[name].settings, **({} if is_whole else PARTS[name].alone), **settings}
        PARTS[name].begin()
    drawn_replicas = chance.choice([1, 2, 2, 2, 3])
    replicas = replicas or drawn_replicas
    shape: dict[str, Any] = {
        "flush_disk_type": chance.choice(["ASYNC_FLUSH", "SYNC_FLUSH"]),
        "timers_enabled": True,
        "recall_enabled": True,
        "transaction_timeout_ms": 3000,
        "transaction_check_interval_ms": 5000,
        **settings,
    }
    drawn_retries = chance.choice([0, 0, 2])
    retries = drawn_retries if retries is None else retries
    world.plan["cluster"] = {"replicas": replicas, "retries": retries, "parts": list(parts), **shape}
    cluster = Cluster(world, replicas=replicas, proxies=proxies, **shape)
    count = chance.randint(1, 3)
    drawn = workloads.draw_operations(
        world.random("operations"), clients=count, count=OPERATIONS, begin_s=2.0, end_s=FAULTS_UNTIL_S + 5
    )
    operations = world.planned("operations", drawn) if is_whole else []
    drawn = workloads.draw_members(world.random("members"), end_s=FAULTS_UNTIL_S)
    members = world.planned("members", drawn) if is_whole else []
    begun = {name: PARTS[name].draw(world.random(name), FAULTS_UNTIL_S) for name in parts}
    begun = {name: world.planned(name, drawn) for name, drawn in begun.items()}
    producers = [world.node(f"producer-{number}") for number in range(count)]
    for member in members:
        world.node(member["name"])
    drawn = draw_faults(world.random("faults"), cluster, producers, begin_s=FAULTS_FROM_S, end_s=FAULTS_UNTIL_S)
    draws = faulty and splits is None
    if faults is None:
        faults = world.planned("faults", drawn) if draws else []
    if stands is None and draws:
        drawn = draw_stands(
            world.random("stands"), [*cluster.servers, *producers], begin_s=FAULTS_FROM_S, end_s=FAULTS_UNTIL_S
        )
        stands = world.planned("stands", drawn)
    if draws and replicas > 1:
        splits = world.planned("splits", _draw_splits(world.random("splits"), cluster))
    if moves is None and draws and replicas > 1:
        moves = world.planned("moves", draw_moves(world.random("moves"), cluster, begin_s=2.0, end_s=20.0))
    await cluster.start()
    topics = {topic: queues for name in parts for topic, queues in PARTS[name].topics.items()}
    if is_whole and not shape.get("auto_create_topic", True):
        topics |= dict.fromkeys(workloads.TOPICS, 4)
    if topics or parts:
        async with AsyncAdmin(cluster.servers_address) as operator:
            for topic, queues in topics.items():
                await operator.create_topic(topic, queue_count=queues)
            for name in parts:
                await PARTS[name].prepare(operator)
    work = Workload(world, cluster, retries=retries)
    running = []
    for node in producers:
        own = [operation for operation in operations if operation["client"] == node.name]
        running.append(node.start(lambda node, own=own: work.produce(node, own)))
    running += [work.begin(member) for member in members]
    for name, steps in begun.items():
        running += PARTS[name].start(work, steps)
    beside = asyncio.gather(_split(cluster, splits or []), stand(world, stands or []), move(cluster, moves or []))
    renewing = asyncio.ensure_future(renew(cluster)) if replicas > 1 and shape.get("reserved_hours") == 0 else None
    await Faults(cluster).run(faults)
    await beside
    await wait_until(world, FAULTS_UNTIL_S + 5)
    world.record("faults end")
    try:
        for quiet_s in (QUIET_S, 0.0):
            if replicas > 1:
                await cluster.wait_in_sync(len(cluster.brokers), SETTLE_S)
            await asyncio.sleep(quiet_s)
    except TimeoutError as e:
        raise checker.PromiseBroken(f"it settles (1): {e}") from e
    if renewing is not None:
        renewing.cancel()
    world.record("settled")
    await asyncio.sleep(max((PARTS[name].quiet_s for name in parts), default=0.0))
    await world.node("asker").run(work.commits)
    for name in parts:
        await PARTS[name].finish(work)
    work.stopped = True
    for process in running:
        # One that came while no NameServer answered did not begin.
        is_no_error = process.has_ended and isinstance(process.error, (NodeDied, *workloads.ERRORS, type(None)))
        if not is_no_error or isinstance(process.error, UsageError):
            await process.wait()
    # Nothing of ours is stored any more; slaves have the rest in a moment.
    for _ in range(20):
        if len(ends_of(cluster.stores())) == 1:
            break
        await asyncio.sleep(0.5)
    if moves:
        await note_known(cluster)
    history = gather(world.history, cluster.stores())
    await cluster.stop()
    checker.raise_for(checker.broken(history))
    return {
        "sent": sum(sent.is_ok for sent in history.sent),
        "tried": len(history.sent),
        "reads": len(history.reads),
        "faults": len(faults),
        "members": len(members),
    }


def _draw_parts(chance: random.Random) -> list[str]:
    drawn = sorted(chance.sample(sorted(PARTS.keys() - {"objects", "light", "batched"}), chance.choice([0, 1, 1, 2])))
    # A tier lies in a folder or in an object store.
    drawn = ["objects" if name == "tiered" and chance.random() < 0.5 else name for name in drawn]
    # Drivers sign as their options say, which are made by themselves.
    return [name for name in drawn if name != "once" or "users" not in drawn]


def _draw_splits(chance: random.Random, cluster: Cluster) -> list[dict[str, Any]]:
    """Draw when a broker hears no other server, while clients hear all of them."""
    return [
        {
            "at": round(chance.uniform(FAULTS_FROM_S, FAULTS_UNTIL_S - 15), 3),
            "node": chance.choice(cluster.brokers).name,
            "seconds": round(chance.choice([chance.uniform(0.5, 4), chance.uniform(4, 15)]), 3),
        }
        for _ in range(chance.choice([0, 1, 1, 2]))
    ]


async def _split(cluster: Cluster, splits: list[dict[str, Any]]) -> None:
    world = cluster.world
    for split in sorted(splits, key=lambda split: split["at"]):
        await wait_until(world, split["at"])
        node = world.node(split["node"])
        others = [other for other in cluster.servers if other is not node]
        world.record("fault", what="split", node=node.name)
        world.network.partition([node], others)
        await asyncio.sleep(split["seconds"])
        world.record("mended", what="split", node=node.name)
        world.network.rejoin(node, others)
