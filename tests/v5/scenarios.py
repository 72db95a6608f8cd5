"""What official clients of RocketMQ 5 are made to do, and what must come of it, with any client on any servers.

Scenarios have topics and groups of their own, so that all of them play at once: most of their time is waiting.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.java.apache import max_offset
from tests.support.commanded import Commanded, CommandError, body_of, message
from tests.support.patience import LIMIT_MS, LIMIT_S
from tests.v5.servers import Servers

Json = dict[str, Any]
NOTHING_COMES_MS = 3000


class Play:
    """One scenario being played: `client` is the official client's process, `servers` what it talks to."""

    def __init__(self, servers: Servers, client: Commanded) -> None:
        self.servers = servers
        self.client = client
        self._token = uuid.uuid4().hex[:8]
        self._count = 0

    def topic(self, kind: str = "NORMAL", queues: int = 4) -> str:
        self._count += 1
        name = f"T{self._count}_{self._token}"
        self.servers.make_topic(name, kind, queues)
        return name

    def group(self, **settings: Any) -> str:
        self._count += 1
        name = f"G{self._count}_{self._token}"
        self.servers.make_group(name, **settings)
        return name

    def start(self, what: str, **args: Any) -> str:
        """Start a producer, a simple or a push consumer; returns the name that commands take."""
        self._count += 1
        name = f"{what}{self._count}_{self._token}"
        self.client.call(f"{what}_start", name=name, endpoints=self.servers.endpoints, **args)
        return name

    def stop(self, name: str) -> None:
        """Have it stopped; how long a client's stop takes is no matter of the scenario."""
        self.client.submit(f"{name.split('_')[0].rstrip('0123456789')}_stop", name=name)

    def call(self, command: str, name: str, **args: Any) -> Any:
        return self.client.call(command, name=name, **args)

    def send(self, producer: str, topic: str, body: str | bytes, **fields: Any) -> Json:
        sent: Json = self.call("send", producer, message=message(topic, body, **fields))
        return sent

    def receive(self, consumer: str, count: int, invisible_ms: int = 30_000) -> list[Json]:
        """Receive until so many came."""
        found: list[Json] = []
        deadline = time.monotonic() + LIMIT_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
            found += self.call("receive", consumer, invisible_ms=invisible_ms)
        return found

    def ack(self, consumer: str, *received: Json) -> None:
        for one in received:
            self.call("ack", consumer, number=one["number"])


def bodies(received: list[Json]) -> list[bytes]:
    return [body_of(one) for one in received]


