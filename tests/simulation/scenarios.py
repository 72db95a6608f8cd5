"""Scenarios by their names alone: the plainest, which check nothing, and those of `failover`."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.failover import failover, failover_hard
from tests.simulation.nodes import Cluster
from tests.simulation.world import Node, World

from rocketspark import AsyncProducer, AsyncPullConsumer, Message, RocketSparkError

__all__ = ["failover", "failover_hard", "pair", "single"]


async def single(world: World) -> dict[str, Any]:
    """A NameServer and a broker; one sends, one reads."""
    cluster = Cluster(world)
    await cluster.start()
    sender, reader = world.node("sender"), world.node("reader")

    async def send(node: Node) -> None:
        async with AsyncProducer(cluster.namesrv_address, "senders") as producer:
            for number in range(50):
                result = await producer.send(Message("t", b"n%d" % number))
                world.record("sent", n=number, queue=result.queue.queue_id, offset=result.queue_offset)
                await asyncio.sleep(0.05)

    async def read(node: Node) -> int:
        count = 0
        async with AsyncPullConsumer(cluster.namesrv_address, "readers", consume_from="first") as consumer:
            consumer.subscribe("t")
            while count < 50:
                for message in await consumer.poll(1000):
                    world.record(
                        "read", body=message.body.decode(), queue=message.queue_id, offset=message.queue_offset
                    )
                    count += 1
            await consumer.commit()
        return count

    sending = sender.start(send)
    await sending.wait()
    count = await reader.run(read)
    await cluster.stop()
    return {"read": count}


async def pair(world: World) -> dict[str, Any]:
    """A controller and two replicas; the master is killed while somebody sends."""
    cluster = Cluster(world, replicas=2)
    await cluster.start()
    world.record("in sync", count=await cluster.in_sync())

    async def send(node: Node) -> int:
        async with AsyncProducer(cluster.namesrv_address, "senders", send_timeout_ms=2000) as producer:
            sent = number = 0
            while world.now_s < 30:
                number += 1
                try:
                    result = await producer.send(Message("t", b"n%d" % number))
                    world.record(
                        "sent", n=number, queue=result.queue.queue_id, offset=result.queue_offset, s=str(result.status)
                    )
                    sent += 1
                except (RocketSparkError, OSError) as e:
                    world.record("not sent", n=number, error=repr(e)[:200])
                await asyncio.sleep(0.1)
            return sent

    sending = world.node("sender").start(send)
    await asyncio.sleep(10)
    first = await cluster.master()
    assert first is not None
    world.record("master", node=first.name)
    first.kill()
    while (second := await cluster.master()) in (None, first):
        await asyncio.sleep(0.1)
    assert second is not None
    world.record("master", node=second.name)
    await asyncio.sleep(5)
    cluster.restart(first)
    await cluster.wait_in_sync(2)
    world.record("in sync")
    second.power_loss()
    while (third := await cluster.master()) in (None, second):
        await asyncio.sleep(0.1)
    assert third is not None
    world.record("master", node=third.name)
    cluster.restart(second)
    await cluster.wait_in_sync(2)
    world.record("in sync")
    sent = await sending.wait()
    await cluster.stop()
    return {"sent": sent}
