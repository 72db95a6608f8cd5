"""The namespace and the access keys of a read or write. Rule: secrets are never shown, whoever prints the options."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

from rocketspark.client.connection.acl_signing import Signer
from rocketspark.client.hooks import HookSet
from rocketspark.model import MessageQueue, namespace


class ClientAccess(TypedDict):
    """The namespace and the keys as arguments of a client."""

    namespace: str
    access_key: str | None
    secret_key: str | None
    security_token: str | None


class Access(NamedTuple):
    """The namespace ("" for none), and the keys that requests are signed with ("" for requests that are not)."""

    namespace: str = ""
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""

    def __repr__(self) -> str:
        return f"Access(namespace={self.namespace!r}, {'signed' if self.access_key else 'not signed'})"

    def wire(self, name: str) -> str:
        """Return the full name of a topic or group, as servers know it."""
        return namespace.wrap(self.namespace, name)

    def wire_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return the queue as servers know it."""
        return MessageQueue(self.wire(queue.topic), queue.broker_name, queue.queue_id) if self.namespace else queue

    def own(self, wire_name: str) -> str | None:
        """Return the user's name of a topic; None if it is of another namespace."""
        if not self.namespace:
            return wire_name
        name = namespace.unwrap(self.namespace, wire_name)
        return name if self.wire(name) == wire_name and name != wire_name else None

    def signer(self) -> Signer | None:
        """Return the signer of requests, None if they are not signed."""
        if not self.access_key:
            return None
        return Signer(self.access_key, self.secret_key, self.security_token or None)

    def hooks(self) -> HookSet | None:
        """Return the signer as connections take it."""
        signer = self.signer()
        return None if signer is None else HookSet([signer])

    def client_options(self) -> ClientAccess:
        """Return the arguments for a client."""
        return {
            "namespace": self.namespace,
            "access_key": self.access_key or None,
            "secret_key": self.secret_key or None,
            "security_token": self.security_token or None,
        }
