"""Settings of the proxy, by the keys of rmq-proxy.json where Apache's proxy has them."""

from __future__ import annotations

import msgspec


class ProxySettings(msgspec.Struct, kw_only=True):
    """What a proxy is started with. Times in ms, sizes in bytes; in brackets Apache's key.

    `namesrv`: "host:port;…"; `host`, `port`: where it listens (0 takes a free one) [grpcServerPort]; `advertised_host`:
    the host in routes, by default the one that the client used; `remoting_port`: one more port for clients
    before 5.0 [remotingListenPort], who are served on `port` too; `authentication`, `authorization`: whether clients
    are asked who they are, and may do only what the cluster's users and rules let them; None for: if the proxy's own
    requests are signed [authenticationEnabled, authorizationEnabled]; `share_port`: other processes may listen on the
    port too, and each connection comes to one of them; `metrics_port`: where Prometheus is served, None for nowhere
    [metricsPromExporterPort]; `cluster_name`, `name`: labels of metrics, by default the host's name [proxyClusterName,
    proxyName]; `metric_collector`: "host:port" to which clients are told to send their own metrics, "" for none
    [metricCollectorAddress]; `audit_path`: the file of what is refused, "" for none.
    """

    namesrv: str
    host: str = "127.0.0.1"
    port: int = 8081
    advertised_host: str = ""
    request_timeout_ms: float = 3000
    inbound_bytes_max: int = 130 << 20
    body_bytes_max: int = 4 << 20
    user_properties_bytes_max: int = 16384
    user_properties_max: int = 128
    message_group_bytes_max: int = 64
    body_must_not_be_empty: bool = True
    default_invisible_ms: int = 60_000
    receive_invisible_ms_min: int = 10_000
    invisible_ms_max: int = 12 * 3600_000
    delay_ms_max: int = 24 * 3600_000
    transaction_recovery_s_max: int = 3600
    check_topic_type: bool = True
    producer_attempts_max: int = 3
    producer_backoff_initial_ms: int = 10
    producer_backoff_max_ms: int = 1000
    producer_backoff_multiplier: float = 2
    long_polling_ms_min: int = 5000
    long_polling_ms_max: int = 20_000
    receive_batch_size: int = 32
    client_idle_ms: int = 120_000
    route_refresh_ms: int = 20_000
    heartbeat_interval_ms: int = 20_000
    relay_timeout_ms: int = 5000
    auto_renew: bool = True
    renew_interval_ms: int = 5000
    renew_ahead_ms: int = 10_000
    renew_ms_max: int = 3 * 3600_000
    renew_failures_max: int = 3
    invisible_ms_of_undelivered: int = 1000
    transaction_data_ms: int = 30_000
    transaction_data_max: int = 15
    use_delay_level: bool = False
    batch_ack: bool = False
    authentication: bool | None = None
    authorization: bool | None = None
    access_refresh_ms: int = 5000
    share_port: bool = False
    remoting_port: int | None = None
    metrics_port: int | None = None
    metrics_host: str = ""
    cluster_name: str = "DefaultCluster"
    name: str = ""
    metric_collector: str = ""
    audit_path: str = ""
