"""The pipeline `archive` into a Delta or Iceberg table. Rule: each micro-batch is one commit of the table. The commits
say how far topics are archived, and in doubt that is read from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StringType, StructField, StructType

from rocketspark.spark.lakehouse.decoded_columns import fitted, path_of
from rocketspark.spark.lakehouse.formats import open_table
from rocketspark.spark.lakehouse.object_store import scheme_of
from rocketspark.spark.lakehouse.table import NO_COLUMNS, ArchiveState, ArchiveTable, TablePlace, ddl
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.pipelines.options import ArchiveOptions
from rocketspark.spark.pipelines.parts import archive_tasks
from rocketspark.spark.pipelines.parts.archive_batches import (
    BATCHES_BETWEEN_MERGES,
    ArchiveResult,
    MicroBatches,
    decoding,
    names_in,
    options_given,
)
from rocketspark.spark.pipelines.parts.archive_manifest import HOUR_MS, hour_name
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.streaming import check_servers
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.tables.offset_ranges import Offsets, from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(
    spark: SparkSession,
    where: Connection,
    topics: Sequence[str],
    place: TablePlace,
    options: ArchiveOptions,
    *,
    once: bool,
    progress: Progress,
    now_ms: Callable[[], int],
) -> ArchiveResult:
    """Archive topics in a table; arguments, result and errors are those of `archive.run`."""
    given = options_given(where, topics)
    if not scheme_of(place.place):
        Path(place.place).mkdir(parents=True, exist_ok=True)
    table = open_table(spark, place)
    schema, reading = decoding(table, given)
    streams = (f"{place.name} {name}".strip() for name in names_in(reading))
    check_servers(place.place, dict.fromkeys(streams, where.namesrv), option="--to")
    target = TableTarget(spark, table, schema)
    target.hold()
    reader = StreamReader(schema, reading)
    work = MicroBatches(target, reader, topics, progress=progress, batch_rows=options.batch_rows, once=once)
    merges = Merges(table, options.close_after_s, options.file_mb << 20)

    def merge_closed() -> int:
        return merges.due(now_ms(), work.batches) if options.compact else 0

    try:
        compacted = work.run(merge_closed, interval_s=options.interval_s, merges_again=True)
        total, files = work.patiently(lambda: (table.row_count(), table.file_count()))
    finally:
        reader.stop()
    return ArchiveResult(
        *(str(place), work.rows, work.batches, compacted, total, files),
        *(round(progress.seconds, 3), progress.stop.asked),
    )


class TableTarget:
    """A table as the target of an archive's micro-batches. `schema`: the columns of the read, decoded ones last."""

    def __init__(self, spark: SparkSession, table: ArchiveTable, schema: StructType = READ_SCHEMA) -> None:
        self._spark, self._table, self._schema = spark, table, schema
        self._held = NO_COLUMNS
        self._state: ArchiveState | None = None
        self._seen: ArchiveState | None = None
        self._is_noted = False

    def hold(self) -> None:
        """Add the decoded columns to the table if it lacks them. Raises ConfigError, and changes nothing, if it cannot
        hold them.
        """
        _ = self.offsets  # A table that cannot be gone on with is not changed.
        self._held = self._table.hold(StructType(self._schema.fields[len(READ_SCHEMA.fields) :]))

    @property
    def offsets(self) -> dict[str, Any] | None:
        """The next offset of each queue, by the newest commit; None if the archive is new."""
        if self._state is None:
            self._state = self._table.state()
            if self._state is None and self._seen is not None:
                self._table.check_new(self._seen.next({}))
        self._seen = self._state or self._seen
        return self._state.offsets if self._state is not None else None

    def begin(self, offsets: dict[str, Any]) -> None:
        """Note the offsets at which a new archive begins."""
        self._add(self._fitted(self._spark.createDataFrame([], with_hours(self._schema))), offsets)

    def store(self, reader: StreamReader, partitions: Sequence[Any], offsets: dict[str, Any]) -> int:
        """Read partitions, and store their rows and the offsets they reach in one commit; returns how many rows."""
        return self._add(self._fitted(rows_of(self._spark, reader, partitions, self._schema)), offsets)

    def ends(self, topics: Collection[str]) -> Offsets:
        """Return for each queue of the topics the offset behind the last row that the table holds of it."""
        return from_json(self._table.offsets_of_rows(topics))

    def _fitted(self, rows: DataFrame) -> DataFrame:
        """Return rows with the decoded columns as the table has them."""
        from pyspark.sql import functions as F

        if not self._held.fields:
            return rows
        read = {field.name.lower(): field for field in self._schema.fields}
        held = []
        for field in self._held.fields:
            if one := read.get(field.name.lower()):
                column = fitted(F.col(path_of((one.name,))), one.dataType, field.dataType)
            else:
                column = F.lit(None).cast(field.dataType)
            held.append(column.alias(field.name))
        return rows.select(*READ_SCHEMA.names, "hour", *held)

    def _add(self, rows: DataFrame, offsets: dict[str, Any]) -> int:
        before = self._state
        state = (before or ArchiveState(0, {})).next(offsets)
        # Should this fail, the commit may have been made all the same.
        self._state = None
        count = self._table.append(rows, state, before)
        if not self._is_noted:
            self._is_noted = True
            self._table.note_namespace(offsets)
        self._state = self._seen = state
        return count


def with_hours(schema: StructType) -> str:
    """Return the DDL of the columns of a read and of the column `hour`."""
    own = len(READ_SCHEMA.fields)
    return ddl(StructType([*schema.fields[:own], StructField("hour", StringType()), *schema.fields[own:]]))


def rows_of(
    spark: SparkSession, reader: StreamReader, partitions: Sequence[Any], schema: StructType = READ_SCHEMA
) -> DataFrame:
    """Return the rows of a reader's partitions as a frame, in which a task reads each partition."""

    def act(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in archive_tasks.numbers(batches):
            for batch in reader.read(partitions[number]):
                yield with_hour(batch)

    count = len(partitions)
    return spark.range(0, count, 1, max(1, count)).mapInArrow(act, with_hours(schema))


def with_hour(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with one more column: the name of the hour, UTC, in which each was stored, as in Parquet archives."""
    times = batch.column("storeTime").cast(pa.timestamp("ms", "UTC"), safe=False)
    hours = pc.divide(pc.cast(times, pa.int64()), HOUR_MS).dictionary_encode()
    names = pa.array([hour_name(hour * HOUR_MS) for hour in hours.dictionary.to_pylist()], pa.string())
    column = pa.DictionaryArray.from_arrays(hours.indices, names).cast(pa.string())
    # Decoded columns come after it.
    return batch.add_column(min(batch.num_columns, len(READ_SCHEMA.fields)), "hour", column)


class Merges:
    """Merges the files of a table's hours that are over: at the first call, when another hour is over, and after many
    micro-batches.
    """

    def __init__(self, table: ArchiveTable, close_after_s: float, file_bytes: int) -> None:
        self._table, self._close_after_ms, self._file_bytes = table, round(close_after_s * 1000), file_bytes
        self._hour = ""
        self._batches = -1

    def due(self, now_ms: int, batches: int) -> int:
        """Merge if it is time; return how many hours were merged. `batches`: how many micro-batches the run has
        written.
        """
        last_hour = hour_name(now_ms - self._close_after_ms - HOUR_MS)
        if last_hour == self._hour and batches - max(self._batches, 0) < BATCHES_BETWEEN_MERGES:
            return 0
        if batches == self._batches and last_hour == self._hour:
            return 0
        merged = self._table.compact(last_hour, self._file_bytes)
        self._hour, self._batches = last_hour, batches
        return merged
