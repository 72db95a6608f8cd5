"""Our SimpleConsumer on our broker and on Apache's: what differs is a mistake."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.clients.scene import Scene
from tests.java.apache import ask
from tests.live.support import run
from tests.support.patience import LIMIT_S

from rocketspark import AsyncSimpleConsumer, Producer, ReceivedMessage, SimpleConsumer
from rocketspark.admin.operations import Admin
from rocketspark.errors import ReceiptExpired, RouteNotFound, ServerError, StateError, UsageError

pytestmark = pytest.mark.shows(
    "`SimpleConsumer`, `AsyncSimpleConsumer`: receive, acknowledge, change the invisible time, several topics "
    "with filters, also changed while pops wait, order, a receive that is cancelled"
)


def received(consumer: SimpleConsumer, count: int, *, ack: bool = True) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    end = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} messages"
        some = consumer.receive(timeout_ms=2000)
        if ack and some:
            consumer.ack(some)
        found += some
    return found


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return sorted(m.body for m in messages)


def test_what_is_not_acknowledged_comes_again(scene: Scene) -> None:
    with (
        Producer(scene.namesrv, "p") as producer,
        SimpleConsumer(scene.namesrv, scene.group, consume_from="first", invisible_ms=2000) as consumer,
    ):
        consumer.subscribe(scene.topic)
        for i in range(12):
            producer.send(scene.topic, b"%02d" % i)
        first = sorted(received(consumer, 12, ack=False), key=lambda m: m.body)
        assert [m.body for m in first] == [b"%02d" % i for i in range(12)]
        assert {m.reconsume_times for m in first} == {0}
        consumer.ack(first[0])
        consumer.ack(first[1:8])
        before = first[8].receipt_handle
        consumer.change_invisible_time(first[8], 60_000)
        assert first[8].receipt_handle != before
        consumer.change_invisible_time(first[9], 1)
        again = received(consumer, 3)
        assert bodies(again) == [b"09", b"10", b"11"]
        assert {(m.topic, m.read_from, m.reconsume_times) for m in again} == {
            (scene.topic, f"%RETRY%{scene.group}_{scene.topic}", 1)
        }
        with pytest.raises(ReceiptExpired, match=r"was invisible for 2000 ms .* longer invisible_ms"):
            consumer.ack([first[10], first[8]])
        producer.send(scene.topic, b"there already")
        # Without any waiting; Apache's broker answers a send before its queue shows it.
        end = time.monotonic() + LIMIT_S
        while not (there := consumer.receive(timeout_ms=0)):
            assert time.monotonic() < end
        assert bodies(there) == [b"there already"]
        consumer.ack(there)
        # The one that was in time is acknowledged all the same, and so often as one likes.
        consumer.ack(first[8])
        assert consumer.receive(timeout_ms=200) == []


def test_members_receive_from_the_same_queues(scene: Scene) -> None:
    async def main() -> None:
        consumers = [AsyncSimpleConsumer(scene.namesrv, scene.group, consume_from="first") for _ in range(6)]
        for consumer in consumers:
            consumer.subscribe(scene.topic)
            await consumer.start()
        # More members than queues: each waits at the broker, and each gets some.
        tasks = [asyncio.ensure_future(c.receive(1, timeout_ms=LIMIT_S * 1000)) for c in consumers]
        with Producer(scene.namesrv, "p") as producer:
            await asyncio.to_thread(lambda: [producer.send(scene.topic, b"%d" % i) for i in range(6)])
        found = await asyncio.gather(*tasks)
        assert sorted(m.body for some in found for m in some) == [b"%d" % i for i in range(6)]
        assert {len(some) for some in found} == {1}
        for consumer, some in zip(consumers, found, strict=True):
            await consumer.ack(some)
        await asyncio.gather(*(c.close() for c in consumers))

    run(main())


def test_topics_with_filters(scene: Scene) -> None:
    other = f"{scene.topic}-sql"
    with Admin(scene.namesrv) as operations:
        operations.create_topic(other, queue_count=1)
    with (
        Producer(scene.namesrv, "p") as producer,
        SimpleConsumer(scene.namesrv, scene.group, consume_from="first") as consumer,
    ):
        consumer.subscribe(scene.topic, "apple || pear")
        consumer.subscribe(other, sql="price > 10")
        for i, tag in enumerate(("apple", "plum", "pear", "BB", "Aa")):
            producer.send(scene.topic, b"%s" % tag.encode(), tag=tag)
            producer.send(other, b"%d" % i, properties={"price": str(i * 5)})
        found = received(consumer, 4)
        assert bodies([m for m in found if m.topic == scene.topic]) == [b"apple", b"pear"]
        assert bodies([m for m in found if m.topic == other]) == [b"3", b"4"]
        consumer.unsubscribe(other)
        # "Aa" and "BB" have one hash: what a broker cannot tell is sorted out here, and acknowledged.
        consumer.subscribe(scene.topic, "Aa")
        producer.send(scene.topic, b"no", tag="BB")
        producer.send(other, b"no", properties={"price": "99"})
        producer.send(scene.topic, b"yes", tag="Aa")
        assert bodies(received(consumer, 1)) == [b"yes"]


def test_a_waiting_receive_is_woken_and_a_cancelled_one_loses_nothing(scene: Scene) -> None:
    async def main() -> None:
        async with AsyncSimpleConsumer(scene.namesrv, scene.group, consume_from="first") as consumer:
            consumer.subscribe(scene.topic)
            assert await consumer.receive(timeout_ms=0) == []
            waiting = asyncio.ensure_future(consumer.receive())
            await asyncio.sleep(0.2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with Producer(scene.namesrv, "p") as producer:
                await asyncio.to_thread(producer.send, scene.topic, b"kept")
                end = asyncio.get_running_loop().time() + LIMIT_S
                # The pop that nobody waited for took it: it is here, or given back and comes again.
                while not (found := await consumer.receive(timeout_ms=1000)):
                    assert asyncio.get_running_loop().time() < end
                assert [m.body for m in found] == [b"kept"]
                await consumer.ack(found)
                # This one comes while nobody receives, and is given back; another member gets it.
                waiting = asyncio.ensure_future(consumer.receive())
                await asyncio.sleep(0.2)
                waiting.cancel()
                await asyncio.wait([waiting])
                await asyncio.to_thread(producer.send, scene.topic, b"given back")
            async with AsyncSimpleConsumer(scene.namesrv, scene.group, consume_from="first") as other:
                other.subscribe(scene.topic)
                while not (found := await other.receive(timeout_ms=1000)):
                    assert asyncio.get_running_loop().time() < end
                assert [(m.body, m.reconsume_times) for m in found] == [(b"given back", 1)]
                await other.ack(found)

    run(main())


def test_what_nobody_wants_any_more_is_not_received(scene: Scene) -> None:
    """A broker may hold a pop for what was subscribed before."""
    other = f"{scene.topic}-other"
    with Admin(scene.namesrv) as operations:
        operations.create_topic(other, queue_count=1)

    async def main() -> None:
        async with AsyncSimpleConsumer(scene.namesrv, scene.group, consume_from="first") as consumer:
            consumer.subscribe(scene.topic)
            consumer.subscribe(other)
            waiting = asyncio.ensure_future(consumer.receive())
            while len(consumer._held_since_s) < 2:
                await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])
            consumer.unsubscribe(other)
            consumer.subscribe(scene.topic, "new")
            with Producer(scene.namesrv, "p") as producer:
                for topic, tag in ((other, "new"), (scene.topic, "old"), (scene.topic, "new")):
                    await asyncio.to_thread(producer.send, topic, b"%s %s" % (topic.encode(), tag.encode()), tag=tag)
            end = asyncio.get_running_loop().time() + LIMIT_S
            while not (found := await consumer.receive(timeout_ms=1000)):
                assert asyncio.get_running_loop().time() < end
            assert [m.body for m in found] == [b"%s new" % scene.topic.encode()]
            await consumer.ack(found)
            consumer.subscribe(other)
            while not (found := await consumer.receive(timeout_ms=1000)):
                assert asyncio.get_running_loop().time() < end
            assert [(m.body, m.reconsume_times) for m in found] == [(b"%s new" % other.encode(), 1)]
            await consumer.ack(found)

    run(main())


def test_ordered_receives(scene: Scene) -> None:
    ask(scene.cluster.broker, 200, b'{"groupName":"%b","consumeMessageOrderly":true}' % scene.group.encode())
    with (
        Producer(scene.namesrv, "p") as producer,
        SimpleConsumer(scene.namesrv, scene.group, consume_from="first", ordered=True, invisible_ms=2000) as consumer,
    ):
        consumer.subscribe(scene.topic)
        for i in range(6):
            producer.send(scene.topic, b"%d" % i, queue=scene.queue(1))
        first = consumer.receive(3)
        assert [m.body for m in first] == [b"0", b"1", b"2"]
        # Blocked until those are done with.
        assert consumer.receive(timeout_ms=200) == []
        consumer.ack(first[0])
        again: list[ReceivedMessage] = []
        while not again:
            again = consumer.receive(timeout_ms=2000)
        # From the first one that was not acknowledged.
        assert [(m.body, m.reconsume_times) for m in again][:2] == [(b"1", 1), (b"2", 1)]
        consumer.ack(again)
        done = bodies(again)
        while b"5" not in done:
            some = consumer.receive(timeout_ms=2000)
            assert [m.body for m in some] == sorted(m.body for m in some)
            consumer.ack(some)
            done += bodies(some)
        assert done == [b"1", b"2", b"3", b"4", b"5"]


def test_in_threads_and_after_the_end(scene: Scene) -> None:
    consumer = SimpleConsumer(scene.namesrv, scene.group)
    consumer.subscribe(scene.topic)
    with pytest.raises(StateError):
        consumer.receive()
    consumer.start()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            consumer.receive(timeout_ms=LIMIT_S * 1000)
        except StateError as e:
            errors.append(e)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    consumer.close()
    thread.join(LIMIT_S)
    assert len(errors) == 1
    with pytest.raises(StateError):
        consumer.receive()


def test_mistakes_are_clear(scene: Scene) -> None:
    for wrong in ({"consume_from": "end"}, {"invisible_ms": 0}, {"invisible_ms": 1e9}, {"group": "a b"}):
        with pytest.raises(UsageError, match=r"consume_from|invisible_ms|group"):
            SimpleConsumer(scene.namesrv, **{"group": "g"} | wrong)  # type: ignore[arg-type]
    with SimpleConsumer(scene.namesrv, scene.group) as consumer:
        with pytest.raises(StateError, match="subscribe"):
            consumer.receive()
        with pytest.raises(UsageError, match="tag expression or sql"):
            consumer.subscribe(scene.topic, "a", sql="b > 1")
        consumer.subscribe("never-made")
        with pytest.raises(RouteNotFound, match="never-made"):
            consumer.receive(timeout_ms=300)
        for count in (0, 33, 1.5, "1"):
            with pytest.raises(UsageError, match=f"count_max {count}"):
                consumer.receive(count)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="timeout_ms -1"):
            consumer.receive(timeout_ms=-1)
        (sent,) = Scene.stored(_with_one(scene), 1)
        with pytest.raises(UsageError, match="no receipt handle"):
            consumer.ack(sent)
        sent.receipt_handle = "0 1 2"
        with pytest.raises(UsageError, match="8 are needed"):
            consumer.ack(sent)
        sent.receipt_handle = "0 1 1000 0 0 broker-a 0 77"
        with pytest.raises(ServerError, match="offset is illegal"):
            consumer.ack(sent)
        consumer.unsubscribe("never-made")
        consumer.subscribe(scene.topic)
        with Admin(scene.namesrv):
            ask(scene.cluster.broker, 200, b'{"groupName":"%b","consumeEnable":false}' % scene.group.encode())
        with pytest.raises(ServerError, match="permission"):
            consumer.receive(timeout_ms=2000)


def _with_one(scene: Scene) -> Scene:
    with Producer(scene.namesrv, "p") as producer:
        producer.send(scene.topic, b"one")
    return scene


@pytest.mark.shows("a `SimpleConsumer` makes a message that it received a dead letter")
def test_a_message_becomes_a_dead_letter(scene: Scene) -> None:
    with (
        Producer(scene.namesrv) as producer,
        SimpleConsumer(scene.namesrv, scene.group, consume_from="first") as consumer,
    ):
        consumer.subscribe(scene.topic)
        producer.send(scene.topic, b"bad")
        (message,) = received(consumer, 1, ack=False)
        consumer.dead_letter(message)
        with Admin(scene.namesrv) as admin:
            assert [p.lag for p in admin.show_progress(scene.group, f"%DLQ%{scene.group}")] == [1]
        assert consumer.receive(timeout_ms=500) == []
        with pytest.raises(UsageError, match="no receipt handle"):
            consumer.dead_letter(producer.view_message(scene.topic, message.offset_message_id))
