"""The arguments that all clients have in common. Rule: defaults stand in Instance, which takes them."""

from __future__ import annotations

from typing import TypedDict


class ClientOptions(TypedDict, total=False):
    """Arguments of every client (the name in brackets is ClientConfig's).

    namesrv_url: where to fetch the NameServers' addresses by HTTP, every 2 min, instead of giving them.
    instance_name, client_ip, unit_name: parts of the client id ip@instance[@unit]; by default unique to this object,
        and this machine's address [instanceName, clientIP, unitName].
    namespace: put before the names of topics and groups [namespace].
    route_interval_ms, heartbeat_interval_ms: how often routes are fetched and brokers told of this client: 30 s
        [pollNameServerInterval, heartbeatBrokerInterval].
    timeout_ms: of one question to a NameServer or broker that is no send, pull or call of the application: 3 s
        [mqClientApiTimeout].
    use_tls: not there yet: true raises ConfigError [useTLS].
    """

    namesrv_url: str | None
    instance_name: str | None
    client_ip: str | None
    unit_name: str | None
    namespace: str
    route_interval_ms: float
    heartbeat_interval_ms: float
    timeout_ms: float
    use_tls: bool
