"""Which exporter a server's settings ask for. Rule: what an exporter needs is loaded for it alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketspark.errors import ConfigError
from rocketspark.transport.metrics.export import Exporter, LogLines, Sink
from rocketspark.transport.metrics.families import Collected
from rocketspark.transport.metrics.settings import LOG, OTLP, ExportSettings
from rocketspark.transport.tls.client_tls import ClientTls

if TYPE_CHECKING:
    from rocketspark.transport.metrics.server import MetricsServer


class MetricsOutlet:
    """Where a server's metrics leave it: a port that Prometheus scrapes, or what sends them. `collect` returns them."""

    def __init__(self, collect: Callable[[], Collected]) -> None:
        self._collect = collect
        self._server: MetricsServer | None = None
        self._exporter: Exporter | None = None

    @property
    def port(self) -> int:
        """The port that metrics are served on; 0 before the start, and where they are sent."""
        return self._server.port if self._server is not None else 0

    async def serve(self, host: str, port: int, setting: str = "metricsPromExporterPort") -> None:
        """Listen for scrapes. `setting`: named if the port cannot be had. Raises ConfigError."""
        try:
            from rocketspark.transport.metrics.server import MetricsServer
        except ImportError as e:
            raise ConfigError("metrics need prometheus-client: pip install 'rocketspark[metrics]'") from e
        self._server = MetricsServer(self._collect)
        await self._server.start(host, port, setting)

    def send(self, settings: ExportSettings, resource: dict[str, str], tls: ClientTls | None) -> bool:
        """Send metrics from now on where the settings say so; false if they do not. Arguments: as of `exporter_of`."""
        self._exporter = exporter_of(settings, self._collect, resource, tls)
        if self._exporter is None:
            return False
        self._exporter.start()
        return True

    async def close(self) -> None:
        """Stop serving metrics, or send the last ones."""
        if self._server is not None:
            await self._server.close()
        if self._exporter is not None:
            await self._exporter.close()


def exporter_of(
    settings: ExportSettings, collect: Callable[[], Collected], resource: dict[str, str], tls: ClientTls | None
) -> Exporter | None:
    """Return the exporter by OTLP or to the log, None where neither is wanted. `resource`: what collectors are told of
    the process; `tls`: what connections to other servers trust and show. Raises ConfigError.
    """
    if settings.metrics_exporter not in (OTLP, LOG):
        return None
    sink: Sink
    if settings.metrics_exporter == LOG:
        sink = LogLines(logging.getLogger("rocketspark.metrics").info)
    else:
        # Else gRPC writes lines of its own about a collector that is away.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            from rocketspark.transport.metrics.otlp import Collector
        except ImportError as e:
            raise ConfigError(
                "metricsExporterType=OTLP_GRPC needs opentelemetry-proto and grpcio: pip install 'rocketspark[otel]'"
            ) from e
        sink = Collector(settings, resource, tls)
    return Exporter(settings, collect, sink)
