"""What a proxy tells of itself in metrics. Rule: names and labels are bounded, whatever clients say of themselves.

Names: ProxyMetricsConstant and RemotingMetricsConstant, 5.5.0, whose proxy serves the first alone; the rest are ours.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable

from rocketspark import machine
from rocketspark.model.text import shown
from rocketspark.proxy.call import CANCELLED, CallTimes
from rocketspark.proxy.clients import Clients
from rocketspark.proxy.service import Service
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire.enumerations import ClientType, Code
from rocketspark.transport.metrics.exporters import MetricsOutlet
from rocketspark.transport.metrics.families import GAUGE, HISTOGRAM, Collected, Family, Row, histograms
from rocketspark.transport.metrics.settings import ExportSettings
from rocketspark.transport.tls.client_tls import ClientTls

# What clients that exist say they are written in; another is "other".
LANGUAGES = frozenset(
    "java cpp dot_net dotnet csharp golang go rust python php node_js nodejs ruby objective_c dart kotlin http".split()
)
_TYPES = {int(kind): kind.name.lower() for kind in ClientType}
_CODES = {int(code): code.name.lower() for code in Code} | {CANCELLED: "cancelled"}


class Metrics:
    """The metrics of one proxy, and the port that serves them to Prometheus, or what sends them. `renewed`: returns how
    many handles are renewed; `tls`: what the proxy's own connections trust.
    """

    def __init__(
        self,
        settings: ProxySettings,
        times: CallTimes,
        clients: Clients,
        service: Service,
        renewed: Callable[[], int],
        tls: ClientTls | None = None,
    ) -> None:
        self._tls = tls
        self._settings, self._times = settings, times
        self._clients, self._service, self._renewed = clients, service, renewed
        self._outlet = MetricsOutlet(self.collect)
        self._own = ExportSettings.of(settings).labels() | {
            "cluster": shown(settings.cluster_name),
            "node_type": "proxy",
            "node_id": shown(settings.name or socket.gethostname()),
            "proxy_mode": "cluster",
        }

    @property
    def port(self) -> int:
        """The port that metrics are served on; 0 before the start, and where they are sent."""
        return self._outlet.port

    @property
    def address(self) -> str:
        """The address that metrics are served on, as "host:port"; "" where they are sent."""
        return f"{self._settings.metrics_host or '127.0.0.1'}:{self.port}" if self.port else ""

    async def start(self) -> None:
        """Listen for scrapes. Raises ConfigError if the port cannot be had, or the extra is not there."""
        s = self._settings
        if s.metrics_port is None:
            return
        await self._outlet.serve(s.metrics_host, s.metrics_port, "the metrics' port")

    def send(self, address: str) -> None:
        """Send metrics from now on, where the settings say so. `address`: the proxy's own. Raises ConfigError."""
        s = self._settings
        # Several processes may share a port.
        name = f"{address}-{machine.getpid()}" if s.share_port else address
        process = {"service.name": "rocketspark-proxy", "service.instance.id": name}
        self._outlet.send(ExportSettings.of(s), process, self._tls)

    async def close(self) -> None:
        """Stop serving metrics, or send the last ones."""
        await self._outlet.close()

    def collect(self) -> Collected:
        """Return all metrics; to be called in the proxy's loop."""
        calls, streams = self._service.at_work, self._service.streams
        clients = Counter((_type(c.settings.client_type), _language(c.language)) for c in self._clients.all())
        names = ("protocol_type", "request_code", "response_code", "is_long_polling", "result")
        latency = [
            (dict(zip(names, _texts(rpc, code), strict=True)), row)
            for rpc, rows in self._times.rows.items()
            for code, row in rows.items()
        ]
        by_kind: list[Row] = [({"client_type": kind, "language": name}, n) for (kind, name), n in clients.items()]
        return Collected(
            self._own,
            [
                _gauge("rocketmq_proxy_up", "1 while the proxy serves.", 1),
                Family(
                    HISTOGRAM, "rocketmq_rpc_latency_milliseconds", "How long calls took, in ms.", histograms(latency)
                ),
                _gauge("rocketspark_proxy_calls_at_work", "Calls at work, receives that wait too.", calls),
                _gauge("rocketspark_proxy_telemetry_streams", "Telemetry streams that are open.", streams),
                _gauge("rocketspark_proxy_renewed_handles", "Messages whose time is renewed.", self._renewed()),
                Family(GAUGE, "rocketspark_proxy_clients", "Clients that are there.", by_kind),
            ],
        )


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(GAUGE, name, text, [({}, value)])


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
