"""Messages between clients of RocketMQ 5 and those before it; clients that are killed, receives that are taken back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.java.driver import JavaDriver
from tests.java.mqadmin import MqAdmin, until
from tests.support.commanded import body_of, message
from tests.support.patience import LIMIT_MS
from tests.unit.proxy.conftest import RawClient
from tests.v5 import drivers
from tests.v5.conftest import Theatre, need
from tests.v5.requests import duration_pb2_of
from tests.v5.scenarios import Play
from tests.v5.servers import our_proxy

from rocketspark.client import Producer, PushConsumer
from rocketspark.model import Message, ReceivedMessage
from rocketspark.proxy.wire import messages

pytestmark = pytest.mark.shows(
    ".x to 4.x and back, a killed push consumer, a receive taken back; 5.x to Spark and back",
)

LARGE = "large ünd zippable ".encode() * 5000
FIELDS = {"tag": "tag-a", "keys": ["k1", "k2"], "properties": {"colour": "röt", "n": "7"}}


@pytest.fixture
def play(theatre: Theatre) -> Play:
    need("python")
    return Play(theatre.servers("ours"), theatre.client("python"))


def test_a_message_of_a_5_client_reaches_clients_before_it(play: Play, tmp_path: Path) -> None:
    topic, group, java_group = play.topic(), play.group(), play.group()
    found: list[ReceivedMessage] = []
    arrived = threading.Event()

    def take(one: ReceivedMessage) -> bool:
        found.append(one)
        if len(found) == 2:
            arrived.set()
        return True

    consumer = PushConsumer(play.servers.namesrv, group, consume_from="first")
    consumer.subscribe(topic)
    consumer.listen(take)
    producer = play.start("producer", topics=[topic])
    ids = [play.send(producer, topic, body, **FIELDS)["message_id"] for body in ("small", LARGE)]
    with consumer:
        assert arrived.wait(LIMIT_MS / 1000)
    assert sorted((one.message_id, bytes(one.body)) for one in found) == sorted(
        zip(ids, (b"small", LARGE), strict=True)
    )
    for one in found:
        assert (one.tag, sorted(one.keys)) == ("tag-a", ["k1", "k2"])
        assert {name: one.properties[name] for name in ("colour", "n")} == FIELDS["properties"]
    java = JavaDriver("5.5.0", tmp_path)
    try:
        subscriptions = [{"topic": topic, "tags": "*"}]
        named = {"namesrv": play.servers.namesrv, "group": java_group, "subscriptions": subscriptions}
        with java.started("push", **named) as push:
            seen = java.call("push_await", name=push, count=2, timeout_ms=LIMIT_MS)
        assert sorted(body_of(one) for one in seen) == sorted((b"small", LARGE))
    finally:
        java.close()


def test_a_message_of_a_client_before_5_reaches_5_clients(play: Play) -> None:
    topic, group = play.topic(), play.group()
    consumer = play.start("simple", group=group, subscriptions={topic: "tag-a"})
    with Producer(play.servers.namesrv, "pg", compress_level=5) as producer:
        ids = [
            producer.send(
                Message(topic=topic, body=body, tag="tag-a", keys=["k1", "k2"], properties={"colour": "röt", "n": "7"})
            ).message_id
            for body in (b"small", LARGE)
        ]
    found = play.receive(consumer, 2)
    assert sorted((one["message_id"], body_of(one)) for one in found) == sorted(
        zip(ids, (b"small", LARGE), strict=True)
    )
    for one in found:
        assert {name: one[name] for name in FIELDS} == FIELDS
    play.ack(consumer, *found)


@pytest.mark.shows(
    "consumers of the proxy at the brokers: connections, subscriptions, running info, stacks, one message by "
    "hand; a broker that starts again"
)
def test_a_java_push_consumer_is_seen_and_asked_by_mqadmin(theatre: Theatre, tmp_path: Path) -> None:
    need("java")
    play = Play(theatre.servers("ours"), theatre.client("java"))
    topic, group = play.topic(), play.group()
    mqadmin = MqAdmin(tmp_path / "mqadmin", play.servers.namesrv, play.servers.broker)
    try:
        consumer = play.start("push", group=group, subscriptions={topic: "*"})
        with Producer(play.servers.namesrv, "by-hand") as producer:
            sent = producer.send(topic, b"look", keys=["k"])
        assert [body_of(one) for one in play.call("push_await", consumer, count=1, wait_ms=LIMIT_MS)] == [b"look"]
        lines = until(lambda: seen if len(seen := mqadmin("consumerConnection", "-g", group)) > 2 else None)
        client_id, _, language, _ = lines[1].split()
        assert language == "JAVA"
        assert {f"{topic} *", f"%RETRY%{group}_{topic} *", "ConsumeType: CONSUME_PASSIVELY"} <= set(lines)
        info = mqadmin("consumerStatus", "-g", group, "-i", client_id, "-s")
        assert {f"consumerGroup : {group}", "language : JAVA", "PROP_CONSUMEORDERLY : false"} <= set(info)
        # Its own stacks, as it tells them.
        assert any(line.startswith("main app//Program.main(Program.java:") for line in info)
        (told,) = mqadmin("queryMsgById", "-i", sent.offset_message_id, "-t", topic, "-g", group, "-d", client_id)
        assert "consumeResult=CR_SUCCESS, remark=from gRPC client, spentTimeMills=" in told
        found = play.call("push_await", consumer, count=2, wait_ms=LIMIT_MS)
        assert [(body_of(one), one["message_id"]) for one in found] == [(b"look", sent.message_id)] * 2
        play.stop(consumer)
    finally:
        mqadmin.close()


def _first_within(act: Callable[[], list[Any]], limit_s: float) -> tuple[list[Any], float]:
    began = time.monotonic()
    while not (found := act()):
        assert time.monotonic() - began < limit_s, "nothing came"
    return found, time.monotonic() - began


def test_the_messages_of_a_killed_push_consumer_are_free_at_once(play: Play, tmp_path: Path) -> None:
    """With the settings as they are: given out for a minute, renewed for hours."""
    topic, group = play.topic(), play.group()
    with our_proxy(play.servers.namesrv) as proxy:
        producer = play.start("producer", topics=[topic])
        doomed = drivers.start("python", tmp_path)
        named = {"endpoints": proxy.address, "group": group, "subscriptions": {topic: "*"}}
        doomed.call("push_start", name="doomed", pause_ms=600_000, **named)
        sent = play.send(producer, topic, "held")
        assert len(doomed.call("push_await", name="doomed", count=1, wait_ms=LIMIT_MS)) == 1
        heir = "simple-heir"
        play.client.call("simple_start", name=heir, await_ms=5000, **named)
        doomed._process.kill()
        found, seconds = _first_within(lambda: play.call("receive", heir, invisible_ms=30_000), LIMIT_MS / 1000)
        doomed.close()
        play.client.call("simple_stop", name=heir)
    assert [(one["message_id"], one["attempt"]) for one in found] == [(sent["message_id"], 2)]
    # 1 s until it is free, and at once in the retry topic; a busy machine takes its time too.
    assert seconds < 20, seconds


def test_a_receive_that_was_taken_back_loses_nothing(play: Play) -> None:
    topic, group = play.topic(), play.group()
    producer = play.start("producer", topics=[topic])
    consumer = play.start("simple", group=group, subscriptions={topic: "*"})
    raw = RawClient(play.servers.endpoints, "taken-back")
    told = threading.Event()

    def settings() -> Any:
        made = messages.TelemetryCommand()
        made.settings.client_type = 3
        made.settings.subscription.group.name = group
        yield made
        told.wait(60)

    stream = raw.telemetry(settings())
    next(iter(stream))
    request = messages.ReceiveMessageRequest(
        group={"name": group},
        message_queue={"topic": {"name": topic}, "broker": {"name": "broker-a"}, "id": -1},
        filter_expression={"type": 1, "expression": "*"},
        batch_size=1,
    )
    request.invisible_duration.CopyFrom(duration_pb2_of(600, request.invisible_duration))
    request.long_polling_timeout.CopyFrom(duration_pb2_of(20, request.long_polling_timeout))
    call = raw.channel.unary_stream(
        f"/{messages.SERVICE}/ReceiveMessage",
        request_serializer=messages.ReceiveMessageRequest.SerializeToString,
        response_deserializer=messages.ReceiveMessageResponse.FromString,
    )(request, timeout=60, metadata=tuple(raw.metadata.items()))
    time.sleep(1)  # Until it waits at the broker.
    call.cancel()
    sent = play.send(producer, topic, body="not lost")
    (found,) = play.receive(consumer, 1)
    assert found["message_id"] == sent["message_id"]
    assert body_of(found) == body_of(message(topic, "not lost"))
    play.ack(consumer, found)
    told.set()
    stream.cancel()
    raw.close()
