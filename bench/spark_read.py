"""Spark batch read through the broker: rows/s, and where the time goes.

`python -m bench.spark_read --rows 2000000`: starts a server, loads it, then reads by fetch alone, with Arrow decoding,
and by Spark on local[2]; processor seconds of the broker, the JVM and Python's workers tell who worked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.fill import fill, queue_counts
from bench.peers import cpu_seconds, end_rows, ours
from bench.plan import Plan
from bench.report import Row, show
from rocketspark.arrow import records
from rocketspark.model import MessageQueue
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.options import parse_read
from rocketspark.tables.read.pull_records import PulledPiece, fetch

TOPIC = "bench-spark"
BODY_BYTES = 128
# What the Kafka connector's rows have too, but for its key.
COLUMNS = ["topic", "queueId", "queueOffset", "storeTime", "body"]
SCHEMA = "topic string, queueId int, queueOffset long, storeTime timestamp, body binary"


def pieces(namesrv: str, broker: str, rows: int, queues: int, **options: str) -> Iterator[PulledPiece]:
    """Every piece of the topic, queue after queue."""
    parsed = parse_read({"namesrv": namesrv, "topic": TOPIC, **options}, streaming=False)
    for queue_id, count in enumerate(queue_counts(rows, queues)):
        yield from fetch(OffsetRange(MessageQueue(TOPIC, "", queue_id), 0, count), (broker,), parsed)


def decode(piece: PulledPiece, columns: list[str]) -> int:
    """A piece as the source decodes it."""
    return int(
        records.decode(
            piece.buffer,
            piece.spans,
            columns,
            topic=TOPIC,
            offset_first=piece.first,
            offset_end=piece.end,
            ascending=True,
        ).num_rows
    )


def timed(rows: int, act: Callable[[], int]) -> float:
    """Rows per second of `act`, which returns how many rows it saw: all of them."""
    started = time.perf_counter()
    seen = act()
    if seen != rows:
        raise SystemExit(f"{seen} rows were read, not {rows}")
    return rows / (time.perf_counter() - started)


@contextmanager
def session(packages: str = "") -> Iterator[Any]:
    """A Spark session on two cores. `packages`: Maven coordinates of jars that it fetches."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    java_home = Path(__file__).resolve().parents[1] / ".setup" / "java_home"
    if "JAVA_HOME" not in os.environ and java_home.exists():
        os.environ["JAVA_HOME"] = java_home.read_text().strip()
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "2g")
            .config("spark.sql.warehouse.dir", folder)
            .config("spark.jars.packages", packages)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        try:
            yield spark
        finally:
            spark.stop()


def processor_seconds(broker_pid: int) -> dict[str, float]:
    """Used so far by the broker, the JVM, and all Python below it."""
    used = {"broker": cpu_seconds(broker_pid), "JVM": 0.0, "Python workers": 0.0}
    below = {os.getpid()}
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1]), (entry / "comm").read_text().strip()
            except OSError:
                continue
    for _ in range(6):
        below |= {pid for pid, (parent, _) in parents.items() if parent in below}
    for pid in below - {os.getpid(), broker_pid}:
        if pid in parents:
            used["JVM" if parents[pid][1] == "java" else "Python workers"] += cpu_seconds(pid)
    return used


def spark_rates(namesrv: str, broker_pid: int, rows: int, runs: int) -> tuple[list[Row], list[str]]:
    """Rows/s of Spark's reads, the first one apart, and processor seconds of the last."""
    from pyspark.sql import functions as F

    found, told = [], []
    with session() as spark:
        reader = spark.read.format("rocketmq").option("namesrv", namesrv).option("topic", TOPIC)

        def total() -> int:
            row = reader.schema(SCHEMA).load().agg(F.count("*"), F.sum(F.length("body"))).first()
            if row[1] != rows * BODY_BYTES:
                raise SystemExit(f"bodies are {row[1]} bytes in all, not {rows * BODY_BYTES}")
            return int(row[0])

        def noop() -> int:
            reader.schema(SCHEMA).load().write.format("noop").mode("overwrite").save()
            return rows

        def everything() -> int:
            from rocketspark.spark.schemas import READ_SCHEMA

            reader.schema(READ_SCHEMA).load().write.format("noop").mode("overwrite").save()
            return rows

        found.append(Row("Spark: first read of the session", timed(rows, total), None, "rows/s"))
        for name, act in (("count and sum of lengths", total), ("five columns to noop", noop)):
            rates = []
            for _ in range(runs):
                before = processor_seconds(broker_pid)
                rates.append(timed(rows, act))
            used = processor_seconds(broker_pid)
            found.append(Row(f"Spark: {name}", statistics.median(rates), None, "rows/s"))
            told.append(f"{name}, processor seconds: " + ", ".join(f"{k} {used[k] - before[k]:.2f}" for k in used))
        found.append(Row("Spark: all 18 columns to noop", timed(rows, everything), None, "rows/s"))
    return found, told


def run(plan: Plan) -> list[Row]:
    """Load, read in every way, print."""
    return measure(plan.rounds(), plan.of(2_000_000, 200_000, 20_000))


def measure(runs: int = 3, rows: int = 2_000_000, queues: int = 4) -> list[Row]:
    """The same with these sizes."""
    with ours() as servers:
        loaded_s = fill(servers.broker, TOPIC, rows, queues=queues, body_bytes=BODY_BYTES)
        found = [Row("load, in batches", rows / loaded_s, None, "rows/s")]

        def source() -> Iterator[PulledPiece]:
            return pieces(servers.namesrv, servers.broker, rows, queues)

        for _ in range(2):
            fetched = timed(rows, lambda: sum(p.end - p.first for p in source()))
            decoded = timed(rows, lambda: sum(decode(p, COLUMNS) for p in source()))
        found += [
            Row("fetch alone, one process", fetched, None, "rows/s"),
            Row("fetch and decode of five columns", decoded, None, "rows/s"),
        ]
        by_spark, told = spark_rates(servers.namesrv, servers.pid, rows, runs)
        found += by_spark + end_rows(servers, None)
    show(found)
    print("\n".join(told))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.spark_read", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    measure(given.runs, given.rows, given.queues)
