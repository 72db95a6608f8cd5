"""The names, types and labels of our metrics, beside those that a 5.5.0 broker gave out in the same use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.metric_load import Family, families, loaded, scraped
from tests.support.ports import free_ports

from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("Prometheus metrics: names, types and labels of a 5.5.0 broker, recorded")

# tests/java/test_metric_names.py holds the official broker to it.
RECORDED = {
    name: Family(each["type"], tuple(each["labels"]))
    for name, each in json.loads((Path(__file__).parents[1] / "vectors" / "metrics_5.5.0.json").read_text()).items()
}
# docs/run/statistics.md names them.
NOT_THERE = {"rocketmq_pop_buffer_scan_time_consume_milliseconds"}
LABEL_NOT_THERE = {"rocketmq_half_messages": "topic"}


def test_boards_of_rocketmq_find_what_they_ask_for() -> None:
    port = free_ports()
    with run_cluster(metrics_exporter="PROM", metrics_port=port) as cluster, loaded(cluster.namesrv):
        ours = families(scraped(f"127.0.0.1:{port}"))
    wanted = {
        name: Family(kind, tuple(label for label in labels if label != LABEL_NOT_THERE.get(name)))
        for name, (kind, labels) in RECORDED.items()
        if name not in NOT_THERE
    }
    assert {name: family for name, family in ours.items() if name.startswith("rocketmq_")} == wanted
    # What else there is has a name that is ours; the process has left lines out where a test before logged a flood.
    assert {name for name in ours if name not in wanted} - {"rocketspark_log_lines_left_out"} == {
        "rocketspark_broker_epoch",
        "rocketspark_broker_role",
        "rocketspark_replication_timeouts",
    }
