"""Archives that are tables, for the tests, on the Spark whose Python runs it; each line of stdin is a step as JSON.

The first line: `conf`, `places` of the session. Then: archive, restore, compare, figures, rows and identity (of it),
sql, call.
Each tells its result as {"told": …}, with `error` for a line that a user would see. An archive tells its {"rows": …}
and what it {"says": …} meanwhile; one with `stop_at` goes on until it has so many rows; one with `pause` tells that it
is {"paused": …} before it first calls that method of an Iceberg table, and waits for a line of stdin.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.scrapes import scrape_until
from tests.support.cli_calls import call

from rocketspark.errors import ConnectionLost, RocketSparkError
from rocketspark.spark.lakehouse.iceberg_table import IcebergTable, set_catalog
from rocketspark.spark.lakehouse.table import (
    ArchiveState,
    ArchiveTable,
    TablePlace,
    archive_at,
    archive_for,
    table_place,
)
from rocketspark.spark.metrics.listening import listen_to_pipeline
from rocketspark.spark.pipelines import archive, compare, restore
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.pipelines.options import ArchiveOptions, RestoreOptions
from rocketspark.spark.pipelines.parts import archive_table
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.report import plain
from rocketspark.spark.pipelines.parts.session import SessionOptions, one_line_errors, open_session
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.tables.client_access import Access

DAYS_MS = 10 * 24 * 3_600_000


class FaultyTable:
    """A table whose commit is made, but its writer does not hear of it: `fault` raises instead. If he is `beaten`,
    another one committed the same before; `column`: one that another adds before the commit.
    """

    def __init__(self, table: ArchiveTable, fault: Callable[[], None], *, beaten: bool, column: str = "") -> None:
        self.table, self.fault, self.beaten, self.column = table, fault, beaten, column

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def append(self, rows: DataFrame, state: ArchiveState, after: ArchiveState | None = None) -> int:
        if self.beaten:
            self.table.append(rows, msgspec.structs.replace(state, commit="another's"), after)
        if self.column:
            self.table.spark.sql(f"ALTER TABLE {self.table._name} ADD COLUMNS ({self.column})")
        count = self.table.append(rows, state, after)
        if count and not self.column:
            self.fault()
        return count


class ToldProgress(Progress):
    """Progress that is told, and asks to stop at so many rows."""

    def __init__(self, stop_at: int | None) -> None:
        super().__init__("archive")
        self._stop_at = stop_at

    def say(self, text: str) -> None:
        tell(says=text)

    def update(self, rows: int, *, lag: int | None = None, note: str = "", now: bool = False) -> None:
        self.rows, self.waiting = rows, lag
        tell(rows=rows)
        if self._stop_at is not None and rows >= self._stop_at:
            self.stop.ask()


def paused(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function that waits for a line before its first call."""
    before: list[str] = []

    def wait(*args: Any) -> Any:
        if not before:
            tell(paused=call.__name__)
            before.append(sys.stdin.readline())
        return call(*args)

    return wait


def run_archive(spark: SparkSession, step: dict[str, Any]) -> Any:
    fault = step.get("fault")
    told: list[str] = []

    def fail() -> None:
        if not told:
            told.append("failed")
            raise ConnectionLost("the reply is lost") if fault == "reply lost" else RocketSparkError("killed")

    opened = archive_table.open_table
    if fault:
        more = {"beaten": fault == "beaten", "column": step.get("column", "")}
        archive_table.open_table = lambda *args: FaultyTable(opened(*args), fail, **more)  # type: ignore[assignment,return-value]
    later = DAYS_MS if step.get("later") else 0
    progress = ToldProgress(step.get("stop_at"))
    listening = listen_to_pipeline(spark, step["namesrv"], Access(), progress, 0) if step.get("metrics") else None
    pause = step.get("pause", "append")
    method = getattr(IcebergTable, pause)
    if "pause" in step:
        setattr(IcebergTable, pause, paused(method))
    try:
        done = archive.run(
            spark,
            Connection(step["namesrv"], options=step.get("options", {})),
            step["topics"],
            archive_for(step["format"], step["place"], step.get("catalog", ""), step.get("table", "")),
            once="stop_at" not in step,
            options=ArchiveOptions(interval_s=0.1, batch_rows=step.get("batch_rows", 1_000_000)),
            progress=progress,
            now_ms=lambda: time.time_ns() // 1_000_000 + later,
        )
        if listening is None:
            return done
        # Asked at the start, and every 15 s.
        found = scrape_until(listening.url, lambda s: s.labels("rocketspark_stream_lag_messages"))
        names = ("batch_duration_seconds_count", "rows_total", "running")
        told = {name: found.value(f"rocketspark_stream_{name}", query="archive") for name in names}
        return plain(done) | {"metrics": told, "lag": found.labels("rocketspark_stream_lag_messages")}
    finally:
        if listening is not None:
            listening.stop()
        archive_table.open_table = opened
        setattr(IcebergTable, pause, method)


