"""TLS settings of servers by RocketMQ's names. Rule: a value that is not understood is named and refuses to start."""

from __future__ import annotations

import msgspec

from rocketspark.transport.tls.client_tls import ClientTls


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of tls.properties, and what stands of them in broker.conf or namesrv.conf.

    `client()`: how this server connects to others.
    """

    mode: str = "permissive"
    enable: bool = False

    def client(self) -> ClientTls | None:
        """Return how this server's own connections are made; None for plain."""
        return ClientTls() if self.enable or self.mode == "enforcing" else None
