"""What the tests of our clients share: a topic on a cluster, a listener that keeps what it gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.java.apache import make_group
from tests.support.names import own_name
from tests.support.patience import LIMIT_S

from rocketspark.admin.operations import Admin
from rocketspark.client import PullConsumer, PushConsumer
from rocketspark.model import MessageQueue, ReceivedMessage


class Cluster(NamedTuple):
    """A NameServer and a broker. `name`: whose."""

    name: str
    namesrv: str
    broker: str


class Scene:
    """A topic and a group of a test's own."""

    def __init__(self, cluster: Cluster, name: str, *, queues: int = 4) -> None:
        self.cluster = cluster
        self.namesrv = cluster.namesrv
        own = own_name(name)
        self.topic = f"t-{own}"
        self.group = f"g-{own}"
        with Admin(self.namesrv) as operations:
            operations.create_topic(self.topic, queue_count=queues)
        if cluster.name == "apache":
            make_group(cluster.broker, self.group, self.topic)

    @property
    def retry_topic(self) -> str:
        """Where brokers put what was popped and not acknowledged."""
        return f"%RETRY%{self.group}_{self.topic}"

    def queue(self, queue_id: int = 0) -> MessageQueue:
        return MessageQueue(self.topic, "broker-a", queue_id)

    def consumer(self, listener: Any, **options: Any) -> PushConsumer:
        """A member of the group that reads the topic from its first message on."""
        made = PushConsumer(self.namesrv, self.group, consume_from="first", rebalance_interval_ms=500, **options)
        made.subscribe(self.topic)
        made.listen(listener)
        return made

    def has_topic(self, topic: str) -> bool:
        with Admin(self.namesrv) as operations:
            return topic in operations.list_topics()

    def wait_for_topic(self, topic: str) -> None:
        """Return once brokers have told of the topic."""
        end = time.monotonic() + LIMIT_S
        while not self.has_topic(topic):
            assert time.monotonic() < end, f"there is no topic {topic}"
            time.sleep(0.02)

    def stored(self, count: int, *, limit_s: float = LIMIT_S) -> list[ReceivedMessage]:
        """The messages of the topic once there are `count`, each queue's in order."""
        found: list[ReceivedMessage] = []
        with PullConsumer(self.namesrv, f"look-{self.group}", consume_from="first", auto_commit=False) as consumer:
            consumer.assign(consumer.queues(self.topic))
            end = time.monotonic() + limit_s
            while len(found) < count and time.monotonic() < end:
                found += consumer.poll(500)
        return found


class Inbox:
    """A listener that keeps what it gets. `then`: what it returns for a message."""

    def __init__(self, then: Callable[[ReceivedMessage], object] = lambda message: None) -> None:
        self._then = then
        self._arrived = threading.Condition()
        self.received: list[ReceivedMessage] = []

    def __call__(self, message: ReceivedMessage) -> object:
        with self._arrived:
            self.received.append(message)
            self._arrived.notify_all()
        return self._then(message)

    def wait_for(self, count: int, *, limit_s: float = LIMIT_S) -> list[ReceivedMessage]:
        """What was received, once that is `count` messages or the time is over."""
        with self._arrived:
            self._arrived.wait_for(lambda: len(self.received) >= count, limit_s)
            return list(self.received)
