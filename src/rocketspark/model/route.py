"""The queues of a topic, and its route: its brokers and their numbers of queues. Pure values and pure choices over
them.

Queues are ordered by topic, broker and id, as RocketMQ orders them for allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from rocketspark.model.text import shown, whole_number

# Queues of a new topic on each broker (rule: defaultTopicQueueNums of DefaultMQProducer, 5.x).
DEFAULT_QUEUE_COUNT = 4


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue: `queue_id` counts from 0 on each broker that carries the topic."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """Return the queue in words, for people and error texts."""
        return f"queue {self.queue_id} of topic {shown(self.topic)!r} on {shown(self.broker_name)}"

    def __iter__(self) -> Iterator[str | int]:
        """Yield topic, broker name and id, as which a received message's queue may be unpacked."""
        return iter((self.topic, self.broker_name, self.queue_id))


PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
MASTER_ID = 0
# The limit of queues in a route.
ORDERED_QUEUES_MAX = 1 << 18
# Stand for the broker of a logical queue (rule: MixAll, 5.x): some broker leads it; none does.
LOGICAL_PREFIX = "__syslo__"
NO_LEADER = "__syslo__none__"


class BrokerData(msgspec.Struct, frozen=True):
    """The addresses of one broker name: id 0 is the master, others are its slaves."""

    cluster: str
    broker_name: str
    addresses: dict[int, str]

    @property
    def master(self) -> str | None:
        """ "host:port" of the master, if it is up."""
        return self.addresses.get(MASTER_ID)


class QueueData(msgspec.Struct, frozen=True):
    """A topic's queues on one broker: how many there are to read from and to write to, and their permissions."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    topic_sys_flag: int = 0


class TopicRoute(msgspec.Struct, frozen=True):
    """The brokers and queues of a topic. `order_conf` is "broker:queues;…" for topics with a set order, else None.

    `leaders`: of a static topic, the broker that leads each logical queue now, or NO_LEADER; others have none.
    """

    topic: str
    brokers: tuple[BrokerData, ...]
    queues: tuple[QueueData, ...]
    order_conf: str | None = None
    leaders: Mapping[MessageQueue, str] = {}

    def broker(self, broker_name: str) -> BrokerData | None:
        """Return the broker of that name, or None."""
        return next((b for b in self.brokers if b.broker_name == broker_name), None)

    def write_queues(self) -> tuple[MessageQueue, ...]:
        """Queues to send to: brokers with WRITE and a live master, ordered by broker and queue id; of a static topic
        its logical queues, so that a key's queue never changes (rule: topicRouteData2TopicPublishInfo, 5.x).
        """
        if self.leaders:
            return tuple(self.leaders)
        masters = {b.broker_name for b in self.brokers if b.master is not None}
        return tuple(
            MessageQueue(self.topic, q.broker_name, i)
            for q in sorted(self.queues, key=lambda q: q.broker_name)
            if q.perm & PERM_WRITE and q.broker_name in masters
            for i in range(q.write_queue_count)
        )

    def producer_queues(self) -> tuple[MessageQueue, ...]:
        """The queues that a producer sends to: those of the topic's set order, in that order, if it has one, else
        `write_queues`.

        So a key's queue never changes, even while a broker is away (rule: topicRouteData2TopicPublishInfo, 5.x).
        """
        return (self.order_conf and _ordered_queues(self.topic, self.order_conf)) or self.write_queues()

    def read_queues(self) -> tuple[MessageQueue, ...]:
        """Queues to read from: brokers with READ, ordered by broker and id; of a static topic its logical ones."""
        if self.leaders:
            return tuple(self.leaders)
        return tuple(
            MessageQueue(self.topic, q.broker_name, i)
            for q in sorted(self.queues, key=lambda q: q.broker_name)
            if q.perm & PERM_READ
            for i in range(q.read_queue_count)
        )

    def closed_queues(self) -> tuple[MessageQueue, ...]:
        """Queues to read from that brokers without READ have; what they hold is in none of `read_queues`."""
        if self.leaders:
            return ()
        return tuple(
            MessageQueue(self.topic, q.broker_name, i)
            for q in sorted(self.queues, key=lambda q: q.broker_name)
            if not q.perm & PERM_READ
            for i in range(q.read_queue_count)
        )


def is_logical(queue: MessageQueue) -> bool:
    """Tell whether a queue is a static topic's logical queue: it has no broker of its own, but one that leads it at the
    moment.
    """
    return queue.broker_name.startswith(LOGICAL_PREFIX)


def _ordered_queues(topic: str, conf: str) -> tuple[MessageQueue, ...]:
    """Return the queues of "broker:count;broker:count"; none if the text has another form."""
    counts: dict[str, int] = {}
    for part in conf.split(";"):
        if not part:
            continue
        name, colon, text = part.rpartition(":")
        count = whole_number(text, low=1, high=ORDERED_QUEUES_MAX)
        if not colon or not name or count is None or name in counts:
            return ()
        counts[name] = count
    if sum(counts.values()) > ORDERED_QUEUES_MAX:
        return ()
    return tuple(MessageQueue(topic, name, i) for name, count in counts.items() for i in range(count))
