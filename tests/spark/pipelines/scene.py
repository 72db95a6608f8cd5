"""What consumers leave behind, made by hand: committed offsets, dead letters, messages that came twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from rocketspark.admin.messages.dead_letter_rules import DEAD_FROM_TOPIC
from rocketspark.client import AsyncProducer, PullConsumer
from rocketspark.client.connection import client_api
from rocketspark.client.producer.prepared_message import PackingSettings, pack
from rocketspark.model import Message, MessageQueue, ReceivedMessage, namespace
from rocketspark.protocol.json import bodies
from rocketspark.protocol.message import properties
from rocketspark.testing import Cluster
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer


def address(cluster: Cluster, broker_name: str) -> str:
    """Where a broker is: broker-a is the first."""
    return cluster.brokers["abcdefgh".index(broker_name[-1])]


async def joined(place: str, group: str) -> Peer:
    """A connection to a broker that knows the group, by a heartbeat."""
    peer = await dial(place)
    member = bodies.ConsumerData(group_name=group)
    await client_api.heartbeat(peer, bodies.Heartbeat(client_id=f"scene-{group}", consumer_data_set=[member]))
    return peer


def commit(cluster: Cluster, group: str, offsets: Mapping[MessageQueue, int]) -> None:
    """Have a group's offsets committed."""

    async def run() -> None:
        for queue, offset in offsets.items():
            peer = await joined(address(cluster, queue.broker_name), group)
            await client_api.update_consumer_offset(peer, queue, group, offset)
            peer.close()

    asyncio.run(run())


def bury(cluster: Cluster, group: str, messages: Sequence[ReceivedMessage]) -> None:
    """Have a group give messages up, one by one: each is a dead letter then."""

    async def run() -> None:
        for message in messages:
            peer = await joined(address(cluster, message.broker_name), group)
            await client_api.send_back(peer, message, group, delay_level=-1)
            peer.close()

    asyncio.run(run())


def dies_of_5(cluster: Cluster, group: str, topic: str) -> None:
    """Have a message of a topic become a dead letter of a group as a 5.x broker notes it: in its own property alone."""
    dead = pack(Message(topic=namespace.DLQ_PREFIX + group, body=b"dead"), PackingSettings(), "D" * 32)
    noted = properties.encode({DEAD_FROM_TOPIC: topic})

    async def run() -> None:
        async with AsyncProducer(cluster.namesrv, "burier") as producer:
            await producer.send_packed(
                msgspec.structs.replace(dead, properties=dead.properties + noted), None, None, None
            )

    asyncio.run(run())


def repeat(cluster: Cluster, message: Message, unique_id: str, queues: Sequence[MessageQueue]) -> None:
    """Send a message with a given unique id to each of the queues."""

    async def run() -> None:
        async with AsyncProducer(cluster.namesrv, "repeater") as producer:
            for queue in queues:
                await producer.send_packed(pack(message, PackingSettings(), unique_id), None, queue, None)

    asyncio.run(run())


def stored(cluster: Cluster, topic: str, count: int) -> list[ReceivedMessage]:
    """So many messages of a topic, by queue and offset."""
    found: list[ReceivedMessage] = []
    with PullConsumer(cluster.namesrv, "look", consume_from="first", auto_commit=False) as consumer:
        consumer.assign(consumer.queues(topic))
        while len(found) < count:
            found += consumer.poll(20_000)
    return sorted(found, key=lambda m: (m.broker_name, m.queue_id, m.queue_offset))
