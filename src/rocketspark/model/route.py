"""The route of a topic: which brokers carry it, with how many queues. Pure values and pure choices over them."""

from __future__ import annotations

import msgspec

from rocketspark.model.queue import MessageQueue

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
MASTER_ID = 0


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
    """How many queues of the topic one broker has, and what may be done with them."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    topic_sys_flag: int = 0


class TopicRoute(msgspec.Struct, frozen=True):
    """Where a topic lives. `order_conf` is "broker:queues;…" for topics with a set order, else None."""

    topic: str
    brokers: tuple[BrokerData, ...]
    queues: tuple[QueueData, ...]
    order_conf: str | None = None

    def broker(self, broker_name: str) -> BrokerData | None:
        """The broker of that name, or None."""
        return next((b for b in self.brokers if b.broker_name == broker_name), None)

    def write_queues(self) -> tuple[MessageQueue, ...]:
        """Queues to send to: brokers with WRITE and a live master, ordered by broker and queue id."""
        masters = {b.broker_name for b in self.brokers if b.master is not None}
        return tuple(
            MessageQueue(self.topic, q.broker_name, i)
            for q in sorted(self.queues, key=lambda q: q.broker_name)
            if q.perm & PERM_WRITE and q.broker_name in masters
            for i in range(q.write_queue_count)
        )

    def read_queues(self) -> tuple[MessageQueue, ...]:
        """Queues to read from: brokers with READ, ordered by broker and queue id."""
        return tuple(
            MessageQueue(self.topic, q.broker_name, i)
            for q in sorted(self.queues, key=lambda q: q.broker_name)
            if q.perm & PERM_READ
            for i in range(q.read_queue_count)
        )
