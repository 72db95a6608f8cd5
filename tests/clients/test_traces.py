"""Message traces on both servers: a send, its delivery with a retry, the end of a transaction."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from tests.clients.scene import Inbox, Scene

from rocketspark.admin.operations import Admin
from rocketspark.client import Producer, PullConsumer, PushConsumer, TransactionProducer, TransactionState
from rocketspark.protocol.trace import Consumed, Ended, Published, Received, Trace, decode

pytestmark = pytest.mark.shows("hooks, message traces, OpenTelemetry")


class Commit:
    def execute(self, message: object, transaction: object) -> TransactionState:
        return TransactionState.COMMIT

    check = execute


def traces(scene: Scene, topic: str, count: int) -> list[Trace]:
    found: list[Trace] = []
    with PullConsumer(scene.namesrv, f"look-{scene.group}", consume_from="first") as consumer:
        consumer.assign(consumer.queues(topic))
        end = time.monotonic() + 120
        while len(found) < count and time.monotonic() < end:
            for message in consumer.poll(500):
                found += decode(message.body.decode())
    return found


def test_what_happened_to_a_message(scene: Scene) -> None:
    topic = f"{scene.topic}-trace"
    with Admin(scene.namesrv) as operations:
        operations.create_topic(topic, queue_count=1)
    inbox = Inbox(then=lambda message: message.reconsume_times > 0)
    consumer = PushConsumer(scene.namesrv, scene.group, consume_from="first", trace=topic)
    consumer.subscribe(scene.topic)
    consumer.listen(inbox)
    with consumer, Producer(scene.namesrv, "pg", trace=topic) as producer:
        sent = producer.send(scene.topic, b"body", tag="A", keys=["k1", "k2"])
        assert len(inbox.wait_for(2)) == 2
    found = traces(scene, topic, 5)
    assert Counter(type(t) for t in found) == {Published: 1, Received: 2, Consumed: 2}
    (published,) = [t for t in found if isinstance(t, Published)]
    assert (published.message_id, published.topic, published.tag, published.keys, published.body_bytes) == (
        sent.message_id,
        scene.topic,
        "A",
        "k1 k2",
        4,
    )
    assert (published.offset_message_id, published.store_host) == (sent.offset_message_id, scene.cluster.broker)
    first, again = sorted((t for t in found if isinstance(t, Received)), key=lambda t: t.retry_times)
    assert {first.message_id, again.message_id} == {sent.message_id}
    assert (first.retry_times, again.retry_times, first.group) == (0, 1, scene.group)
    consumed = {t.request_id: t for t in found if isinstance(t, Consumed)}
    assert consumed[first.request_id].success is False
    assert consumed[again.request_id].success is True


def test_the_end_of_a_transaction(scene: Scene) -> None:
    topic = f"{scene.topic}-trace"
    with Admin(scene.namesrv) as operations:
        operations.create_topic(topic, queue_count=1)
    with TransactionProducer(scene.namesrv, f"p-{scene.group}", listener=Commit(), trace=topic) as producer:
        result = producer.send_in_transaction(scene.topic, b"x", keys="k")
    published, ended = traces(scene, topic, 2)
    assert isinstance(published, Published)
    assert (published.kind, published.message_id) == (1, result.sent.message_id)
    assert isinstance(ended, Ended)
    assert (ended.state, ended.message_id, ended.keys, ended.from_check) == (
        "COMMIT_MESSAGE",
        result.sent.message_id,
        "k",
        False,
    )
