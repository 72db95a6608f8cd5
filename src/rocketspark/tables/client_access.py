"""The namespace, the access keys and the TLS of a read or write. Rule: every connection that the source opens is made
here, so that it has them; secrets are never shown, whoever prints the options.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NamedTuple, cast

from rocketspark.client.connection.credentials import Signer
from rocketspark.client.connection.topic_routes import RouteCache
from rocketspark.client.hooks import HookSet
from rocketspark.client.options import AccessOptions, TlsVerify
from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue, namespace
from rocketspark.transport.connections import Connections
from rocketspark.transport.tls.client_tls import ClientTls


class ClientAccess(AccessOptions):
    """The options of a Spark job for namespace, keys and TLS, as the keyword arguments of a client."""

    namespace: str


class Access(NamedTuple):
    """What connections to servers need: the namespace ("" for none), the keys that requests are signed with ("":
    requests are not signed), and the TLS (None: connections are plain).
    """

    namespace: str = ""
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    tls: ClientTls | None = None

    def __repr__(self) -> str:
        signed = "signed" if self.access_key else "not signed"
        return f"Access(namespace={self.namespace!r}, {signed}, {'TLS' if self.tls else 'plain'})"

    def wire(self, name: str) -> str:
        """Return the name of a topic or group with its namespace, as servers know it."""
        return namespace.wrap(self.namespace, name)

    def wire_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return the queue with its topic's name as servers know it."""
        return MessageQueue(self.wire(queue.topic), queue.broker_name, queue.queue_id) if self.namespace else queue

    def own(self, wire_name: str) -> str | None:
        """Return a topic's name without this namespace, as the user knows it; None if the topic is of another
        namespace.
        """
        if not self.namespace:
            return wire_name
        name = namespace.unwrap(self.namespace, wire_name)
        return name if self.wire(name) == wire_name and name != wire_name else None

    def signer(self) -> Signer | None:
        """Return the signer of requests, None if they are not signed."""
        if not self.access_key:
            return None
        return Signer(self.access_key, self.secret_key, self.security_token or None)

    def _hooks(self) -> HookSet | None:
        """Return the signer as connections take it."""
        signer = self.signer()
        return None if signer is None else HookSet([signer])

    def checked_tls(self) -> ClientTls | None:
        """Return the TLS of connections. Raises ConfigError if its files are not on this machine."""
        if self.tls is not None:
            try:
                self.tls.context()
            except ConfigError as e:
                raise ConfigError(
                    f"{e}; this is {socket.gethostname()}: the files of TLS must be there, under the same path, on the"
                    " driver and on every executor"
                ) from None
        return self.tls

    def connections(self) -> Connections:
        """Return a new set of connections to servers, for the running event loop."""
        return Connections(hooks=self._hooks(), tls=self.checked_tls())

    def routes(self, addresses: Sequence[str], *, timeout_ms: float) -> RouteCache:
        """Return a new cache of routes that asks these NameServers, for the running event loop."""
        return RouteCache(list(addresses), timeout_ms=timeout_ms, hooks=self._hooks(), tls=self.checked_tls())

    def credentials(self) -> AccessOptions:
        """Return the keys and the TLS as arguments of `admin.AsyncAdmin`, which takes names with their namespace."""
        tls = self.checked_tls() or ClientTls()
        return {
            "access_key": self.access_key or None,
            "secret_key": self.secret_key or None,
            "security_token": self.security_token or None,
            "use_tls": self.tls is not None,
            "tls_ca": tls.ca or None,
            "tls_cert": tls.cert or None,
            "tls_key": tls.key or None,
            "tls_key_password": tls.key_password or None,
            "tls_verify": cast(TlsVerify, tls.verify) if self.tls is not None else None,
            "tls_server_name": tls.server_name or None,
        }

    def client_options(self) -> ClientAccess:
        """Return the namespace, the keys and the TLS as arguments for a client."""
        return {"namespace": self.namespace, **self.credentials()}
