"""Metrics as OTLP, sent to a collector over gRPC. Only loaded with metricsExporterType=OTLP_GRPC, as it needs the extra
`otel`. Rule: a call has a limit of time, and what a collector says of itself is shown in one short line.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as wire
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from rocketspark.errors import ConfigError
from rocketspark.model.histogram import Histogram
from rocketspark.model.text import LONG_MAX, shown, whole_number
from rocketspark.transport.metrics.export import NotAllTaken, NotSent, Point
from rocketspark.transport.metrics.families import COUNTER, HISTOGRAM
from rocketspark.transport.metrics.settings import ExportSettings
from rocketspark.transport.tls.client_tls import ClientTls

# What RocketMQ calls the source of its metrics; boards that want otel_scope_name find it.
SCOPE = InstrumentationScope(name="broker-meter")
# Labels that are no text there.
_TYPED: dict[str, Callable[[str], AnyValue]] = dict.fromkeys(
    ("is_system", "is_retry", "is_long_polling"), lambda text: AnyValue(bool_value=text == "true")
) | {"queue_id": lambda text: _number_or_text(text)}
# A channel that failed waits before it dials again, by itself for minutes.
_REDIAL_MS = 5000
REASON_CHARACTERS = 160


class Collector:
    """A collector. `resource`: what is said of the process; `tls`: the certificates that are trusted beside the
    system's, and the pair that is shown. Raises ConfigError for files that cannot be used.
    """

    def __init__(self, settings: ExportSettings, resource: dict[str, str], tls: ClientTls | None = None) -> None:
        target = settings.target()
        self.name = f"the collector at {shown(target.address)}"
        self._headers = settings.headers()
        self._delta = settings.metrics_delta
        self._resource = Resource(attributes=[_text(key, value) for key, value in resource.items()])
        redial_ms = max(100, min(_REDIAL_MS, settings.metrics_interval_ms))
        options: list[tuple[str, Any]] = [
            ("grpc.initial_reconnect_backoff_ms", redial_ms),
            ("grpc.min_reconnect_backoff_ms", redial_ms),
            ("grpc.max_reconnect_backoff_ms", redial_ms),
            # Those before it in the process may wait on a backoff of their own.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if target.tls:
            if tls is not None and tls.server_name:
                options.append(("grpc.ssl_target_name_override", tls.server_name))
            self._channel = grpc.secure_channel(target.address, _credentials(tls), options=options)
        else:
            self._channel = grpc.insecure_channel(target.address, options=options)
        self._export = MetricsServiceStub(self._channel).Export  # type: ignore[no-untyped-call]
        self._call: Any = None

    def send(self, points: list[Point], now_ns: int, timeout_s: float) -> None:
        """Send points in one request. Raises NotSent."""
        request = request_of(points, now_ns, self._resource, self._delta)
        self._call = self._export.future(request, timeout=timeout_s, metadata=self._headers)
        try:
            answer = self._call.result()
        except grpc.RpcError as e:
            reason = shown(e.details() or "", characters_max=REASON_CHARACTERS)
            raise NotSent(f"{e.code().name}: {reason}" if reason else e.code().name) from None
        except grpc.FutureCancelledError:
            raise NotSent("the server ends") from None
        finally:
            self._call = None
        refused = answer.partial_success
        if refused.rejected_data_points:
            reason = shown(refused.error_message, characters_max=REASON_CHARACTERS)
            raise NotAllTaken(f"it refused {refused.rejected_data_points} of {len(points)} values: {reason}")

    def cancel(self) -> None:
        """Let a `send` in another thread end at once."""
        call = self._call
        if call is not None:
            call.cancel()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def _credentials(tls: ClientTls | None) -> grpc.ChannelCredentials:
    """Return what is trusted and shown. Raises ConfigError."""
    if tls is None:
        return grpc.ssl_channel_credentials(_system_roots())
    if tls.cert and tls.key_password:
        raise ConfigError("metricsGrpcExporterTarget: tls.client.keyPath has a password, which gRPC does not take")
    roots = _system_roots() or b""
    try:
        if tls.ca:
            roots += b"\n" + Path(tls.ca).read_bytes()
        chain = Path(tls.cert).read_bytes() if tls.cert else None
        key = Path(tls.key or tls.cert).read_bytes() if tls.cert else None
    except OSError as e:
        raise ConfigError(f"metricsGrpcExporterTarget: {shown(e.filename)} cannot be read: {e.strerror}") from None
    return grpc.ssl_channel_credentials(roots or None, key, chain)


def _system_roots() -> bytes | None:
    """Return the certificates that the system trusts; None for those that gRPC brings."""
    path = ssl.get_default_verify_paths().cafile
    try:
        return Path(path).read_bytes() if path else None
    except OSError:
        return None


def request_of(points: list[Point], now_ns: int, resource: Resource, delta: bool) -> ExportMetricsServiceRequest:
    """Return points as one request."""
    metrics = []
    temporality = wire.AGGREGATION_TEMPORALITY_DELTA if delta else wire.AGGREGATION_TEMPORALITY_CUMULATIVE
    for (kind, name, unit, text), of_one in groupby(points, key=lambda point: point[:4]):
        metric = wire.Metric(name=name, unit=unit, description=text)
        if kind == HISTOGRAM:
            data = [_histogram(point, now_ns) for point in of_one]
            metric.histogram.CopyFrom(wire.Histogram(data_points=data, aggregation_temporality=temporality))
        elif kind == COUNTER:
            numbers = [_number(point, now_ns, point.start_ns) for point in of_one]
            metric.sum.CopyFrom(wire.Sum(data_points=numbers, aggregation_temporality=temporality, is_monotonic=True))
        else:
            metric.gauge.CopyFrom(wire.Gauge(data_points=[_number(point, now_ns, 0) for point in of_one]))
        metrics.append(metric)
    scope = wire.ScopeMetrics(scope=SCOPE, metrics=metrics)
    return ExportMetricsServiceRequest(
        resource_metrics=[wire.ResourceMetrics(resource=resource, scope_metrics=[scope])]
    )


def _number(point: Point, now_ns: int, start_ns: int) -> wire.NumberDataPoint:
    assert not isinstance(point.value, Histogram)
    value: dict[str, Any] = {"as_int": point.value} if isinstance(point.value, int) else {"as_double": point.value}
    return wire.NumberDataPoint(
        attributes=_labels(point), start_time_unix_nano=start_ns, time_unix_nano=now_ns, **value
    )


def _histogram(point: Point, now_ns: int) -> wire.HistogramDataPoint:
    assert isinstance(point.value, Histogram)
    return wire.HistogramDataPoint(
        attributes=_labels(point),
        start_time_unix_nano=point.start_ns,
        time_unix_nano=now_ns,
        count=point.value.count,
        sum=point.value.total,
        bucket_counts=point.value.counts,
        explicit_bounds=point.value.bounds,
    )


def _labels(point: Point) -> list[KeyValue]:
    return [_label(*pair) for pair in point.labels]


@lru_cache(maxsize=8192)
def _label(key: str, text: str) -> KeyValue:
    return KeyValue(key=key, value=_TYPED[key](text)) if key in _TYPED else _text(key, text)


def _number_or_text(text: str) -> AnyValue:
    """Return a number; the text where an operator gave all rows a label of this name (metricsLabel) that is none."""
    number = whole_number(text, high=LONG_MAX)
    return AnyValue(string_value=text) if number is None else AnyValue(int_value=number)


def _text(key: str, text: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=text))
