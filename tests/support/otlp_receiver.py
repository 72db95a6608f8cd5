"""A collector for OTLP over gRPC, made from OpenTelemetry's own stubs: what comes in is kept, or refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from tests.support.patience import LIMIT_S

Labels = frozenset[tuple[str, str]]
DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA


class Point(NamedTuple):
    """A value that came. `value`: a number, or (count, sum, counts of the buckets) of a histogram."""

    value: Any
    start_ns: int
    time_ns: int


class Metered(NamedTuple):
    """A metric that came. `kind`: counter, gauge or histogram; `points` by their labels."""

    kind: str
    unit: str
    delta: bool
    bounds: tuple[float, ...]
    points: dict[Labels, Point]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels of all points."""
        return tuple(sorted({name for labels in self.points for name, _ in labels}))


class Receiver(MetricsServiceServicer):
    """The collector. `port`: 0 takes a free one; `credentials`: those of TLS; `answer`: is called with each request and
    its context before it is taken.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        credentials: grpc.ServerCredentials | None = None,
        answer: Callable[[grpc.ServicerContext], None] | None = None,
    ) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.rejected = 0
        self._answer = answer
        self._changed = threading.Condition()
        # Without SO_REUSEPORT a port that is still taken is noticed.
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        add_MetricsServiceServicer_to_server(self, self._server)
        at = f"127.0.0.1:{port}"
        self.port = (
            self._server.add_insecure_port(at) if credentials is None else self._server.add_secure_port(at, credentials)
        )
        self._server.start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    @property
    def target(self) -> str:
        """Its address, as metricsGrpcExporterTarget has it."""
        return f"http://127.0.0.1:{self.port}"

    def Export(
        self, request: ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> ExportMetricsServiceResponse:
        if self._answer is not None:
            self._answer(context)
        with self._changed:
            self.requests.append(request)
            self.headers.append({key: str(value) for key, value in context.invocation_metadata()})
            self._changed.notify_all()
        found = ExportMetricsServiceResponse()
        if self.rejected:
            found.partial_success.rejected_data_points = self.rejected
            found.partial_success.error_message = "no room"
        return found

    def wait_until(self, holds: Callable[[Receiver], bool]) -> None:
        """Wait until what came is as wanted."""
        end_s = time.monotonic() + LIMIT_S
        with self._changed:
            while not holds(self):
                left_s = end_s - time.monotonic()
                assert left_s > 0, [sorted(m.name for m in metrics_of(each)) for each in self.requests]
                self._changed.wait(left_s)


def metrics_of(request: ExportMetricsServiceRequest) -> list[Metric]:
    """All metrics of a request."""
    return [metric for r in request.resource_metrics for scope in r.scope_metrics for metric in scope.metrics]


def metered(*requests: ExportMetricsServiceRequest) -> dict[str, Metered]:
    """What requests tell, by name; of one series the last value counts."""
    found: dict[str, Metered] = {}
    for metric in (each for request in requests for each in metrics_of(request)):
        shape = metric.WhichOneof("data")
        data = getattr(metric, shape)
        points = {
            frozenset((pair.key, _text(pair.value)) for pair in point.attributes): Point(
                (point.count, point.sum, tuple(point.bucket_counts))
                if shape == "histogram"
                else getattr(point, point.WhichOneof("value")),
                point.start_time_unix_nano,
                point.time_unix_nano,
            )
            for point in data.data_points
        }
        assert len(points) == len(data.data_points), f"{metric.name} has a series twice"
        if metric.name in found:
            points = found[metric.name].points | points
        kind = "counter" if shape == "sum" and data.is_monotonic else shape
        bounds = tuple(data.data_points[0].explicit_bounds) if shape == "histogram" else ()
        delta = shape != "gauge" and data.aggregation_temporality == DELTA
        found[metric.name] = Metered(kind, metric.unit, delta, bounds, points)
    return found


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return str(found).lower() if kind == "bool_value" else str(found)
