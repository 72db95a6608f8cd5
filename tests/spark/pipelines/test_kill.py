"""Commands whose process is killed in the midst: the next run goes on, every message comes once, in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import java_home
from tests.spark.pipelines.test_archive import in_topic
from tests.spark.pipelines.test_archive import rows_of as archived_rows
from tests.spark.pipelines.test_restore import rows_of

from rocketspark.spark.pipelines import archive, restore
from rocketspark.spark.pipelines.options import RestoreOptions
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "`archive`, each message once, closed hours compacted; a kill at every moment",
    "`restore`, `replay`: order, keys, tags, properties, rate, dry run, nothing twice",
)

ROOT = Path(__file__).resolve().parents[3]


def killed_after(line: str, *command: str, then_s: float = 0.0) -> str:
    """Run a pipeline's command until it says `line`, wait `then_s`, kill it; what it said. Its JVM ends after it."""
    home = java_home()
    process = subprocess.Popen(
        [sys.executable, "-m", "rocketspark.cli.main", "pipeline", *command, "--master", "local[1]"],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **({"JAVA_HOME": home} if home else {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said = []
    try:
        assert process.stderr is not None
        for text in process.stderr:
            said.append(text)
            if line in text:
                time.sleep(then_s)
                process.kill()
                break
        process.wait()
        return "".join(said)
    finally:
        process.kill()
        process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_an_archive_whose_process_is_killed_goes_on(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    load(topic, 600)
    options = ("--namesrv", cluster.namesrv, "--batch-rows", "20", "--once")
    said = killed_after(" to go", "archive", topic, "--to", str(tmp_path), *options)
    assert "archive: " in said
    # What is there is whole: some micro-batches, each row once.
    part, wanted = archived_rows(spark.read.parquet(str(tmp_path))), in_topic(spark, cluster, topic)
    assert len(part) == len(set(map(str, part)))
    assert set(map(str, part)) <= set(map(str, wanted))
    done = archive.run(spark, cluster.namesrv, [topic], tmp_path)
    assert done.rows + len(part) == done.total_rows == 600
    assert archived_rows(spark.read.parquet(str(tmp_path))) == wanted


def test_a_replay_whose_process_is_killed_sends_nothing_twice(
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    load: Callable[..., Any],
    tmp_path: Path,
) -> None:
    load(topic, 400)
    copy = f"{topic}-copy"
    options = ("--namesrv", cluster.namesrv, "--state", str(tmp_path), "--rate", "20")
    said = killed_after(" to go", "replay", topic, "--to", copy, *options)
    assert "replay: " in said
    before = len(rows_of(spark, cluster, copy))
    done = restore.replay(spark, cluster.namesrv, topic, copy, options=RestoreOptions(state=tmp_path, chunk_rows=100))
    assert before > 0
    assert done.rows <= 400 - before
    assert rows_of(spark, cluster, copy, restored=True) == rows_of(spark, cluster, topic)


@pytest.mark.soak
def test_kills_at_any_time(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    """A fifth of SOAK_CYCLES (100) kills each of archive, which also merges, and of replay."""
    copy, chance = f"{topic}-copy", random.Random(1)
    kills = max(1, int(os.environ.get("SOAK_CYCLES", "100")) // 5)
    for number in range(kills):
        load(topic, 200, first=200 * number)
        archiving = ("archive", topic, "--to", str(tmp_path), "--batch-rows", "20", "--close-after", "0")
        killed_after("to go", *archiving, "--namesrv", cluster.namesrv, "--once", then_s=chance.uniform(0, 3))
        spark.read.parquet(str(tmp_path)).count()
    archive.run(spark, cluster.namesrv, [topic], tmp_path)
    wanted = in_topic(spark, cluster, topic)
    assert archived_rows(spark.read.parquet(str(tmp_path))) == wanted
    assert len(wanted) == 200 * kills
    for _ in range(kills):
        sending = ("restore", str(tmp_path), topic, "--to", copy, "--rate", str(20 * kills))
        killed_after("to go", *sending, "--namesrv", cluster.namesrv, then_s=chance.uniform(0, 3))
    restore.restore(spark, tmp_path, cluster.namesrv, topic, copy)
    assert rows_of(spark, cluster, copy, restored=True) == rows_of(spark, cluster, topic)
