"""The demo on Apache RocketMQ's servers and a Spark cluster of a master and workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from tests.java.apache import ApacheCluster, free_ports
from tests.java.driver import java_home

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent


@contextmanager
def spark_process(log: Path, ready: str, *arguments: str) -> Iterator[None]:
    """A process of Spark's own server classes, ended at the end; entered once its log says `ready`."""
    found = java_home()
    variables = {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    if found is not None:
        variables["JAVA_HOME"] = str(found)
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(SPARK / "bin" / "spark-class"), *arguments],
            env=os.environ | variables | {"SPARK_WORKER_DIR": str(log.parent / "work")},
            stdout=file,
            stderr=file,
        )
    try:
        _until(lambda: re.search(ready, log.read_text()) is not None, log)
        yield
    finally:
        process.terminate()
        process.wait(30)


def _until(true: Callable[[], bool], log: Path, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.1)


@pytest.mark.java
def test_it_runs_on_apache_rocketmq_and_a_spark_cluster(tmp_path: Path) -> None:
    port = free_ports()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as servers:
        deploy = "org.apache.spark.deploy"
        where = ("--host", "127.0.0.1", "--webui-port", "0")
        servers.enter_context(
            spark_process(
                tmp_path / "master.log", "New state: ALIVE", f"{deploy}.master.Master", *where, "--port", str(port)
            )
        )
        for number in range(2):
            servers.enter_context(
                spark_process(
                    tmp_path / f"worker-{number}.log",
                    "Successfully registered with master",
                    *(f"{deploy}.worker.Worker", *where, "--cores", "1", "--memory", "1g", master),
                )
            )
        cluster = ApacheCluster(tmp_path / "rocketmq")
        servers.callback(cluster.close)
        settings = {"NAMESRV": cluster.namesrv, "SPARK_MASTER": master}
        done = subprocess.run(
            [sys.executable, "-m", "examples.flights.demo"],
            cwd=ROOT,
            env=os.environ | settings | {"DEMO_FLIGHTS": "5000", "DEMO_OUT": str(tmp_path / "out")},
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "all 22 checks passed" in done.stdout
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000
