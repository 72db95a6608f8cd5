"""What seeds of `mixed` found in the product, each as the shortest run that shows it."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.nodes import Cluster
from tests.simulation.world import Node, World

from rocketspark import AsyncProducer, AsyncPullConsumer, Message, MessageQueue
from rocketspark.admin.operations import AsyncAdmin


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


async def a_reader_stops_before_it_hears_that_its_topic_is_another(world: World) -> dict[str, Any]:
    """Its last commit counts messages of the topic that was deleted, and passes over none of the new (mixed, seed 103).

    The new one has as many messages already, so that the number alone does not tell.
    """
    cluster = Cluster(world)
    await cluster.start()

    async def send(body: bytes) -> None:
        async with AsyncProducer(cluster.namesrv_address, "senders") as producer:
            await producer.send(Message("t", body), queue=MessageQueue("t", cluster.name, 0))

    async def make() -> None:
        async with AsyncAdmin(cluster.namesrv_address) as operator:
            await operator.create_topic("t", queue_count=1)

    async def work(node: Node) -> list[str]:
        options: dict[str, Any] = {"consume_from": "first", "rebalance_interval_ms": 1000}
        await make()
        await send(b"old")
        async with AsyncPullConsumer(cluster.namesrv_address, "readers", **options) as consumer:
            consumer.subscribe("t")
            while not await consumer.poll(1000):
                pass
            await consumer.poll(100)
            await consumer.commit()
            # No pull of it is held any more, and it asks again in a second.
            await asyncio.sleep(6)
            cluster.brokers[0].kill()
            await cluster.start_server(cluster.brokers[0]).wait_ready()
            async with AsyncAdmin(cluster.namesrv_address) as operator:
                await operator.delete_topic("t")
            await make()
            await send(b"new")
        async with AsyncPullConsumer(cluster.namesrv_address, "readers", **options) as consumer:
            consumer.subscribe("t")
            found: list[str] = []
            until_s = world.now_s + 10
            while not found and world.now_s < until_s:
                found += [message.body.decode() for message in await consumer.poll(1000)]
            return found

    found = await world.node("client").run(work)
    await cluster.stop()
    return {"read": found}


async def a_master_is_gone_before_it_tells_of_a_topic_of_later(world: World) -> dict[str, Any]:
    """What is due once another master is elected, by level or timer, comes to a topic that this one makes (mixed, 45).

    Neither topic has a message yet: the log alone tells, where the messages wait.
    """
    cluster = Cluster(world, replicas=2, timers_enabled=True)
    await cluster.start()
    topics = {"by-level": {"delay_level": 4}, "by-timer": {"delay_ms": 30_000}}

    async def send(node: Node) -> None:
        async with AsyncProducer(cluster.namesrv_address, "senders") as producer:
            # The slave takes tables every 3 s: not now.
            await asyncio.sleep(4 - world.now_s % 3)
            for topic, later in topics.items():
                await producer.send(Message(topic, topic.encode(), **later))

    async def read(node: Node) -> list[str]:
        async with AsyncPullConsumer(cluster.namesrv_address, "readers", consume_from="first") as consumer:
            for topic in topics:
                consumer.subscribe(topic)
            found: list[str] = []
            until_s = world.now_s + 90
            while len(found) < len(topics) and world.now_s < until_s:
                found += [message.body.decode() for message in await consumer.poll(1000)]
            return sorted(found)

    await cluster.wait_in_sync(2)
    client = world.node("client")
    await client.run(send)
    first = await cluster.master()
    assert first is not None
    first.power_loss()
    found = await client.run(read)
    await cluster.stop()
    return {"read": found}
