"""What the demo runs on: RocketMQ and Spark, its own or yours. Its own are gone when their block ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.java_gateway import JavaGateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from examples.flights.stages import Interrupts, stderr_to
from rocketspark import RocketSparkError
from rocketspark.admin.operations import Admin
from rocketspark.testing import ServerProcess

STOP_TIMEOUT_S = 15


@contextmanager
def rocketmq(folder: Path, interrupts: Interrupts) -> Iterator[str]:
    """The address of a NameServer: that of the environment's NAMESRV, or of a server of our own on free ports."""
    if existing := os.environ.get("NAMESRV"):
        yield existing
        return
    server = ServerProcess(folder / "store", log_path=folder / "server.log")
    try:
        # Half a server cannot be stopped: an interrupt waits until it is whole.
        with interrupts.held():
            server.start()
        yield server.namesrv
    finally:
        if server.is_running:
            server.stop()


def create_topics(namesrv: str, topics: dict[str, int]) -> None:
    """Make each topic with so many queues on every broker, unless it is there."""
    with Admin(namesrv) as operations:
        there = set(operations.list_topics())
        for topic, queues in topics.items():
            if topic not in there:
                operations.create_topic(topic, queue_count=queues)


def gist(text: str) -> str:
    """Return the line of a Spark error that says what is wrong: a stream's first one, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["an error without a text"]
    return lines[0] if "=== Streaming Query ===" in lines else lines[-1]


@contextmanager
def spark_session(folder: Path, interrupts: Interrupts) -> Iterator[SparkSession]:
    """A Spark session on SPARK_MASTER, or in this machine; all that Spark logs goes to spark.log."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.appName("flights")
        .master(os.environ.get("SPARK_MASTER") or "local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.driver.host", os.environ.get("SPARK_DRIVER_HOST", "127.0.0.1"))
        .config("spark.driver.bindAddress", "0.0.0.0" if "SPARK_DRIVER_HOST" in os.environ else "127.0.0.1")
    )
    gateway: JavaGateway | None = None
    try:
        with interrupts.held(), stderr_to(folder / "spark.log"):
            spark = builder.getOrCreate()
            gateway = spark.sparkContext._gateway
        yield spark
        spark.stop()
    except PySparkException as e:
        # Here, for its text comes from the JVM, which is about to end.
        raise RocketSparkError(f"Spark: {gist(str(e))}; the rest is in {folder / 'spark.log'}") from None
    finally:
        if gateway is not None:
            _end(gateway)


def _end(gateway: JavaGateway) -> None:
    # Else Python tells the JVM of each object it frees, and logs a traceback where that is just ending.
    gateway.shutdown()
    # The JVM ends, and its Python workers with it, when its stdin is closed.
    jvm: subprocess.Popen[bytes] = gateway.proc
    assert jvm.stdin is not None
    jvm.stdin.close()
    try:
        jvm.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()
