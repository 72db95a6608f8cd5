"""The connections that a broker makes itself: to NameServers, controllers, its master and other brokers.

Rule: all of them are made here, so that TLS and signatures hold for each.
"""

from __future__ import annotations

from rocketspark.broker.settings import BrokerSettings
from rocketspark.transport.connections import Connections


def inner_connections(settings: BrokerSettings, *, connect_timeout_ms: float = 3000) -> Connections:
    """Return connections of a broker's own, made as its settings say."""
    return Connections(
        connect_timeout_ms=connect_timeout_ms, language="JAVA", tls=settings.tls.client(settings.use_tls)
    )
