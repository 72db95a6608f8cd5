"""What the fixture `rocketmq` gives to tests: a cluster, topics, the messages of a topic, and faults."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from rocketspark.admin import Admin
from rocketspark.client.sync import PullConsumer
from rocketspark.errors import RouteNotFound, UsageError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.model.text import shown
from rocketspark.testing.cluster import Cluster

# Reads without committing; nobody shares its queues.
READER = "pytest-reader"
LOOK_MS = 100.0
READ_S = 30.0
SHOWN_MAX = 10


class TestedCluster:
    """The cluster that tests run against.

    `namesrv`: "host:port" of the NameServer; `client_options`: what clients need beside it, as in
    `Producer(rocketmq.namesrv, **rocketmq.client_options)`; `grpc_endpoint`: "host:port" for clients of RocketMQ 5, ""
    without `rocketmq_grpc = true`.
    """

    # Pytest takes classes of this name for tests.
    __test__ = False

    def __init__(self, namesrv: str, cluster: Cluster | None = None) -> None:
        self.namesrv = namesrv
        self.client_options: dict[str, Any] = cluster.client_options if cluster else {}
        self.grpc_endpoint = cluster.grpc_endpoint if cluster else ""
        self._cluster = cluster
        self._killed: set[str] = set()

    # -- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str = "test", *, queue_count: int = 1, **options: Any) -> str:
        """Make a topic whose name begins with `name` and is no other topic's, and return it.

        With one queue, messages keep the order in which they were sent. options: those of `Admin.create_topic`, as
        message_type="FIFO".
        """
        topic = f"{re.sub(r'[^A-Za-z0-9_-]+', '-', name)[:80].strip('-') or 'test'}-{uuid.uuid4().hex[:8]}"
        with Admin(self.namesrv, **self.client_options) as admin:
            admin.create_topic(topic, queue_count=queue_count, **options)
        return topic

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages."""
        with Admin(self.namesrv, **self.client_options) as admin:
            admin.delete_topic(topic)

    # -- messages ------------------------------------------------------------------------------------------------

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return all messages that a topic has now, in the order in which they were stored.

        Nothing is committed: no group misses a message for it. Raises RouteNotFound if there is no such topic.
        """
        with self._reader() as consumer:
            ends = {queue: consumer.end_offset(queue) for queue in self._assigned(consumer, topic)}
            found: list[ReceivedMessage] = []
            end_s = time.monotonic() + READ_S
            while any(consumer.position(queue) < end for queue, end in ends.items()):
                if time.monotonic() > end_s:
                    raise AssertionError(f"{len(found)} messages of topic {topic!r} were read in {READ_S:g} s, not all")
                found += consumer.poll(LOOK_MS)
        return _in_order(message for message in found if message.queue_offset < ends[message.queue])

    def wait_for_messages(self, topic: str, count: int, timeout_s: float = 10.0) -> list[ReceivedMessage]:
        """Wait until a topic has so many messages, and return all that came, in the order in which they were stored.

        The topic need not exist yet. Raises AssertionError, with what came, if there are fewer after `timeout_s`.
        """
        end_s = time.monotonic() + timeout_s
        found: list[ReceivedMessage] = []
        queues: list[MessageQueue] = []
        with self._reader() as consumer:
            while len(found) < count:
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    raise AssertionError(_too_few(topic, count, timeout_s, _in_order(found), bool(queues)))
                if queues:
                    found += consumer.poll(min(LOOK_MS, left_s * 1000))
                    continue
                try:
                    queues = self._assigned(consumer, topic)
                except RouteNotFound:
                    time.sleep(min(LOOK_MS / 1000, left_s))
        return _in_order(found)

    def _reader(self) -> PullConsumer:
        return PullConsumer(self.namesrv, READER, auto_commit=False, **self.client_options)

    @staticmethod
    def _assigned(consumer: PullConsumer, topic: str) -> list[MessageQueue]:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_beginning(queue)
        return queues

    # -- faults --------------------------------------------------------------------------------------------------

    def kill_master(self, name: str = "broker-a") -> str:
        """End a broker's master as SIGKILL would, and return its address.

        With `rocketmq_replicas = 2` or more a replica takes over; otherwise its topics are away until `start_again`.
        What a test has killed is started again when the test is over.
        """
        address = self._own("kill_master").kill_master(name)
        self._killed.add(name)
        return address

    def start_again(self, name: str = "broker-a") -> None:
        """Start the brokers that were killed, on their stores and ports, and wait until replicas have all messages."""
        cluster = self._own("start_again")
        cluster.start_again(name)
        if cluster.controller:
            cluster.wait_in_sync(name=name)
        self._killed.discard(name)

    def mend(self) -> None:
        """Start again all that was killed."""
        for name in sorted(self._killed):
            self.start_again(name)

    def _own(self, what: str) -> Cluster:
        if self._cluster is None:
            raise UsageError(f"{what}() is for a cluster of the tests' own: run them without --rocketmq-namesrv")
        return self._cluster


def _in_order(messages: Any) -> list[ReceivedMessage]:
    return sorted(messages, key=lambda message: (message.store_time_ms, message.queue_id, message.queue_offset))


def _too_few(topic: str, count: int, timeout_s: float, found: list[ReceivedMessage], is_there: bool) -> str:
    if not is_there:
        return f"there is no topic {topic!r} after {timeout_s:g} s, and {count} messages of it were awaited"
    text = f"{len(found)} of {count} messages are in topic {topic!r} after {timeout_s:g} s"
    lines = [f"  tag {shown(message.tag or '')!r}, body {message.body[:80]!r}" for message in found[:SHOWN_MAX]]
    more = [f"  and {len(found) - SHOWN_MAX} more"] if len(found) > SHOWN_MAX else []
    return "\n".join([text, *lines, *more])
