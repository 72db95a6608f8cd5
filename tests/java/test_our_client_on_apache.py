"""Our clients on the official NameServer and broker; what they send and commit is looked at with the Java client."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest
from tests.java.apache import ApacheCluster, committed_offset
from tests.java.driver import JavaDriver, body_of, message
from tests.support.names import own_name
from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark.client import AsyncProducer, Producer, PullConsumer, PushConsumer
from rocketspark.errors import MessageIllegal, RocketSparkError
from rocketspark.model import Message, MessageQueue, ReceivedMessage

pytestmark = pytest.mark.shows("official Java: our client on Java servers")

# A group of their own for those who only look: a pull consumer joins its group, and takes a share of the queues.
LOOKERS = "java-lookers"


class Scene:
    """The official cluster, a topic of our own on it, and the Java client to look at both."""

    def __init__(self, java: JavaDriver, cluster: ApacheCluster, name: str) -> None:
        self.java = java
        self.namesrv = cluster.namesrv
        self.broker = cluster.broker
        self.topic = own_name(f"ours-{name}")
        self.group = f"{self.topic}-group"

    def create(self, queues: int) -> None:
        with self.java.started("admin", namesrv=self.namesrv) as admin:
            self.java.call("create_topic", name=admin, topic=self.topic, queues=queues, broker_address=self.broker)

    def queue(self, queue_id: int) -> MessageQueue:
        return MessageQueue(self.topic, "broker-a", queue_id)

    def java_queue(self, queue_id: int) -> dict[str, Any]:
        return {"topic": self.topic, "broker": "broker-a", "queue_id": queue_id}

    def stored(self, queues: int, count: int) -> list[dict[str, Any]]:
        """Every message of the topic as the Java client reads it, queue by queue, once there are `count`.

        The Java broker answers a send before its queue shows the message.
        """
        deadline = time.monotonic() + 120
        with self.java.started("pull", namesrv=self.namesrv, group=LOOKERS) as puller:
            while True:
                stored = [
                    found
                    for queue_id in range(queues)
                    for found in self.java.call("read_queue", name=puller, queue=self.java_queue(queue_id))
                ]
                if len(stored) >= count or time.monotonic() > deadline:
                    return stored
                time.sleep(0.02)

    def send_by_java(self, messages: list[dict[str, Any]], queue_id: int = 0) -> list[dict[str, Any]]:
        """Sends, and waits until the queue shows what was sent."""
        place = self.java_queue(queue_id)
        with self.java.started("producer", namesrv=self.namesrv, group="java-producers") as producer:
            results: list[dict[str, Any]] = self.java.call("send", name=producer, messages=messages, queue=place)
        deadline = time.monotonic() + 120
        with self.java.started("pull", namesrv=self.namesrv, group=LOOKERS) as puller:
            while self.java.call("offsets", name=puller, queue=place)["max"] <= results[-1]["queue_offset"]:
                assert time.monotonic() < deadline, "the queue does not show what was sent"
                time.sleep(0.02)
        return results

    def committed(self, queue_id: int) -> int | None:
        return committed_offset(self.broker, self.group, self.topic, queue_id)


class Inbox:
    """A listener that keeps what it gets, and fails the first deliveries when asked to."""

    def __init__(self, fail_first: int = 0) -> None:
        self._fail_first = fail_first
        self._arrived = threading.Condition()
        self.received: list[ReceivedMessage] = []

    def __call__(self, received: ReceivedMessage) -> bool:
        with self._arrived:
            self.received.append(received)
            self._arrived.notify_all()
            return len(self.received) > self._fail_first

    def wait_for(self, count: int, timeout_s: float = LIMIT_S) -> list[ReceivedMessage]:
        with self._arrived:
            self._arrived.wait_for(lambda: len(self.received) >= count, timeout_s)
            return list(self.received)


@pytest.fixture
def scene(request: pytest.FixtureRequest, java_client_55: JavaDriver, apache: ApacheCluster) -> Scene:
    name = request.node.name.removeprefix("test_").replace("_", "-").replace("[", "-").replace("]", "")
    return Scene(java_client_55, apache, name)


def test_sync_send_keeps_everything(scene: Scene) -> None:
    with Producer(scene.namesrv, "our-producers") as producer:
        sent = [
            producer.send(
                scene.topic,
                f"body {index} \u00e9\u4e2d".encode(),
                tag=f"tag{index % 2}",
                keys=[f"key{index}", "shared"],
                properties={"colour": "red", "place": "Z\u00fcrich"},
                flag=index,
            )
            for index in range(8)
        ]
    stored = {found["message_id"]: found for found in scene.stored(queues=4, count=8)}
    assert set(stored) == {result.message_id for result in sent}
    for index, result in enumerate(sent):
        found = stored[result.message_id]
        assert result.status == "SEND_OK"
        assert body_of(found).decode() == f"body {index} \u00e9\u4e2d"
        assert (found["tag"], found["keys"], found["flag"]) == (f"tag{index % 2}", f"key{index} shared", index)
        assert (found["properties"]["colour"], found["properties"]["place"]) == ("red", "Z\u00fcrich")
        assert found["offset_message_id"] == result.offset_message_id
        assert (found["queue_id"], found["queue_offset"]) == (result.queue.queue_id, result.queue_offset)


def test_async_send(scene: Scene) -> None:
    bodies = [f"async {index}".encode() for index in range(200)]

    async def send() -> list[str]:
        async with AsyncProducer(scene.namesrv, "our-producers") as producer:
            await producer.send(scene.topic, b"first")
            results = await asyncio.gather(*(producer.send(scene.topic, body) for body in bodies))
        return [result.message_id for result in results]

    ids = asyncio.run(send())
    stored = {found["message_id"]: body_of(found) for found in scene.stored(queues=4, count=201)}
    assert [stored[message_id] for message_id in ids] == bodies
    assert len(stored) == 201


def test_oneway_send(scene: Scene) -> None:
    scene.create(queues=1)
    with Producer(scene.namesrv, "our-producers") as producer:
        for index in range(20):
            producer.send_oneway(scene.topic, f"{index}".encode())
        producer.send(scene.topic, b"last")
    stored = scene.stored(queues=1, count=21)
    assert sorted(body_of(found) for found in stored) == sorted([b"last", *(b"%d" % index for index in range(20))])


def test_batch_send(scene: Scene) -> None:
    scene.create(queues=2)
    batch = [Message(topic=scene.topic, body=b"%d" % index, tag="b", keys=[f"k{index}"]) for index in range(10)]
    with Producer(scene.namesrv, "our-producers") as producer:
        result = producer.send_batch(batch, queue=scene.queue(1))
    stored = scene.stored(queues=2, count=10)
    assert [body_of(found) for found in stored] == [one.body for one in batch]
    assert [(found["queue_id"], found["queue_offset"]) for found in stored] == [(1, index) for index in range(10)]
    assert [found["keys"] for found in stored] == [f"k{index}" for index in range(10)]
    assert result.message_id.split(",") == [found["message_id"] for found in stored]
    assert result.offset_message_id.split(",") == [found["offset_message_id"] for found in stored]


def test_sharding_keys_keep_their_order(scene: Scene) -> None:
    scene.create(queues=4)
    shards = ["N14228", "N24211", "N619AA", "N804JB", "N668DN"]
    with Producer(scene.namesrv, "our-producers") as producer:
        pending = [
            producer.send_future(scene.topic, f"{shard} {step}".encode(), sharding_key=shard)
            for step in range(10)
            for shard in shards
        ]
        for future in pending:
            future.result(LIMIT_S)
    stored = scene.stored(queues=4, count=50)
    for shard in shards:
        of_shard = [found for found in stored if body_of(found).decode().startswith(shard)]
        assert len({found["queue_id"] for found in of_shard}) == 1
        assert [body_of(found).decode() for found in of_shard] == [f"{shard} {step}" for step in range(10)]


def test_we_read_what_java_sends(scene: Scene) -> None:
    large = bytes(random.Random(7).choices(b"abcdefgh", k=100_000))
    scene.create(queues=1)
    [sent, _] = scene.send_by_java(
        [
            message(scene.topic, "plain", tag="t", keys="k1 k2", flag=7, properties={"place": "Z\u00fcrich"}),
            message(scene.topic, large),
        ]
    )
    with PullConsumer(scene.namesrv, scene.group) as consumer:
        consumer.assign([scene.queue(0)])
        consumer.seek_to_begin(scene.queue(0))
        received: list[ReceivedMessage] = []
        while len(received) < 2:
            got = consumer.poll(LIMIT_MS)
            assert got, "nothing came"
            received += got
    plain, compressed = received
    [java_plain, _] = scene.stored(queues=1, count=2)
    assert (plain.body, plain.tag, plain.keys, plain.flag) == (b"plain", "t", ("k1", "k2"), 7)
    assert plain.properties["place"] == "Z\u00fcrich"
    assert (plain.message_id, plain.offset_message_id) == (sent["message_id"], sent["offset_message_id"])
    assert (plain.born_time_ms, plain.store_time_ms) == (java_plain["born_time_ms"], java_plain["store_time_ms"])
    assert (plain.born_host, plain.store_host) == (java_plain["born_host"], java_plain["store_host"])
    assert (plain.physical_offset, plain.stored_bytes) == (java_plain["log_position"], java_plain["stored_bytes"])
    assert compressed.body == large


def test_pull_seek_and_commit(scene: Scene) -> None:
    scene.create(queues=1)
    queue = scene.queue(0)
    scene.send_by_java([message(scene.topic, f"{index}") for index in range(100)])
    with PullConsumer(scene.namesrv, scene.group, auto_commit=False) as consumer:
        assert consumer.queues(scene.topic) == [queue]
        assert (consumer.begin_offset(queue), consumer.end_offset(queue)) == (0, 100)
        consumer.assign([queue])
        consumer.seek(queue, 40)
        received: list[ReceivedMessage] = []
        while len(received) < 60:
            got = consumer.poll(LIMIT_MS)
            assert got, "nothing came"
            received += got
        assert [one.body for one in received] == [b"%d" % index for index in range(40, 100)]
        assert [one.queue_offset for one in received] == list(range(40, 100))
        assert consumer.offsets_for_time(queue, received[0].store_time_ms - 60_000) == 0
        consumer.commit({queue: 70})
        assert consumer.committed(queue) == 70
    assert scene.committed(0) == 70


def test_push_with_tags(scene: Scene) -> None:
    scene.create(queues=2)
    inbox = Inbox()
    scene.send_by_java([message(scene.topic, f"{index}", tag="abcd"[index % 4]) for index in range(40)])
    consumer = PushConsumer(scene.namesrv, scene.group, consume_from="first")
    consumer.subscribe(scene.topic, "a || c")
    consumer.listen(inbox)
    with consumer:
        assert len(inbox.wait_for(20)) == 20
        # What is sent now finds the consumer waiting in a long poll.
        started = time.monotonic()
        scene.send_by_java([message(scene.topic, "late d", tag="d"), message(scene.topic, "late a", tag="a")], 1)
        received = inbox.wait_for(21)
        assert time.monotonic() - started < 50
    wanted = [f"{index}" for index in range(40) if "abcd"[index % 4] in "ac"] + ["late a"]
    assert sorted(one.body.decode() for one in received) == sorted(wanted)
    # A consumer that ends has committed what it did: all but the filtered rest behind the last match.
    assert scene.committed(0) in (39, 40)
    assert scene.committed(1) == 2


def test_our_consumer_and_a_java_one_share_a_group(scene: Scene) -> None:
    scene.create(queues=4)
    inbox = Inbox()
    consumer = PushConsumer(scene.namesrv, scene.group, consume_from="first")
    consumer.subscribe(scene.topic)
    consumer.listen(inbox)

    def ours() -> set[int]:
        return {queue.queue_id for queue in consumer.queues() if queue.topic == scene.topic}

    def theirs(name: str) -> set[int]:
        held = scene.java.call("push_queues", name=name)
        return {queue["queue_id"] for queue in held if queue["topic"] == scene.topic}

    subscriptions = [{"topic": scene.topic}]
    with consumer:
        assert ours() == {0, 1, 2, 3}
        with scene.java.started(
            "push", namesrv=scene.namesrv, group=scene.group, subscriptions=subscriptions
        ) as java_consumer:
            deadline = time.monotonic() + 120
            while not (len(ours()) == len(theirs(java_consumer)) == 2 and ours().isdisjoint(theirs(java_consumer))):
                assert time.monotonic() < deadline, f"ours {ours()}, theirs {theirs(java_consumer)}"
                time.sleep(0.05)
            assert ours() | theirs(java_consumer) == {0, 1, 2, 3}
            share = ours()
            with Producer(scene.namesrv, "our-producers") as producer:
                for queue_id in range(4):
                    producer.send(scene.topic, b"%d" % queue_id, queue=scene.queue(queue_id))
            received = scene.java.call("push_await", name=java_consumer, count=2, timeout_ms=LIMIT_MS)
            assert {found["queue_id"] for found in received} == {0, 1, 2, 3} - share
            assert {one.queue_id for one in inbox.wait_for(2)} == share
        deadline = time.monotonic() + 120
        while ours() != {0, 1, 2, 3}:
            assert time.monotonic() < deadline, f"ours {ours()}"
            time.sleep(0.05)


def test_failed_message_comes_again(scene: Scene) -> None:
    scene.create(queues=1)
    inbox = Inbox(fail_first=1)
    consumer = PushConsumer(scene.namesrv, scene.group, consume_from="first", route_interval_ms=1000)
    consumer.subscribe(scene.topic)
    consumer.listen(inbox)
    with consumer:
        scene.send_by_java([message(scene.topic, "unlucky", tag="t", keys="k")])
        received = inbox.wait_for(2)
    first, again = received
    assert again.reconsume_times == 1
    assert (again.body, again.topic, again.tag, again.keys) == (b"unlucky", scene.topic, "t", ("k",))
    assert again.message_id == first.message_id
    assert again.store_time_ms - first.store_time_ms >= 990  # delay level 3


def test_errors_say_what_to_do(scene: Scene) -> None:
    with Producer(scene.namesrv, "our-producers", default_topic="no-such-topic") as producer:
        with pytest.raises(RocketSparkError) as unknown:
            producer.send(scene.topic, b"x")
        assert scene.topic in str(unknown.value)
        with pytest.raises(MessageIllegal):
            producer.send("no good topic!", b"x")
    with (
        Producer(scene.namesrv, "our-producers", body_bytes_max=8 << 20, compress_over_bytes=8 << 20) as producer,
        pytest.raises(RocketSparkError) as large,
    ):
        producer.send(scene.topic + "-large", random.Random(1).randbytes((4 << 20) + 1))
    assert "13" in str(large.value) or "illegal" in str(large.value)
