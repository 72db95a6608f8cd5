"""The arguments that all clients have in common. Rule: defaults stand in Instance, which takes them."""

from __future__ import annotations

from typing import TypedDict


class ClientOptions(TypedDict, total=False):
    """Arguments of every client.

    instance_name, client_ip: parts of the client id; by default unique to this object, and this machine's address.
    route_interval_ms, heartbeat_interval_ms: how often routes are fetched and brokers told of this client (30 s).
    timeout_ms: of one question to a NameServer or broker that is no send, pull or call of the application (3 s).
    """

    instance_name: str | None
    client_ip: str | None
    route_interval_ms: float
    heartbeat_interval_ms: float
    timeout_ms: float
