"""FastStream's Prometheus middleware for RocketMQ."""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware

from rocketspark.faststream.response import RocketPublishCommand


class _Attributes(MetricsSettingsProvider[Any, RocketPublishCommand]):
    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> ConsumeAttrs:
        """Return what is counted of a message, or a batch."""
        raws = msg.raw_message if isinstance(msg.raw_message, list) else [msg.raw_message]
        size = sum(len(raw.body) for raw in raws)
        return {"destination_name": raws[0].topic, "message_size": size, "messages_count": len(raws)}

    def get_publish_destination_name_from_cmd(self, cmd: RocketPublishCommand) -> str:
        """Return the topic."""
        return cmd.destination


class RocketPrometheusMiddleware(PrometheusMiddleware[Any, RocketPublishCommand]):
    """Counts and times of publishes and handlers. Arguments: `registry`, `app_name`, `metrics_prefix` and others of
    FastStream's.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(settings_provider_factory=lambda msg: _Attributes(), **options)
