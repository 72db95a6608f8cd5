"""Commands whose process is killed in the midst: the next run goes on, every message comes once, in order."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import java_home
from tests.spark.pipelines.test_archive import in_topic
from tests.spark.pipelines.test_archive import rows_of as archived_rows
from tests.spark.pipelines.test_restore import rows_of
from tests.spark.topics import bodies_of

from rocketspark.spark.pipelines import archive, dedupe, outbox, restore, sql
from rocketspark.spark.pipelines.options import DedupeOptions, OutboxOptions, RestoreOptions
from rocketspark.spark.pipelines.parts.sql_file import read_plan
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "`archive`, each message once, closed hours compacted; a kill at every moment",
    "`restore`, `replay`: order, keys, tags, properties, rate, dry run, nothing twice",
)

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A pipeline's command, killed at the end with its JVM and workers."""
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
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def killed_after(line: str, *command: str, then_s: float = 0.0) -> str:
    """Run a pipeline's command until it says `line`, wait `then_s`, kill it; what it said. Its JVM ends after it."""
    said = []
    with started(*command) as process:
        assert process.stderr is not None
        for text in process.stderr:
            said.append(text)
            if line in text:
                time.sleep(then_s)
                process.kill()
                break
        process.wait()
    return "".join(said)


def killed_at(steps: int, checkpoint: Path, *command: str, then_s: float) -> None:
    """Run a stream's command until its checkpoint has so many more steps, plans and commits of micro-batches, wait
    `then_s`, and kill all of it at once; one that has ended by itself is fine too.
    """
    wanted, until_s = steps_of(checkpoint) + steps, time.monotonic() + 300
    with started(*command) as process:
        while process.poll() is None and steps_of(checkpoint) < wanted:
            assert time.monotonic() < until_s, command
            time.sleep(0.005)
        time.sleep(then_s)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL), process.stderr and process.stderr.read()


def steps_of(checkpoint: Path) -> int:
    return sum(path.name.isdecimal() for kind in ("offsets", "commits") for path in (checkpoint / kind).glob("*"))


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


@pytest.mark.soak
@pytest.mark.shows("kills of `outbox --delete`, of the whole tree of processes: each row is sent once, and gone")
def test_kills_of_an_outbox_at_any_time(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """A fifth of SOAK_CYCLES (100) kills."""
    chance, kills = random.Random(2), max(1, int(os.environ.get("SOAK_CYCLES", "100")) // 5)
    url, place = f"sqlite:///{tmp_path}/shop.db", tmp_path / "checkpoint"
    command = ("outbox", "-d", url, "--table", "orders", "-t", topic, "--body-column", "body", "--delete", "--name")
    options = (topic, "--checkpoint", str(place), "--namesrv", cluster.namesrv, "--batch-rows", "20")
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT)")
        for n in range(kills):
            database.executemany("INSERT INTO orders (body) VALUES (?)", [(f"{60 * n + i}",) for i in range(60)])
            killed_at(chance.randrange(1, 7), place, *command, *options, then_s=chance.uniform(0, 2))
        sending, columns = OutboxOptions(topic=topic, name=topic, delete=True), outbox.Columns(body="body")
        outbox.run(spark, cluster.namesrv, url, "orders", sending, checkpoint=place, columns=columns)
        assert database.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    assert bodies_of(cluster.namesrv, topic) == sorted(b"%d" % n for n in range(60 * kills))


@pytest.mark.soak
@pytest.mark.shows("kills of `dedupe`, of the whole tree of processes: each key is passed on once")
def test_kills_of_dedupe_at_any_time(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], load: Callable[..., Any], tmp_path: Path
) -> None:
    """A fifth of SOAK_CYCLES (100) kills."""
    source, target, place = make_topic(), make_topic(), tmp_path / "checkpoint"
    chance, kills = random.Random(3), max(1, int(os.environ.get("SOAK_CYCLES", "100")) // 5)
    command = ("dedupe", source, target, "--by", "body", "--name", target, "--checkpoint", str(place))
    options = ("--namesrv", cluster.namesrv, "--batch-rows", "40", "--conf", "spark.sql.shuffle.partitions=2")
    for n in range(kills):
        for _ in range(2):
            load(source, 60, first=60 * n)
        killed_at(chance.randrange(1, 7), place, *command, *options, then_s=chance.uniform(0, 2))
    by = DedupeOptions(by="body", name=target)
    dedupe.run(spark, cluster.namesrv, source, target, by, checkpoint=place)
    bodies = bodies_of(cluster.namesrv, source)
    assert len(bodies) == 120 * kills
    assert bodies_of(cluster.namesrv, target) == bodies[::2]


SQL_PLAN = """
sources:
  - {{name: orders, topic: {source}, stream: true, options: {{startingOffsets: earliest, maxMessagesPerTrigger: 40}}}}
sinks:
  - name: topic
    sql: SELECT body FROM orders
    topic: {target}
    options: {{delivery: exactly-once, transactionalId: {target}}}
  - {{name: files, sql: SELECT CAST(body AS STRING) AS body FROM orders, format: parquet, path: {folder}/files}}
"""


@pytest.mark.soak
@pytest.mark.shows("kills of `pipeline sql`, of the whole tree of processes: each row is once in a topic, and in files")
def test_kills_of_sql_at_any_time(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], load: Callable[..., Any], tmp_path: Path
) -> None:
    """A fifth of SOAK_CYCLES (100) kills."""
    source, target, file, place = make_topic(), make_topic(), tmp_path / "plan.yaml", tmp_path / "places"
    file.write_text(SQL_PLAN.format(source=source, target=target, folder=tmp_path))
    chance, kills = random.Random(4), max(1, int(os.environ.get("SOAK_CYCLES", "100")) // 5)
    command = ("sql", str(file), "--checkpoint", str(place), "--namesrv", cluster.namesrv)
    for n in range(kills):
        load(source, 120, first=120 * n)
        watched = place / chance.choice(("topic", "files"))
        killed_at(chance.randrange(1, 7), watched, *command, then_s=chance.uniform(0, 2))
    sql.run(spark, read_plan(file), cluster.namesrv, checkpoint=place)
    bodies = bodies_of(cluster.namesrv, source)
    assert len(bodies) == 120 * kills
    assert bodies_of(cluster.namesrv, target) == bodies
    rows = spark.read.parquet(f"{tmp_path}/files").collect()
    assert sorted(row.body.encode() for row in rows) == bodies
