"""FastStream's OpenTelemetry middleware with RocketMQ's attributes."""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetryMiddleware, TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME

from rocketspark.faststream.response import RocketPublishCommand

SYSTEM = "rocketmq"


class _Attributes(TelemetrySettingsProvider[Any, RocketPublishCommand]):
    messaging_system = SYSTEM

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """Return what a span of a handler says."""
        raws = msg.raw_message if isinstance(msg.raw_message, list) else [msg.raw_message]
        count = {"messaging.batch.message_count": len(raws)} if msg.raw_message is raws else {}
        return count | {
            "messaging.system": SYSTEM,
            "messaging.message.id": msg.message_id,
            "messaging.message.conversation_id": msg.correlation_id,
            "messaging.message.payload_size_bytes": sum(len(raw.body) for raw in raws),
            MESSAGING_DESTINATION_PUBLISH_NAME: raws[0].topic,
        }

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """Return the topic."""
        raw = msg.raw_message[0] if isinstance(msg.raw_message, list) else msg.raw_message
        return str(raw.topic)

    def get_publish_attrs_from_cmd(self, cmd: RocketPublishCommand) -> dict[str, Any]:
        """Return what a span of a publish says."""
        return {
            "messaging.system": SYSTEM,
            "messaging.destination.name": cmd.destination,
            "messaging.message.conversation_id": cmd.correlation_id,
        }

    def get_publish_destination_name(self, cmd: RocketPublishCommand) -> str:
        """Return the topic."""
        return cmd.destination


class RocketTelemetryMiddleware(TelemetryMiddleware[RocketPublishCommand]):
    """Spans and metrics of publishes and handlers. Arguments: `tracer_provider`, `meter_provider`, `meter`."""

    def __init__(self, *, include_messages_counters: bool = True, **providers: Any) -> None:
        super().__init__(
            settings_provider_factory=lambda msg: _Attributes(),
            include_messages_counters=include_messages_counters,
            **providers,
        )
