"""OpenTelemetry: a span for each send and each call of a listener, joined by the context in a message's properties.

Rule: names and attributes are those of OpenTelemetry's semantic conventions for messaging; without a tracer provider
that is set up nothing is done.
"""

from __future__ import annotations

from contextvars import Token
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from rocketspark import __version__
from rocketspark.client.hooks import Consuming, Hooks, Sending
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.message import properties


class Telemetry(Hooks):
    """The OpenTelemetry spans of one client, made by its hooks."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("rocketspark", __version__)

    def before_send(self, sending: Sending) -> None:
        """Begin a PRODUCER span, whose context travels in the message's properties."""
        pairs = sending.properties
        span = self._tracer.start_span(
            f"send {sending.topic}",
            kind=SpanKind.PRODUCER,
            attributes={
                "messaging.system": "rocketmq",
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": sending.topic,
                "messaging.destination.partition.id": f"{sending.queue.broker_name}-{sending.queue.queue_id}",
                "messaging.message.id": sending.message_id,
                "messaging.message.body.size": sending.body_bytes,
                "messaging.rocketmq.client_group": sending.group,
                "messaging.rocketmq.message.tag": pairs.get(properties.TAGS, ""),
                "messaging.rocketmq.message.keys": pairs.get(properties.KEYS, "").split(),
                "server.address": sending.address,
            },
        )
        sending.notes["span"] = span
        propagate.inject(sending.properties, trace.set_span_in_context(span))

    def after_send(self, sending: Sending) -> None:
        """End the span with the attempt."""
        span: trace.Span | None = sending.notes.get("span")
        if span is None:
            return
        if sending.error is not None:
            span.record_exception(sending.error)
            span.set_attribute("error.type", type(sending.error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(sending.error)))
        span.end()

    def before_consume(self, consuming: Consuming) -> None:
        """Begin a CONSUMER span, which is current in the listener: the child of the message's send span, or, for a
        batch, linked to the send span of each message.
        """
        first = consuming.messages[0]
        parents = [_context_of(m) for m in consuming.messages]
        alone = len(parents) == 1
        links = [] if alone else [Link(trace.get_current_span(p).get_span_context()) for p in parents]
        span = self._tracer.start_span(
            f"process {first.topic}",
            context=parents[0] if alone else None,
            kind=SpanKind.CONSUMER,
            links=[link for link in links if link.context.is_valid],
            attributes={
                "messaging.system": "rocketmq",
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": first.topic,
                "messaging.consumer.group.name": consuming.group,
                "messaging.rocketmq.client_group": consuming.group,
                "messaging.batch.message_count": len(consuming.messages),
                "messaging.message.id": first.message_id,
            },
        )
        consuming.notes["span"] = span
        consuming.notes["token"] = contexts.attach(trace.set_span_in_context(span))

    def after_consume(self, consuming: Consuming) -> None:
        """End the span with the call."""
        span: trace.Span | None = consuming.notes.get("span")
        token: Token[Any] | None = consuming.notes.get("token")
        if token is not None:
            contexts.detach(token)
        if span is None:
            return
        if consuming.error is not None:
            span.record_exception(consuming.error)
            span.set_attribute("error.type", type(consuming.error).__name__)
        if not consuming.success:
            span.set_status(Status(StatusCode.ERROR, "the listener did not take it"))
        span.end()


def _context_of(message: ReceivedMessage) -> contexts.Context:
    return propagate.extract(message.properties, context=contexts.Context())


def is_set_up() -> bool:
    """Tell whether the application has set a tracer provider, so that spans go somewhere."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)
