"""The pipeline `archive`: topics to Parquet files by topic and hour, or to a table. Rule: a micro-batch counts together
with its offsets, at one moment.

Executors read queue ranges as a stream does and write files that do not count yet; the driver then replaces the
manifest, which names the files and how far each queue is archived (a table: its commit does both). So a kill at any
moment leaves the last whole micro-batch, and the next start goes on after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model import MessageQueue, typed_json
from rocketspark.spark.lakehouse.formats import read_table
from rocketspark.spark.lakehouse.table import TablePlace, archive_at, archive_for
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.options import ArchiveOptions
from rocketspark.spark.pipelines.parts import archive_table, archive_tasks
from rocketspark.spark.pipelines.parts.archive_batches import (
    ArchiveResult,
    MicroBatches,
    names_in,
    options_of,
)
from rocketspark.spark.pipelines.parts.archive_manifest import (
    FILES,
    STATE,
    Archive,
    ArchiveFile,
    WrittenFile,
    due,
    open_archive,
    read_manifest,
)
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.session import one_line_errors
from rocketspark.spark.pipelines.parts.streaming import check_servers
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.tables.offset_ranges import Offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

DEFAULTS = ArchiveOptions()
KEEP_REPLACED_S = 3600.0
# Hours merged in one job.
HOURS_PER_JOB = 16


class Hour(NamedTuple):
    """How many rows and files an archive holds of one hour of a topic (UTC, by store time)."""

    topic: str
    hour: str
    rows: int
    files: int
    bytes: int


@one_line_errors()
def run(
    spark: SparkSession,
    where: Connection | str,
    topics: Sequence[str],
    folder: str | Path | TablePlace,
    options: ArchiveOptions = DEFAULTS,
    *,
    once: bool = True,
    progress: Progress | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> ArchiveResult:
    """Archive topics, from where the archive's last run ended, in a folder that driver and executors share, or in a
    table.

    once: end when all is archived that was there at the start, else go on until `progress.stop` is asked. now_ms: the
    clock by which hours are over. Raises ConfigError for wrong options, RocketSparkError for what fails.
    """
    _check_numbers(options)
    progress = progress or Progress("archive")
    place = folder if isinstance(folder, TablePlace) else archive_for("parquet", folder)
    if isinstance(place, TablePlace):
        where = connection(where, decodes=True)
        return archive_table.run(spark, where, topics, place, options, once=once, progress=progress, now_ms=now_ms)
    with open_archive(place) as archive:
        where = connection(where)
        reading = options_of(where, topics)
        check_servers(archive.folder / STATE, dict.fromkeys(names_in(reading), where.namesrv), option="--to")
        reader = StreamReader(READ_SCHEMA, reading)
        target = _Folder(spark, archive)
        work = MicroBatches(target, reader, topics, progress=progress, batch_rows=options.batch_rows, once=once)
        keep_replaced_s = KEEP_REPLACED_S if options.keep_replaced_s is None else options.keep_replaced_s
        file_bytes = options.file_mb << 20

        def merge_closed() -> int:
            archive.sweep(now_ms())
            if not options.compact:
                return 0
            hours = due(archive.manifest.files, now_ms(), round(options.close_after_s * 1000), file_bytes)
            return merge_hours(spark, archive, hours, file_bytes, round(keep_replaced_s * 1000), progress)

        try:
            compacted = work.run(merge_closed, interval_s=options.interval_s, merges_again=False)
        finally:
            reader.stop()
        files = archive.manifest.files
        total = sum(file.rows for file in files)
        return ArchiveResult(
            *(str(archive.folder), work.rows, work.batches, compacted, total, len(files)),
            *(round(progress.seconds, 3), progress.stop.asked),
        )


def _check_numbers(options: ArchiveOptions) -> None:
    """Raise ConfigError for a number that no run can have."""
    for name in ("interval_s", "close_after_s", "keep_replaced_s"):
        seconds = getattr(options, name)
        if seconds is not None and not 0 <= seconds < math.inf:
            raise ConfigError(f"{name} is {seconds}: seconds, 0 or more, are needed")
    for name in ("batch_rows", "file_mb"):
        if (count := getattr(options, name)) < 1:
            raise ConfigError(f"{name} is {count}: 1 or more are needed")


class _Folder:
    """A Parquet archive as a target."""

    def __init__(self, spark: SparkSession, archive: Archive) -> None:
        self._spark, self._archive = spark, archive

    @property
    def offsets(self) -> dict[str, Any] | None:
        return self._archive.manifest.offsets

    def begin(self, offsets: dict[str, Any]) -> None:
        self._archive.commit([], offsets=offsets)

    def store(self, reader: StreamReader, partitions: Sequence[Any], offsets: dict[str, Any]) -> int:
        with self._archive.staging() as staging:
            written = run_tasks(self._spark, _ReadTask(reader, partitions, staging), type_=WrittenFile)
            self._archive.commit(written, offsets=offsets)
        return sum(one.rows for one in written)

    def ends(self, topics: Collection[str]) -> Offsets:
        found: Offsets = {}
        for file in self._archive.manifest.files:
            for part in file.segments if file.topic in topics else ():
                queue = MessageQueue(file.topic, part.broker, part.queue_id)
                found[queue] = max(part.end, found.get(queue, 0))
        return found


class _ReadTask:
    """Task i reads partition i into files."""

    def __init__(self, reader: StreamReader, partitions: Sequence[Any], staging: Path) -> None:
        self._reader, self._partitions, self._staging = reader, partitions, staging
        self.count = len(partitions)

    def __call__(self, number: int) -> Iterator[WrittenFile]:
        archive_tasks.check_folder(self._staging)
        return archive_tasks.write_rows(self._reader.read(self._partitions[number]), self._staging)


class _MergeTask:
    """Task i merges the files of hour i."""

    def __init__(self, hours: Sequence[list[ArchiveFile]], root: Path, staging: Path, file_bytes: int) -> None:
        self._hours, self._root, self._staging, self._file_bytes = hours, root, staging, file_bytes
        self.count = len(hours)

    def __call__(self, number: int) -> Iterator[WrittenFile]:
        archive_tasks.check_folder(self._staging)
        return archive_tasks.merge(self._hours[number], self._root, self._staging, self._file_bytes)


def run_tasks(spark: SparkSession, task: Any, *, type_: type[T]) -> list[T]:
    """Run `task(i)` on the executors for each i below `task.count`; return the reports of all tasks, in their order.
    `type_`: the type of the reports.
    """
    if not task.count:
        return []

    def act(batches: Iterator[Any]) -> Iterator[Any]:
        for number in archive_tasks.numbers(batches):
            yield from archive_tasks.tell(task(number))

    rows = spark.range(0, task.count, 1, task.count).mapInArrow(act, archive_tasks.TOLD).collect()
    return [typed_json.decode(row[0], type_) for row in rows]


def merge_hours(
    spark: SparkSession,
    archive: Archive,
    hours: Sequence[list[ArchiveFile]],
    file_bytes: int,
    keep_ms: int,
    progress: Progress,
) -> int:
    """Merge the files of each hour into fewer of some `file_bytes`; return how many hours were merged.

    `keep_ms`: for how long the replaced files stay readable.
    """
    done = 0
    for first in range(0, len(hours), HOURS_PER_JOB):
        if progress.stop.asked:
            break
        some = hours[first : first + HOURS_PER_JOB]
        with archive.staging() as staging:
            written = run_tasks(spark, _MergeTask(some, archive.folder, staging, file_bytes), type_=WrittenFile)
            before = sum(file.rows for files in some for file in files)
            if (after := sum(one.rows for one in written)) != before:
                raise RocketSparkError(f"merging {before} rows gave {after}: nothing was changed; please report it")
            archive.commit(written, replaces=[file for files in some for file in files], keep_ms=keep_ms)
        done += len(some)
        progress.say(f"{done:,} of {len(hours):,} closed hours compacted")
    return done


def read(spark: SparkSession, folder: str | Path | TablePlace) -> DataFrame:
    """Return the rows of an archive, also of one that was moved: the columns of a read, and `hour`."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    folder = archive_at(folder)
    if isinstance(folder, TablePlace):
        return read_table(spark, folder)
    root = folder.absolute()
    files = _existing(root, read_manifest(root).files)
    names = [field.name for field in READ_SCHEMA.fields]
    schema = StructType([*READ_SCHEMA.fields, StructField("hour", StringType())])
    if not files:
        return spark.createDataFrame([], schema)
    base = str(files[0].parents[2])
    found = spark.read.schema(schema).option("basePath", base).parquet(*map(str, files))
    # A folder of this name is null to Spark, and every message has a topic.
    topic = F.coalesce("topic", F.lit("__HIVE_DEFAULT_PARTITION__")).alias("topic")
    return found.select(*(topic if name == "topic" else F.col(name) for name in names), "hour")


def _existing(root: Path, files: Iterable[ArchiveFile]) -> list[Path]:
    """Return the paths of the files: a copy may hold the open folders alone."""
    base = root / FILES if (root / FILES).is_dir() else root
    found = [base / file.path for file in files]
    if missing := next((path for path in found if not path.exists()), None):
        raise ConfigError(f"{missing} is gone: the archive is not whole")
    return found


def hours(folder: str | Path) -> list[Hour]:
    """Return how many rows and files an archive's folder holds of each topic and hour."""
    sums: dict[tuple[str, str], list[int]] = {}
    for file in read_manifest(Path(folder)).files:
        one = sums.setdefault((file.topic, file.hour), [0, 0, 0])
        one[0], one[1], one[2] = one[0] + file.rows, one[1] + 1, one[2] + file.bytes
    return [Hour(*key, *values) for key, values in sorted(sums.items())]
