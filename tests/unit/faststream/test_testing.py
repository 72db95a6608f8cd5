"""The broker in memory, and what of FastStream it carries: filters, groups, dependencies, middlewares, documents."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
import pytest
from fast_depends.msgspec import MsgSpecSerializer
from faststream._internal.constants import EMPTY
from faststream.exceptions import SetupError, SubscriberNotFound
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256
from faststream.specification import AsyncAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from tests.support.patience import LIMIT_S

from faststream import Context, ContextRepo, Depends, ExceptionMiddleware, FastStream
from rocketspark.errors import ConfigError, MessageIllegal, UsageError
from rocketspark.faststream import RocketBroker, RocketRoute, RocketRouter, RocketSecurity, TestRocketBroker
from rocketspark.faststream.annotations import RocketMessage
from rocketspark.faststream.config import access_of, make_rocket_logger_state
from rocketspark.faststream.opentelemetry import RocketTelemetryMiddleware
from rocketspark.faststream.prometheus import RocketPrometheusMiddleware

pytestmark = pytest.mark.shows("FastStream: TestRocketBroker, AsyncAPI, routers, dependencies, middlewares, msgspec")


class Order(msgspec.Struct):
    """What is ordered."""

    number: int


def doubled(order: Order) -> int:
    return order.number * 2


def in_memory(broker: RocketBroker, act: Callable[[RocketBroker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with TestRocketBroker(broker) as memory:
            await act(memory)

    asyncio.run(run())


def test_each_group_gets_what_its_filter_takes_once() -> None:
    broker = RocketBroker()
    seen: list[tuple[str, str]] = []

    def note(name: str, **options: Any) -> Any:
        async def take(text: str) -> None:
            seen.append((name, text))

        return broker.subscriber("orders", **options)(take)

    kept = [
        note("new", group="a", tags="new || odd"),
        note("new again", group="a", tags="new || odd"),
        note("dear", group="b", sql="price > 10 AND shop = 'x'"),
        note("every", group="c", broadcast=True),
        note("every again", group="c", broadcast=True),
    ]

    async def act(memory: RocketBroker) -> None:
        await memory.publish("one", "orders", tag="new", headers={"price": 11, "shop": "x"})
        await memory.publish("two", "orders", tag="paid", headers={"price": 9, "shop": "x"})
        await memory.publish("three", "others")
        with pytest.raises(SubscriberNotFound, match="no subscriber takes topic 'others'"):
            await memory.request("three", "others")

    in_memory(broker, act)
    # One member of a group, whichever.
    assert sorted((name.replace("new again", "new"), text) for name, text in seen) == [
        ("dear", "one"),
        *((name, text) for name in ("every", "every again") for text in ("one", "two")),
        ("new", "one"),
    ]
    assert len(kept) == 5


def test_dependencies_context_routers_and_failures() -> None:
    seen: list[Any] = []

    async def work(
        order: Order, twice: Annotated[int, Depends(doubled)], message: RocketMessage, shop: str = Context("shop")
    ) -> None:
        if order.number > 2:
            raise LookupError(order.number)
        seen.append((order, twice, message.raw_message.topic, shop))

    handled = ExceptionMiddleware(handlers={LookupError: lambda e: seen.append(str(e))})
    broker = RocketBroker(serializer=MsgSpecSerializer(), middlewares=[handled])
    broker.include_router(RocketRouter("shop-", handlers=[RocketRoute(work, "orders", group="g")]))
    broker.context.set_global("shop", "x")

    async def act(memory: RocketBroker) -> None:
        await memory.publish(Order(2), "shop-orders")
        await memory.publish({"number": 3}, "shop-orders")

    in_memory(broker, act)
    assert seen == [(Order(2), 4, "shop-orders", "x"), "3"]
    with pytest.raises(SetupError, match="include a RocketRouter"):
        broker.include_router(object())


@pytest.mark.parametrize(
    ("topic", "fields", "text"),
    [
        ("two words", {}, "only letters, digits"),
        ("SCHEDULE_TOPIC_XXXX", {}, "belongs to the broker itself"),
        ("orders", {"headers": {"KEYS": "k"}}, "give keys instead"),
        ("orders", {"headers": {"who": "a\x01b"}}, "0x01 and 0x02"),
        ("orders", {"keys": ["two words"]}, "a text without blanks"),
        ("orders", {"delay_ms": 5, "deliver_at": 7}, "give one of"),
    ],
)
def test_what_a_producer_refuses_is_refused_in_memory(topic: str, fields: Any, text: str) -> None:
    async def act(memory: RocketBroker) -> None:
        for publish in (memory.publish("x", topic, **fields), memory.publish_batch("x", topic=topic, **fields)):
            with pytest.raises(MessageIllegal, match=text):
                await publish

    in_memory(RocketBroker(), act)


def test_bodies_that_are_too_large_and_late_replies_are_refused_in_memory() -> None:
    broker = RocketBroker(producer={"body_bytes_max": 1 << 21})

    @broker.subscriber("slow", group="slow")
    async def sleep(_: str) -> None:
        await asyncio.sleep(LIMIT_S)

    async def act(memory: RocketBroker) -> None:
        with pytest.raises(MessageIllegal, match="at most 2097152 are allowed"):
            await memory.publish(b"x" * (3 << 20), "orders")
        with pytest.raises(MessageIllegal, match="over 1048576: send it alone"):
            await memory.publish_batch(b"x" * (3 << 19), topic="orders")
        with pytest.raises(TimeoutError, match="no reply to the request to topic 'slow' in 0"):
            await memory.request("x", "slow", timeout=0.01)

    in_memory(broker, act)


@pytest.mark.parametrize(
    ("topic", "fields", "text"),
    [
        ("two words", {"group": "g"}, "only letters, digits"),
        ("orders", {"group": "two words"}, "only letters, digits"),
        ("orders", {"sql": "a >"}, "the expression ends here"),
        ("orders", {"options": {"nope": 1}}, "has no argument 'nope'"),
    ],
)
def test_a_subscriber_that_cannot_start_does_not_start_in_memory(topic: str, fields: Any, text: str) -> None:
    broker = RocketBroker()

    @broker.subscriber(topic, **fields)
    async def work(_: str) -> None: ...

    async def act(memory: RocketBroker) -> None: ...

    with pytest.raises((UsageError, TypeError), match=text):
        in_memory(broker, act)


def test_what_middlewares_of_faststream_see() -> None:
    spans, registry = InMemorySpanExporter(), CollectorRegistry()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    broker = RocketBroker(
        middlewares=[RocketTelemetryMiddleware(tracer_provider=provider), RocketPrometheusMiddleware(registry=registry)]
    )

    @broker.subscriber("orders", group="g", batch=True)
    async def work(texts: list[str]) -> None: ...

    in_memory(broker, lambda memory: memory.publish_batch("one", "two", topic="orders"))  # type: ignore[arg-type,return-value]
    found = {span.name: dict(span.attributes or {}) for span in spans.get_finished_spans()}
    assert sorted(found) == ["orders create", "orders process", "orders publish"]
    assert found["orders process"]["messaging.batch.message_count"] == 2
    assert found["orders publish"]["messaging.destination.name"] == "orders"
    labels = {"app_name": "faststream", "broker": "rocketmq", "handler": "orders"}
    assert registry.get_sample_value("faststream_received_messages_total", labels) == 2


def test_the_document_names_topics_and_types() -> None:
    security = RocketSecurity(access_key="me", secret_key="x", use_tls=True)
    broker = RocketBroker("a:9876;b:9876, c:9876;", security=security)

    @broker.subscriber("orders", group="g", title="Orders", description="New orders.")
    @broker.publisher("bills")
    async def work(order: int) -> str:
        return str(order)

    document = AsyncAPI(broker, schema_version="3.0.0").to_specification().to_jsonable()
    assert {s["host"] for s in document["servers"].values()} == {"a:9876", "b:9876", "c:9876"}
    assert {s["protocol"] for s in document["servers"].values()} == {"rocketmq-secure"}
    channels = {name: (c["address"], c.get("description")) for name, c in document["channels"].items()}
    assert channels == {"Orders": ("orders", "New orders."), "bills:Publisher": ("bills", None)}
    assert document["components"]["securitySchemes"] == {"access-key": {"type": "userPassword"}}
    assert FastStream(broker).broker is broker


def test_a_line_of_the_log_has_the_whole_id_of_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of a process differ in their last characters alone."""
    monkeypatch.setattr(logging.getLogger("faststream.access.rocketmq"), "filters", [])  # Those of other brokers.
    context, message_id = ContextRepo(), "7F0000014D0404E4F80FB29264E93500"
    logger = make_rocket_logger_state(logger=EMPTY, log_level=logging.INFO)
    logger.params_storage.register_subscriber({"topic": "orders", "group": "billing"})
    logger._setup(context)
    with context.scope("log_context", {"topic": "orders", "group": "billing", "message_id": message_id}):
        lines = logging.getLogger("faststream.access.rocketmq")
        record = lines.makeRecord(lines.name, logging.INFO, __file__, 1, "Received", (), None)
        assert lines.filter(record)
    # Columns are as wide as what other tests of the process had in them.
    line = " ".join(lines.handlers[0].format(record).split())
    assert line.endswith(f"- orders | billing | {message_id} - Received")


