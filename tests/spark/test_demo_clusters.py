"""The demo on Apache RocketMQ's servers and a Spark cluster of a master and workers."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.java.apache import ApacheCluster
from tests.spark.standalone import spark_cluster
from tests.support.patience import PATIENT

ROOT = Path(__file__).parents[2]


@pytest.mark.shows("demo on Apache RocketMQ and an existing Spark cluster")
@pytest.mark.java
def test_it_runs_on_apache_rocketmq_and_a_spark_cluster(tmp_path: Path) -> None:
    with ExitStack() as servers:
        master = servers.enter_context(spark_cluster(tmp_path)).master
        cluster = ApacheCluster(tmp_path / "rocketmq", config=PATIENT)
        servers.callback(cluster.close)
        settings = {"NAMESRV": cluster.namesrv, "SPARK_MASTER": master}
        done = subprocess.run(
            [sys.executable, "-m", "examples.flights.demo"],
            cwd=ROOT,
            env=os.environ | settings | {"DEMO_FLIGHTS": "5000", "DEMO_OUT": str(tmp_path / "out")},
            capture_output=True,
            text=True,
            timeout=800,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "all 22 checks passed" in done.stdout
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000
