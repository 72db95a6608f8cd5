"""Replays the flights into a topic, as fast as one producer goes, each plane's flights in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

import uvloop

from rocketspark import AsyncProducer, Message, MessageQueue

# Sends waiting for their reply at any time. Those of one sharding key wait for each other, so they keep their order.
IN_FLIGHT = 256
PROGRESS_EVERY = 1000


class Replayed(NamedTuple):
    """How many messages were stored, and the offset of the first one in each queue."""

    message_count: int
    first_offsets: dict[MessageQueue, int]

    def as_starting_offsets(self) -> dict[str, dict[str, dict[str, int]]]:
        """The form of Spark's option startingOffsets: topic to broker to queue to offset."""
        table: dict[str, dict[str, dict[str, int]]] = {}
        for queue, offset in self.first_offsets.items():
            table.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
        return table


def replay(namesrv: str, messages: Iterable[Message], progress: Callable[[int], object]) -> Replayed:
    """Send all messages; `progress` is called with the number of those that a broker has stored. Raises SendFailed."""
    return uvloop.run(_replay(namesrv, messages, progress))


async def _replay(namesrv: str, messages: Iterable[Message], progress: Callable[[int], object]) -> Replayed:
    waiting = iter(messages)
    count = 0
    first: dict[MessageQueue, int] = {}

    async def send() -> None:
        nonlocal count
        for message in waiting:
            result = await producer.send(message)
            first[result.queue] = min(result.queue_offset, first.get(result.queue, result.queue_offset))
            count += 1
            if count % PROGRESS_EVERY == 0:
                progress(count)

    producer = AsyncProducer(namesrv, "flights-replay", send_timeout_ms=10_000)
    async with producer, asyncio.TaskGroup() as senders:
        for _ in range(IN_FLIGHT):
            senders.create_task(send())
    progress(count)
    return Replayed(count, first)
