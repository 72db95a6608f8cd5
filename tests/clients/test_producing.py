"""Sends on both servers: what arrives, where, and what is refused."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from tests.clients.scene import Inbox, Scene

from rocketspark.admin.operations import Admin
from rocketspark.client import AsyncProducer, Producer, PushConsumer, split
from rocketspark.client.producer.prepared_message import queue_of_key
from rocketspark.client.selectors import by_hash, by_random
from rocketspark.errors import MessageIllegal, SendFailed, ServerError
from rocketspark.model import Message, MessageQueue

pytestmark = pytest.mark.shows(
    "sends: sync, asyncio, futures, one-way; to a queue, by selector, by sharding key in order; batches with "
    "`split`; one budget; system topics refused"
)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_every_compression_is_read_back(scene: Scene, kind: str) -> None:
    body = b"all work and no play " * 500
    with Producer(scene.namesrv, "pg", compression=kind, compress_level=3) as producer:
        producer.send(scene.topic, body, properties={"odd": "ä ;=\t漢\U0001f680", "b": "x=y"}, keys=["a", "b"])
    (found,) = scene.stored(1)
    assert (found.body, found.properties["odd"], found.properties["b"]) == (body, "ä ;=\t漢\U0001f680", "x=y")
    assert found.keys == ("a", "b")


def test_selectors_and_queues(scene: Scene) -> None:
    with Producer(scene.namesrv, "pg") as producer:
        queues = producer.queues(scene.topic)
        assert queues == [scene.queue(i) for i in range(4)]
        assert producer.send(scene.topic, b"x", selector=by_hash, argument="order-1").queue == scene.queue(2)
        assert producer.send(scene.topic, b"x", selector=by_random).queue in queues
        assert producer.send(scene.topic, b"x", sharding_key="order-1").queue == scene.queue(2)
        assert producer.send(scene.topic, b"x", queue=scene.queue(3)).queue == scene.queue(3)
        with pytest.raises(SendFailed):
            producer.send(scene.topic, b"x", queue=MessageQueue(scene.topic, "broker-a", 77))


def test_sends_go_on_when_their_topic_got_fewer_queues(scene: Scene) -> None:
    with (
        Admin(scene.namesrv) as operations,
        Producer(scene.namesrv, "pg", route_interval_ms=600_000) as producer,
    ):
        assert len({producer.send(scene.topic, b"x").queue for _ in range(4)}) == 4
        operations.create_topic(scene.topic, queue_count=1, force=True)
        keys = [None] * 8 + [f"key-{number}" for number in range(8)]
        assert {producer.send(scene.topic, b"y", sharding_key=key).queue for key in keys} == {scene.queue(0)}


def test_rows_whose_queue_is_gone_are_masked_and_can_be_sent_again(scene: Scene) -> None:
    keys = np.array([f"key-{row % 8}" for row in range(100)])
    bodies = np.array([b"%02d" % row for row in range(100)])
    with (
        Admin(scene.namesrv) as operations,
        Producer(scene.namesrv, "pg", route_interval_ms=600_000) as producer,
    ):
        producer.send_many(scene.topic, bodies, sharding_keys=keys).raise_for_errors()
        operations.create_topic(scene.topic, queue_count=1, force=True)
        failed = producer.send_many(scene.topic, bodies, sharding_keys=keys).failed
        assert failed.any()
        again = producer.send_many(scene.topic, bodies[failed], sharding_keys=keys[failed])
        assert set(again.queues) == {scene.queue(0)}
        # Rows without a key go on by themselves.
        assert set(producer.send_many(scene.topic, bodies).queues) == {scene.queue(0)}


def test_order_of_a_sharding_key_under_asyncio_and_threads(scene: Scene) -> None:
    async def run() -> None:
        async with AsyncProducer(scene.namesrv, "pg") as producer:
            await asyncio.gather(*(producer.send(scene.topic, b"a%d" % i, sharding_key="a") for i in range(100)))

    asyncio.run(run())
    with Producer(scene.namesrv, "pg") as producer:
        for future in [producer.send_future(scene.topic, b"b%d" % i, sharding_key="b") for i in range(100)]:
            future.result(120)
    bodies = [m.body for m in scene.stored(200)]
    for key in (b"a", b"b"):
        assert [b for b in bodies if b.startswith(key)] == [key + b"%d" % i for i in range(100)]


def test_batches_in_parts(scene: Scene) -> None:
    messages = [Message(topic=scene.topic, body=b"%05d" % i + b"x" * 2000, keys=[f"k{i}"]) for i in range(1200)]
    with Producer(scene.namesrv, "pg") as producer:
        parts = list(split(messages))
        assert len(parts) > 1
        for part in parts:
            result = producer.send_batch(part, queue=scene.queue())
            assert len(result.message_id.split(",")) == len(part)
    assert [m.body for m in scene.stored(1200)] == [m.body for m in messages]


@pytest.mark.shows(
    "send_many: columns on our servers and Apache's, with tags, keys, properties, sharding keys and delays"
)
def test_columns(scene: Scene) -> None:
    rows = range(3000)
    bodies = [b"%05d" % row + b"x" * (row % 300) for row in rows]
    keys = [None if row % 4 else f"order-{row % 10}" for row in rows]
    delays = [1000 if row % 1000 == 7 else 0 for row in rows]
    with Producer(scene.namesrv, "pg") as producer:
        result = producer.send_many(
            scene.topic,
            bodies,
            tags=["ä" if row % 2 else None for row in rows],
            keys=[[f"k{row}", "all"] for row in rows],
            sharding_keys=keys,
            properties={"number": [str(row) for row in rows], "unit": "°"},
            delay_ms=delays,
        )
        result.raise_for_errors()
        queues = producer.queues(scene.topic)
        assert producer.send_many(scene.topic, [b"last"], sharding_keys="last").queues[0] in queues
    found = {message.message_id: message for message in scene.stored(3001)}
    for row, message_id in enumerate(result.message_ids):
        message = found[message_id]
        assert (message.body, message.tag) == (bodies[row], "ä" if row % 2 else None)
        assert message.keys == (f"k{row}", "all")
        assert (message.properties["number"], message.properties["unit"]) == (str(row), "°")
        if keys[row]:
            assert message.queue == queue_of_key(keys[row] or "", queues)
        if not delays[row]:
            place = message.queue, message.queue_offset, message.offset_message_id
            assert place == (result.queues[row], result.queue_offsets[row], result.offset_message_ids[row])
    in_order = [m.body for m in found.values() if m.properties.get("__SHARDINGKEY") == "order-0"]
    assert in_order == [body for body, key in zip(bodies, keys, strict=True) if key == "order-0"]


@pytest.mark.shows("request-reply, delay levels, timer messages, recall")
def test_timer_messages_and_recall(scene: Scene) -> None:
    inbox = Inbox()
    consumer = PushConsumer(scene.namesrv, scene.group, consume_from="first")
    consumer.subscribe(scene.topic)
    consumer.listen(inbox)
    with consumer, Producer(scene.namesrv, "pg") as producer:
        sent_ms = time.time() * 1000
        at_ms = int(sent_ms) + 4000
        producer.send(scene.topic, b"delay", delay_ms=1500)
        producer.send(scene.topic, b"at", deliver_at_ms=at_ms)
        producer.send(scene.topic, b"level", delay_level=1)
        recalled = producer.send(scene.topic, b"recalled", delay_ms=12_000)
        assert recalled.recall_handle is not None
        assert producer.recall(scene.topic, recalled.recall_handle) == recalled.message_id
        last = producer.send(scene.topic, b"last", delay_ms=14_000)
        assert last.recall_handle
        found = {m.body: m for m in inbox.wait_for(4)}
        assert set(found) == {b"delay", b"at", b"level", b"last"}
        # The wheel's slots are a second; one that a slot covers may come up to that much early.
        assert found[b"at"].store_time_ms >= at_ms - 1000
        assert found[b"delay"].store_time_ms >= sent_ms + 500
        with pytest.raises(ServerError):
            producer.recall(scene.topic, recalled.recall_handle)


def test_what_is_refused(scene: Scene) -> None:
    with Producer(scene.namesrv, "pg") as producer:
        for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "tópic", "a b", ""):
            with pytest.raises(MessageIllegal):
                producer.send(topic, b"x")
        with pytest.raises(MessageIllegal, match="retry topic"):
            producer.send_batch([Message(topic="%RETRY%g", body=b"x")])


def test_a_namespace_hides_its_topics(scene: Scene) -> None:
    with Producer(scene.namesrv, "pg", namespace="space") as producer:
        result = producer.send(scene.topic, b"inside")
        assert result.queue.topic == scene.topic
    with Producer(scene.namesrv, "pg") as producer:
        assert {q.topic for q in producer.queues(f"space%{scene.topic}")} == {f"space%{scene.topic}"}
        producer.send(scene.topic, b"outside")
    assert [m.body for m in scene.stored(1)] == [b"outside"]


@pytest.mark.shows("gathered sends (`linger_ms`, `batch_bytes`)")
def test_gathered_sends_have_their_own_results(scene: Scene) -> None:
    async def run() -> dict[bytes, tuple[str, str, int, int]]:
        async with AsyncProducer(scene.namesrv, "pg", linger_ms=5) as producer:
            bodies = [b"%d" % i for i in range(300)]
            results = await asyncio.gather(*(producer.send(scene.topic, body, keys="k") for body in bodies))
            return {
                body: (r.message_id, r.offset_message_id, r.queue.queue_id, r.queue_offset)
                for body, r in zip(bodies, results, strict=True)
            }

    expected = asyncio.run(run())
    found = {m.body: (m.message_id, m.offset_message_id, m.queue_id, m.queue_offset) for m in scene.stored(300)}
    assert found == expected


@pytest.mark.shows("mended: a message to a queue of another topic is stored in that other topic")
def test_a_queue_of_another_topic_is_refused(scene: Scene) -> None:
    with Producer(scene.namesrv, "pg") as producer:
        with pytest.raises(MessageIllegal, match="of its own topic"):
            producer.send(scene.topic, b"x", queue=MessageQueue(f"{scene.topic}-other", "broker-a", 0))
        assert producer.send(scene.topic, b"x", queue=scene.queue()).queue_offset == 0


@pytest.mark.parametrize("linger_ms", [None, 5])
def test_what_goes_to_one_key_stays_in_order_whatever_it_is(scene: Scene, linger_ms: float | None) -> None:
    bodies = [b"%03d" % i + (b"x" * 5000 if i % 5 == 4 else b"") for i in range(60)]
    with Producer(scene.namesrv, "pg", linger_ms=linger_ms) as producer:
        for i, body in enumerate(bodies):
            producer.send_future(scene.topic, body, sharding_key="k", timeout_ms=9000 if i % 7 == 6 else None)
    assert [m.body for m in scene.stored(60)] == bodies


@pytest.mark.shows("mended: a topic ending in the template's digits breaks framing")
def test_names_that_end_in_any_digits(scene: Scene) -> None:
    topic = f"{scene.topic[:60]}1912345601"
    with Producer(scene.namesrv, "pg1912345602") as producer:
        producer.create_topic(topic, queue_count=1)
        sent = producer.send(topic, b"x", flag=5)
        assert (sent.queue.topic, sent.queue_offset) == (topic, 0)
        found = producer.view_message(topic, sent.offset_message_id)
        assert (found.body, found.flag, found.topic) == (b"x", 5, topic)
