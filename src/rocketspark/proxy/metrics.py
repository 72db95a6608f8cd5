"""What a proxy serves to Prometheus. Rule: names and labels are bounded, whatever clients say of themselves.

Names: ProxyMetricsConstant and RemotingMetricsConstant, 5.5.0, whose proxy serves the first alone; the rest are ours.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown
from rocketspark.proxy.call import CANCELLED, CallTimes
from rocketspark.proxy.clients import Clients
from rocketspark.proxy.service import Service
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire.enumerations import ClientType, Code

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from rocketspark.transport.metrics_server import MetricsServer

# What clients that exist say they are written in; another is "other".
LANGUAGES = frozenset(
    "java cpp dot_net dotnet csharp golang go rust python php node_js nodejs ruby objective_c dart kotlin http".split()
)
_TYPES = {int(kind): kind.name.lower() for kind in ClientType}
_CODES = {int(code): code.name.lower() for code in Code} | {CANCELLED: "cancelled"}


class Metrics:
    """The metrics of one proxy, and the port that serves them to Prometheus. `renewed`: returns how many handles are
    renewed.
    """

    def __init__(
        self,
        settings: ProxySettings,
        times: CallTimes,
        clients: Clients,
        service: Service,
        renewed: Callable[[], int],
    ) -> None:
        self._settings, self._times = settings, times
        self._clients, self._service, self._renewed = clients, service, renewed
        self._server: MetricsServer | None = None
        self._own = {
            "cluster": shown(settings.cluster_name),
            "node_type": "proxy",
            "node_id": shown(settings.name or socket.gethostname()),
            "proxy_mode": "cluster",
        }

    @property
    def port(self) -> int:
        """The port that metrics are served on; 0 before the start."""
        return self._server.port if self._server is not None else 0

    @property
    def address(self) -> str:
        """The address that metrics are served on, as "host:port"."""
        return f"{self._settings.metrics_host or '127.0.0.1'}:{self.port}"

    async def start(self) -> None:
        """Listen for scrapes. Raises ConfigError if the port cannot be had, or the extra is not there."""
        try:
            from rocketspark.transport.metrics_server import MetricsServer
        except ImportError as e:
            raise ConfigError("metrics need prometheus-client: pip install 'rocketspark[metrics]'") from e
        s = self._settings
        self._server = MetricsServer(self.collect)
        await self._server.start(s.metrics_host, s.metrics_port or 0, "the metrics' port")

    async def close(self) -> None:
        """Stop serving metrics."""
        if self._server is not None:
            await self._server.close()

    def collect(self) -> list[Metric]:
        """Return all metrics; to be called in the proxy's loop."""
        from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

        def gauge(name: str, text: str, *rows: tuple[dict[str, str], float]) -> Metric:
            family = GaugeMetricFamily(name, text, labels=[*self._own, *(rows[0][0] if rows else ())])
            for labels, value in rows:
                family.add_metric([*self._own.values(), *labels.values()], value)
            return family

        calls, streams = self._service.at_work, self._service.streams
        clients = Counter((_type(c.settings.client_type), _language(c.language)) for c in self._clients.all())
        names = ("protocol_type", "request_code", "response_code", "is_long_polling", "result")
        latency = HistogramMetricFamily(
            "rocketmq_rpc_latency_milliseconds", "How long calls took, in ms.", labels=[*self._own, *names]
        )
        for rpc, rows in self._times.rows.items():
            for code, row in rows.items():
                latency.add_metric([*self._own.values(), *_texts(rpc, code)], row.buckets(), row.total)
        return [
            gauge("rocketmq_proxy_up", "1 while the proxy serves.", ({}, 1)),
            latency,
            gauge("rocketspark_proxy_calls_at_work", "Calls at work, receives that wait too.", ({}, calls)),
            gauge("rocketspark_proxy_telemetry_streams", "Telemetry streams that are open.", ({}, streams)),
            gauge("rocketspark_proxy_renewed_handles", "Messages whose time is renewed.", ({}, self._renewed())),
            gauge(
                "rocketspark_proxy_clients",
                "Clients that are there.",
                *(({"client_type": kind, "language": name}, count) for (kind, name), count in clients.items()),
            ),
        ]


def _texts(rpc: str, code: int) -> tuple[str, ...]:
    """Return the labels of a row of calls."""
    request = "".join(f"_{c.lower()}" if c.isupper() else c for c in rpc).lstrip("_")
    waits = "true" if rpc == "ReceiveMessage" else "false"
    return "grpc", request, _CODES.get(code, "other"), waits, "cancelled" if code == CANCELLED else "success"


def _type(number: int) -> str:
    return _TYPES.get(number, "other")


def _language(told: str) -> str:
    name = told.lower()
    return name if name in LANGUAGES else "other"
