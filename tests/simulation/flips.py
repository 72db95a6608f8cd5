"""Bits that flip on a disk while its broker is down: the damage is told, and nothing but what it hit is lost.

Rule: what a flip hits is known from the log before it, by its records; a record's body and place are what is promised.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

from tests.simulation.checker import PromiseBroken
from tests.simulation.histories import Stored, log_of, records_of
from tests.simulation.nodes import Cluster
from tests.simulation.world import Node, World

from rocketspark import AsyncProducer, AsyncPullConsumer, Message, MessageQueue, ReceivedMessage

TOPIC = "t"
FIRST, SECOND = 160, 20


async def alone(world: World) -> dict[str, Any]:
    """One broker: what was hit is lost, as there is no other copy."""
    cluster = Cluster(world, flush_disk_type="SYNC_FLUSH")
    node = cluster.brokers[0]
    sent = await _begin(cluster)
    hit = await _flip(cluster, node)
    await cluster.start_server(node).wait_ready()
    await _send(cluster, sent, SECOND)
    there = await world.node("reader").run(lambda reader: _read(cluster))
    _check(world, sent, there, hit, may_lose=True)
    await cluster.stop()
    return {"sent": len(sent), "read": len(there), "hit": len(hit)}


async def of_a_slave(world: World) -> dict[str, Any]:
    """A slave: it takes what was hit from its master, and has all once it is elected."""
    cluster = Cluster(world, replicas=2, flush_disk_type="SYNC_FLUSH")
    sent = await _begin(cluster)
    first = await cluster.master()
    node = next(node for node in cluster.brokers if node is not first)
    hit = await _flip(cluster, node)
    cluster.start_server(node)
    await cluster.wait_in_sync(2)
    await _send(cluster, sent, SECOND)
    await asyncio.sleep(5)
    master = await cluster.master()
    assert master is not None
    assert master is not node
    master.kill()
    while await cluster.master() is not node:
        await asyncio.sleep(0.1)
    there = await world.node("reader").run(lambda reader: _read(cluster))
    _check(world, sent, there, hit, may_lose=False)
    cluster.restart(master)
    await cluster.wait_in_sync(2)
    await cluster.stop()
    return {"sent": len(sent), "read": len(there), "hit": len(hit)}


async def _begin(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Start and send; return what was sent where."""
    await cluster.start()
    sent: dict[str, tuple[int, int]] = {}
    await _send(cluster, sent, FIRST)
    await asyncio.sleep(1)
    return sent


async def _flip(cluster: Cluster, node: Node) -> set[str]:
    """Kill a broker and flip bits of its log or its queues; return what was hit."""
    world = cluster.world
    chance = world.random("flips")
    node.kill()
    records = list(records_of(cluster.store(node)))
    begin, log = log_of(cluster.store(node))
    flips = world.planned("flips", [_draw(chance, begin, len(log)) for _ in range(chance.choice([1, 1, 2, 4]))])
    hit = {_of(records, flip["at"]) for flip in flips if flip["folder"] == "commitlog"}
    for flip in flips:
        world.record("flip", node=node.name, **flip)
        files = (cluster.store(node) / flip["folder"]).iterdir()
        path = max(path for path in files if int(path.name) <= flip["at"])
        node.disk.flip(path, flip["at"] - int(path.name), flip["bit"])
    world.states["bits flipped"] += len(flips)
    await asyncio.sleep(1)
    return hit


def _draw(chance: random.Random, begin: int, size: int) -> dict[str, Any]:
    if chance.random() < 0.3:
        # A queue has a unit of 20 bytes for each message; what is lost of it is found again in the log.
        folder = f"consumequeue/{TOPIC}/{chance.randrange(4)}"
        return {"folder": folder, "at": chance.randrange(20 * FIRST // 8), "bit": chance.randrange(8)}
    return {"folder": "commitlog", "at": begin + chance.randrange(size), "bit": chance.randrange(8)}


def _of(records: list[Stored], position: int) -> str:
    """Return the body of the record that has a byte of the log."""
    found = max((one for one in records if one.position <= position), key=lambda one: one.position)
    return found.body.partition(" ")[0]


async def _send(cluster: Cluster, sent: dict[str, tuple[int, int]], count: int) -> None:
    async def send(node: Node) -> None:
        async with AsyncProducer(cluster.namesrv_address, "senders", send_timeout_ms=3000, retries=20) as producer:
            for number in range(len(sent), len(sent) + count):
                body = f"m{number}"
                result = await producer.send(Message(TOPIC, f"{body} {'x' * (number % 7 * 300)}".encode()))
                sent[body] = result.queue.queue_id, result.queue_offset

    await cluster.world.node("sender").run(send)


async def _read(cluster: Cluster) -> dict[tuple[int, int], str]:
    """Read every queue until nothing more comes for some seconds."""
    found: dict[tuple[int, int], str] = {}
    async with AsyncPullConsumer(cluster.namesrv_address, "checkers", auto_commit=False) as consumer:
        async for message in all_of(consumer, TOPIC):
            found[message.queue_id, message.queue_offset] = message.body.decode("utf-8", "replace")
    return found


async def all_of(
    consumer: AsyncPullConsumer, topic: str, *, polls: int = 6, poll_ms: float = 2000, expression: str = "*"
) -> AsyncIterator[ReceivedMessage]:
    """Give the messages of all queues of a topic from their beginning on, until so many polls in a row bring none."""
    queues: list[MessageQueue] = await consumer.queues(topic)
    await consumer.assign(queues, expression)
    for queue in queues:
        await consumer.seek_to_beginning(queue)
    quiet = 0
    while quiet < polls:
        messages = await consumer.poll(poll_ms)
        quiet = 0 if messages else quiet + 1
        for message in messages:
            yield message


def _check(
    world: World,
    sent: dict[str, tuple[int, int]],
    there: dict[tuple[int, int], str],
    hit: set[str],
    *,
    may_lose: bool,
) -> None:
    broken = []
    bodies = {f"m{number} {'x' * (number % 7 * 300)}" for number in range(len(sent))}
    if strange := [(at, body[:40]) for at, body in there.items() if body not in bodies]:
        broken.append(f"what is given is what was sent ({len(strange)}): {strange[:3]}")
    read = {at: body.partition(" ")[0] for at, body in there.items()}
    lost = {body for body, at in sent.items() if read.get(at) != body}
    if more := lost - (hit if may_lose else set()):
        broken.append(f"damage takes nothing else with it ({len(more)}): {sorted(more)[:5]}, hit was {sorted(hit)}")
    if lost and not any("check the disk" in line for line in world.logs):
        broken.append(f"damage is told ({len(lost)}): {sorted(lost)} are lost, and no line says so")
    world.states["messages lost by flips"] += len(lost)
    if broken:
        raise PromiseBroken("\n".join(broken))
