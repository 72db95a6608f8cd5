"""A queue of a topic on a broker. Ordered by topic, broker and id, as RocketMQ orders them for allocation."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

# Queues of a new topic on each broker (rule: defaultTopicQueueNums of DefaultMQProducer, 5.x).
DEFAULT_QUEUE_COUNT = 4


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue: `queue_id` counts from 0 on each broker that carries the topic."""

    topic: str
    broker_name: str
    queue_id: int

    def __iter__(self) -> Iterator[str | int]:
        """Yield topic, broker name and id, as which a received message's queue may be unpacked."""
        return iter((self.topic, self.broker_name, self.queue_id))
