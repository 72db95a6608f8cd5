"""What topics hold, read from begin to end without a group's help: at the end, or again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.histories import kind

from rocketspark import AsyncPullConsumer, MessageQueue, RocketSparkError
from rocketspark.errors import RouteNotFound

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

# Between two looks, and for how long one may take.
PAUSE_S, LOOK_S = 2.0, 20.0


@kind
class Held(NamedTuple):
    """A message that a topic held at the end."""

    topic: str
    queue: int
    offset: int
    body: str


async def audit(work: Workload, topics: Iterable[str]) -> None:
    """Note what the topics hold. Raises RocketSparkError if not all of it can be read."""
    async with AsyncPullConsumer(work.cluster.namesrv_address, "p-auditors", auto_commit=False) as consumer:
        for topic in topics:
            try:
                queues = await consumer.queues(topic)
            except RouteNotFound:
                continue
            begins = {queue: await consumer.begin_offset(queue) for queue in queues}
            wanted = sum([await consumer.end_offset(queue) - begins[queue] for queue in queues])
            await consumer.assign(queues)
            for queue in queues:
                await consumer.seek(queue, begins[queue])
            found = 0
            while found < wanted:
                messages = await consumer.poll(5000)
                if not messages:
                    raise RocketSparkError(f"{topic} holds {wanted} messages, of which {found} can be read")
                for message in messages:
                    found += 1
                    body = message.body.decode().split(" ")[0]
                    work.note(Held(topic, message.queue_id, message.queue_offset, body))


@kind
class Look(NamedTuple):
    """What was read of a queue from its begin up to offset `end`: offsets and keys. `is_last`: all had settled."""

    topic: str
    queue: int
    began_s: float
    end: int
    items: tuple[tuple[int, str], ...]
    is_last: bool


async def look_often(work: Workload, node: Node, topic: str) -> None:
    """Read a topic again and again, until the run is over; what cannot be read to its end is not noted."""
    from tests.simulation.workloads import ERRORS

    while not work.stopped:
        await asyncio.sleep(PAUSE_S)
        try:
            await _look(work, node, topic, is_last=False)
        except ERRORS as e:
            work.world.record("not looked", topic=topic, error=str(e)[:200])


async def look_at_last(work: Workload, topic: str) -> None:
    """Read a topic once all has settled. Raises RocketSparkError if that cannot be done."""
    await work.world.node("look-last").run(lambda node: _look(work, node, topic, is_last=True))


async def _look(work: Workload, node: Node, topic: str, *, is_last: bool) -> None:
    async with AsyncPullConsumer(work.cluster.namesrv_address, "p-look", auto_commit=False) as consumer:
        began_s, ends = work.world.now_s, dict[MessageQueue, int]()
        items: dict[int, list[tuple[int, str]]] = {}
        for queue in await consumer.queues(topic):
            ends[queue] = await consumer.end_offset(queue)
        await consumer.assign(list(ends))
        for queue in ends:
            await consumer.seek_to_beginning(queue)

        async def is_through() -> bool:
            return all([await consumer.position(queue) >= end for queue, end in ends.items()])

        while not await is_through():
            if work.world.now_s > began_s + LOOK_S or (work.stopped and not is_last):
                raise RocketSparkError(f"{topic} cannot be read up to {sorted(ends.values())}")
            for message in await consumer.poll(1000):
                work.read("p-look", "p-look", node, "", message, work.world.now_s)
                items.setdefault(message.queue_id, []).append((message.queue_offset, " ".join(message.keys)))
        for queue, end in ends.items():
            found = tuple(items.get(queue.queue_id, ()))
            work.note(Look(topic, queue.queue_id, began_s, end, found, is_last))
