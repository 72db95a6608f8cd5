"""What tests/vectors/metrics_otlp_5.5.0.json says of the official broker's metrics by OTLP is what it sends."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.java.apache import ApacheCluster
from tests.live.test_metrics_export import RECORDED
from tests.support.metric_load import loaded
from tests.support.otlp_receiver import Receiver, metered


@pytest.mark.shows("metrics by OTLP: names, kinds, units, labels and bounds of a 5.5.0 broker, recorded")
def test_the_official_broker_sends_what_was_recorded(java_tools: None, tmp_path: Path) -> None:
    with Receiver() as receiver:
        config = {
            "metricsExporterType": "OTLP_GRPC",
            "metricsGrpcExporterTarget": receiver.target,
            "metricGrpcExporterIntervalInMills": 500,
            "metricsGrpcExporterHeader": "Api-Key:k,b:2",
            "metricsLabel": "zone:eu-1,,rack:7",
            "metricsInDelta": "true",
        }
        with closing(ApacheCluster(tmp_path, config)) as cluster, loaded(cluster.namesrv):
            # It counts what was read and popped once in some seconds.
            receiver.wait_until(lambda r: RECORDED.keys() <= metered(*r.requests).keys())
        found = metered(*receiver.requests)
    given = {("zone", "eu-1"), ("rack", "7"), ("aggregation", "delta")}
    for name, each in RECORDED.items():
        metric = found[name]
        assert metric.delta is (metric.kind != "gauge")
        assert all(given <= labels for labels in metric.points)
        labels = [label for label in metric.labels if label not in dict(given)]
        assert each == {"kind": metric.kind, "unit": metric.unit, "labels": labels, "bounds": list(metric.bounds)}
    assert {"api-key": "k", "b": "2"}.items() <= receiver.headers[0].items()
