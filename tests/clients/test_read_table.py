"""A topic as a table, from both servers: what a consumer gets, column by column."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from tests.clients.scene import Scene

from rocketspark import Message, Producer, PullConsumer, read_table
from rocketspark.arrow.row_by_row import VALUES

pytestmark = pytest.mark.shows("read_table gives what a consumer gets, from Apache RocketMQ 5.5.0 too")

COLUMNS = ("queueId", "queueOffset", "messageId", "tag", "keys", "body", "properties", "bornHost", "storeHost")


def test_a_table_is_what_a_consumer_gets(scene: Scene) -> None:
    with Producer(scene.namesrv) as producer:
        for i in range(40):
            body = b"x" * 6000 if i % 8 == 0 else b"%d" % i
            producer.send(scene.topic, body, tag="AB"[i % 2], keys=[f"k{i}"], properties={"number": str(i)})
        producer.send_batch([Message(topic=scene.topic, body=b"b%d" % i, tag="A") for i in range(5)])
    with PullConsumer(scene.namesrv, scene.group, auto_commit=False, consume_from="first") as consumer:
        queues = consumer.queues(scene.topic)
        consumer.assign(queues)
        messages = []
        while len(messages) < 45:
            messages += consumer.poll(1000)
    messages.sort(key=lambda m: (m.queue, m.queue_offset))
    rows = read_table(scene.namesrv, scene.topic, columns=COLUMNS).to_pylist()
    for name in COLUMNS:
        assert [row[name] for row in rows] == [VALUES[name](m) for m in messages], name
    half = dict.fromkeys(queues, 3)
    some = read_table(scene.namesrv, scene.topic, columns=COLUMNS[:2], tags="A", start=half)
    wanted = [(m.queue_id, m.queue_offset) for m in messages if m.tag == "A" and m.queue_offset >= 3]
    assert [tuple(row.values()) for row in some.to_pylist()] == wanted
