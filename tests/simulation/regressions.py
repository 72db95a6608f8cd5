"""What seeds of `mixed` found in the product, each as the shortest run that shows it."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.nodes import Cluster
from tests.simulation.world import Node, World

from rocketspark import AsyncProducer, AsyncPullConsumer, Message


async def a_master_is_back_without_its_disk(world: World) -> dict[str, Any]:
    """Its slave, which is to be elected, keeps the groups' offsets and topics (mixed, seed 10).

    The broker at the master's address is another replica now, and has nothing: nobody may take that for the tables.
    """
    cluster = Cluster(world, replicas=2)
    await cluster.start()

    async def work(node: Node) -> int:
        async with (
            AsyncProducer(cluster.namesrv_address, "senders") as producer,
            AsyncPullConsumer(cluster.namesrv_address, "readers", consume_from="first") as consumer,
        ):
            for number in range(20):
                await producer.send(Message("t", b"%d" % number))
            consumer.subscribe("t")
            count = 0
            while count < 20:
                count += len(await consumer.poll(1000))
            await consumer.commit()
            return count

    async def committed(node: Node) -> int:
        async with AsyncPullConsumer(cluster.namesrv_address, "readers", auto_commit=False) as consumer:
            return sum([await consumer.committed(queue) or 0 for queue in await consumer.queues("t")])

    client = world.node("client")
    assert await client.run(work) == 20
    # The slave takes tables every 3 s.
    await asyncio.sleep(8)
    first = await cluster.master()
    assert first is not None
    # Nobody is told that it is gone, and it is back before it is missed.
    first.power_loss()
    first.wipe()
    await asyncio.sleep(1)
    cluster.restart(first)
    while await cluster.master() in (None, first):
        await asyncio.sleep(0.1)
    await cluster.wait_in_sync(2)
    await asyncio.sleep(5)
    found = await client.run(committed)
    await cluster.stop()
    return {"committed": found}


async def a_controller_is_back_with_its_clock_set_back(world: World) -> None:
    """A leader is back with a clock of an hour ago: the others hear it, and two of three decide (council, seed 1)."""
    cluster = Cluster(world, replicas=0, controllers=3)
    group = cluster.council
    assert group is not None
    await cluster.start()
    await group.make_whole()
    first = group.leader()
    assert first is not None
    first.power_loss()
    first.clock.jump(-3600)
    while (second := group.leader()) is None:
        await asyncio.sleep(0.1)
    cluster.restart(first)
    await asyncio.sleep(2)
    second.kill()
    async with asyncio.timeout(10):
        while group.leader() is None:
            await asyncio.sleep(0.1)
