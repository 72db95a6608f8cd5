"""archive: topics to Parquet files by topic and hour, or to a table. Rule: a micro-batch counts with its offsets, at
one moment.

Executors read queue ranges as a stream does and write files that do not count yet; the driver then replaces the
manifest, which names the files and how far each queue is archived (a table: its commit does both). So a kill at any
moment leaves the last whole micro-batch, and the next start goes on after it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from rocketspark.errors import ConfigError, RocketSparkError, RouteNotFound
from rocketspark.model import typed_json
from rocketspark.spark.columns import READ_SCHEMA
from rocketspark.spark.lakehouse.table import TablePlace, archive_at, archive_for, read_table
from rocketspark.spark.options import ReadOptions
from rocketspark.spark.pipelines.archive import tasks
from rocketspark.spark.pipelines.archive.decoding import archive_options
from rocketspark.spark.pipelines.archive.manifest import (
    FILES,
    Archive,
    ArchiveFile,
    WrittenFile,
    due,
    open_archive,
    read_manifest,
)
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.progress import Progress, lag_of, step_report
from rocketspark.spark.pipelines.session import one_line
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.transport.retries import Retries, RetryRule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

BATCH_ROWS = 1_000_000
INTERVAL_S = 60.0
CLOSE_AFTER_S = 300.0
KEEP_REPLACED_S = 3600.0
FILE_BYTES = 256 << 20
# Failures in a row that may pass (a broker that restarts) before one ends a run with `once`; others go on for ever.
ATTEMPTS = 6
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
# Hours merged in one job; and micro-batches of a backlog after which closed hours are merged.
HOURS_PER_JOB = 16
BATCHES_BETWEEN_MERGES = 50


class Hour(NamedTuple):
    """The rows and files that an archive holds of a topic's hour (UTC, by store time)."""

    topic: str
    hour: str
    rows: int
    files: int
    bytes: int


class ArchiveResult(NamedTuple):
    """The result of a run: `rows` and `batches` archived, hours compacted; and `total_rows`, `files`: what is there
    now.
    """

    archive: str
    rows: int
    batches: int
    hours_compacted: int
    total_rows: int
    files: int
    seconds: float
    stopped: bool


def run(
    spark: SparkSession,
    where: Connection | str,
    topics: Sequence[str],
    folder: str | Path | TablePlace,
    *,
    once: bool = True,
    interval_s: float = INTERVAL_S,
    batch_rows: int = BATCH_ROWS,
    compact: bool = True,
    close_after_s: float = CLOSE_AFTER_S,
    keep_replaced_s: float = KEEP_REPLACED_S,
    file_bytes: int = FILE_BYTES,
    progress: Progress | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> ArchiveResult:
    """Archive topics in a folder that driver and executors share, or a table, from where its last run ended.

    once: end when all is archived that was there at the start, else go on until `progress.stop` is asked, looking for
    more each `interval_s`. batch_rows: messages per micro-batch at most. compact: merge the files of hours that ended
    `close_after_s` ago into files of some `file_bytes`; the merged ones stay readable for `keep_replaced_s` (those of
    a table until its own VACUUM or expire_snapshots).
    Raises ConfigError for wrong options, RocketSparkError for what fails.
    """
    _check_numbers(interval_s, batch_rows, close_after_s, keep_replaced_s, file_bytes)
    progress = progress or Progress("archive")
    place = folder if isinstance(folder, TablePlace) else archive_for("parquet", folder)
    if isinstance(place, TablePlace):
        from rocketspark.spark.pipelines.archive import table_archive

        return table_archive.run(
            spark,
            connection(where, decodes=True),
            topics,
            place,
            once=once,
            interval_s=interval_s,
            batch_rows=batch_rows,
            compact=compact,
            close_after_s=close_after_s,
            file_bytes=file_bytes,
            progress=progress,
            now_ms=now_ms,
        )
    with open_archive(place) as archive:
        reader = StreamReader(READ_SCHEMA, options_of(connection(where), topics))
        target = _Folder(spark, archive)
        work = MicroBatches(target, reader, topics, progress=progress, batch_rows=batch_rows, once=once)
        try:
            work.begin()
            compacted = 0

            def merge_closed() -> int:
                archive.sweep(now_ms())
                if not compact:
                    return 0
                hours = due(archive.manifest.files, now_ms(), round(close_after_s * 1000), file_bytes)
                return merge_hours(spark, archive, hours, file_bytes, round(keep_replaced_s * 1000), progress)

            while not progress.stop.asked:
                if work.patiently(work.batch):
                    if work.batches % BATCHES_BETWEEN_MERGES == 0:
                        compacted += merge_closed()
                    continue
                compacted += merge_closed()
                if once or progress.stop.wait(interval_s):
                    break
        finally:
            reader.stop()
        files = archive.manifest.files
        total = sum(file.rows for file in files)
        return ArchiveResult(
            *(str(archive.folder), work.rows, work.batches, compacted, total, len(files)),
            *(round(progress.seconds, 3), progress.stop.asked),
        )


def _check_numbers(
    interval_s: float, batch_rows: int, close_after_s: float, keep_replaced_s: float, file_bytes: int
) -> None:
    """Raise ConfigError for a number that no run can have."""
    times = {"interval_s": interval_s, "close_after_s": close_after_s, "keep_replaced_s": keep_replaced_s}
    for name, seconds in times.items():
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"{name} is {seconds}: seconds, 0 or more, are needed")
    for name, count in (("batch_rows", batch_rows), ("file_bytes", file_bytes)):
        if count < 1:
            raise ConfigError(f"{name} is {count}: 1 or more are needed")


