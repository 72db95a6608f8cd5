"""What an operator is shown of a cluster: its brokers, topics, progress, messages set aside. Rule: values alone."""

from __future__ import annotations

from typing import Any

import msgspec

from rocketspark.model import MessageQueue, TopicRoute


class QueueState(msgspec.Struct, frozen=True):
    """A queue and the offsets it holds: `min_offset` the oldest message's, `max_offset` the next one's."""

    queue: MessageQueue
    min_offset: int
    max_offset: int

    @property
    def message_count(self) -> int:
        """Messages in the queue, transaction and delay marks not counted."""
        return self.max_offset - self.min_offset


class TopicState(msgspec.Struct, frozen=True):
    """A topic: its route and, of each queue that can be read, the offsets."""

    topic: str
    route: TopicRoute
    queues: tuple[QueueState, ...]
    # message.type: NORMAL, FIFO, DELAY, TRANSACTION, MIXED, …; "" where it is not set.
    message_type: str = ""

    @property
    def message_count(self) -> int:
        """Messages in all queues."""
        return sum(q.message_count for q in self.queues)


class QueueProgress(msgspec.Struct, frozen=True):
    """A group's progress in a queue; `committed` None: it never committed there."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed: int | None

    @property
    def lag(self) -> int:
        """Messages that are there and not consumed yet."""
        return max(0, self.max_offset - max(self.committed or 0, self.min_offset))


class BrokerState(msgspec.Struct, frozen=True, order=True):
    """One broker process; `broker_id` 0 is the master of its name."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class TopicMade(BrokerState, frozen=True):
    """A broker that a topic was created on, or changed on if it `existed` there; `changed`: it differs from before."""

    existed: bool
    changed: bool
    queue_count: int


class Aside(msgspec.Struct, frozen=True):
    """A message that a broker set aside: `kind` delay, timer or half; its place, the reason, since when, attempts.

    `queue_offset` -1: not known.
    """

    broker_name: str
    name: str
    kind: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    reason: str
    first_seen_ms: int
    attempts: int

    def place(self) -> dict[str, Any]:
        """Return all but the broker's name, for scripts."""
        found: dict[str, Any] = msgspec.structs.asdict(self)
        del found["broker_name"]
        return found
