"""Our PushConsumer where the broker says that it pops, on our broker and on Apache's."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from tests.clients.scene import Inbox, Scene
from tests.java.apache import ask, committed_offset, max_offset
from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark import MessageBatch, Producer, PullConsumer, PushConsumer, ReceivedMessage
from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.operations import Admin
from rocketspark.client.consumer.pop.popper import PopSettings
from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue

pytestmark = pytest.mark.shows(
    "`PushConsumer(pop=True)`: done, failed, given up, too slow, closed, modes to and fro under load, shares, "
    "batches of BatchCQ topics"
)

QUICK = PopSettings(invisible_ms=3000, delays_ms=(1,))


def set_mode(scene: Scene, mode: str, share: int = 0) -> None:
    body = {"topic": scene.topic, "consumerGroup": scene.group, "mode": mode, "popShareQueueNum": share}
    assert ask(scene.cluster.broker, 401, json.dumps(body).encode()).code == 0


def consumer_of(scene: Scene, inbox: Any, **options: Any) -> PushConsumer:
    made: dict[str, Any] = {"consume_from": "first", "pop": True, "rebalance_interval_ms": 200} | options
    consumer = PushConsumer(scene.namesrv, scene.group, **made)
    consumer.subscribe(scene.topic)
    consumer.listen(inbox)
    return consumer


def send(scene: Scene, texts: list[str]) -> None:
    with Producer(scene.namesrv, "p") as producer:
        for text in texts:
            producer.send(scene.topic, text.encode())


def until(true: Any) -> None:
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.shows("a group's retryMaxTimes for push consumers")
@pytest.mark.parametrize("options", [{"max_reconsume_times": 1}, {}], ids=["own", "of the group"])
def test_done_failed_and_given_up(scene: Scene, options: dict[str, int]) -> None:
    set_mode(scene, "POP")
    if not options:
        with Admin(scene.namesrv) as operations:
            operations.put_group(scene.group, GroupSettings(retry_max_times=1))
    inbox = Inbox(lambda m: m.body.startswith(b"good") or (m.body == b"twice" and m.reconsume_times > 0))
    with consumer_of(scene, inbox, pop_settings=QUICK, **options) as consumer:
        assert [q.queue_id for q in consumer.queues() if q.topic == scene.topic] == [-1]
        send(scene, [*(f"good{i}" for i in range(40)), "twice", "never"])
        until(lambda: scene.has_topic(f"%DLQ%{scene.group}"))
        until(lambda: Counter(m.body for m in inbox.received)[b"twice"] == 2)
        time.sleep(QUICK.invisible_ms / 1000 + 2.5)
    counts = Counter(m.body for m in inbox.received)
    assert counts == {b"good%d" % i: 1 for i in range(40)} | {b"twice": 2, b"never": 2}
    assert {(m.topic, m.reconsume_times) for m in inbox.received if m.body == b"never"} == {
        (scene.topic, 0),
        (scene.topic, 1),
    }
    with PullConsumer(scene.namesrv, f"look-{scene.group}", consume_from="first") as look:
        look.assign([MessageQueue(f"%DLQ%{scene.group}", "broker-a", 0)])
        (dead,) = look.poll(LIMIT_S * 1000)
        assert dead.body == b"never"


@pytest.mark.parametrize("batch_max", [1, 3])
def test_columns_are_acknowledged_or_come_again(scene: Scene, batch_max: int) -> None:
    set_mode(scene, "POP")
    seen: list[tuple[bytes, int]] = []

    def listener(batch: MessageBatch) -> bool:
        seen.extend(zip(batch.bodies, batch.reconsume_times.tolist(), strict=True))
        return b"twice" not in batch.bodies or batch.reconsume_times.min() > 0

    consumer = PushConsumer(
        scene.namesrv, scene.group, consume_from="first", pop=True, batch_max=batch_max, pop_settings=QUICK
    )
    consumer.subscribe(scene.topic)
    consumer.listen(listener, batch="columns")
    send(scene, [*(f"good{i}" for i in range(20)), "twice"])
    with consumer:
        assert -1 in [q.queue_id for q in consumer.queues() if q.topic == scene.topic]
        until(lambda: (b"twice", 1) in seen and {b"good%d" % i for i in range(20)} <= {body for body, _ in seen})
        time.sleep(QUICK.invisible_ms / 1000 + 2.5)
    # What failed with it in one call came again with it, and no other.
    assert max(times for _, times in seen) == 1
    assert max(Counter(seen).values()) == 1


def test_a_listener_that_outlives_the_invisible_time_is_dropped(scene: Scene) -> None:
    set_mode(scene, "POP")
    slow = threading.Event()

    def listener(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            slow.wait(LIMIT_S)

    inbox = Inbox(listener)
    with consumer_of(scene, inbox, pop_settings=msgspec.structs.replace(QUICK, invisible_ms=1000)):
        send(scene, ["x"])
        until(lambda: len(inbox.received) == 2)
        slow.set()
    assert [(m.body, m.reconsume_times) for m in inbox.received] == [(b"x", 0), (b"x", 1)]


def test_a_close_gives_back_what_was_not_begun(scene: Scene) -> None:
    set_mode(scene, "POP")
    hold = threading.Event()
    first = Inbox(lambda m: hold.wait(LIMIT_S))
    consumer = consumer_of(scene, first, threads=1, pop_settings=msgspec.structs.replace(QUICK, invisible_ms=600_000))
    consumer.start()
    send(scene, [str(i) for i in range(8)])
    popping = consumer._core._popping
    assert popping is not None
    until(lambda: sum(p.waiting for p in popping.poppers.values()) == 8)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    until(lambda: not popping.poppers)
    hold.set()
    closing.join(LIMIT_S)
    assert len(first.received) == 1
    second = Inbox()
    with consumer_of(scene, second):
        second.wait_for(7)
    assert Counter(m.body for m in [*first.received, *second.received]) == {b"%d" % i: 1 for i in range(8)}


def until_all_came(scene: Scene, inbox: Inbox, count: int) -> None:
    """Wait until the bodies 0 to `count` - 1 came; whoever waits in vain is told where the rest stands.

    What was popped and neither acknowledged nor given back is RocketMQ's broker's to bring again. Its PopReviveService
    puts it into the retry topic of pops when more than 2 s of its queue of records lie behind the invisible time, and
    while nothing new is in that queue only if its timer is less than a second behind.
    """
    wanted = {b"%d" % i for i in range(count)}
    missing, end = wanted, time.monotonic() + LIMIT_S
    while left := wanted - {m.body for m in inbox.received}:
        if left != missing:
            missing, end = left, time.monotonic() + LIMIT_S
        if time.monotonic() > end:
            places = [*((scene.topic, queue_id) for queue_id in range(4)), (scene.retry_topic, 0)]
            broker = scene.cluster.broker
            stands = {at: (committed_offset(broker, scene.group, *at), max_offset(broker, *at)) for at in places}
            pytest.fail(f"{sorted(missing)} did not come; of each queue, the committed and the end offset: {stands}")
        time.sleep(0.02)


def test_modes_to_and_fro_under_load_lose_nothing(scene: Scene) -> None:
    inbox = Inbox()
    count, sent = 600, 0
    if scene.cluster.name == "apache":
        # Its broker makes the topic when the first message comes again, and tells the NameServer up to 30 s later.
        with Admin(scene.namesrv) as operations:
            operations.create_topic(scene.retry_topic, queue_count=1)
    with ExitStack() as members:
        for _ in range(2):
            members.enter_context(consumer_of(scene, inbox, pop_settings=QUICK))
        with Producer(scene.namesrv, "p", send_timeout_ms=LIMIT_MS) as producer:
            for turn, mode in enumerate(("POP", "PULL", "POP", "PULL")):
                set_mode(scene, mode, share=turn % 3 - 1)
                for _ in range(count // 4):
                    producer.send(scene.topic, b"%d" % sent)
                    sent += 1
                    time.sleep(0.002)
        until_all_came(scene, inbox, count)
    assert {m.body for m in inbox.received} == {b"%d" % i for i in range(count)}
    assert {m.topic for m in inbox.received} == {scene.topic}


def test_shares_of_members(scene: Scene) -> None:
    set_mode(scene, "POP", share=1)
    inboxes = [Inbox() for _ in range(3)]
    consumers = [consumer_of(scene, inbox, threads=2, batch_max=2) for inbox in inboxes]

    def shares() -> list[int]:
        return sorted(q.queue_id for c in consumers for q in c.queues() if q.topic == scene.topic)

    with ExitStack() as members:
        for consumer in consumers:
            members.enter_context(consumer)
        # Each queue by its own member and by the one before it.
        until(lambda: shares() == [0, 0, 1, 1, 2, 2, 3, 3])
        set_mode(scene, "POP", share=-1)
        until(lambda: shares() == [-1, -1, -1])


def test_mistakes_are_clear(scene: Scene) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "ordered or broadcast": {"ordered": True},
        "consume_from last or first": {"consume_from": 5},
        "strategy": {"strategy": "consistent_hash"},
        "invisible_ms 0": {"pop_settings": PopSettings(invisible_ms=0)},
        "count_max": {"pop_settings": PopSettings(count_max=33)},
        "delays_ms": {"pop_settings": PopSettings(delays_ms=())},
    }
    for text, options in wrong.items():
        with pytest.raises(ConfigError, match=text):
            consumer_of(scene, print, **options)