def options_given(where: Connection, topics: Sequence[str]) -> dict[str, str]:
    """Return the options of the topics' read, as a stream has them."""
    # A body that does not inflate is kept as it is stored.
    options = {"startingOffsets": "earliest", "badBodies": "stored", **where.spark_options()}
    return options | ({"topic": ",".join(topics)} if topics else {})


def options_of(where: Connection, topics: Sequence[str]) -> ReadOptions:
    """Return how the topics are read. Raises ConfigError for wrong options, or none that name a topic."""
    return archive_options(options_given(where, topics))


class Target(Protocol):
    """Where micro-batches go."""

    @property
    def offsets(self) -> dict[str, Any] | None:
        """The next offset of each queue, as a stream's JSON; None: it is new."""

    def begin(self, offsets: dict[str, Any]) -> None:
        """Fix where a new one begins."""

    def store(self, reader: StreamReader, partitions: Sequence[Any], offsets: dict[str, Any]) -> int:
        """Read partitions, and have the rows and the offsets count at one moment; returns how many rows."""


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


class MicroBatches:
    """The micro-batches of a run. They follow the contract of a stream's reader, so what a stream reads is archived."""

    def __init__(
        self,
        target: Target,
        reader: StreamReader,
        topics: Sequence[str],
        *,
        progress: Progress,
        batch_rows: int,
        once: bool,
    ) -> None:
        self._topics = {name.strip() for topic in topics for name in topic.split(",")}
        self._target, self._reader, self._progress = target, reader, progress
        self._batch_rows, self._once = batch_rows, once
        self.rows = self.batches = 0

    def begin(self) -> None:
        """Fix where a new archive begins, and with `once` where the run ends."""
        if self._target.offsets is None:
            self._target.begin(self._reader.initialOffset())
        if self._once:
            self._reader.prepareForTriggerAvailableNow()
        # Should the first micro-batch not come to its end, the lag is known all the same.
        start, _ = self._offsets()
        self._progress.hear(step_report(self.batches, start=start, end=start))

    def _offsets(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return where the run's topics are archived up to, and others, of other runs, which keep their place."""
        offsets = self._target.offsets or {}
        others = {} if not self._topics else {t: q for t, q in offsets.items() if t[0] != "@" and t not in self._topics}
        return {name: value for name, value in offsets.items() if name not in others}, others

    def batch(self) -> bool:
        """Archive the next messages; False if there are none."""
        from rocketspark.spark.spark_features import ReadMaxRows

        began_s = time.monotonic()
        start, others = self._offsets()
        end = self._reader.latestOffset(start, ReadMaxRows(self._batch_rows))
        if end == start:
            self._progress.hear(step_report(self.batches, start=start, end=end))
            return False
        asked_s = time.monotonic()
        rows = self._target.store(self._reader, self._reader.partitions(start, end), {**others, **end})
        self._reader.commit(end)
        steps_s = {"latestOffset": asked_s - began_s, "addBatch": time.monotonic() - asked_s}
        self.batches += 1
        self.rows += rows
        latest = self._reader.reportLatestOffset()
        self._progress.hear(step_report(self.batches, rows, steps_s, start=start, end=end, latest=latest))
        self._progress.update(self.rows, lag=lag_of(end, latest))
        return True

    def patiently(self, step: Callable[[], T]) -> T:
        """Do a step, again after a while if it failed in a way that may pass."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        retries = Retries(RetryRule(ATTEMPTS if self._once else None, pauses_s=PAUSES_S, may_pass=may_pass))
        while True:
            try:
                return step()
            except (RocketSparkError, PySparkException, Py4JError) as e:
                wait_s = retries.pause_s(e)
                if self._progress.stop.asked:
                    raise
                self._progress.say(f"{one_line(str(e))}; trying again in {wait_s:.0f} s")
                self._progress.stop.wait(wait_s)


# Spark's errors of a task that failed because of the network, or lost its executor.
# And those of an object store or a catalog that is away for a while.
_PASSING = re.compile(
    r"\b(NotSent|NoReply|ConnectionLost|NoNameServer|RouteNotFound|BrokerNotFound): |ExecutorLost"
    r"|AWS(ClientIO|ServiceThrottled|Status500|NoResponse)Exception|CommitStateUnknownException|SQLITE_BUSY"
    r"|SocketTimeoutException|SdkClientException"
)


def may_pass(error: Exception) -> bool:
    """Tell whether a repetition may succeed."""
    if isinstance(error, RocketSparkError):
        return error.retriable or isinstance(error, RouteNotFound)
    return _PASSING.search(str(error)) is not None


class _ReadTask:
    """Task i reads partition i into files."""

    def __init__(self, reader: StreamReader, partitions: Sequence[Any], staging: Path) -> None:
        self._reader, self._partitions, self._staging = reader, partitions, staging
        self.count = len(partitions)

    def __call__(self, number: int) -> Iterator[WrittenFile]:
        tasks.check_folder(self._staging)
        return tasks.write_rows(self._reader.read(self._partitions[number]), self._staging)


class _MergeTask:
    """Task i merges the files of hour i."""

    def __init__(self, hours: Sequence[list[ArchiveFile]], root: Path, staging: Path, file_bytes: int) -> None:
        self._hours, self._root, self._staging, self._file_bytes = hours, root, staging, file_bytes
        self.count = len(hours)

    def __call__(self, number: int) -> Iterator[WrittenFile]:
        tasks.check_folder(self._staging)
        return tasks.merge(self._hours[number], self._root, self._staging, self._file_bytes)


def run_tasks(spark: SparkSession, task: Any, *, type_: type[T]) -> list[T]:
    """Run `task(i)` for i below `task.count` on the executors; return the reports of all, tasks in order."""
    if not task.count:
        return []

    def act(batches: Iterator[Any]) -> Iterator[Any]:
        for number in tasks.numbers(batches):
            yield from tasks.tell(task(number))

    rows = spark.range(0, task.count, 1, task.count).mapInArrow(act, tasks.TOLD).collect()
    return [typed_json.decode(row[0], type_) for row in rows]


def merge_hours(
    spark: SparkSession,
    archive: Archive,
    hours: Sequence[list[ArchiveFile]],
    file_bytes: int,
    keep_ms: int,
    progress: Progress,
) -> int:
    """Merge the files of each hour; returns how many hours were."""
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
    """Return the rows of an archive, wherever it was moved: the columns of a topic's read and `hour`."""
    from pyspark.sql import functions as F

    folder = archive_at(folder)
    if isinstance(folder, TablePlace):
        return read_table(spark, folder)
    root = folder.absolute()
    files = _existing(root, read_manifest(root).files)
    names = [field.name for field in READ_SCHEMA.fields]
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in READ_SCHEMA.fields)
    if not files:
        return spark.createDataFrame([], f"{columns}, hour string")
    base = str(files[0].parents[2])
    found = spark.read.schema(f"{columns}, hour string").option("basePath", base).parquet(*map(str, files))
    return found.select(*(F.col(name) for name in names), "hour")


def _existing(root: Path, files: Iterable[ArchiveFile]) -> list[Path]:
    """Return the paths of the files: a copy may hold the open folders alone."""
    base = root / FILES if (root / FILES).is_dir() else root
    found = [base / file.path for file in files]
    if missing := next((path for path in found if not path.exists()), None):
        raise ConfigError(f"{missing} is gone: the archive is not whole")
    return found


def hours(folder: str | Path) -> list[Hour]:
    """Return the rows and files that an archive holds, by topic and hour."""
    sums: dict[tuple[str, str], list[int]] = {}
    for file in read_manifest(Path(folder)).files:
        one = sums.setdefault((file.topic, file.hour), [0, 0, 0])
        one[0], one[1], one[2] = one[0] + file.rows, one[1] + 1, one[2] + file.bytes
    return [Hour(*key, *values) for key, values in sorted(sums.items())]
