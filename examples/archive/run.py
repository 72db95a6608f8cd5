"""Two real data sets through archive, restore and audit: every count and checksum must be equal at the end.

    make demo-archive
    python -m examples.archive.run [--rows 5000] [--folder FOLDER] [--namesrv host:port] [--master spark://host:7077]
        [--format delta|iceberg] [--conf name=value]

Without a NameServer it starts a server of its own, on free ports of this machine. Tables need a Spark for which Delta
Lake or Apache Iceberg have a release: `make demo-archive FORMAT=delta` takes one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.archive import datasets
from rocketspark import RocketSparkError
from rocketspark.admin.operations import Admin
from rocketspark.spark.lakehouse.table import FORMATS, TablePlace, archive_for
from rocketspark.spark.pipelines import archive, compare, restore
from rocketspark.spark.pipelines.connection import pairs
from rocketspark.spark.pipelines.options import RestoreOptions
from rocketspark.spark.pipelines.parts.report import show
from rocketspark.spark.pipelines.parts.session import SessionOptions, open_session
from rocketspark.testing import run_server_process

QUEUES = 4
SCHEMA = "body binary, tag string, keys array<string>, properties map<string,string>, shardingKey string"
DAY_MS = 24 * 3_600_000


def run(
    spark: SparkSession,
    namesrv: str,
    data: datasets.DataSet,
    folder: Path | TablePlace,
    state: Path | None = None,
    say: Callable[[str], object] = print,
) -> dict[str, Any]:
    """One data set: sent, archived, its hours merged, restored to another topic, audited. What came out, by name.

    state: the folder of the restore's progress, for an archive that is a table.
    """
    topic, restored = data.topic, f"{data.topic}-restored"
    with Admin(namesrv) as operations:
        operations.create_topic(topic, queue_count=QUEUES)
    rows = spark.createDataFrame(data.rows, SCHEMA)
    rows.write.format("rocketmq").options(namesrv=namesrv, topic=topic).mode("append").save()
    say(f"{topic}: {len(data.rows):,} messages sent")

    archived = archive.run(spark, namesrv, [topic], folder)
    # As if it were tomorrow: the hours are over.
    merged = archive.run(spark, namesrv, [topic], folder, now_ms=lambda: time.time_ns() // 1_000_000 + DAY_MS)
    say(f"{topic}: {archived.rows:,} archived, in {archived.files} files; then in {merged.files}")

    sent = restore.restore(spark, folder, namesrv, topic, restored, options=RestoreOptions(state=state))
    say(f"{topic}: {sent.rows:,} restored to {restored}")

    old = compare.Side(namesrv, topic)
    audits = {
        "archive": compare.run(spark, old, compare.Side(namesrv, topic, folder)),
        "restored": compare.run(spark, old, compare.Side(namesrv, restored)),
    }
    found = {
        "data_set": topic,
        "rows": len(data.rows),
        "archived": int(_any_reader(spark, folder).where(F.col("topic") == topic).count()),
        "restored": audits["restored"].other_messages,
        "checksum": f"{data.checksum:x}",
        "archived_checksum": f"{checksum(archive.read(spark, folder).where(F.col('topic') == topic)):x}",
        "restored_checksum": f"{checksum(_read(spark, namesrv, restored)):x}",
        "audit_of_archive": audits["archive"].ok,
        "audit_of_restored": audits["restored"].ok,
    }
    equal = found["rows"] == found["archived"] == found["restored"]
    same = found["checksum"] == found["archived_checksum"] == found["restored_checksum"]
    return found | {"ok": equal and same and all(audit.ok for audit in audits.values())}


def checksum(rows: DataFrame) -> int:
    """The sum of the first 56 bits of each body's SHA-256: as `datasets` has it, whatever the order."""
    bits = F.conv(F.substring(F.sha2("body", 256), 1, 14), 16, 10).cast("decimal(38,0)")
    return int(rows.agg(F.sum(bits)).collect()[0][0] or 0)


def _read(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    return spark.read.format("rocketmq").options(namesrv=namesrv, topic=topic).schema("body binary").load()


def _any_reader(spark: SparkSession, folder: Path | TablePlace) -> DataFrame:
    """Read an archive as any reader does; Iceberg's has its catalog."""
    if isinstance(folder, TablePlace):
        return (
            spark.read.format("delta").load(folder.place) if folder.format == "delta" else archive.read(spark, folder)
        )
    return spark.read.parquet(str(folder))


def _count(text: str) -> int:
    """A number of rows; argparse says what is wrong with another one."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rows: 1 or more are needed")
    return int(text)


def main() -> int:
    """Run it; returns the exit code: 0 if all is equal, 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=_count, help="only so many rows of each data set")
    parser.add_argument("--folder", type=Path, help="where the archive is made, and stays")
    parser.add_argument("--namesrv", default="", help="a NameServer that runs")
    parser.add_argument("--master", default="", help="Spark's master")
    parser.add_argument("--format", default="parquet", choices=FORMATS, help="what the archive is")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    given = parser.parse_args()
    try:
        with ExitStack() as running:
            folder: Path = given.folder or Path(running.enter_context(tempfile.TemporaryDirectory()))
            namesrv = given.namesrv or running.enter_context(run_server_process(folder / "store")).namesrv
            place = archive_for(given.format, folder / "archive")
            tables = (place,) if isinstance(place, TablePlace) else ()
            state = folder / "restores" if tables else None
            session = SessionOptions(given.master, conf=pairs(given.conf, "--conf"), tables=tables)
            spark = running.enter_context(open_session("archive-demo", session))
            began_s = time.monotonic()
            found = [
                run(spark, namesrv, data, place, state)
                for data in (datasets.flights(given.rows), datasets.airports(given.rows))
            ]
            for one in found:
                print()
                show(one)
            print(f"\n{time.monotonic() - began_s:.1f} s")
    except RocketSparkError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0 if all(one["ok"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
