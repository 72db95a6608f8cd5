"""What topics hold at the end, read from begin to end without a group's help."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.histories import kind

from rocketspark import AsyncPullConsumer, RocketSparkError
from rocketspark.errors import RouteNotFound

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload


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