def test_security_that_rocketmq_has_not_is_refused() -> None:
    plain = SASLPlaintext("me", "secret", use_ssl=True)
    assert access_of(plain) == {"use_tls": True, "access_key": "me", "secret_key": "secret"}
    assert access_of(BaseSecurity(use_ssl=True)) == {"use_tls": True}
    with pytest.raises(ConfigError, match="RocketMQ has no SASLScram256"):
        access_of(SASLScram256("me", "secret"))
    with pytest.raises(ConfigError, match=r"RocketSecurity\(use_tls=True, tls_ca"):
        access_of(BaseSecurity(ssl_context=object()))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no argument 'tls'"):
        RocketSecurity(tls=True)


def test_arguments_that_cannot_be_are_refused_where_they_are_written() -> None:
    broker = RocketBroker()
    with pytest.raises(SetupError, match="a subscriber needs a topic"):
        broker.subscriber()
    with pytest.raises(SetupError, match="neither broadcast nor pop"):
        broker.subscriber("a", ordered=True, pop=True)
    with pytest.raises(ConfigError, match="max_workers 0"):
        broker.subscriber("a", max_workers=0)
    with pytest.raises(TypeError, match="tagg"):
        asyncio.run(broker.publish("x", "a", tagg="b"))  # type: ignore[call-arg]


def test_without_faststream_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("rocketspark.faststream")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "faststream", None)
    with pytest.raises(ConfigError, match=r"pip install 'rocketspark\[faststream\]'"):
        importlib.import_module("rocketspark.faststream")
