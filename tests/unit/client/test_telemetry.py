"""OpenTelemetry spans: a send, its attempts, the listener's call as its child, one trace over all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.unit.client.fake import Fake, in_loop, until
from tests.unit.client.producer.test_producer import SEND, failing

from rocketspark.client import AsyncProducer, AsyncPushConsumer
from rocketspark.client.telemetry import is_set_up
from rocketspark.model import ReceivedMessage

pytestmark = pytest.mark.shows("hooks, message traces, OpenTelemetry")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The provider of a process is set once: tests put theirs in its place.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr("rocketspark.client.producer.send_attempts.PAUSE_S", (0.01,))
    yield exporter
    provider.shutdown()


def test_nothing_is_done_without_a_provider() -> None:
    assert not is_set_up()

    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
            assert producer._hooks.sends == []

    run()


@pytest.mark.parametrize("coroutine", [False, True])
def test_one_trace_from_send_to_listener(spans: InMemorySpanExporter, coroutine: bool) -> None:
    inside: list[int] = []

    def plain(message: ReceivedMessage) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    async def awaited(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        plain(message)

    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake:
            consumer = AsyncPushConsumer(fake.namesrv, "g", consume_from="first")
            consumer.subscribe("t")
            consumer.listen(awaited if coroutine else plain)
            async with consumer, AsyncProducer(fake.namesrv, "pg") as producer:
                fake.broker.rules[SEND] = failing(1)
                result = await producer.send("t", b"body", tag="A", keys=["k"])
                await until(lambda: len(spans.get_finished_spans()) == 3)
                failed, sent, processed = spans.get_finished_spans()
                assert [s.name for s in (failed, sent, processed)] == ["send t", "send t", "process t"]
                assert not failed.status.is_ok
                assert failed.attributes is not None
                assert failed.attributes["error.type"] == "ServerError"
                assert sent.attributes is not None
                assert sent.attributes["messaging.message.id"] == result.message_id
                assert sent.attributes["messaging.rocketmq.message.tag"] == "A"
                assert processed.parent is not None
                assert processed.parent.span_id == sent.context.span_id
                assert processed.context.trace_id == sent.context.trace_id
                assert inside == [processed.context.span_id]

    run()


def test_it_can_be_turned_off(spans: InMemorySpanExporter) -> None:
    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", telemetry=False) as producer:
            await producer.send("t", b"x")

    run()
    assert spans.get_finished_spans() == ()
