"""Settings of the proxy, and the file of Apache's proxy, rmq-proxy.json, whose keys are settings of ours.

Rule: a key of the file that means something here is kept to, or refused with one line; one that has no effect is named.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model import typed_json
from rocketspark.model.text import shown
from rocketspark.transport.metrics.settings import DISABLE, EXPORTERS, PROM, ExportSettings


class ProxySettings(msgspec.Struct, kw_only=True):
    """What a proxy is started with. Times in ms, sizes in bytes; in brackets Apache's key.

    `namesrv`: "host:port;…"; `host`, `port`: where it listens (0 takes a free one) [grpcServerPort]; `advertised_host`:
    the host in routes, by default the one that the client used; `asked_port`: the port in routes is the one that the
    client used too, else `port` [useEndpointPortFromRequest]; `remoting_port`: one more port for clients
    before 5.0 [remotingListenPort], who are served on `port` too; `authentication`, `authorization`: whether clients
    are asked who they are, and may do only what the cluster's users and rules let them; None for: if the proxy's own
    requests are signed [authenticationEnabled, authorizationEnabled]; `share_port`: other processes may listen on the
    port too, and each connection comes to one of them; `metrics_port`: where Prometheus is served, None for nowhere
    [metricsPromExporterPort]; `metrics_exporter`: OTLP_GRPC or LOG to send them or to write them into the log, with
    the settings after it [metricsExporterType, metricsGrpcExporterTarget, …]; `cluster_name`, `name`: labels of
    metrics, by default the host's name [proxyClusterName, proxyName]; `metric_collector`: "host:port" to which clients
    are told to send their own metrics, "" for none [metricCollectorAddress]; `audit_path`: the file of what is refused,
    "" for none.
    """

    namesrv: str
    host: str = "127.0.0.1"
    port: int = 8081
    advertised_host: str = ""
    asked_port: bool = False
    request_timeout_ms: float = 3000
    inbound_bytes_max: int = 130 << 20
    body_bytes_max: int = 4 << 20
    user_properties_bytes_max: int = 16384
    user_properties_max: int = 128
    message_group_bytes_max: int = 64
    lite_topic_bytes_max: int = 64
    lite_unacknowledged_max: int = 100
    lite_subscriptions_per_s_max: int = 5000
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
    metrics_exporter: str = DISABLE
    metrics_target: str = ""
    metrics_header: str = ""
    metrics_timeout_ms: int = 3000
    metrics_interval_ms: int = 60_000
    metrics_log_interval_ms: int = 10_000
    metrics_points_max: int = 1000
    metrics_delta: bool = False
    metrics_label: str = ""
    cluster_name: str = "DefaultCluster"
    name: str = ""
    metric_collector: str = ""
    audit_path: str = ""


FILE_BYTES_MAX = 1 << 20
PORT_MAX = 65535
# Apache's key: ours, of the same unit.
FIELDS = {
    "namesrvAddr": "namesrv",
    "grpcServerPort": "port",
    "useEndpointPortFromRequest": "asked_port",
    "grpcMaxInboundMessageSize": "inbound_bytes_max",
    "maxMessageSize": "body_bytes_max",
    "maxUserPropertySize": "user_properties_bytes_max",
    "userPropertyMaxNum": "user_properties_max",
    "maxMessageGroupSize": "message_group_bytes_max",
    "maxLiteTopicSize": "lite_topic_bytes_max",
    "maxLiteRenewNumPerChannel": "lite_unacknowledged_max",
    "maxSyncLiteSubscriptionRate": "lite_subscriptions_per_s_max",
    "enableMessageBodyEmptyCheck": "body_must_not_be_empty",
    "defaultInvisibleTimeMills": "default_invisible_ms",
    "minInvisibleTimeMillsForRecv": "receive_invisible_ms_min",
    "maxInvisibleTimeMills": "invisible_ms_max",
    "maxDelayTimeMills": "delay_ms_max",
    "maxTransactionRecoverySecond": "transaction_recovery_s_max",
    "enableTopicMessageTypeCheck": "check_topic_type",
    "grpcClientProducerMaxAttempts": "producer_attempts_max",
    "grpcClientProducerBackoffInitialMillis": "producer_backoff_initial_ms",
    "grpcClientProducerBackoffMaxMillis": "producer_backoff_max_ms",
    "grpcClientProducerBackoffMultiplier": "producer_backoff_multiplier",
    "grpcClientConsumerMinLongPollingTimeoutMillis": "long_polling_ms_min",
    "grpcClientConsumerMaxLongPollingTimeoutMillis": "long_polling_ms_max",
    "grpcClientConsumerLongPollingBatchSize": "receive_batch_size",
    "grpcClientIdleTimeMills": "client_idle_ms",
    "enableProxyAutoRenew": "auto_renew",
    "renewSchedulePeriodMillis": "renew_interval_ms",
    "renewAheadTimeMillis": "renew_ahead_ms",
    "renewMaxTimeMillis": "renew_ms_max",
    "maxRenewRetryTimes": "renew_failures_max",
    "invisibleTimeMillisWhenClear": "invisible_ms_of_undelivered",
    "transactionDataExpireMillis": "transaction_data_ms",
    "transactionDataMaxNum": "transaction_data_max",
    "useDelayLevel": "use_delay_level",
    "enableBatchAck": "batch_ack",
    "authenticationEnabled": "authentication",
    "authorizationEnabled": "authorization",
    "metricsPromExporterPort": "metrics_port",
    "metricsPromExporterHost": "metrics_host",
    "metricsGrpcExporterTarget": "metrics_target",
    "metricsGrpcExporterHeader": "metrics_header",
    "metricGrpcExporterTimeOutInMills": "metrics_timeout_ms",
    "metricGrpcExporterIntervalInMills": "metrics_interval_ms",
    "metricLoggingExporterIntervalInMills": "metrics_log_interval_ms",
    "metricsExportBatchMaxDataPoints": "metrics_points_max",
    "metricsInDelta": "metrics_delta",
    "metricsLabel": "metrics_label",
    "metricCollectorAddress": "metric_collector",
    "proxyClusterName": "cluster_name",
    "proxyName": "name",
}
# They say whether other keys count: their values in capitals, the default first.
EXPORTER, COLLECTOR = "metricsExporterType", "metricCollectorMode"
CHOICES = {EXPORTER: EXPORTERS, COLLECTOR: ("OFF", "ON")}
METRICS_PORT = 5557
# The same in another unit: ours is so many of Apache's.
SECONDS = {
    "grpcProxyRelayRequestTimeoutInSeconds": "relay_timeout_ms",
    "transactionHeartbeatPeriodSecond": "heartbeat_interval_ms",
    "topicConfigCacheRefreshSeconds": "route_refresh_ms",
}
_TYPES: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(ProxySettings)}
_LOCAL = "a proxy of ours is a process beside the broker, also on the broker's machine: leave it out, or say CLUSTER"


def read_file(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read an rmq-proxy.json: return its settings by our names, and a warning for each key that has no effect.

    Raises ConfigError for a file that cannot be read, or a value that cannot be used.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror or e}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has {len(data):,} bytes: no such file is longer than {FILE_BYTES_MAX:,}")
    try:
        given = typed_json.decode(data.removeprefix(codecs.BOM_UTF8), dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise ConfigError(f"{path} is no JSON object of settings: {shown(str(e))}") from None
    found: dict[str, Any] = {}
    warnings = []
    for key, value in given.items():
        name = FIELDS.get(key) or SECONDS.get(key)
        if key == "proxyMode" and str(value).upper() == "LOCAL":
            raise ConfigError(f"{path}: proxyMode: {_LOCAL}")
        if name is None:
            if key in CHOICES:
                _choice(path, given, key)
            elif key != "proxyMode":
                warnings.append(f"{path}: key {shown(key)!r} has no effect")
            continue
        found[name] = _value(path, key, value, name)
    exporter = _choice(path, given, EXPORTER)
    if exporter == PROM:
        if found.get("metrics_port") is None:
            found["metrics_port"] = METRICS_PORT
    else:
        found.pop("metrics_port", None)
        if exporter != DISABLE:
            found["metrics_exporter"] = exporter
    if exporter != DISABLE:
        try:
            ExportSettings.of(ProxySettings(**{"namesrv": "", **found})).check()
        except ConfigError as e:
            raise ConfigError(f"{path}: {e}") from None
    if _choice(path, given, COLLECTOR) == "ON":
        _check_address(path, found.get("metric_collector", ""))
    else:
        found.pop("metric_collector", None)
    return found, warnings


def _choice(path: Path, given: dict[str, Any], key: str) -> str:
    """Return the value of a key that turns others on, in capitals. Raises ConfigError for one that is not supported."""
    value = str(given.get(key, CHOICES[key][0])).upper()
    if value not in CHOICES[key]:
        allowed = f"{', '.join(CHOICES[key][:-1])} or {CHOICES[key][-1]}"
        raise ConfigError(f"{path}: {key}={shown(str(given[key]))}: {allowed} is needed, others are not supported")
    return value


def _check_address(path: Path, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= PORT_MAX):
        raise ConfigError(f"{path}: metricCollectorAddress={shown(address)}: host:port is needed")


def _value(path: Path, key: str, value: Any, name: str) -> Any:
    kind = _TYPES[name]
    try:
        # As Apache's reader does, a number or a truth value may stand in quotes.
        made = typed_json.convert(value, kind, strict=False)
    except (msgspec.ValidationError, OverflowError):
        words = {int: "a whole number", int | None: "a whole number", float: "a number", str: "text"}
        wanted = words.get(kind, "true or false")
        told = key if name == "metrics_header" else f"{key}={shown(str(value))}"
        raise ConfigError(f"{path}: {told}: {wanted} is needed") from None
    if isinstance(made, int | float) and not isinstance(made, bool):
        if not 0 <= made <= 1 << 53:
            raise ConfigError(f"{path}: {key}={shown(str(value))}: a number from 0 on is needed")
        if name in ("port", "metrics_port") and made > PORT_MAX:
            raise ConfigError(f"{path}: {key}={made}: a port from 0 to {PORT_MAX} is needed")
        if key in SECONDS:
            return made * 1000
    return made
