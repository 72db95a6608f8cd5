"""What a topic holds, read by our client and not by Spark."""

from __future__ import annotations

from rocketspark import PullConsumer, ReceivedMessage


def messages_of(namesrv: str, topic: str) -> list[ReceivedMessage]:
    """Every message of every queue, those of one queue in order."""
    found: list[ReceivedMessage] = []
    with PullConsumer(namesrv, "LOOKER") as consumer:
        queues = consumer.queues(topic)
        ends = {queue: consumer.end_offset(queue) for queue in queues}
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        while any(consumer.position(queue) < end for queue, end in ends.items()):
            found += consumer.poll(10_000)
    return found


def bodies_of(namesrv: str, topic: str) -> list[bytes]:
    """All bodies, sorted."""
    return sorted(message.body for message in messages_of(namesrv, topic))
