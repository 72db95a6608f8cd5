"""What a producer may ask, on both servers."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.clients.scene import Scene
from tests.java.mqadmin import until

from rocketspark.client import AsyncProducer, Producer
from rocketspark.errors import ServerError, UsageError
from rocketspark.model import MessageQueue

pytestmark = pytest.mark.shows("create topic, queues, offsets, view and query messages")


def test_topics_offsets_and_stored_messages(scene: Scene) -> None:
    with Producer(scene.namesrv, f"p-{scene.group}") as producer:
        before_ms = int(time.time() * 1000) - 1
        results = [producer.send(scene.topic, b"%d" % i, queue=scene.queue(1), keys=["all", f"k{i}"]) for i in range(5)]
        assert len(scene.stored(5)) == 5
        queue = scene.queue(1)
        assert (producer.min_offset(queue), producer.max_offset(queue)) == (0, 5)
        assert producer.search_offset(queue, before_ms) == 0
        assert producer.search_offset(queue, int(time.time() * 1000) + 60_000) == 5
        found = producer.view_message(scene.topic, results[2].offset_message_id)
        assert (found.body, found.message_id, found.queue_offset) == (b"2", results[2].message_id, 2)
        assert (
            producer.earliest_store_time(queue)
            == producer.view_message(scene.topic, results[0].offset_message_id).store_time_ms
        )
        # The index is made behind the queues.
        until(lambda: producer.query_message(scene.topic, "k4"))
        assert producer.view_message(scene.topic, results[3].message_id).body == b"3"
        assert [m.body for m in producer.query_message(scene.topic, "k4")] == [b"4"]
        assert {m.body for m in producer.query_message(scene.topic, "all")} == {b"%d" % i for i in range(5)}
        assert producer.query_message(scene.topic, "all", end_ms=before_ms - 60_000) == []
        with pytest.raises(ServerError):
            producer.view_message(scene.topic, "0" * 32)


def test_a_topic_is_made(scene: Scene) -> None:
    topic = f"{scene.topic}-made"
    with Producer(scene.namesrv, f"p-{scene.group}") as producer:
        producer.create_topic(topic, queue_count=3)
        assert producer.send(topic, b"x").queue.topic == topic
        assert producer.queues(topic) == [MessageQueue(topic, "broker-a", i) for i in range(3)]


@pytest.mark.shows("mended: createTopic's sysFlag")
def test_a_topic_is_made_with_its_flag(scene: Scene) -> None:
    topic = f"{scene.topic}-unit"

    async def flags() -> list[int]:
        async with AsyncProducer(scene.namesrv, f"p-{scene.group}") as producer:
            with pytest.raises(UsageError, match="topic_sys_flag -1"):
                await producer.create_topic(topic, queue_count=1, topic_sys_flag=-1)
            await producer.create_topic(topic, queue_count=1, topic_sys_flag=3)
            route = await producer._instance.routes.get(topic)
            return [queues.topic_sys_flag for queues in route.queues]

    assert asyncio.run(flags()) == [3]
