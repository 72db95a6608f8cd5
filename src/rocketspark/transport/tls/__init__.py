"""TLS: servers that take it beside plain on one port, and clients that check whom they talk to."""

from rocketspark.transport.tls.client_tls import ClientTls, client_tls
from rocketspark.transport.tls.settings import TlsSettings

__all__ = ["ClientTls", "TlsSettings", "client_tls"]
