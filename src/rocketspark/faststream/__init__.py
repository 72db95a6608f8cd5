"""A FastStream broker on RocketMQ (extra `faststream`): `from rocketspark.faststream import RocketBroker`.

Start with broker and subscriber.
"""

from __future__ import annotations

from rocketspark.errors import ConfigError

try:
    from faststream import AckPolicy, TestApp
except ImportError as e:
    raise ConfigError("rocketspark.faststream needs FastStream: pip install 'rocketspark[faststream]'") from e

from rocketspark.faststream.annotations import RocketMessage
from rocketspark.faststream.broker import RocketBroker
from rocketspark.faststream.config import RocketSecurity
from rocketspark.faststream.registrator import RocketRoute, RocketRoutePublisher, RocketRouter
from rocketspark.faststream.response import RocketPublishCommand, RocketResponse
from rocketspark.faststream.testing import TestRocketBroker

__all__ = [
    "AckPolicy",
    "RocketBroker",
    "RocketMessage",
    "RocketPublishCommand",
    "RocketResponse",
    "RocketRoute",
    "RocketRoutePublisher",
    "RocketRouter",
    "RocketSecurity",
    "TestApp",
    "TestRocketBroker",
]
