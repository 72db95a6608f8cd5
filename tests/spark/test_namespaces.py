"""Queries and archives that go on with another namespace than they began with are refused: topics of the same names are
other ones there, in which the places that were reached would pass over messages.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.spark.available_now import run_to_end
from tests.spark.test_comings_and_goings import Kept

from rocketspark.client import Producer
from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines.archive import run as archive
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.pipelines.dedupe import SeenReader
from rocketspark.spark.pipelines.parts.archive_batches import MicroBatches
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.restore_tasks import queue_offsets, read_offsets, topic_reader
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ReadAllAvailable
from rocketspark.tables.offset_ranges import NAMESPACE_KEY, made_of
from rocketspark.tables.options import parse_read
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "mended: with another `namespace` a checkpoint or an archive goes on where topics of the same names were read up"
    " to, and passes over messages",
)

OTHER = r"topics of namespace 'one' were read up to here, and the options name .*: give .*checkpointLocation"
CANNOT_TELL = r"names no namespace, and the options name 'one': .*checkpointLocation.* failOnDataLoss to false"


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster with topic t three times: of namespaces one and two, and of none."""
    with run_cluster() as cluster:
        for space, count in (("one", 3), ("two", 5), ("", 7)):
            with Producer(cluster.namesrv, "spaces", namespace=space) as producer:
                producer.send_many("t", [b"%d" % i for i in range(count)])
        yield cluster


def options_of(cluster: Cluster, space: str, **more: str) -> dict[str, str]:
    given = {"namesrv": cluster.namesrv, "topic": "t", "startingOffsets": "earliest", **more}
    return given | ({"namespace": space} if space else {})


def reader_of(cluster: Cluster, space: str, kind: Callable[..., StreamReader] = StreamReader, **more: str) -> Any:
    parsed = parse_read(options_of(cluster, space, **more), streaming=True)
    return kind(READ_SCHEMA, parsed, *([0] if kind is SeenReader else []))


def batch_of(reader: StreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Run a micro-batch; return its end, as a checkpoint has it, and its rows."""
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    parts = reader.partitions(start, end)
    return end, sum(batch.num_rows for part in parts for batch in reader.read(part))


@pytest.mark.parametrize("kind", [StreamReader, SeenReader])
@pytest.mark.parametrize("space", ["two", ""])
def test_a_checkpoint_of_another_namespace_is_refused(own_cluster: Cluster, space: str, kind: Any) -> None:
    first = reader_of(own_cluster, "one", kind)
    start = first.initialOffset()
    end, rows = batch_of(first, start)
    assert rows == 3
    assert batch_of(first, end) == (end, 0)
    first.stop()
    other = reader_of(own_cluster, space, kind, failOnDataLoss="false")
    for act in (
        lambda: other.latestOffset(end, ReadAllAvailable()),
        lambda: other.partitions(start, end),
        lambda: other.partitions(end, end),
    ):
        with pytest.raises(ConfigError, match=OTHER):
            act()
    other.stop()


def test_a_checkpoint_without_a_namespace_is_gone_on_with_if_asked(
    own_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    plain = reader_of(own_cluster, "")
    end, rows = batch_of(plain, plain.initialOffset())
    assert rows == 7
    assert NAMESPACE_KEY not in end
    plain.stop()
    strict = reader_of(own_cluster, "one")
    with pytest.raises(ConfigError, match=CANNOT_TELL):
        strict.latestOffset(end, ReadAllAvailable())
    strict.stop()
    # As an earlier version left it, which noted no namespace.
    earlier = {**end, "t": {broker: dict.fromkeys(queues, 0) for broker, queues in end["t"].items()}}
    asked = reader_of(own_cluster, "one", failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "rocketspark.spark"):
        marked, rows = batch_of(asked, earlier)
    assert rows == 3
    assert marked[NAMESPACE_KEY] == "one"
    assert [r for r in caplog.records if "names no namespace" in r.getMessage()]
    # Without a new message the namespace is noted too.
    bare = {name: part for name, part in marked.items() if name != NAMESPACE_KEY}
    assert batch_of(asked, bare) == (marked, 0)
    asked.stop()
    again = reader_of(own_cluster, "one")
    assert batch_of(again, marked) == (marked, 0)
    again.stop()


@pytest.mark.parametrize("spaces", [("one", "two"), ("one", ""), ("", "one")])
def test_an_archive_of_another_namespace_is_refused(own_cluster: Cluster, spaces: tuple[str, str]) -> None:
    target = Kept()

    def archived(space: str, topic: str) -> int:
        reader = reader_of(own_cluster, space, topic=topic)
        work = MicroBatches(target, reader, [topic], progress=Progress("archive"), batch_rows=99, once=True)
        try:
            work.run(lambda: 0, interval_s=0, merges_again=False)
        finally:
            reader.stop()
        return work.rows

    first, second = spaces
    assert archived(first, "t") == (3 if first else 7)
    noted = target.offsets
    with pytest.raises(ConfigError, match=OTHER if first else CANNOT_TELL):
        archived(second, "t")
    # Its other topics are of one namespace too.
    with Producer(own_cluster.namesrv, "spaces", namespace=second) as producer:
        producer.send("u", b"0")
    with pytest.raises(ConfigError, match=OTHER if first else CANNOT_TELL):
        archived(second, "u")
    assert target.offsets == noted


def test_a_replay_reads_a_namespace_by_offsets_of_its_own(own_cluster: Cluster) -> None:
    reader = topic_reader(Connection(own_cluster.namesrv, "two"), "t", READ_SCHEMA)
    begin, end = reader.initialOffset(), reader.end_now()
    rows = [
        body
        for queue, last in queue_offsets("t", end).items()
        for batch in read_offsets(reader, "t", queue, 0, last, made_of(begin))
        for body in batch.column("body").to_pylist()
    ]
    assert sorted(rows) == [b"%d" % i for i in range(5)]
    reader.stop()


@pytest.mark.every_spark
def test_a_query_with_another_namespace_ends_with_one_line(
    spark: SparkSession, own_cluster: Cluster, tmp_path: Path
) -> None:
    def run(space: str) -> list[int]:
        frame = spark.readStream.format("rocketmq").options(**options_of(own_cluster, space, columns="body")).load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return run_to_end(writer.trigger(availableNow=True).start)

    assert run("one") == [3]
    for space in ("two", ""):
        with pytest.raises(StreamingQueryException, match=OTHER):
            run(space)
    with Producer(own_cluster.namesrv, "spaces", namespace="one") as producer:
        producer.send("t", b"3")
    assert run("one") == [1]
    assert spark.read.parquet(str(tmp_path / "out")).count() == 4


@pytest.mark.every_spark
def test_a_parquet_archive_with_another_namespace_ends_with_one_line(
    spark: SparkSession, own_cluster: Cluster, tmp_path: Path
) -> None:
    def run(space: str) -> int:
        return archive(spark, Connection(own_cluster.namesrv, space), ["t"], tmp_path / "archive").rows

    assert run("two") == 5
    with pytest.raises(ConfigError, match="topics of namespace 'two' were read up to here"):
        run("one")
    assert run("two") == 0
