"""Which exporter a server's settings ask for. Rule: what an exporter needs is loaded for it alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from rocketspark.errors import ConfigError
from rocketspark.transport.metrics.export import Exporter, LogLines, Sink
from rocketspark.transport.metrics.families import Collected
from rocketspark.transport.metrics.settings import LOG, OTLP, ExportSettings
from rocketspark.transport.tls.client_tls import ClientTls


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
