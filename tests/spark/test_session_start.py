"""A new user's job: an environment that is not activated, and another python3 first on the path."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.java.driver import java_home
from tests.spark.standalone import LOOPBACK

from rocketspark.client import Producer
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "mended: quick start: [DATA_SOURCE_NOT_FOUND] without the venv on the path; `consume order-totals` shows nothing",
    "the trap: a job in an environment that is not activated, another `python3` first on the path",
)

# Nothing in it is ours but the source's name.
PLAIN = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("rocketmq").option("namesrv", sys.argv[1]).option("topic", sys.argv[2]).load()
print(bytes(rows.first().body).decode())
sys.exit(7)
"""
OURS = """
import os, sys
from pyspark.sql import SparkSession, functions as F
from rocketspark.spark import session

spark = session(SparkSession.builder.appName("mine"))
rows = spark.read.format("rocketmq").option("namesrv", sys.argv[1]).option("topic", sys.argv[2]).load()
print(spark.sparkContext.appName, bytes(rows.first().body).decode())
print(spark.range(1).select(F.udf(lambda _: os.path.dirname(sys.executable))("id")).first()[0])
"""
LATER = """
import os, sys
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.getOrCreate()
read = spark.read.format("rocketmq").option("namesrv", sys.argv[1]).option("topic", sys.argv[2])
try:
    read.load()
except Exception as e:
    print(str(e))

from rocketspark.spark import session

assert session() is spark
print(bytes(read.load().first().body).decode())
print(spark.range(1).select(F.udf(lambda _: os.path.dirname(sys.executable))("id")).first()[0])
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that finds what is installed here."""
    folder = tmp_path_factory.mktemp("new") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "installed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return folder / "bin" / "python"


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Of a shell whose first python3 has no packages; Spark on one core of this machine."""
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python3").write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n')  # type: ignore[attr-defined]
    (bare / "python3").chmod(0o755)
    conf = " ".join(f"--conf '{name}={value}'" for name, value in LOOPBACK.items())
    home = java_home()
    return {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")} | {
        "PATH": f"{bare}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_SUBMIT_ARGS": f"--master local[1] {conf} pyspark-shell",
        **({"JAVA_HOME": str(home)} if home else {}),
    }


@pytest.fixture
def run(
    tmp_path: Path, python: Path, variables: dict[str, str], cluster: Cluster, topic: str, producer: Producer
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run(script, *before): the script's run, told the NameServer and a topic that holds "apples"."""
    producer.send(topic, b"apples")

    def run(script: str, *before: str) -> subprocess.CompletedProcess[str]:
        job = tmp_path / "job.py"
        job.write_text(script)
        command = [python, *before, job, cluster.namesrv, topic]
        return subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=800)

    return run


def test_a_session_of_ours(run: Callable[..., subprocess.CompletedProcess[str]], python: Path) -> None:
    done = run(OURS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["mine apples", str(python.parent)]


@pytest.mark.official
@pytest.mark.soak
def test_without_it_the_source_is_not_found_and_a_session_that_runs_can_be_helped(
    run: Callable[..., subprocess.CompletedProcess[str]], python: Path
) -> None:
    done = run(LATER)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: rocketmq" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["apples", str(python.parent)]


@pytest.mark.official
def test_the_command_runs_a_script_as_it_is(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run(PLAIN, "-m", "rocketspark.cli.main", "run")
    assert done.returncode == 7, done.stderr[-3000:]
    assert done.stdout == "apples\n"
