"""What tests/vectors/metrics_5.5.0.json says of the official broker's metrics is what it tells."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.java.apache import ApacheCluster
from tests.live.test_metric_names import RECORDED
from tests.support.metric_load import families, loaded, scraped
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports


@pytest.mark.shows("Prometheus metrics: names, types and labels of a 5.5.0 broker, recorded")
def test_the_official_broker_tells_what_was_recorded(java_tools: None, tmp_path: Path) -> None:
    port = free_ports()
    config = {"metricsExporterType": "PROM", "metricsPromExporterPort": port, "metricsPromExporterHost": "127.0.0.1"}
    with closing(ApacheCluster(tmp_path, config)) as cluster, loaded(cluster.namesrv):
        end_s = time.monotonic() + LIMIT_S
        # It counts what was read and popped once in some seconds.
        while (found := families(scraped(f"127.0.0.1:{port}"))).keys() < RECORDED.keys():
            assert time.monotonic() < end_s, RECORDED.keys() - found.keys()
            time.sleep(0.5)
    assert {name: family for name, family in found.items() if name in RECORDED} == RECORDED