def everything_of_a_message_comes_back(play: Play) -> None:
    topic, group = play.topic(), play.group()
    producer = play.start("producer", topics=[topic])
    consumer = play.start("simple", group=group, subscriptions={topic: "*"})
    before_ms = time.time() * 1000
    sent = play.send(
        producer, topic, "übung \0 end".encode(), tag="tag-a", keys=["k1", "k2"], properties={"colour": "röt", "n": "7"}
    )
    (found,) = play.receive(consumer, 1)
    assert body_of(found) == "übung \0 end".encode()
    expected = {
        "message_id": sent["message_id"], "topic": topic, "tag": "tag-a", "keys": ["k1", "k2"],
        "properties": {"colour": "röt", "n": "7"}, "group": None, "attempt": 1, "delivery_timestamp_ms": None,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    # The Python client sends whole seconds.
    assert before_ms - 1000 <= found["born_timestamp_ms"] <= time.time() * 1000 + 1000
    assert found["born_host"]
    play.ack(consumer, found)


def large_bodies_come_back_whole(play: Play) -> None:
    topic, group = play.topic(), play.group()
    producer = play.start("producer", topics=[topic])
    consumer = play.start("simple", group=group, subscriptions={topic: "*"})
    body = bytes(range(256)) * 4000
    play.send(producer, topic, body)
    (found,) = play.receive(consumer, 1)
    assert body_of(found) == body
    play.ack(consumer, found)


def a_push_consumer_gets_each_message_once(play: Play) -> None:
    topic, group = play.topic(), play.group()
    producer = play.start("producer", topics=[topic])
    consumer = play.start("push", group=group, subscriptions={topic: "*"})
    ids = [play.send(producer, topic, f"m{number}")["message_id"] for number in range(20)]
    play.call("push_await", consumer, count=20, wait_ms=LIMIT_MS)
    found = play.call("push_await", consumer, count=21, wait_ms=NOTHING_COMES_MS)
    assert sorted(one["message_id"] for one in found) == sorted(ids)
    assert {one["attempt"] for one in found} == {1}


def what_was_acknowledged_stays_away_and_the_rest_comes_again(play: Play) -> None:
    topic, group = play.topic(), play.group()
    producer = play.start("producer", topics=[topic])
    consumer = play.start("simple", group=group, subscriptions={topic: "*"}, await_ms=2000)
    for number in range(4):
        play.send(producer, topic, f"m{number}")
    first = play.receive(consumer, 4, invisible_ms=20_000)
    assert sorted(bodies(first)) == [b"m0", b"m1", b"m2", b"m3"]
    play.ack(consumer, *(one for one in first if body_of(one) in (b"m0", b"m3")))
    again = play.receive(consumer, 2)
    assert sorted(bodies(again)) == [b"m1", b"m2"]
    assert {one["attempt"] for one in again} == {2}
    play.ack(consumer, *again)
    assert play.call("receive", consumer, invisible_ms=10_000) == []


def an_invisible_time_is_changed(play: Play) -> None:
    topic, group = play.topic(), play.group()
    producer = play.start("producer", topics=[topic])
    consumer = play.start("simple", group=group, subscriptions={topic: "*"}, await_ms=2000)
    play.send(producer, topic, "soon")
    (found,) = play.receive(consumer, 1, invisible_ms=600_000)
    play.call("change_invisible", consumer, number=found["number"], invisible_ms=1000)
    (again,) = play.receive(consumer, 1)
    assert (again["message_id"], again["attempt"]) == (found["message_id"], 2)
    # The handle that the change brought is the one that counts.
    play.call("change_invisible", consumer, number=again["number"], invisible_ms=60_000)
    play.ack(consumer, again)


def a_handle_that_expired_is_refused(play: Play) -> None:
    topic, group = play.topic(), play.group()
    producer = play.start("producer", topics=[topic])
    consumer = play.start("simple", group=group, subscriptions={topic: "*"}, await_ms=1000)
    play.send(producer, topic, "late")
    (found,) = play.receive(consumer, 1, invisible_ms=1000)
    time.sleep(1.5)
    with pytest.raises(CommandError) as refused:
        play.ack(consumer, found)
    assert refused.value.code == 40013


def tags_and_sql_choose(play: Play) -> None:
    topic = play.topic()
    by_tag, by_sql = play.group(), play.group()
    producer = play.start("producer", topics=[topic])
    tags = play.start("push", group=by_tag, subscriptions={topic: "a || b"})
    sql = play.start("push", group=by_sql, subscriptions={topic: "sql:size > 3 AND TAGS <> 'b'"})
    for number, tag in enumerate("abcab"):
        play.send(producer, topic, f"m{number}", tag=tag, properties={"size": str(number + 1)})
    found = play.call("push_await", tags, count=4, wait_ms=LIMIT_MS)
    assert sorted(bodies(found)) == [b"m0", b"m1", b"m3", b"m4"]
    found = play.call("push_await", sql, count=1, wait_ms=LIMIT_MS)
    assert bodies(found) == [b"m3"]


def order_holds_over_three_consumers(play: Play) -> None:
    topic, group = play.topic("FIFO"), play.group(consumeMessageOrderly=True)
    producer = play.start("producer", topics=[topic])
    consumers = [play.start("push", group=group, subscriptions={topic: "*"}) for _ in range(3)]
    sent = [(f"key-{number % 3}", f"{number:02}") for number in range(18)]
    for key, body in sent:
        play.send(producer, topic, body, group=key)
    deadline = time.monotonic() + LIMIT_S
    found: list[Json] = []
    while len(found) < len(sent):
        assert time.monotonic() < deadline, f"{len(found)} of {len(sent)} came"
        found = [one for name in consumers for one in play.call("push_await", name, count=18, wait_ms=300)]
    found.sort(key=lambda one: one["at"])
    for key in ("key-0", "key-1", "key-2"):
        came = [body_of(one).decode() for one in found if one["group"] == key]
        assert came == [body for of, body in sent if of == key], key


def a_delayed_message_comes_late_and_a_recalled_one_never(play: Play) -> None:
    topic, group = play.topic("DELAY"), play.group()
    producer = play.start("producer", topics=[topic])
    consumer = play.start("push", group=group, subscriptions={topic: "*"})
    # The recall has to come before, also on a busy machine; others play meanwhile.
    due_ms = (int(time.time()) + 15) * 1000
    recalled = play.send(producer, topic, "recalled", delivery_timestamp_ms=due_ms)
    kept = play.send(producer, topic, "kept", delivery_timestamp_ms=due_ms)
    answer = play.call("recall", producer, topic=topic, recall_handle=recalled["recall_handle"])
    assert answer["message_id"] == recalled["message_id"]
    found = play.call("push_await", consumer, count=1, wait_ms=LIMIT_MS)
    assert time.time() * 1000 >= due_ms - 1000
    assert [(one["message_id"], one["delivery_timestamp_ms"]) for one in found] == [(kept["message_id"], due_ms)]
    assert len(play.call("push_await", consumer, count=2, wait_ms=NOTHING_COMES_MS)) == 1


def transactions_end_as_they_were_decided(play: Play) -> None:
    topic, group = play.topic("TRANSACTION"), play.group()
    producer = play.start("producer", topics=[topic], checks=True)
    consumer = play.start("push", group=group, subscriptions={topic: "*"})
    sent = {}
    for outcome, check in (("COMMIT", "UNKNOWN"), ("ROLLBACK", "UNKNOWN"), ("NONE", "COMMIT"), ("NONE", "ROLLBACK")):
        body = f"{outcome} {check}"
        fields = message(topic, body, properties={"check": check})
        sent[body] = play.call("send_transaction", producer, message=fields, outcome=outcome)["message_id"]
    found = play.call("push_await", consumer, count=2, wait_ms=LIMIT_MS)
    assert sorted(bodies(found)) == [b"COMMIT UNKNOWN", b"NONE COMMIT"]
    assert {one["message_id"] for one in found} == {sent["COMMIT UNKNOWN"], sent["NONE COMMIT"]}
    # One that was ended may be asked about all the same: on a busy machine its end comes late.
    orphans = {sent["NONE COMMIT"], sent["NONE ROLLBACK"]}
    deadline = time.monotonic() + LIMIT_S
    while not orphans <= set(play.call("checked", producer, count=2, wait_ms=300)):
        assert time.monotonic() < deadline, "an orphan was not asked about"
    assert len(play.call("push_await", consumer, count=3, wait_ms=NOTHING_COMES_MS)) == 2


def what_always_fails_ends_among_the_dead(play: Play) -> None:
    topic, group = play.topic(), play.group(retryMaxTimes=1)
    producer = play.start("producer", topics=[topic])
    consumer = play.start("push", group=group, subscriptions={topic: "*"}, fail_first=99)
    sent = play.send(producer, topic, "bad")
    found = play.call("push_await", consumer, count=2, wait_ms=LIMIT_MS)
    assert [(one["message_id"], one["attempt"]) for one in found] == [(sent["message_id"], n) for n in (1, 2)]
    deadline = time.monotonic() + LIMIT_S
    while max_offset(play.servers.broker, f"%DLQ%{group}", 0) < 1:
        assert time.monotonic() < deadline, "no dead letter"
        time.sleep(0.2)
    assert len(play.call("push_await", consumer, count=3, wait_ms=10)) == 2


def a_failed_message_comes_again(play: Play) -> None:
    topic, group = play.topic(), play.group()
    producer = play.start("producer", topics=[topic])
    consumer = play.start("push", group=group, subscriptions={topic: "*"}, fail_first=1)
    sent = play.send(producer, topic, "second time lucky", tag="t", keys=["k"], properties={"a": "b"})
    found = play.call("push_await", consumer, count=2, wait_ms=LIMIT_MS)
    assert [(one["message_id"], one["attempt"], one["accepted"]) for one in found] == [
        (sent["message_id"], 1, False), (sent["message_id"], 2, True),
    ]  # fmt: skip
    same = ("topic", "body", "tag", "keys", "properties", "born_timestamp_ms", "born_host")
    assert {name: found[0][name] for name in same} == {name: found[1][name] for name in same}


def a_long_listener_keeps_its_message(play: Play) -> None:
    topic, group = play.topic(), play.group()
    producer = play.start("producer", topics=[topic])
    # The proxies of these tests give out messages for 5 s and renew them before that.
    slow = play.start("push", group=group, subscriptions={topic: "*"}, pause_ms=9000)
    play.send(producer, topic, "slow")
    play.call("push_await", slow, count=1, wait_ms=LIMIT_MS)
    other = play.start("simple", group=group, subscriptions={topic: "*"}, await_ms=2000)
    for _ in range(6):
        assert play.call("receive", other, invisible_ms=30_000) == []
    assert len(play.call("push_await", slow, count=2, wait_ms=10)) == 1


def lite_topics_come_to_the_consumer_that_subscribed_last(play: Play) -> None:
    topic = play.topic("LITE", queues=2)
    attributes = {"+lite.bind.topic": topic, "+lite.sub.model": "Exclusive", "+lite.sub.client.quota": "3"}
    group = play.group(attributes=attributes)
    producer = play.start("producer", topics=[topic])
    one = play.start("lite", group=group, topic=topic)
    for name in "abc":
        play.call("lite_subscribe", one, lite_topic=name)
    with pytest.raises(CommandError) as over:
        play.call("lite_subscribe", one, lite_topic="d")
    assert over.value.code == 42902, over.value
    for number in range(3):
        for name in "ab":
            play.send(producer, topic, f"{name}{number}", lite_topic=name)
    first = play.call("push_await", one, count=6, wait_ms=LIMIT_MS)
    assert {(m["lite_topic"], m["attempt"]) for m in first} == {("a", 1), ("b", 1)}
    # Its listener's threads take messages of one lite topic side by side, unless the group is in order.
    assert sorted(bodies(first)) == [b"%s%d" % (name, number) for name in (b"a", b"b") for number in range(3)]
    two = play.start("lite", group=group, topic=topic)
    play.call("lite_subscribe", two, lite_topic="a")
    _await_lite_topics(play, one, ["b", "c"])
    play.send(producer, topic, "a3", lite_topic="a")
    assert bodies(play.call("push_await", two, count=1, wait_ms=LIMIT_MS)) == [b"a3"]
    play.call("lite_unsubscribe", one, lite_topic="b")
    play.send(producer, topic, "b3", lite_topic="b")
    play.call("lite_subscribe", two, lite_topic="b")
    assert bodies(play.call("push_await", two, count=2, wait_ms=LIMIT_MS)) == [b"a3", b"b3"]
    assert len(play.call("push_await", one, count=7, wait_ms=10)) == 6
    play.stop(one)
    play.stop(two)


def _await_lite_topics(play: Play, consumer: str, names: list[str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (found := play.call("lite_topics", consumer)) != names:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def what_fails_of_a_lite_topic_comes_again(play: Play) -> None:
    topic = play.topic("LITE")
    group = play.group(
        attributes={"+lite.bind.topic": topic},
        groupRetryPolicy={"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000] * 3}},
    )
    producer = play.start("producer", topics=[topic])
    play.send(producer, topic, "once", lite_topic="x")
    consumer = play.start("lite", group=group, topic=topic, fail_first=1)
    play.call("lite_subscribe", consumer, lite_topic="x", from_first=True)
    found = play.call("push_await", consumer, count=2, wait_ms=LIMIT_MS)
    shown = [(body_of(m), m["attempt"], m["accepted"]) for m in found]
    assert shown == [(b"once", 1, False), (b"once", 2, True)], shown
    play.stop(consumer)


def a_message_has_its_priority(play: Play) -> None:
    topic, group = play.topic("PRIORITY"), play.group()
    producer = play.start("producer", topics=[topic])
    consumer = play.start("simple", group=group, subscriptions={topic: "*"})
    for priority in (0, 3, 7):
        play.send(producer, topic, f"p{priority}", priority=priority)
    found = play.receive(consumer, 3)
    assert sorted((body_of(m), m["priority"]) for m in found) == [(b"p0", 0), (b"p3", 3), (b"p7", 7)]
    play.ack(consumer, *found)


Scenario = Callable[[Play], None]
MAIN: tuple[Scenario, ...] = (
    everything_of_a_message_comes_back,
    large_bodies_come_back_whole,
    a_push_consumer_gets_each_message_once,
    what_was_acknowledged_stays_away_and_the_rest_comes_again,
    an_invisible_time_is_changed,
    tags_and_sql_choose,
    order_holds_over_three_consumers,
    a_delayed_message_comes_late_and_a_recalled_one_never,
    transactions_end_as_they_were_decided,
    a_failed_message_comes_again,
)
ALL: tuple[Scenario, ...] = (
    *MAIN,
    a_handle_that_expired_is_refused,
    what_always_fails_ends_among_the_dead,
    a_long_listener_keeps_its_message,
)
# With Java's client alone.
NEW: tuple[Scenario, ...] = (
    lite_topics_come_to_the_consumer_that_subscribed_last,
    what_fails_of_a_lite_topic_comes_again,
    a_message_has_its_priority,
)
PLAYED = {"python": ALL, "java": ALL, "go": MAIN, "node": MAIN}
