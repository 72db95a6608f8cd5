"""Spark sessions as processes: ours, and one with Spark's Kafka connector, which is fetched when first asked for.

Rule: what is fetched lies in .setup/, once per version; set-up and tests need none of it.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.java.driver import JARS, java_home

from bench.kafka_broker import fetch
from bench.peers import STOP_TIMEOUT_S, cpu_seconds
from bench.spark_perf import JAR_FOLDER, KAFKA, ROCKETMQ

# The oldest and the newest Spark for which both artifacts of the connector are on Maven: of most, one is missing.
CONNECTOR_VERSIONS = ("4.0.0", "4.2.0")
SPARK_VERSION = CONNECTOR_VERSIONS[0]
# Spark as `scripts/setup.sh spark X.Y` installs it for ours; this process has the newest.
OUR_VERSIONS = ("4.0", "4.1", "4.2", "4.3")
POM = Path(__file__).resolve().parent / "java" / "spark-kafka-pom.xml"
ROOT = Path(__file__).resolve().parents[1]
START_S_MAX = 120.0
JOB_S_MAX = 900.0
SAMPLE_EVERY_S = 0.1
BROKER, JVM, PYTHON = "broker", "JVM", "Python workers"


def fetched_connector(version: str) -> Path:
    """The folder of the connector's jars and of what they need beyond Spark's own. Raises SystemExit."""
    target = JARS / f"spark-kafka-{version}"
    if not target.exists():
        print(f"  fetching Spark's Kafka connector {version} with Maven", flush=True)
        with tempfile.TemporaryDirectory(dir=JARS, prefix="fetching-") as folder:
            jars = Path(folder) / "jars"
            command = ["mvn", "-B", "-ntp", "-q", "-Dstyle.color=never", "-f", str(POM), "dependency:copy-dependencies"]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}", f"-Dconnector.version={version}"]
            # These are among PySpark's own jars.
            command += ["-DexcludeGroupIds=org.scala-lang,org.scala-lang.modules,org.slf4j,org.apache.hadoop"]
            fetch("Maven could not fetch Spark's Kafka connector", command, {"JAVA_HOME": str(java_home())})
            jars.rename(target)
    return target


def fetched_pyspark(version: str) -> Path:
    """The Python of a virtual environment with that PySpark alone. Raises SystemExit."""
    folder = JARS.parent / f"pyspark-{version}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        print(f"  fetching PySpark {version} with pip (450 MB)", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        fetch("no virtual environment could be made", [sys.executable, "-m", "venv", str(folder)], {})
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            f"pyspark=={version}",
        ]
        fetch("pip could not fetch PySpark", command, {})
        complete.touch()
    return python


def our_python(version: str) -> Path:
    """The Python of an environment with this package and that minor version of Spark. Raises SystemExit."""
    command = [str(ROOT / "scripts" / "setup.sh"), "spark", version]
    if subprocess.run(command, cwd=ROOT).returncode:
        raise SystemExit(f"there is no environment with Spark {version}, see above")
    return ROOT / ".setup" / f"spark-{version}" / "bin" / "python"


class Usage(NamedTuple):
    """Processor seconds of a broker, a JVM and its Python workers, by their names."""

    broker: float
    jvm: float
    python: float

    def since(self, before: Usage) -> Usage:
        """What was used from `before` on."""
        return Usage(*(now - then for now, then in zip(self, before, strict=True)))


class Spark:
    """A process of bench.spark_perf. `version`: Spark's; asked for, for ours X.Y, else the installed one is taken."""

    def __init__(self, side: str, folder: Path, version: str = "") -> None:
        self.side = side
        self._used: dict[int, Process] = {}
        self._log_path = folder / f"{side}{version}.log"
        variables = dict(os.environ)
        variables.setdefault("JAVA_HOME", str(java_home() or ""))
        python = sys.executable
        if side == KAFKA:
            python = str(fetched_pyspark(version or SPARK_VERSION))
            variables[JAR_FOLDER] = str(fetched_connector(version or SPARK_VERSION))
            # Nothing of ours but the bench: it has an environment of its own.
            variables["PYTHONPATH"] = str(ROOT)
            for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
                variables.pop(name, None)
        else:
            if version:
                python = str(our_python(version))
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [python, "-m", "bench.spark_perf", side],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=variables,
                cwd=folder,
            )
        try:
            self.version = self._answer(START_S_MAX)["spark"]
        except BaseException:
            self.close()
            raise

    def do(self, job: str, **given: Any) -> dict[str, Any]:
        """Let it do a job of bench.spark_perf; what it answers. Raises SystemExit if it fails."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"job": job, **given}) + "\n")
        self.process.stdin.flush()
        return self._answer(JOB_S_MAX)

    def _answer(self, seconds_max: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if selector.select(seconds_max) else ""
        if not line:
            log = self._log_path.read_text(errors="replace")[-3000:]
            raise SystemExit(f"the Spark session of {self.side} did not answer\n{log}")
        found: dict[str, Any] = json.loads(line)
        return found

    def usage(self, broker_pid: int) -> Usage:
        """Processor seconds so far; of a process that ended since, what it had used when it was last seen."""
        for process in processes(self.process.pid)[1:]:
            self._used[process.pid] = process
        jvm = sum(p.used_s for p in self._used.values() if p.is_java)
        python = sum(p.used_s for p in self._used.values() if not p.is_java)
        return Usage(cpu_seconds(broker_pid), jvm, python)

    def close(self) -> None:
        """End the session."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextmanager
def spark_session(side: str, folder: Path, version: str = "") -> Iterator[Spark]:
    """A session for the length of a `with` block; `version` as of Spark."""
    spark = Spark(side, folder, version)
    try:
        yield spark
    finally:
        spark.close()


class Process(NamedTuple):
    """A process and its processor seconds."""

    pid: int
    parent: int
    is_java: bool
    used_s: float


def processes(root: int) -> list[Process]:
    """A process and all below it, parents first."""
    tick = os.sysconf("SC_CLK_TCK")
    by_parent: dict[int, list[Process]] = {}
    found: list[Process] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        fields = tail.split()
        used_s = (int(fields[11]) + int(fields[12])) / tick
        process = Process(int(entry.name), int(fields[1]), head.endswith("(java"), used_s)
        by_parent.setdefault(process.parent, []).append(process)
        if process.pid == root:
            found.append(process)
    for process in found:
        found += by_parent.get(process.pid, [])
    return found


class Peaks:
    """The most memory seen at once: RssAnon in MiB of a broker, a JVM, and the largest of its Python workers."""

    def __init__(self, spark: Spark, broker_pid: int) -> None:
        self.mib = {BROKER: 0.0, JVM: 0.0, PYTHON: 0.0}
        self._spark, self._broker_pid = spark, broker_pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY_S):
            self._note(BROKER, self._broker_pid)
            for process in processes(self._spark.process.pid)[1:]:
                self._note(JVM if process.is_java else PYTHON, process.pid)

    def _note(self, name: str, pid: int) -> None:
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        found = [int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("RssAnon")]
        self.mib[name] = max([self.mib[name], *found])


def settle(seconds: float = 0.3) -> None:
    """Let what the last job left to do in the background be done before the next one is timed."""
    time.sleep(seconds)


__all__ = ["BROKER", "JVM", "KAFKA", "PYTHON", "ROCKETMQ", "Peaks", "Spark", "Usage", "spark_session"]
