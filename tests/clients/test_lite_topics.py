"""Our consumers of lite topics, and a send's priority, on our broker and on Apache's."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import pytest
from tests.clients.scene import Cluster
from tests.live.support import run
from tests.support.names import own_name
from tests.support.patience import LIMIT_S
from tests.v5.servers import Servers

from rocketspark import (
    AsyncLitePushConsumer,
    AsyncLiteSimpleConsumer,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    Producer,
    ReceivedMessage,
    SimpleConsumer,
)
from rocketspark.errors import MessageIllegal, ServerError, StateError, UsageError
from rocketspark.protocol.codes import ResponseCode

pytestmark = [
    pytest.mark.shows(
        "`LiteSimpleConsumer`, `LitePushConsumer`, threads and asyncio: order within each lite topic, quotas, "
        "exclusive subscriptions, where a subscription begins, retries, dead letters; `Message(priority=…)`"
    ),
]


class Lite:
    """A parent topic, and groups of it. `producer`: sends to it."""

    def __init__(self, cluster: Cluster, producer: Producer) -> None:
        self.namesrv, self.producer = cluster.namesrv, producer
        self.servers = Servers(cluster.name, "", cluster.namesrv, cluster.broker)
        self.topic = f"lite-{own_name('t')}"
        self.servers.make_topic(self.topic, "LITE", queues=2)

    def group(self, **attributes: str) -> str:
        name = f"lite-{own_name('g')}"
        own = {f"+lite.sub.{key.replace('_', '.')}": value for key, value in attributes.items()}
        given = {"+lite.bind.topic": self.topic} | own
        self.servers.make_group(name, attributes=given, retryMaxTimes=1)
        return name

    def send(self, *names: str) -> None:
        """Send messages named as their lite topic and a number: "a0"."""
        for name in names:
            self.producer.send(self.topic, name.encode(), lite_topic=name[0])


@pytest.fixture
def lite(cluster: Cluster) -> Iterator[Lite]:
    with Producer(cluster.namesrv) as producer:
        yield Lite(cluster, producer)


def of(messages: list[ReceivedMessage], name: str) -> list[bytes]:
    return [message.body for message in messages if message.lite_topic == name]


def received(consumer: LiteSimpleConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        some = consumer.receive(timeout_ms=LIMIT_S * 1000)
        assert some, f"{len(found)} of {count} messages"
        consumer.ack(some)
        found += some
    return found


def test_each_lite_topic_comes_in_order_to_who_subscribed(lite: Lite) -> None:
    group = lite.group()
    with LiteSimpleConsumer(lite.namesrv, group, lite.topic) as consumer:
        for name in "ab":
            consumer.subscribe_lite(name, position="first")
        consumer.subscribe_lite("a")
        assert consumer.lite_topics() == ["a", "b"]
        lite.send("a0", "b0", "c0", "a1", "b1", "a2")
        found = received(consumer, 5)
        assert (of(found, "a"), of(found, "b")) == ([b"a0", b"a1", b"a2"], [b"b0", b"b1"])
        assert [(m.topic, m.queue_id) for m in found] == [(lite.topic, 0)] * 5
        consumer.unsubscribe_lite("b")
        lite.send("b2", "a3")
        assert [m.body for m in received(consumer, 1)] == [b"a3"]
        assert consumer.receive(timeout_ms=300) == []
        # Where the group was, and a subscription that says where it begins.
        consumer.subscribe_lite("b")
        assert of(received(consumer, 1), "b") == [b"b2"]
        consumer.unsubscribe_lite("b")
        consumer.subscribe_lite("b", offset=1)
        assert of(received(consumer, 2), "b") == [b"b1", b"b2"]
        consumer.unsubscribe_lite("b")
        consumer.subscribe_lite("b", tail_count=1)
        assert of(received(consumer, 1), "b") == [b"b2"]


def test_what_is_not_acknowledged_holds_up_its_lite_topic_alone(lite: Lite) -> None:
    with LiteSimpleConsumer(lite.namesrv, lite.group(), lite.topic) as consumer:
        for name in "ab":
            consumer.subscribe_lite(name)
        lite.send("a0")
        (first,) = consumer.receive(timeout_ms=LIMIT_S * 1000)
        lite.send("a1", "b0")
        assert [m.body for m in received(consumer, 1)] == [b"b0"]
        assert consumer.receive(timeout_ms=300) == []
        consumer.change_invisible_time(first, 500)
        # Apache's broker does not tell here that the first one came before.
        assert [m.body for m in received(consumer, 2)] == [b"a0", b"a1"]


def test_an_exclusive_lite_topic_goes_to_the_last_and_quotas_hold(lite: Lite) -> None:
    group, lost = lite.group(model="Exclusive", client_quota="2"), queue.Queue[str]()
    with (
        LiteSimpleConsumer(lite.namesrv, group, lite.topic, on_lost=lost.put) as one,
        LiteSimpleConsumer(lite.namesrv, group, lite.topic, instance_name="two") as two,
    ):
        for name in "ab":
            one.subscribe_lite(name)
        with pytest.raises(ServerError, match="at most 2 lite topics") as over:
            one.subscribe_lite("c")
        assert over.value.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        two.subscribe_lite("a")
        assert lost.get(timeout=LIMIT_S) == "a"
        assert (one.lite_topics(), two.lite_topics()) == (["b"], ["a"])
        lite.send("a0", "b0")
        assert [m.body for m in received(two, 1)] == [b"a0"]
        assert [m.body for m in received(one, 1)] == [b"b0"]


def test_a_listener_gets_each_lite_topic_in_order_and_failures_again(lite: Lite) -> None:
    calls: queue.Queue[tuple[bytes, int]] = queue.Queue()
    consumer = LitePushConsumer(lite.namesrv, lite.group(), lite.topic, delays_ms=(500,), threads=2)

    @consumer.listen
    def listener(message: ReceivedMessage) -> bool:
        calls.put((message.body, message.reconsume_times))
        # Once, and one always: with one retry it is a dead letter then.
        return message.body != b"x2" and (message.body != b"x1" or message.reconsume_times > 0)

    with consumer:
        consumer.subscribe_lite("x")
        consumer.subscribe_lite("y")
        lite.send("x0", "x1", "x2", "x3", "y0")
        seen: list[tuple[bytes, int]] = []
        while (b"x3", 0) not in seen and (b"x3", 1) not in seen:
            seen.append(calls.get(timeout=LIMIT_S))
    of_x = [body for body, _ in seen if body[:1] == b"x"]
    assert of_x == [b"x0", b"x1", b"x1", b"x2", b"x2", b"x3"]
    assert (b"y0", 0) in seen


def test_a_group_with_the_wildcard_is_given_all_lite_topics(lite: Lite) -> None:
    found: queue.Queue[bytes] = queue.Queue()
    consumer = LitePushConsumer(lite.namesrv, lite.group(wildcard="true"), lite.topic)

    @consumer.listen
    def listener(message: ReceivedMessage) -> None:
        found.put(message.body)

    lite.send("a0")
    with consumer:
        assert found.get(timeout=LIMIT_S) == b"a0"
        lite.send("a1", "b0")
        assert {found.get(timeout=LIMIT_S) for _ in range(2)} == {b"a1", b"b0"}
        with pytest.raises(UsageError, match="reads all lite topics"):
            consumer.subscribe_lite("a")
    with LiteSimpleConsumer(lite.namesrv, consumer.group, lite.topic) as other:
        # The one before is gone from the brokers: all events are this one's.
        lite.send("c0")
        assert [m.body for m in received(other, 1)] == [b"c0"]


def test_with_asyncio(lite: Lite) -> None:
    group, other = lite.group(), lite.group()

    async def play() -> tuple[list[bytes], list[bytes]]:
        listened: asyncio.Queue[bytes] = asyncio.Queue()
        push = AsyncLitePushConsumer(lite.namesrv, other, lite.topic)

        @push.listen
        async def listener(message: ReceivedMessage) -> None:
            listened.put_nowait(message.body)

        async with push, AsyncLiteSimpleConsumer(lite.namesrv, group, lite.topic) as consumer:
            for each in (push, consumer):
                await each.subscribe_lite("a")
            await asyncio.to_thread(lite.send, "a0", "a1")
            async with asyncio.timeout(LIMIT_S):
                pushed = [await listened.get() for _ in range(2)]
                found: list[ReceivedMessage] = []
                while len(found) < 2:
                    some = await consumer.receive()
                    await consumer.ack(some)
                    found += some
            return pushed, [m.body for m in found]

    assert run(play()) == ([b"a0", b"a1"], [b"a0", b"a1"])


def test_mistakes_are_named(lite: Lite) -> None:
    consumer = LiteSimpleConsumer(lite.namesrv, lite.group(), lite.topic)
    with pytest.raises(StateError):
        consumer.subscribe_lite("a")
    with consumer:
        for wrong in ({"position": "last"}, {"offset": -1}, {"offset": 1, "tail_count": 1}):
            given: Any = wrong
            with pytest.raises(UsageError):
                consumer.subscribe_lite("a", **given)
        with pytest.raises(MessageIllegal, match="letters, digits"):
            consumer.subscribe_lite("a/b")
        assert consumer.lite_topics() == []
    unbound = f"lite-{own_name('u')}"
    lite.servers.make_group(unbound)
    with LiteSimpleConsumer(lite.namesrv, unbound, lite.topic) as stranger:
        with pytest.raises(UsageError, match=f"give it the attribute lite.bind.topic={lite.topic}"):
            stranger.subscribe_lite("a")
        with pytest.raises(ServerError, match="bind topic"):
            stranger.receive(timeout_ms=5000)


def test_messages_of_higher_priority_come_first(cluster: Cluster) -> None:
    servers, topic = Servers(cluster.name, "", cluster.namesrv, cluster.broker), f"prio-{own_name('p')}"
    servers.make_topic(topic, "PRIORITY", queues=4)
    with Producer(cluster.namesrv) as producer:
        queues = [
            producer.send(topic, b"a", priority=1).queue.queue_id,
            producer.send(Message(topic, b"b", priority=3)).queue.queue_id,
        ]
        with pytest.raises(MessageIllegal, match="send it alone"):
            producer.send_batch([Message(topic, b"c", priority=1)])
        with pytest.raises(MessageIllegal, match="priority -1"):
            producer.send(topic, b"d", priority=-1)
    assert queues == [1, 3]
    with SimpleConsumer(cluster.namesrv, f"g-{own_name('p')}", consume_from="first") as consumer:
        consumer.subscribe(topic)
        found: list[ReceivedMessage] = []
        while len(found) < 2:
            found += consumer.receive(timeout_ms=LIMIT_S * 1000)
    assert sorted((m.body, m.properties["_SYS_MSG_PRIORITY_"]) for m in found) == [(b"a", "1"), (b"b", "3")]
