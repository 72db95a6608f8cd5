"""Push consumers on both servers: order, broadcast, filters, retries, dead letters, time-outs, changes on the way."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.clients.scene import Inbox, Scene
from tests.support.patience import LIMIT_S

from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.operations import Admin
from rocketspark.client import Producer, PullConsumer, PushConsumer
from rocketspark.errors import FilterIllegal
from rocketspark.model import Message, ReceivedMessage

pytestmark = pytest.mark.shows(
    "concurrent and ordered listeners, broadcast with offsets in Java's file, SQL92, time-outs of calls, "
    "bounds per queue and topic, pause, retries, dead letters"
)


def fill(scene: Scene, per_queue: int) -> None:
    with Producer(scene.namesrv, "pg") as producer:
        for queue in producer.queues(scene.topic):
            batch = [Message(topic=scene.topic, body=b"%d" % i) for i in range(per_queue)]
            producer.send_batch(batch, queue=queue)


class Orderly:
    """Notes what comes, by queue; fails one message of each queue twice; overlaps are an error."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.running: set[int] = set()
        self.taken: defaultdict[int, list[int]] = defaultdict(list)
        self.failed: defaultdict[int, int] = defaultdict(int)
        self.attempts: defaultdict[int, list[int]] = defaultdict(list)
        self.errors: list[str] = []

    def __call__(self, message: ReceivedMessage) -> bool:
        queue = message.queue_id
        with self.guard:
            if queue in self.running:
                self.errors.append(f"two calls at once for queue {queue}")
            self.running.add(queue)
        number = int(message.body)
        try:
            if number == 5:
                self.attempts[queue].append(message.reconsume_times)
                if self.failed[queue] < 2:
                    self.failed[queue] += 1
                    return False
            self.taken[queue].append(number)
            return True
        finally:
            with self.guard:
                self.running.discard(queue)

    @property
    def count(self) -> int:
        return sum(map(len, self.taken.values()))


def until(condition: Any, limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)


def test_each_queue_in_order_also_over_failures(scene: Scene) -> None:
    fill(scene, 50)
    orderly = Orderly()
    with scene.consumer(orderly, ordered=True, suspend_ms=50):
        until(lambda: orderly.count >= 200)
    assert orderly.taken == {queue: list(range(50)) for queue in range(4)}
    assert orderly.attempts == {queue: [0, 1, 2] for queue in range(4)}
    assert orderly.errors == []


def test_ordered_members_hand_queues_over_without_overlap(scene: Scene) -> None:
    orderly = Orderly()
    fill(scene, 30)
    first = scene.consumer(orderly, ordered=True, suspend_ms=10)
    with first:
        until(lambda: orderly.count >= 20)
        with scene.consumer(orderly, ordered=True, suspend_ms=10) as second:
            until(lambda: len([q for q in second.queues() if q.topic == scene.topic]) == 2)
            fill(scene, 30)
            until(lambda: orderly.count >= 240)
        # It left: its queues come back.
        until(lambda: len([q for q in first.queues() if q.topic == scene.topic]) == 4)
        fill(scene, 30)
        until(lambda: orderly.count >= 360)
    assert orderly.errors == []
    for queue in range(4):
        assert orderly.taken[queue] == list(range(30)) * 3


def test_ordered_messages_that_never_succeed_become_dead_letters(scene: Scene) -> None:
    fill(scene, 3)
    tries: defaultdict[tuple[int, int], int] = defaultdict(int)

    def listener(message: ReceivedMessage) -> bool:
        tries[message.queue_id, int(message.body)] += 1
        return int(message.body) != 1

    with scene.consumer(listener, ordered=True, suspend_ms=20, max_reconsume_times=2):
        until(lambda: len(tries) == 12)
        until(lambda: scene.has_topic(f"%DLQ%{scene.group}"))
    assert {key: n for key, n in tries.items() if n > 1} == {(queue, 1): 3 for queue in range(4)}
    with PullConsumer(scene.namesrv, f"dead-{scene.group}", consume_from="first") as reader:
        reader.assign(reader.queues(f"%DLQ%{scene.group}"))
        dead: list[ReceivedMessage] = []
        until(lambda: len(dead.extend(reader.poll(200)) or dead) >= 4)
    assert [m.body for m in dead] == [b"1"] * 4


def test_broadcast_reaches_every_member_and_goes_on_where_it_was(scene: Scene, tmp_path: Path) -> None:
    fill(scene, 5)
    inboxes = [Inbox(), Inbox()]
    members = [
        scene.consumer(inbox, broadcast=True, offset_folder=str(tmp_path), instance_name=f"{scene.group}-m{n}")
        for n, inbox in enumerate(inboxes)
    ]
    with members[0], members[1]:
        for inbox in inboxes:
            assert len(inbox.wait_for(20)) == 20
    fill(scene, 1)
    again = Inbox(then=lambda message: False)
    with scene.consumer(
        again, broadcast=True, offset_folder=str(tmp_path), instance_name=f"{scene.group}-m0"
    ) as member:
        assert [m.body for m in again.wait_for(4)] == [b"0"] * 4
        path = tmp_path / member.client_id / scene.group / "offsets.json"
    # What failed is not delivered again: the offsets went on.
    assert path.read_bytes().count(b"}:6") == 4
    assert len(again.received) == 4


