"""archive: every message once in the files, whatever happens; compaction that no reader notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession

from rocketspark.admin.operations import Admin
from rocketspark.errors import ConfigError, NoReply, RouteNotFound
from rocketspark.spark.lakehouse.table import ArchiveTable
from rocketspark.spark.pipelines import archive
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.options import ArchiveOptions
from rocketspark.spark.pipelines.parts.archive_batches import options_of
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ReadAllAvailable
from rocketspark.tables.offset_ranges import from_json
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.testing import Cluster

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.shows("`archive`, each message once, closed hours compacted; a kill at every moment"),
]

COLUMNS = "broker queueId queueOffset messageId tag keys body properties bornTime storeTime flag sysFlag".split()


def rows_of(rows: DataFrame) -> list[Any]:
    """All rows, in order of their place."""
    return sorted((tuple(row) for row in rows.select("topic", *COLUMNS).collect()), key=lambda row: row[:4])


def in_topic(spark: SparkSession, cluster: Cluster, *topics: str) -> list[Any]:
    options = {"namesrv": cluster.namesrv, "topic": ",".join(topics)}
    return rows_of(spark.read.format("rocketmq").options(**options).load())


def later() -> int:
    """A time at which all hours of now are closed."""
    return time.time_ns() // 1_000_000 + 10 * 24 * 3_600_000


@contextmanager
def time_zone(spark: SparkSession, name: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", name)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


@pytest.mark.shows("`archive` refuses a topic made anew")
def test_a_topic_made_anew_needs_a_folder_of_its_own(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    load(topic, 20)
    archive.run(spark, cluster.namesrv, [topic], tmp_path)
    with Admin(cluster.namesrv) as operations:
        operations.delete_topic(topic)
        operations.create_topic(topic, queue_count=2)
    load(topic, 40)
    for error, options in ((DataLost, {}), (ConfigError, {"failOnDataLoss": "false"})):
        with pytest.raises(error, match="made anew"):
            archive.run(spark, Connection(cluster.namesrv, options=options), [topic], tmp_path)
    assert archive.read(spark, tmp_path).count() == 20
    assert archive.run(spark, cluster.namesrv, [topic], tmp_path / "new").rows == 40


class RowsAlone(ArchiveTable):
    """A table of which only the rows are known."""

    _name = exists = read_version = append = compact = None  # type: ignore[assignment]
    check = identity = file_count = _namespace = _committed = None  # type: ignore[assignment]

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows

    def read(self) -> DataFrame:
        return self._rows


@pytest.mark.shows("mended: a table whose commits are forgotten is archived no more if its topic had a namesake before")
def test_rows_alone_tell_a_topic_from_those_of_its_name_before_and_after(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    def make_anew() -> None:
        with Admin(cluster.namesrv) as operations:
            operations.delete_topic(topic)
            operations.create_topic(topic, queue_count=2)

    load(topic, 10)
    make_anew()
    load(topic, 20)
    archive.run(spark, cluster.namesrv, [topic], tmp_path)
    known = RowsAlone(archive.read(spark, tmp_path)).offsets_of_rows()  # type: ignore[abstract]
    load(topic, 4)
    for _ in range(2):
        reader = StreamReader(READ_SCHEMA, options_of(connection(cluster.namesrv), [topic]))
        end = reader.latestOffset(known, ReadAllAvailable())
        assert sum(from_json(end).values()) - sum(from_json(known).values()) == 4
        known = end
        reader.stop()
        load(topic, 4)
    make_anew()
    load(topic, 60)
    reader = StreamReader(READ_SCHEMA, options_of(connection(cluster.namesrv), [topic]))
    with pytest.raises(DataLost, match="made anew"):
        reader.latestOffset(known, ReadAllAvailable())
    reader.stop()


@pytest.mark.shows("mended: an archive takes two messages of one place, if a run came before the topic was made anew")
def test_a_topic_made_anew_after_a_run_without_it_needs_a_folder_of_its_own_too(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    patient = Connection(cluster.namesrv, options={"failOnDataLoss": "false"})
    load(topic, 20)
    archive.run(spark, patient, [topic], tmp_path)
    with Admin(cluster.namesrv) as operations:
        operations.delete_topic(topic)
        assert archive.run(spark, patient, [topic], tmp_path).rows == 0
        operations.create_topic(topic, queue_count=2)
    load(topic, 40)
    with pytest.raises(ConfigError, match=f"topic {topic} was deleted and made anew"):
        archive.run(spark, patient, [topic], tmp_path)
    assert archive.read(spark, tmp_path).count() == 20


def test_all_columns_of_every_message_are_there_once(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], load: Callable[..., Any], tmp_path: Path
) -> None:
    topic, other = make_topic(), make_topic(name=f"a%b|{tmp_path.name}")
    load(topic, 300)
    load(other, 10)
    first = archive.run(spark, cluster.namesrv, [topic], tmp_path, options=ArchiveOptions(batch_rows=100))
    assert (first.rows, first.batches, first.total_rows, first.stopped) == (300, 3, 300, False)
    load(topic, 50, first=300)
    # A session far from UTC, and one topic more.
    with time_zone(spark, "America/St_Johns"):
        again = archive.run(spark, cluster.namesrv, [other], tmp_path)
        assert again.rows == 10
        again = archive.run(spark, cluster.namesrv, [topic, other], tmp_path)
    assert (again.rows, again.total_rows) == (50, 360)
    # Each alone, the other keeps its place.
    assert archive.run(spark, cluster.namesrv, [other], tmp_path).rows == 0
    assert archive.run(spark, cluster.namesrv, [topic], tmp_path).rows == 0
    wanted = in_topic(spark, cluster, topic, other)
    assert len(wanted) == 360
    hours = {archive.Hour(*h)[:3] for h in archive.hours(tmp_path)}
    by_hour = {(row[0], f"{row[10]:%Y-%m-%dT%H}") for row in wanted}
    assert {h[:2] for h in hours} == by_hour
    for rows in (spark.read.parquet(str(tmp_path)), archive.read(spark, tmp_path)):
        assert rows_of(rows) == wanted
        assert {(r.topic, r.hour) for r in rows.select("topic", "hour").distinct().collect()} == by_hour
    merged = archive.run(spark, cluster.namesrv, [topic], tmp_path, now_ms=later)
    assert merged.hours_compacted
    assert merged.files == len(hours)
    for rows in (spark.read.parquet(str(tmp_path)), archive.read(spark, tmp_path)):
        assert rows_of(rows) == wanted


def test_readers_notice_nothing_of_compaction(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    for first in range(0, 90, 30):
        load(topic, 30, first=first)
        archive.run(spark, cluster.namesrv, [topic], tmp_path)
    old = spark.read.parquet(str(tmp_path))
    seen: list[int] = []
    over = threading.Event()

    def changes() -> dict[Path, int]:
        return {folder: folder.stat().st_mtime_ns for folder in (tmp_path, *tmp_path.glob("**/"))}

    def list_and_read() -> None:
        while True:
            last = over.is_set()
            # Listed before, opened after: that is told, and right when asked again.
            with suppress(FileNotFoundError):
                before = changes()
                rows = ds.dataset(tmp_path, format="parquet", partitioning="hive").count_rows()
                # A listing that a change overtakes may have neither the old name nor the new one.
                if before == changes():
                    seen.append(rows)
            if last:
                return

    reader = threading.Thread(target=list_and_read)
    reader.start()
    try:
        merged = archive.run(spark, cluster.namesrv, [topic], tmp_path, now_ms=later)
    finally:
        over.set()
        reader.join()
    assert merged.hours_compacted == merged.files > 0
    assert set(seen) == {90}
    assert old.count() == spark.read.parquet(str(tmp_path)).count() == 90
    assert ds.dataset(tmp_path, format="parquet", partitioning="hive").count_rows() == 90


def test_a_batch_that_failed_is_archived_once_by_the_next_run(
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    load: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(topic, 100)
    commit = archive.Archive.commit

    def fail(self: archive.Archive, written: Any, **rest: Any) -> Any:
        if self.manifest.sequence == 2:
            raise OSError("no room")
        return commit(self, written, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(archive.Archive, "commit", fail)
        with pytest.raises(OSError, match="no room"):
            archive.run(spark, cluster.namesrv, [topic], tmp_path, options=ArchiveOptions(batch_rows=40))
    assert spark.read.parquet(str(tmp_path)).count() == 40
    done = archive.run(spark, cluster.namesrv, [topic], tmp_path, options=ArchiveOptions(batch_rows=40))
    assert (done.rows, done.total_rows) == (60, 100)
    assert rows_of(spark.read.parquet(str(tmp_path))) == in_topic(spark, cluster, topic)


def test_what_may_pass_is_tried_again_and_stopping_is_heeded(
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    load: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(topic, 60)
    progress = Progress("archive")
    monkeypatch.setattr(progress.stop, "wait", lambda seconds: waited.append(seconds) or progress.stop.asked)
    waited: list[float] = []
    partitions, failures = StreamReader.partitions, [NoReply("away"), NoReply("away")]

    def plan(self: StreamReader, start: Any, end: Any) -> Any:
        if failures:
            raise failures.pop()
        return partitions(self, start, end)

    monkeypatch.setattr(StreamReader, "partitions", plan)
    where = Connection(cluster.namesrv, options={"tags": "A"})
    # Once all is there it waits for more: then it is asked to stop.
    update = progress.update
    monkeypatch.setattr(progress, "update", lambda *a, **k: (update(*a, **k), progress.stop.ask()))
    done = archive.run(
        spark, where, [topic], tmp_path, once=False, options=ArchiveOptions(interval_s=5), progress=progress
    )
    assert waited == [1, 2]
    assert (done.stopped, done.batches) == (True, 1)
    tags = {row["tag"] for row in spark.read.parquet(str(tmp_path)).select("tag").collect()}
    assert (tags, done.rows) == ({"A"}, sum(i % 5 != 4 and i % 3 == 0 for i in range(60)))


def test_mistakes_are_told(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(RouteNotFound, match="no topic 'absent-topic'"):
        archive.run(spark, cluster.namesrv, ["absent-topic"], tmp_path)
    with pytest.raises(ConfigError, match="option topic"):
        archive.run(spark, cluster.namesrv, [], tmp_path)
    wrong: dict[str, float] = {"batch_rows": 0, "file_mb": -1, "interval_s": -1, "close_after_s": float("nan")}
    for name, number in wrong.items():
        given = ArchiveOptions()._replace(**{name: number})
        with pytest.raises(ConfigError, match=f"{name} is {number}: "):
            archive.run(spark, cluster.namesrv, ["absent-topic"], tmp_path, given)
