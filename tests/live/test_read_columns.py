"""Messages read as columns from a running cluster: polled, pushed, received; with filters, seeks, resets, commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.live.support import connected, run

from rocketspark import Message, MessageBatch, Producer, PullConsumer, PushConsumer, ReceivedMessage, SimpleConsumer
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import ResetOffsetHeader
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    'PullConsumer.poll_batch, PushConsumer.listen(batch="columns"), SimpleConsumer.receive_batch: what polls of '
    "messages give, with tags, compressed and batched messages, seeks, unread, offsets set by hand, retries and order"
)

COUNT = 500
PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(property_filter=True) as running:
        yield running


def fill(cluster: Cluster, topic: str, count: int = COUNT, queues: int = 2) -> None:
    """Messages of many kinds in turn: with tags and keys, compressed, of one batch."""
    with Producer(cluster.namesrv, "fill", compress_over_bytes=1000) as producer:
        producer.create_topic(topic, queue_count=queues)
        at = 0
        while at < count:
            if at % 50 == 0:
                some = [Message(topic, b"batch %d" % i, tag="batch") for i in range(at, min(at + 5, count))]
                producer.send_batch(some)
                at += len(some)
                continue
            body = b"large %d " % at * 500 if at % 50 == 7 else b"small %d" % at
            producer.send(topic, body, tag=f"t{at % 3}", keys=[f"k{at}", "all"], properties={"number": str(at)})
            at += 1


def all_of(consumer: PullConsumer, count: int, most: int = 90) -> list[MessageBatch]:
    found: list[MessageBatch] = []
    end_s = time.monotonic() + PATIENCE_S
    while sum(map(len, found)) < count:
        assert time.monotonic() < end_s, f"{sum(map(len, found))} of {count}"
        found.append(consumer.poll_batch(200, count_max=most))
    return found


async def set_by_hand(cluster: Cluster, name: str, offset: int) -> None:
    """Set the offset of queue 0 of a topic, for the group of its name."""
    header = ResetOffsetHeader(topic=name, group=name, queue_id=0, offset=offset, time_ms=-1, force=True)
    async with connected(cluster.brokers[0]) as peer:
        (await peer.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).raise_for_code("reset")


def place(message: ReceivedMessage) -> tuple[int, int]:
    return message.queue_id, message.queue_offset


def test_columns_are_what_polls_give(cluster: Cluster) -> None:
    fill(cluster, "kinds")
    with PullConsumer(cluster.namesrv, "by-messages", consume_from="first") as consumer:
        consumer.subscribe("kinds")
        messages: list[ReceivedMessage] = []
        while len(messages) < COUNT:
            messages += consumer.poll()
    with PullConsumer(cluster.namesrv, "by-columns", consume_from="first") as consumer:
        consumer.subscribe("kinds")
        batches = all_of(consumer, COUNT)
        assert len(batches) > COUNT // 90
        bodies = [body for batch in batches for body in batch.bodies]
        assert not consumer.poll_batch(10)
        consumer.commit(batches[-1].next_offsets)
    assert sorted(bodies) == sorted(m.body for m in messages)
    of_columns = [message for batch in batches for message in batch]
    assert sorted(of_columns, key=place) == sorted(messages, key=place)
    with PullConsumer(cluster.namesrv, "by-columns") as consumer:
        consumer.subscribe("kinds")
        assert not consumer.poll_batch(300)


def test_filters(cluster: Cluster) -> None:
    fill(cluster, "filters", 90)
    for how, wanted in (({"expression": "t1 || batch"}, {"t1", "batch"}), ({"sql": "number > 40"}, {"t0", "t1", "t2"})):
        with PullConsumer(cluster.namesrv, f"filters-{len(wanted)}", consume_from="first") as consumer:
            consumer.subscribe("filters", **how)
            with PullConsumer(cluster.namesrv, f"messages-{len(wanted)}", consume_from="first") as other:
                other.subscribe("filters", **how)
                expected = [m for _ in range(10) for m in other.poll(200)]
            batches = all_of(consumer, len(expected))
            assert {tag for batch in batches for tag in batch.tags} <= wanted
            assert sorted(map(place, (m for b in batches for m in b))) == sorted(map(place, expected))


def test_seeks_unread_and_a_change_of_ways(cluster: Cluster) -> None:
    fill(cluster, "ways", 100, queues=1)
    with PullConsumer(cluster.namesrv, "ways", consume_from="first") as consumer:
        consumer.subscribe("ways")
        assert [m.queue_offset for m in consumer.poll(5000, count_max=3)] == [0, 1, 2]
        batch = all_of(consumer, 20, most=20)[-1]
        assert batch.queue_offsets[0] >= 3
        [queue] = batch.queues
        after = batch.next_offsets[queue]
        assert consumer.position(queue) == after
        consumer.unread(batch[-2:])
        assert consumer.position(queue) == after - 2
        again = consumer.poll(5000, count_max=1)
        assert [m.queue_offset for m in again] == [after - 2]
        consumer.seek(queue, 95)
        assert [o for b in all_of(consumer, 5) for o in b.queue_offsets.tolist()] == [95, 96, 97, 98, 99]
        consumer.commit()
        assert consumer.committed(queue) == 100


def test_an_offset_set_by_hand_is_followed(cluster: Cluster) -> None:
    fill(cluster, "reset", 60, queues=1)
    with PullConsumer(cluster.namesrv, "reset", consume_from="first") as consumer:
        consumer.subscribe("reset")
        assert sum(map(len, all_of(consumer, 60))) == 60
        run(set_by_hand(cluster, "reset", 40))
        offsets: list[int] = []
        end_s = time.monotonic() + PATIENCE_S
        while len(offsets) < 20:
            assert time.monotonic() < end_s
            offsets += consumer.poll_batch(200).queue_offsets.tolist()
    assert offsets == list(range(40, 60))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("batch_max", [1, 7])
def test_a_listener_gets_columns(cluster: Cluster, ordered: bool, batch_max: int) -> None:
    topic = f"pushed-{ordered}-{batch_max}"
    fill(cluster, topic, 120)
    seen: dict[int, list[int]] = {}
    sizes: list[int] = []
    failed: list[int] = []
    done = threading.Event()
    guard = threading.Lock()

    def listener(batch: MessageBatch) -> bool:
        with guard:
            assert len(batch.queues) == 1
            if not failed and b"small 21" in batch.bodies:
                failed.extend(batch.queue_offsets.tolist())
                return False
            sizes.append(len(batch))
            for body in batch.bodies:
                seen.setdefault(int(body.split()[1]), []).append(1)
            if len(seen) == 120:
                done.set()
            return True

    consumer = PushConsumer(
        cluster.namesrv, f"g-{topic}", consume_from="first", ordered=ordered, batch_max=batch_max, suspend_ms=50
    )
    consumer.subscribe(topic)
    consumer.listen(listener, batch="columns")
    with consumer:
        assert done.wait(PATIENCE_S)
    assert sorted(seen) == list(range(120))
    assert all(times == [1] for times in seen.values())
    assert failed
    if batch_max > 1:
        assert max(sizes) <= batch_max


def test_what_is_received_is_acknowledged_by_a_mask(cluster: Cluster) -> None:
    fill(cluster, "popped", 40, queues=1)
    seen: dict[bytes, int] = {}
    with SimpleConsumer(cluster.namesrv, "popped", consume_from="first", invisible_ms=2000) as consumer:
        consumer.subscribe("popped")
        end_s = time.monotonic() + PATIENCE_S
        while len(seen) < 40 or sum(seen.values()) < 41:
            assert time.monotonic() < end_s, seen
            batch = consumer.receive_batch(timeout_ms=3000)
            good = [body != b"small 9" or body in seen for body in batch.bodies]
            for body in batch.bodies:
                seen[body] = seen.get(body, 0) + 1
            consumer.ack(batch[good])
    assert {body: times for body, times in seen.items() if times > 1} == {b"small 9": 2}
