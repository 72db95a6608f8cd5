"""TLS: servers that take it beside plain on one port, and clients that check whom they talk to.

Start with first_bytes (a server's connection) and client_tls (a client's).
"""

from rocketspark.transport.tls.client_tls import ClientTls, client_tls
from rocketspark.transport.tls.settings import TlsSettings

__all__ = ["ClientTls", "TlsSettings", "client_tls"]
