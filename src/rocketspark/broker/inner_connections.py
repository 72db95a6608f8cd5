"""The connections that a broker makes itself: to NameServers, controllers, its master and other brokers.

Rule: all of them are made here, so that TLS and signatures hold for each.
"""

from __future__ import annotations

from rocketspark.broker.settings import BrokerSettings
from rocketspark.transport.connections import Connections
from rocketspark.transport.request_signer import RequestSigner, inner_signer


def signer_of(settings: BrokerSettings) -> RequestSigner | None:
    """Return what signs a broker's own requests; None without innerClientAuthenticationCredentials."""
    return inner_signer(settings.access.inner_client_authentication_credentials)


def inner_connections(settings: BrokerSettings, *, connect_timeout_ms: float = 3000) -> Connections:
    """Return connections of a broker's own, made as its settings say."""
    return Connections(
        connect_timeout_ms=connect_timeout_ms,
        language="JAVA",
        hooks=signer_of(settings),
        tls=settings.tls.client(settings.use_tls),
    )