def run_restore(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Restore; `meanwhile`: a statement that is run after the first chunk."""
    statements = [step["meanwhile"]] if "meanwhile" in step else []
    progress = Progress("restore")
    progress.hear = lambda report: spark.sql(statements.pop()).collect() if statements else None  # type: ignore[method-assign,assignment]
    place = archive_at(step["place"], step.get("catalog", ""), step.get("table", ""))
    names = {name: step[name] for name in ("since_ms", "until_ms", "tags", "dry_run", "again") if name in step}
    return restore.restore(
        *(spark, place, step["namesrv"], step["topic"], step["to"]),
        options=RestoreOptions(state=step["state"], chunk_rows=step.get("chunk_rows", 100), **names),
        progress=progress,
    )


def run_compare(spark: SparkSession, step: dict[str, Any]) -> Any:
    place = archive_at(step["place"], step.get("catalog", ""), step.get("table", ""))
    one = compare.Side(step["namesrv"], step["topic"])
    return compare.run(spark, one, compare.Side(step["namesrv"], step.get("of", step["topic"]), place))


def figures(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Rows, places and hours of the table, its files, and a checksum of all columns of a Parquet archive's read too."""
    rows = archive.read(spark, archive_at(step["place"], step.get("catalog", ""), step.get("table", "")))
    hour = F.date_format("storeTime", "yyyy-MM-dd'T'HH")
    columns = [F.map_entries(name) if name == "properties" else F.col(name) for name in rows.columns]
    found = rows.agg(
        F.count("*").alias("rows"),
        F.count_distinct("topic", "broker", "queueId", "queueOffset").alias("places"),
        F.count_if(F.col("hour") != hour).alias("wrong_hours"),
        F.sum(F.xxhash64(*columns).cast("decimal(38,0)")).cast("string").alias("checksum"),
    ).collect()[0]
    return found.asDict() | {"columns": rows.columns}


def run_rows(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Expressions over the rows in the order of the first one, and the types of the decoded columns."""
    rows = archive.read(spark, archive_at(step["place"], step.get("catalog", ""), step.get("table", "")))
    own = {*READ_SCHEMA.names, "hour"}
    found = rows.selectExpr(*step["select"])
    return {
        "types": {field.name: field.dataType.simpleString() for field in rows.schema.fields if field.name not in own},
        "rows": [[*row.asDict(recursive=True).values()] for row in found.orderBy(found.columns[0]).collect()],
    }


def run_sql(spark: SparkSession, step: dict[str, Any]) -> Any:
    if "catalog" in step:
        set_catalog(spark, table_place("iceberg", step["place"], step["catalog"]))
    return [row.asDict() for row in spark.sql(step["sql"]).limit(100).collect()]


def run_call(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Run a command whole, in this session."""
    called = call(*step["arguments"])
    return {"exit_code": called.exit_code, "stdout": called.stdout, "told": called.told}


def identity(spark: SparkSession, step: dict[str, Any]) -> Any:
    """The id of the table."""
    place = archive_at(step["place"], step.get("catalog", ""), step.get("table", ""))
    assert isinstance(place, TablePlace)
    return {"id": archive_table.open_table(spark, place).identity()}


STEPS = {
    "archive": run_archive,
    "restore": run_restore,
    "compare": run_compare,
    "figures": figures,
    "identity": identity,
    "rows": run_rows,
    "sql": run_sql,
    "call": run_call,
}


def tell(**values: Any) -> None:
    print(json.dumps(values, default=str), flush=True)


def main() -> None:
    spec = json.loads(sys.stdin.readline())
    options = SessionOptions("local[2,4]", conf=spec["conf"], places=tuple(spec.get("places", ())))
    with open_session("archive", options) as spark:
        tell(ready=os.getpid())
        while line := sys.stdin.readline():
            step = json.loads(line)
            began = time.monotonic()
            try:
                with one_line_errors():
                    # A session knows one catalog of Iceberg.
                    found = plain(STEPS[step["do"]](spark.newSession(), step))
            except RocketSparkError as e:
                found = {"error": f"{type(e).__name__}: {e}"}
            tell(told=found, seconds=round(time.monotonic() - began, 1))


if __name__ == "__main__":
    main()
