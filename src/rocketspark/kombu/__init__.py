"""A kombu transport: Celery, and every program that uses kombu, on RocketMQ's brokers.

`import rocketspark.kombu` makes kombu know URLs that begin with `rocketmq://` and `rocketspark://`. Without an import
`transport="rocketspark.kombu:Transport"` (Celery: `broker_transport`) does the same. Rule: what is popped and not
acknowledged comes again; what waits for messages waits at the broker.

Start with connection.
"""

from __future__ import annotations

from rocketspark.errors import ConfigError

try:
    from kombu.transport import TRANSPORT_ALIASES
except ImportError as e:
    raise ConfigError("rocketspark.kombu needs kombu: pip install 'rocketspark[celery]'") from e

from rocketspark.kombu.connection import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES["rocketmq"] = TRANSPORT_ALIASES["rocketspark"] = "rocketspark.kombu:Transport"
