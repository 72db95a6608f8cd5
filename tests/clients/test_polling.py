"""Pull consumers on both servers: positions, commits, filters, shares, namespaces, broadcast."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.clients.scene import Scene
from tests.clients.test_consuming import fill, until

from rocketspark.client import Producer, PullConsumer
from rocketspark.model import MessageQueue, ReceivedMessage

pytestmark = pytest.mark.shows(
    "PullConsumer: subscribe, assign, poll, seek, pause, commit, callbacks, iteration, SQL92, broadcast",
)


def read(consumer: PullConsumer, count: int, way: str = "poll") -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    until(lambda: len(found.extend(getattr(consumer, way)(200, count_max=count - len(found))) or found) >= count)
    return found


def member(scene: Scene, **options: Any) -> PullConsumer:
    given: dict[str, Any] = {"consume_from": "first", "rebalance_interval_ms": 500, **options}
    return PullConsumer(scene.namesrv, scene.group, **given)


def places(messages: Iterable[ReceivedMessage]) -> list[tuple[int, int]]:
    return sorted((m.queue_id, m.queue_offset) for m in messages)


@pytest.mark.parametrize("way", ["poll", "poll_batch"])
def test_positions_seeks_and_commits(scene: Scene, way: str) -> None:
    fill(scene, 3)
    queue = scene.queue(1)
    with member(scene, auto_commit=False) as consumer:
        consumer.assign([queue])
        assert consumer.committed(queue) is None
        assert [m.queue_offset for m in read(consumer, 3, way)] == [0, 1, 2]
        assert (consumer.begin_offset(queue), consumer.position(queue), consumer.end_offset(queue)) == (0, 3, 3)
        consumer.seek(queue, 1)
        assert [m.queue_offset for m in read(consumer, 2, way)] == [1, 2]
        consumer.seek_to_begin(queue)
        first = read(consumer, 1, way)[0]
        assert first.queue_offset == 0
        consumer.seek_to_end(queue)
        assert (consumer.position(queue), consumer.poll(50)) == (3, [])
        assert consumer.offsets_for_time(queue, first.store_time_ms - 60_000) == 0
        assert consumer.offsets_for_time(queue, int(time.time() * 1000) + 60_000) == 3
        consumer.seek_to_time(queue, first.store_time_ms - 60_000)
        assert [m.queue_offset for m in read(consumer, 3, way)] == [0, 1, 2]
        consumer.commit()
        assert consumer.committed(queue) == 3
        consumer.commit({queue: 1}, wait=False)
        until(lambda: consumer.committed(queue) == 1)
        consumer.commit({queue: 2})
        assert consumer.committed(queue) == 2
    with member(scene) as again:
        again.assign([queue])
        assert [m.queue_offset for m in read(again, 1, way)] == [2]


def test_what_was_returned_is_committed_by_itself(scene: Scene) -> None:
    fill(scene, 2)
    with member(scene, commit_interval_ms=100) as consumer:
        consumer.subscribe(scene.topic)
        assert len(read(consumer, 8)) == 8
        consumer.poll(10)
        until(lambda: [consumer.committed(scene.queue(n)) for n in range(4)] == [2] * 4)


def test_pausing_queues(scene: Scene) -> None:
    queues = [scene.queue(0), scene.queue(1)]
    with member(scene) as consumer, Producer(scene.namesrv, "pg") as producer:
        consumer.assign(queues)
        consumer.pause([queues[0]])
        # Brings what was asked for before; later ones are not asked for.
        producer.send(scene.topic, b"asked", queue=queues[0])
        assert [m.body for m in read(consumer, 1)] == [b"asked"]
        for queue in queues:
            producer.send(scene.topic, b"paused?", queue=queue)
        assert [m.queue_id for m in read(consumer, 1)] == [1]
        consumer.resume([queues[0]])
        assert [m.queue_id for m in read(consumer, 1)] == [0]


def test_iteration_gives_one_after_the_other(scene: Scene) -> None:
    fill(scene, 2)
    found = []
    with member(scene) as consumer:
        consumer.subscribe(scene.topic)
        for message in consumer:
            found.append(message)
            if len(found) == 5:
                break
        rest = read(consumer, 3)
    assert places(found + rest) == [(queue, n) for queue in range(4) for n in range(2)]


def test_members_are_told_of_their_queues(scene: Scene) -> None:
    fill(scene, 4)
    told: list[tuple[str, int]] = []

    def revoked(queues: list[MessageQueue]) -> None:
        # What was read is committed before others go on with it.
        first.commit()
        told.append(("revoked", len(queues)))

    first = member(
        scene, on_assigned=lambda queues: told.append(("assigned", len(queues))), on_revoked=revoked, auto_commit=False
    )
    first.subscribe(scene.topic)
    with first:
        found = read(first, 16)
        assert told == [("assigned", 4)]
        second = member(scene)
        second.subscribe(scene.topic)
        with second:
            until(lambda: len(second.assignment()) == len(first.assignment()) == 2)
            assert told[1:] == [("revoked", 2)]
            fill(scene, 1)
            found += read(first, 2)
            # What it began before the first had committed may come to it again.
            until(lambda: found.extend(second.poll(200)) or {(queue, 4) for queue in range(4)} <= set(places(found)))
        until(lambda: len(first.assignment()) == 4)
        until(lambda: told[2:] == [("assigned", 2)])
        first.unsubscribe(scene.topic)
        until(lambda: first.assignment() == [])
    assert sorted(set(places(found))) == [(queue, n) for queue in range(4) for n in range(5)]


def test_polling_by_tag_and_sql(scene: Scene) -> None:
    with Producer(scene.namesrv, "pg") as producer:
        for n in range(6):
            producer.send(scene.topic, b"%d" % n, tag="AB"[n % 2], properties={"n": str(n)}, queue=scene.queue())
    with member(scene) as by_sql:
        by_sql.subscribe(scene.topic, sql="n BETWEEN 2 AND 3")
        assert [m.body for m in read(by_sql, 2)] == [b"2", b"3"]
    with PullConsumer(scene.namesrv, f"tags-{scene.group}", consume_from="first") as by_tag:
        by_tag.assign([scene.queue()], "B || C")
        assert [m.body for m in read(by_tag, 3)] == [b"1", b"3", b"5"]


def test_polling_in_a_namespace(scene: Scene) -> None:
    with Producer(scene.namesrv, "pg", namespace="pulled") as producer:
        producer.send(scene.topic, b"inside")
    consumer = member(scene, namespace="pulled")
    consumer.subscribe(scene.topic)
    with consumer:
        (message,) = read(consumer, 1)
        assert message.topic == scene.topic
        queue = message.queue
        assert queue in consumer.assignment()
        consumer.commit()
        assert consumer.committed(queue) == 1
    with PullConsumer(scene.namesrv, f"pulled%{scene.group}") as outside:
        assert outside.committed(MessageQueue(f"pulled%{scene.topic}", queue.broker_name, queue.queue_id)) == 1


def test_broadcast_to_every_member(scene: Scene, tmp_path: Path) -> None:
    fill(scene, 2)

    def heard(name: str) -> PullConsumer:
        made = member(scene, broadcast=True, offset_folder=str(tmp_path), instance_name=f"{scene.group}-{name}")
        made.subscribe(scene.topic)
        return made

    everything = [(queue, n) for queue in range(4) for n in range(2)]
    with heard("a") as one, heard("b") as other:
        assert places(read(one, 8)) == places(read(other, 8)) == everything
    fill(scene, 1)
    with heard("a") as again:
        assert places(read(again, 4)) == [(queue, 2) for queue in range(4)]


def test_watching_a_topic(scene: Scene) -> None:
    seen: list[int] = []
    with member(scene, watch_interval_ms=50) as consumer:
        consumer.watch_queues(scene.topic, lambda queues: seen.append(len(queues)))
        consumer.create_topic(scene.topic, queue_count=6)
        until(lambda: seen == [6])
