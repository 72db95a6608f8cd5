"""A queue of a topic on a broker. Ordered by topic, broker and id, as RocketMQ orders them for allocation."""

from __future__ import annotations

import msgspec

# Queues of a new topic on each broker (rule: defaultTopicQueueNums of DefaultMQProducer, 5.x).
DEFAULT_QUEUE_COUNT = 4


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue: `queue_id` counts from 0 on each broker that carries the topic."""

    topic: str
    broker_name: str
    queue_id: int
