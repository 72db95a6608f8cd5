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
from tests.support.patience import LIMIT_MS, PATIENT

from rocketspark import Message, Producer

ROOT = Path(__file__).parents[2]


@pytest.mark.shows("demo on Apache RocketMQ and an existing Spark cluster", "demo on an existing RocketMQ cluster")
@pytest.mark.java
def test_it_runs_on_apache_rocketmq_that_holds_other_messages_and_a_spark_cluster(tmp_path: Path) -> None:
    with ExitStack() as servers:
        # test_kills.py has two workers.
        master = servers.enter_context(spark_cluster(tmp_path, workers=1)).master
        cluster = ApacheCluster(tmp_path / "rocketmq", config=PATIENT)
        servers.callback(cluster.close)
        with Producer(cluster.namesrv, "others", send_timeout_ms=LIMIT_MS) as producer:
            for topic in ("flights", "flight-delays"):
                for n in range(20):
                    producer.send(Message(topic=topic, body=b"not for the demo", keys=[str(n)]))
        settings = {"NAMESRV": cluster.namesrv, "SPARK_MASTER": master}
        done = subprocess.run(
            [sys.executable, "-m", "examples.flights.demo"],
            cwd=ROOT,
            env=os.environ | settings | {"DEMO_FLIGHTS": "2000", "DEMO_OUT": str(tmp_path / "out")},
            capture_output=True,
            text=True,
            timeout=800,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "all 22 checks passed" in done.stdout
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000
