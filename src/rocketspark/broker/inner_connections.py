"""The connections that a broker makes itself: to NameServers, controllers, its master and other brokers.

Rule: all of them are made here, so that TLS and signatures hold for each.
"""

from __future__ import annotations

from rocketspark.broker.settings import BrokerSettings
from rocketspark.transport.connections import Connections
from rocketspark.transport.request_signer import RequestSigner, inner_signer


def signer_of(settings: BrokerSettings) -> RequestSigner | None:
    """Return the signer of a broker's own requests; None if innerClientAuthenticationCredentials is not set."""
    return inner_signer(settings.access.inner_client_authentication_credentials)


def writers_beside(settings: BrokerSettings) -> dict[str, str]:
    """Return the secrets, by user, of those who may write to a NameServer or controller that serves these brokers only.

    It is empty, so that everybody may write, unless the brokers ask for signatures and sign their own requests.
    """
    if not settings.authentication or settings.access.inner_credentials() is None:
        return {}
    return {user.username: user.password for user in settings.access.first_users()}


def inner_connections(settings: BrokerSettings, *, connect_timeout_ms: float = 3000) -> Connections:
    """Return an empty set of connections of a broker's own, which are made and signed as its settings say."""
    return Connections(
        connect_timeout_ms=connect_timeout_ms,
        language="JAVA",
        hooks=signer_of(settings),
        tls=settings.tls.client(settings.use_tls),
    )