def test_sql_filters(scene: Scene) -> None:
    inbox = Inbox()
    member = PushConsumer(scene.namesrv, scene.group, consume_from="first")
    member.subscribe(scene.topic, sql="price > 10 AND region = 'eu'")
    member.listen(inbox)
    with pytest.raises(FilterIllegal) as wrong:
        member.subscribe(scene.topic, sql="price >")
    assert wrong.value.position == 7
    with member, Producer(scene.namesrv, "pg") as producer:
        for price, region in ((5, "eu"), (15, "eu"), (20, "us"), (30, "eu")):
            producer.send(scene.topic, b"%d" % price, properties={"price": str(price), "region": region})
        assert sorted(m.body for m in inbox.wait_for(2)) == [b"15", b"30"]
    assert len(inbox.received) == 2


def test_tags_change_and_fetching_pauses(scene: Scene) -> None:
    inbox = Inbox()
    # One thread: what comes together is noted in its order.
    member = PushConsumer(scene.namesrv, scene.group, consume_from="first", threads=1)
    member.subscribe(scene.topic, "A")
    member.listen(inbox)
    with member, Producer(scene.namesrv, "pg") as producer:
        queue = scene.queue()
        for tag in "AB":
            producer.send(scene.topic, tag.encode(), tag=tag, queue=queue)
        assert [m.body for m in inbox.wait_for(1)] == [b"A"]
        member.subscribe(scene.topic, "A || B")
        producer.send(scene.topic, b"B2", tag="B", queue=queue)
        until(lambda: b"B2" in [m.body for m in inbox.received])
        member.pause()
        # A pull that was under way still brings what it finds.
        producer.send(scene.topic, b"A2", tag="A", queue=queue)
        producer.send(scene.topic, b"A3", tag="A", queue=queue)
        member.resume()
        until(lambda: b"A3" in [m.body for m in inbox.received])
    bodies = [m.body for m in inbox.received]
    assert bodies[0] == b"A"
    assert bodies[-2:] == [b"A2", b"A3"]


def test_a_call_that_takes_too_long_is_delivered_again(scene: Scene) -> None:
    release = threading.Event()
    seen: list[int] = []

    def listener(message: ReceivedMessage) -> None:
        seen.append(message.reconsume_times)
        if message.reconsume_times == 0:
            release.wait(120)

    with scene.consumer(listener, consume_timeout_ms=2000), Producer(scene.namesrv, "pg") as producer:
        producer.send(scene.topic, b"slow")
        until(lambda: seen == [0, 1])
        release.set()
    assert seen == [0, 1]


@pytest.mark.shows("a group's retryMaxTimes for push consumers")
@pytest.mark.parametrize("options", [{"max_reconsume_times": 2}, {}], ids=["own", "of the group"])
def test_retries_dead_letters_and_who_sent_them(scene: Scene, options: dict[str, int]) -> None:
    inbox = Inbox(then=lambda message: False)
    if not options:
        with Admin(scene.namesrv) as operations:
            operations.put_group(scene.group, GroupSettings(retry_max_times=2))
    with scene.consumer(inbox, **options), Producer(scene.namesrv, "pg") as producer:
        sent = producer.send(scene.topic, b"bad", tag="T", keys="k")
        received = inbox.wait_for(3)
        assert [m.reconsume_times for m in received] == [0, 1, 2]
        assert {(m.topic, m.message_id, m.tag) for m in received} == {(scene.topic, sent.message_id, "T")}
        with PullConsumer(scene.namesrv, f"dead-{scene.group}", consume_from="first") as reader:
            dead: list[ReceivedMessage] = []
            until(lambda: scene.has_topic(f"%DLQ%{scene.group}"))
            reader.assign(reader.queues(f"%DLQ%{scene.group}"))
            until(lambda: dead.extend(reader.poll(200)) or dead)
    assert [(m.body, m.keys) for m in dead] == [(b"bad", ("k",))]
    assert len(inbox.received) == 3


def test_a_namespace_of_consumers(scene: Scene) -> None:
    inbox = Inbox()
    with Producer(scene.namesrv, "pg", namespace="space") as producer:
        producer.send(scene.topic, b"inside", queue=None)
    with scene.consumer(inbox, namespace="space") as member:
        (message,) = inbox.wait_for(1)
        assert (message.topic, message.body) == (scene.topic, b"inside")
        until(lambda: {q.topic for q in member.queues()} == {scene.topic, f"%RETRY%{scene.group}"})


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"pop": True}, {"batch_max": 8}], ids=repr)
def test_what_is_rejected_is_a_dead_letter_at_once(scene: Scene, options: dict[str, Any]) -> None:
    def listen(given: ReceivedMessage | list[ReceivedMessage]) -> bool:
        message = given[0] if isinstance(given, list) else given
        if message.body == b"bad":
            consumer.reject(message)
            return False
        # Done all the same: it is no dead letter.
        consumer.reject(message)
        return True

    inbox = Inbox(listen)
    consumer = scene.consumer(inbox, **options)
    with Producer(scene.namesrv, "pg") as producer:
        for body in (b"good", b"bad"):
            producer.send(scene.topic, body)
    with consumer, PullConsumer(scene.namesrv, f"dead-{scene.group}", consume_from="first") as reader:
        inbox.wait_for(2)
        scene.wait_for_topic(f"%DLQ%{scene.group}")
        reader.assign(reader.queues(f"%DLQ%{scene.group}"))
        assert [m.body for m in reader.poll(LIMIT_S * 1000)] == [b"bad"]
        assert reader.poll(200) == []
