"""Arguments of types that clients cannot use are named where they are given, not where they act."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rocketspark import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.operations import Admin
from rocketspark.client.consumer.pop.popper import PopSettings
from rocketspark.client.producer.prepared_message import PackingSettings, make_message, pack
from rocketspark.client.validators import check_queue
from rocketspark.errors import ConfigError, FilterIllegal, MessageIllegal, NotSent, UsageError
from rocketspark.recipes import Outbox, deduplicate
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows(
    "mended: a listener that is no function was taken: every message failed and became a dead letter",
    "mended: arguments of other types were an AttributeError from within; a time of delivery as a float was "
    "sent as text that no broker reads, or a ValueError",
    "arguments: by place, the nearest name, a queue that is none",
)

NAMESRV = "127.0.0.1:1"
CONSUMERS = (PushConsumer, PullConsumer, SimpleConsumer)


@pytest.mark.parametrize("kind", [Producer, *CONSUMERS])
def test_an_address_and_an_argument(kind: Any) -> None:
    for namesrv in (["127.0.0.1:9876"], 9876, b"127.0.0.1:9876"):
        with pytest.raises(ConfigError, match="is no address: a text host:port is needed"):
            kind(namesrv, "g")
    with pytest.raises(TypeError, match=f"{kind.__name__} has no argument 'tags'"):
        kind(NAMESRV, "g", tags="a")


@pytest.mark.parametrize("value", ["5", None, float("nan"), [5]], ids=repr)
def test_a_number_of_a_producer(value: Any) -> None:
    for name in ("retries", "send_timeout_ms", "compress_over_bytes", "batch_bytes"):
        with pytest.raises(ConfigError, match=f"{name} .*: a number is needed"):
            Producer(NAMESRV, "g", **{name: value})


def test_a_listener_that_was_called_already() -> None:
    consumer = PushConsumer(NAMESRV, "g")
    for listener in (None, True, "handle"):
        with pytest.raises(UsageError, match="a listener is a function, not"):
            consumer.listen(listener)  # type: ignore[type-var]


@pytest.mark.parametrize("kind", CONSUMERS)
def test_tags_as_a_list(kind: Any) -> None:
    with pytest.raises(FilterIllegal, match=r"a filter expression is a text .*, not list"):
        kind(NAMESRV, "g").subscribe("t", ["a", "b"])
    with pytest.raises(FilterIllegal, match="a filter expression is a text, not int"):
        kind(NAMESRV, "g").subscribe("t", sql=5)


def test_a_message_by_place() -> None:
    assert Message("T", b"x") == Message(topic="T", body=b"x")
    assert Message("T", b"x", tag="a").tag == "a"
    with pytest.raises(TypeError):
        Message("T", b"x", "a")  # type: ignore[call-arg]


async def call_async(kind: Any, name: str, **wrong: Any) -> None:
    await getattr(kind(NAMESRV, "g"), name)(**wrong)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Message("T", b"x", tags="a"), "Message has no argument 'tags': did you mean 'tag'?"),
        (lambda: Producer(NAMESRV, retry=1), "AsyncProducer has no argument 'retry': did you mean 'retries'?"),
        (lambda: Producer(NAMESRV, acces_key="a"), "no argument 'acces_key': did you mean 'access_key'?"),
        (
            lambda: PullConsumer(NAMESRV, "g", consumeFrom="first"),
            "AsyncPullConsumer has no argument 'consumeFrom': did you mean 'consume_from'?",
        ),
        (
            lambda: PushConsumer(NAMESRV, "g", batch_size=1),
            "AsyncPushConsumer has no argument 'batch_size': did you mean 'batch_max'?",
        ),
        (
            lambda: PushConsumer(NAMESRV, "g").subscribe("t", tag="a"),
            "AsyncPushConsumer.subscribe() has no argument 'tag'",
        ),
        (
            lambda: PullConsumer(NAMESRV, "g").poll(timeout=5),  # type: ignore[call-arg]
            "PullConsumer.poll() has no argument 'timeout': did you mean 'timeout_ms'?",
        ),
        (
            lambda: PullConsumer(NAMESRV, groupp="g"),
            "AsyncPullConsumer has no argument 'groupp': did you mean 'group'?",
        ),
        (lambda: make_message("T", b"x", {"tags": "a"}), "a send has no argument 'tags': did you mean 'tag'?"),  # type: ignore[typeddict-unknown-key]
        (lambda: make_message("T", b"x", {"timeout": 1}), "did you mean 'timeout_ms'?"),  # type: ignore[typeddict-unknown-key]
        (
            lambda: asyncio.run(call_async(AsyncProducer, "create_topic", topic="t", queues=4)),
            "Queries.create_topic() has no argument 'queues': did you mean 'queue_count'?",
        ),
        (
            lambda: asyncio.run(call_async(AsyncPullConsumer, "seek", que=4)),
            "AsyncPullConsumer.seek() has no argument 'que': did you mean 'queue'?",
        ),
        (
            lambda: Admin(NAMESRV, timeout=5),
            "AsyncAdmin has no argument 'timeout': did you mean 'timeout_ms'?",
        ),
        (lambda: Outbox(Producer(NAMESRV), "x.db", pol_ms=1), "no argument 'pol_ms': did you mean 'poll_ms'?"),  # type: ignore[call-arg]
        (lambda: deduplicate("x.db", key="a"), "deduplicate() has no argument 'key'"),  # type: ignore[call-overload]
        (
            lambda: GroupSettings(retry_max_time=1),  # type: ignore[call-arg]
            "GroupSettings has no argument 'retry_max_time': did you mean 'retry_max_times'?",
        ),
        (lambda: PopSettings(invisible=1), "PopSettings has no argument 'invisible': did you mean 'invisible_ms'?"),  # type: ignore[call-arg]
        (lambda: run_cluster(broker=2).__enter__(), "has no argument 'broker': did you mean 'brokers'?"),
    ],
)
def test_an_unknown_argument_names_the_nearest(call: Callable[[], object], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert text in str(caught.value)


def test_methods_are_what_they_were() -> None:
    assert asyncio.iscoroutinefunction(AsyncProducer.create_topic)
    assert str(inspect.signature(PullConsumer.seek)) == "(self, queue: 'MessageQueue', offset: 'int') -> 'None'"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CHECK_IMMUNITY_TIME_IN_SECONDS", "give check_after_s of send_in_transaction instead"),
        ("TAGS", "give tag instead"),
        ("__SHARDINGKEY", "give sharding_key instead"),
        ("UNIQ_KEY", "it is set by clients and brokers; take another name"),
    ],
)
def test_a_property_of_rocketmq_names_its_argument(name: str, text: str) -> None:
    with pytest.raises(MessageIllegal, match=rf"property '{name}' is RocketMQ's own: {text}"):
        pack(Message("T", b"x", properties={name: "1"}), PackingSettings())


@pytest.mark.parametrize("queue", ["q0", 0, ("t", "broker-a", 0)])
def test_a_queue_is_a_queue(queue: Any) -> None:
    with pytest.raises(UsageError, match="is no MessageQueue: take a message's or result's `queue`"):
        check_queue(queue)


@pytest.mark.shows("types of listeners and words")
def test_what_a_type_checker_finds() -> None:
    """The check of types fails where it no longer finds one of these: its comment is of no use then."""

    def wrong(message: bytes) -> None: ...

    def nothing() -> None: ...

    def one(message: ReceivedMessage) -> None: ...

    async def many(messages: list[ReceivedMessage]) -> bool:
        return bool(messages)

    for consumer in (PushConsumer(NAMESRV, "g"), AsyncPushConsumer(NAMESRV, "g")):
        consumer.listen(wrong)  # type: ignore[type-var]
        consumer.listen(nothing)  # type: ignore[type-var]
        assert consumer.listen(one) is one
        assert consumer.listen(many) is many
        consumer.listen(lambda message: message.body)
        consumer.listen(partial(print, end=""))
    with pytest.raises(ConfigError, match="compression 'foo' is not one of zlib, lz4, zstd"):
        Producer(NAMESRV, compression="foo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'maybe': full, ca, none are known"):
        Producer(NAMESRV, use_tls=True, tls_verify="maybe")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"fault table '6\.x': 4\.x, 5\.x or a FaultTable is needed"):
        Producer(NAMESRV, fault_tolerance=True, fault_table="6.x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="on_error 5 is no function"):
        PushConsumer(NAMESRV, "g", on_error=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="strategy 'averge' is not known: average"):
        PullConsumer(NAMESRV, "g", strategy="averge")  # type: ignore[arg-type]


@pytest.mark.shows("a broker as NameServer, times as text, a nameless property, over 30,000 messages in a batch")
def test_times_and_addresses_of_calls() -> None:
    with run_cluster() as cluster:
        pull, simple = PullConsumer(cluster.namesrv, "g"), SimpleConsumer(cluster.namesrv, "h")
        for consumer in (pull, simple):
            consumer.subscribe("t")
        with Producer(cluster.namesrv) as producer, pull, simple:
            producer.send("t", b"x")
            wrong: Any = "100"
            calls: list[Callable[[], Any]] = [
                lambda: producer.send("t", b"x", timeout_ms=wrong),
                lambda: producer.send_batch([Message("t", b"x")], timeout_ms=wrong),
                lambda: producer.send_future("t", b"x", timeout_ms=wrong),
                lambda: pull.poll(wrong),
                lambda: simple.receive(timeout_ms=wrong),
                lambda: simple.receive(invisible_ms=wrong),
            ]
            for call in calls:
                with pytest.raises(UsageError, match=r"_ms.*'100'"):
                    call()
        # A broker's address is no NameServer's, whoever asks first.
        for client in (PullConsumer(cluster.brokers[0], "g"), SimpleConsumer(cluster.brokers[0], "g")):
            client.subscribe("t")
            with pytest.raises(NotSent, match="is no NameServer, but perhaps a broker: check the address"):
                client.start()
        with Producer(cluster.brokers[0]) as mistaken, pytest.raises(NotSent, match="perhaps a broker"):
            mistaken.send("t", b"x")
