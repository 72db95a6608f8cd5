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


def writers_beside(settings: BrokerSettings) -> dict[str, str]:
    """Return who may write to a NameServer, and ask a controller, that serve these brokers alone, with their secrets.

    Those that the settings name, where the brokers ask for signatures and sign themselves; else nobody is asked.
    """
    if not settings.authentication or settings.access.inner_credentials() is None:
        return {}
    return {user.username: user.password for user in settings.access.first_users()}


def inner_connections(settings: BrokerSettings, *, connect_timeout_ms: float = 3000) -> Connections:
    """Return connections of a broker's own, made as its settings say."""
    return Connections(
        connect_timeout_ms=connect_timeout_ms,
        language="JAVA",
        hooks=signer_of(settings),
        tls=settings.tls.client(settings.use_tls),
    )
