"""The queues of the topics that rows go to. Rule: a topic's queues are asked for once; targets without a queue of their
own take turns among them.
"""

from __future__ import annotations

import time

from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.errors import RouteNotFound
from rocketspark.model import MessageQueue, namespace
from rocketspark.spark.write.queue_choice import QueueTarget


class TopicQueues:
    """Finds the queues of topics, and gives each target its next one."""

    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer
        self._queues: dict[str, list[MessageQueue]] = {}
        self._assumed: dict[str, list[MessageQueue]] = {}
        self._turns: dict[QueueTarget, int] = {}

    async def next(self, target: QueueTarget) -> MessageQueue | None:
        """Return the target's queue, or the next of its queues; None if the topic does not exist yet."""
        if target.queue is not None:
            return target.queue
        queues = self._queues.get(target.topic) or await self._known(target.topic)
        if queues is None:
            return None
        if target.broker is not None:
            queues = [queue for queue in queues if queue.broker_name == target.broker]
        # Not all tasks begin at the same queue.
        turn = self._turns.get(target, time.monotonic_ns() >> 10) + 1
        self._turns[target] = turn
        return queues[turn % len(queues)]

    async def find(self, topic: str, *, made_by_sends: bool = False) -> list[MessageQueue]:
        """Return the queues of a topic; `made_by_sends`: of one that does not exist those that brokers will make.

        Raises RouteNotFound if it does not exist, or no broker takes messages for it.
        """
        queues = self._assumed.get(topic) if made_by_sends else None
        if queues is None:
            queues = await self._known(topic)
        if queues is None and made_by_sends:
            # They stay these for the task: its rows of one key go to one queue, in their order.
            queues = self._assumed[topic] = await self._to_be_made(topic)
        if queues is None:
            text = f"topic {topic!r} does not exist: a row with queueId or broker needs its queues; create it first"
            raise RouteNotFound(topic, remark=text)
        return queues

    async def _to_be_made(self, topic: str) -> list[MessageQueue]:
        """Return the queues that brokers will make when they are sent to, as a producer's sends take them."""
        producer = self._producer
        found = await producer._routes.find_write_queues(namespace.wrap(producer._namespace, topic))
        return [producer._bare_queue(queue) for queue in found]

    async def _known(self, topic: str) -> list[MessageQueue] | None:
        """Return the topic's queues; None if it does not exist."""
        queues = self._queues.get(topic)
        if queues is None:
            try:
                queues = await self._producer.queues(topic)
            except RouteNotFound:
                return None
            if not queues:
                text = f"no broker takes messages for topic {topic!r}: none is up, or all refuse"
                raise RouteNotFound(topic, remark=text)
            self._queues[topic] = queues
        return queues
