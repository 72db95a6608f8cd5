"""Drivers on Spark 4.0 for the tests of object stores. Rule: what they print is kept, and none is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.java.driver import java_home
from tests.spark.kills import end_tree
from tests.spark.lakehouse.s3 import REGION, Store
from tests.spark.standalone import until
from tests.support.official import SHORT_LIVED
from tests.support.ports import free_ports
from tests.support.spark_classes import jvm_options
from tests.support.temporary_folder import jvm_option

ROOT = Path(__file__).parents[3]
# By hand another Spark may be taken, with the jars that fit it.
PYTHON = Path(os.environ.get("TABLES_PYTHON") or ROOT / ".setup" / "spark-4.0" / "bin" / "python")
JARS = Path(os.environ.get("TABLES_JARS") or ROOT / ".setup" / "java" / "s3a")
LIMIT_S = 600


def local_settings() -> dict[str, str]:
    """The settings of a session with both formats on this machine's disk."""
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    return {
        "spark.jars": ",".join(str(jar) for jar in sorted(JARS.glob("*.jar"))),
        "spark.driver.extraJavaOptions": f"{SHORT_LIVED} {jvm_option()}",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.extensions": ",".join(extensions),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def settings(store: Store, folder: Path) -> dict[str, str]:
    """The settings of a session with both formats: Iceberg's catalog is an SQLite database in the folder."""
    return local_settings() | {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "jdbc",
        "spark.sql.catalog.ice.uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "spark.sql.catalog.ice.jdbc.schema-version": "V1",
        "spark.sql.catalog.ice.warehouse": "s3a://lake/ice",
        "spark.hadoop.fs.s3a.endpoint": store.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


class JobDriver:
    """A driver that was told what to do. `said` waits for its next line of JSON."""

    def __init__(self, spec: dict[str, Any], log: Path, variables: dict[str, str], job: str = "s3a_job") -> None:
        self.log = log
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [str(PYTHON), "-m", f"tests.spark.lakehouse.{job}"],
                cwd=ROOT,
                env=os.environ | _variables() | variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.tell(json.dumps(spec))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.log.open("a") as file:
                file.write(line)
            if line.startswith("{"):
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def tell(self, line: str) -> None:
        """Give it a line; one that ended hears nothing."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def said(self) -> dict[str, Any]:
        """The next line of JSON. Fails with its log if it ended."""
        line = self._lines.get(timeout=LIMIT_S)
        assert line is not None, self.log.read_text()[-3000:]
        return line

    def said_already(self) -> bool:
        """Tell whether a line waits."""
        return not self._lines.empty()

    def until(self, key: str) -> dict[str, Any]:
        """The next line that has `key`."""
        while key not in (line := self.said()):
            pass
        return line

    def ask(self, **step: Any) -> dict[str, Any]:
        """Have it do a step, and return what that told."""
        self.tell(json.dumps(step))
        return self.until("told")["told"]

    def kill(self) -> None:
        """SIGKILL it, its JVM and its workers."""
        end_tree(self.process.pid)
        self.process.wait(60)
        self._reader.join(5)


@contextlib.contextmanager
def driver(spec: dict[str, Any], log: Path, variables: dict[str, str], job: str = "s3a_job") -> Iterator[JobDriver]:
    """A driver, killed at the end if it has not ended."""
    made = JobDriver(spec, log, variables, job)
    try:
        yield made
    finally:
        made.kill()
        for pipe in (made.process.stdin, made.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Spark Connect server with both formats, on Spark 4.0; yields its address, sc://…"""
    port = free_ports()
    conf = local_settings() | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.session.timeZone": "UTC",
    }
    spark = Path(
        subprocess.check_output([PYTHON, "-c", "import pyspark; print(pyspark.__path__[0])"], text=True).strip()
    )
    with (folder / "connect.log").open("w") as log:
        process = subprocess.Popen(
            [spark / "bin" / "spark-submit", "--master", "local[2]"]
            + [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
            + ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"],
            env=os.environ | _variables() | {"SPARK_HOME": str(spark)},
            stdout=log,
            stderr=log,
        )
    try:
        until(
            lambda: "Spark Connect server started" in (folder / "connect.log").read_text(),
            lambda: (folder / "connect.log").read_text()[-3000:],
        )
        yield f"sc://127.0.0.1:{port}"
    finally:
        end_tree(process.pid)
        process.wait(120)


def command(*arguments: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """A whole run of our command on Spark 4.0."""
    return subprocess.run(
        [
            str(PYTHON),
            "-c",
            "import sys; from rocketspark.cli import main; sys.exit(main.run(sys.argv[1:]))",
            *arguments,
        ],
        env=os.environ | _variables(),
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def _variables() -> dict[str, str]:
    here = {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": str(PYTHON), "SPARK_LOCAL_IP": "127.0.0.1"}
    here["SPARK_SUBMIT_OPTS"] = jvm_options(PYTHON)
    home = java_home()
    return here | ({"JAVA_HOME": str(home)} if home else {})
