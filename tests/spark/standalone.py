"""Spark's own servers as processes: a standalone master with workers, a Connect server. Rule: loopback, free ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark
from tests.java.driver import java_home
from tests.support.ports import free_ports
from tests.support.spark_classes import jvm_options

SPARK = Path(pyspark.__file__).parent
LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.extraJavaOptions": jvm_options(),
}
READY_S_MAX = 200


def environment(python: str = sys.executable) -> dict[str, str]:
    """What Spark's programs need: this Spark, the Java of set-up, and `python` for workers."""
    variables = {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python}
    found = java_home()
    if found is not None:
        variables["JAVA_HOME"] = str(found)
    return os.environ | variables


def not_activated(bare: Path) -> dict[str, str]:
    """What a driver has in a shell where no Python was chosen, and the first python3 is the one in `bare`."""
    variables = {name: value for name, value in environment().items() if not name.startswith("PYSPARK_")}
    return variables | {"PATH": f"{bare}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def spark_process(
    log: Path, ready: str, *arguments: str, program: str = "spark-class", variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark's own programs, ended at the end; entered once its log says `ready`."""
    settings = environment() | {"SPARK_WORKER_DIR": str(log.parent / "work")} | dict(variables or {})
    with log.open("w") as file:
        process = subprocess.Popen([str(SPARK / "bin" / program), *arguments], env=settings, stdout=file, stderr=file)
    try:
        until(lambda: re.search(ready, log.read_text()) is not None, lambda: log.read_text()[-3000:])
        yield process
    finally:
        process.terminate()
        process.wait(120)


def until(true: Callable[[], object], told: Callable[[], str] = lambda: "", limit_s: float = READY_S_MAX) -> None:
    """Wait for it; `told` is what the failure shows."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, told()
        time.sleep(0.1)


class Standalone(NamedTuple):
    """A master's address, the processes of its workers, parents of the executors, and the folder of their python3."""

    master: str
    worker_pids: list[int]
    bare: Path


@contextmanager
def spark_cluster(folder: Path, *, workers: int = 2) -> Iterator[Standalone]:
    """A master and workers of one core each, whose `python3` is a bare one; executors work below `folder`/work."""
    port = free_ports()
    deploy = "org.apache.spark.deploy"
    where = ("--host", "127.0.0.1", "--webui-port", "0")
    bare = folder / "bin"
    bare.mkdir()
    # The interpreter below our virtual environment: it knows none of our packages.
    (bare / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    # Executors have the environment of their worker, whatever their driver asks for.
    java = {"JAVA_TOOL_OPTIONS": jvm_options()}
    variables = {"PATH": f"{bare}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": ""} | java
    with ExitStack() as servers:

        def start(name: str, ready: str, *arguments: str) -> subprocess.Popen[bytes]:
            return servers.enter_context(
                spark_process(folder / f"{name}.log", ready, *arguments, *where, variables=variables)
            )

        start("master", "New state: ALIVE", f"{deploy}.master.Master", "--port", str(port))
        master = f"spark://127.0.0.1:{port}"
        pids = []
        for number in range(workers):
            worker = start(
                f"worker-{number}",
                "Successfully registered with master",
                *(f"{deploy}.worker.Worker", master, "--cores", "1", "--memory", "1g"),
            )
            pids.append(worker.pid)
        yield Standalone(master, pids, bare)


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Spark Connect server on two local cores; yields its address, sc://…"""
    port = free_ports()
    settings = LOOPBACK | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.memory": "1g",
    }
    with spark_process(
        folder / "connect.log",
        "Spark Connect server started",
        *("--master", "local[2]", *(part for pair in settings.items() for part in ("--conf", "=".join(pair)))),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
        program="spark-submit",
    ):
        yield f"sc://127.0.0.1:{port}"
