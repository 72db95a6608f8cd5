"""Where metrics go, by RocketMQ's settings (BrokerMetricsManager and ProxyMetricsManager, 5.x). Rule: what cannot be
kept is refused at the start in one line, which holds no header's value.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rocketspark.errors import ConfigError
from rocketspark.model.text import INT_MAX, shown

DISABLE, PROM, OTLP, LOG = EXPORTERS = ("DISABLE", "PROM", "OTLP_GRPC", "LOG")
PAIRS_MAX = 64
# Each asks the loop for all metrics.
INTERVAL_MS_MIN = 100
# Without a port in the target: those of http and https.
_PORTS = {"http": 80, "https": 443}
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_HEADER = re.compile(r"[a-z0-9_.-]+")
# Labels that histograms of Prometheus have of their own.
_TAKEN = ("le", "quantile")


class Target(NamedTuple):
    """A collector: its "host:port", and whether it is reached by TLS."""

    address: str
    tls: bool


class ExportSettings(NamedTuple):
    """The settings of an exporter, named as the fields of a server's settings. Times in ms."""

    metrics_exporter: str
    metrics_target: str
    metrics_header: str
    metrics_timeout_ms: int
    metrics_interval_ms: int
    metrics_log_interval_ms: int
    metrics_delta: bool
    metrics_label: str
    metrics_points_max: int

    @classmethod
    def of(cls, settings: Any) -> ExportSettings:
        """Return those of a broker's or a proxy's settings."""
        return cls(*(getattr(settings, name) for name in cls._fields))

    def check(self) -> None:
        """Raise ConfigError for a value that cannot be used."""
        if self.metrics_exporter not in EXPORTERS:
            raise ConfigError(
                f"metricsExporterType {shown(self.metrics_exporter)!r}: {', '.join(EXPORTERS[:-1])} or LOG is needed"
            )
        for key, value, low in (
            ("metricGrpcExporterTimeOutInMills", self.metrics_timeout_ms, 1),
            ("metricGrpcExporterIntervalInMills", self.metrics_interval_ms, INTERVAL_MS_MIN),
            ("metricLoggingExporterIntervalInMills", self.metrics_log_interval_ms, INTERVAL_MS_MIN),
            ("metricsExportBatchMaxDataPoints", self.metrics_points_max, 1),
        ):
            if not low <= value <= INT_MAX:
                raise ConfigError(f"{key}={value}: a whole number is needed, from {low} to {INT_MAX}")
        self.labels()
        self.headers()
        if self.metrics_exporter == OTLP:
            self.target()

    def labels(self) -> dict[str, str]:
        """Return the labels that every metric gets. Raises ConfigError."""
        found = {}
        for number, (name, value) in enumerate(pairs("metricsLabel", self.metrics_label), 1):
            if not _LABEL.fullmatch(name) or name.startswith("__") or name in _TAKEN:
                raise ConfigError(
                    f"metricsLabel: the name of item {number}, {shown(name)!r}: letters, digits and _ are needed, not a"
                    " digit first, nor one of Prometheus's own"
                )
            found[name] = value
        if len({re.sub(r"\W", "_", name, flags=re.ASCII) for name in found}) < len(found):
            raise ConfigError("metricsLabel: two names differ in . and - alone: give them others")
        return found | ({"aggregation": "delta"} if self.metrics_delta else {})

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of each request to a collector. Raises ConfigError."""
        found = []
        for number, (name, value) in enumerate(pairs("metricsGrpcExporterHeader", self.metrics_header), 1):
            low = name.lower()
            if not _HEADER.fullmatch(low) or low.startswith("grpc-") or low.endswith("-bin"):
                raise ConfigError(
                    f"metricsGrpcExporterHeader: the name of item {number}: letters, digits, - _ and . are needed, not"
                    " grpc- first, nor -bin last"
                )
            if not (value.isascii() and value.isprintable()):
                raise ConfigError(f"metricsGrpcExporterHeader: the value of item {number}: ASCII is needed")
            found.append((low, value))
        return found

    def target(self) -> Target:
        """Return the collector. Raises ConfigError."""
        text = self.metrics_target.strip()
        if not text:
            raise ConfigError("metricsExporterType=OTLP_GRPC needs metricsGrpcExporterTarget=http://HOST:PORT")
        try:
            # As RocketMQ does.
            url = urlsplit(text if "://" in text else f"https://{text}")
            host, port = url.hostname, url.port or _PORTS.get(url.scheme, 0)
        except ValueError:
            host, port = None, 0
        else:
            if url.path not in ("", "/") or url.query or url.fragment or "@" in url.netloc:
                host = None
        if not host or not port or not host.isprintable() or " " in host:
            raise ConfigError(
                "metricsGrpcExporterTarget: http://HOST:PORT is needed, or https://HOST:PORT for TLS, without a user or"
                " a path"
            )
        return Target(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", url.scheme == "https")

    @property
    def interval_s(self) -> float:
        """How often metrics are sent or written."""
        return (self.metrics_log_interval_ms if self.metrics_exporter == LOG else self.metrics_interval_ms) / 1000


def pairs(key: str, text: str) -> list[tuple[str, str]]:
    """Return (name, value) of each item of "name:value,…", as RocketMQ has labels and headers, the last one of a name;
    empty items are left out. Raises ConfigError, without a value in it, for an item that is none (RocketMQ's servers
    leave it out).
    """
    items = [item for item in text.split(",") if item.strip()]
    found: dict[str, str] = {}
    for number, item in enumerate(items, 1):
        name, _, value = (part.strip() for part in item.partition(":"))
        if not (name and value) or ":" in value:
            raise ConfigError(f"{key}: item {number} is no NAME:VALUE with one colon; items are separated by commas")
        found[name] = value
    if len(found) > PAIRS_MAX:
        raise ConfigError(f"{key} has {len(found)} items: at most {PAIRS_MAX} are taken")
    return list(found.items())
