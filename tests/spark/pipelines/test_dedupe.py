"""`pipeline dedupe`: each key goes on once, over restarts too; what has no key always does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from tests.spark.topics import bodies_of, messages_of

from rocketspark import Message, MessageQueue, Producer
from rocketspark.arrow.message_columns import schema_of
from rocketspark.cli.main import run as cli
from rocketspark.client import validators
from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines import dedupe
from rocketspark.spark.pipelines.connection import Connection, operations_of
from rocketspark.spark.pipelines.options import DedupeOptions
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows("`dedupe`: each key once within a while, over restarts")


def send(producer: Producer, topic: str, *messages: tuple[str, list[str]]) -> None:
    producer.send_batch(
        [
            Message(topic=topic, body=body.encode(), keys=keys, tag="T", properties={"n": body})
            for body, keys in messages
        ]
    )


def test_each_key_once_and_over_restarts(
    spark: SparkSession, cluster: Cluster, producer: Producer, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, target = make_topic(), make_topic()
    send(producer, source, ("1", ["a"]), ("1", ["a"]), ("2", ["b", "c"]), ("3", []), ("3", []))
    first = dedupe.run(spark, cluster.namesrv, source, target, checkpoint=tmp_path / "c")
    assert (first.rows, first.passed, first.repeated) == (5, 4, 1)
    send(producer, source, ("1", ["a"]), ("4", ["c"]), ("2", ["b", "c"]), ("3", []))
    again = dedupe.run(spark, cluster.namesrv, source, target, checkpoint=tmp_path / "c")
    assert (again.rows, again.passed, again.repeated) == (4, 2, 2)
    found = messages_of(cluster.namesrv, target)
    assert sorted(m.body for m in found) == [b"1", b"2", b"3", b"3", b"3", b"4"]
    assert {(m.body.decode(), tuple(m.keys), m.tag, m.properties["n"]) for m in found} == {
        ("1", ("a",), "T", "1"),
        ("2", ("b", "c"), "T", "2"),
        ("3", (), "T", "3"),
        ("4", ("c",), "T", "4"),
    }


@pytest.mark.shows("mended: `dedupe a,b …` drops messages without a key")
def test_what_a_clock_that_went_back_cannot_lose(
    spark: SparkSession,
    cluster: Cluster,
    producer: Producer,
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """An earlier run's clock was days ahead. Two topics hold messages without a key."""
    source, other, target = make_topic(queues=1, brokers=1), make_topic(queues=1, brokers=1), make_topic()
    where, sources = tmp_path / "c", f"{source},{other}"
    for topic in (source, other):
        send(producer, topic, (f"{topic} 1", []), (f"{topic} 2", ["a"]))
    first = dedupe.run(
        spark, cluster.namesrv, sources, target, checkpoint=where, options=DedupeOptions(delivery="at-least-once")
    )
    # Messages without a key stand at the same place of each topic.
    assert (first.rows, first.passed, first.repeated, first.refused) == (4, 3, 1, 0)
    newest = max((where / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    version, metadata, *offsets = newest.read_text().split("\n")
    ahead = json.loads(metadata)
    ahead["batchWatermarkMs"] += 5 * 86_400_000
    newest.write_text("\n".join([version, json.dumps(ahead), *offsets]))
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    send(producer, source, ("3", ["b"]), ("3", ["b"]), ("4", []))
    again = dedupe.run(
        spark, cluster.namesrv, sources, target, checkpoint=where, options=DedupeOptions(delivery="at-least-once")
    )
    assert (again.rows, again.passed, again.repeated) == (3, 2, 1)
    assert len(bodies_of(cluster.namesrv, target)) == 5


@pytest.mark.shows("mended: `dedupe` drops messages without a key of a topic that was made anew")
def test_a_topic_made_anew_has_no_message_of_the_old_one(
    spark: SparkSession, cluster: Cluster, producer: Producer, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Its messages stand where those of the old topic stood, whose places are remembered."""
    source, target = make_topic(queues=1, brokers=1), make_topic()
    where = Connection(cluster.namesrv, options={"failOnDataLoss": "false"})
    send(producer, source, ("old 1", []), ("old 2", ["a"]), ("old 3", []))
    assert dedupe.run(spark, where, source, target, checkpoint=tmp_path / "c").passed == 3
    with operations_of(where) as operations:
        operations.delete_topic(source)
        operations.create_topic(source, queue_count=1)
    send(producer, source, ("new 1", []), ("new 2", ["a"]), ("new 3", []))
    again = dedupe.run(spark, where, source, target, checkpoint=tmp_path / "c")
    assert (again.passed, again.repeated) == (2, 1)
    assert bodies_of(cluster.namesrv, target) == [b"new 1", b"new 3", b"old 1", b"old 2", b"old 3"]


# The text at the path is empty, which is no key.
KEYLESS = [b'{"id": "", "x": 1}', b'{"id": "", "x": 2}']


@pytest.mark.shows("mended: `dedupe --by json:…` takes an empty text for a key, and leaves all but one out")
@pytest.mark.parametrize(
    ("by", "bodies"),
    [
        ("json:$.id", [b"no json", b"no json", b'{"id": 1, "x": 1}']),
        ("body", [b"no json", b'{"id": 1, "x": 1}', b'{"id": 1, "x": 2}']),
        ("property:p", [b"no json", b'{"id": 1, "x": 1}']),
        ("messageId", [b"no json", b"no json", b'{"id": 1, "x": 1}', b'{"id": 1, "x": 2}']),
    ],
)
def test_what_tells_repetitions(
    spark: SparkSession,
    cluster: Cluster,
    producer: Producer,
    make_topic: Callable[..., str],
    tmp_path: Path,
    by: str,
    bodies: list[bytes],
) -> None:
    source, target = make_topic(queues=1, brokers=1), make_topic()
    for body, value in ((b'{"id": 1, "x": 1}', "u"), (b'{"id": 1, "x": 2}', "u"), (b"no json", "v"), (b"no json", "v")):
        producer.send(Message(topic=source, body=body, properties={"p": value}))
    for body in KEYLESS:
        producer.send(Message(topic=source, body=body))
    result = dedupe.run(
        spark,
        cluster.namesrv,
        source,
        target,
        checkpoint=tmp_path / "c",
        options=DedupeOptions(by=by, delivery="at-least-once"),
    )
    assert (result.rows, result.passed) == (6, len(bodies) + 2)
    assert bodies_of(cluster.namesrv, target) == sorted([*bodies, *KEYLESS])


def test_the_command(
    spark: SparkSession,
    cluster: Cluster,
    producer: Producer,
    make_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = make_topic(), make_topic()
    send(producer, source, ("1", ["a"]), ("1", ["a"]))
    common = ["pipeline", "dedupe", source, target, "-n", cluster.namesrv, "--json"]
    assert cli([*common, "--within", "2d", "--checkpoint", str(tmp_path / "c")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["source"], told["target"], told["rows"], told["passed"], told["repeated"]) == (source, target, 2, 1, 1)
    assert cli([*common, "--within", "soon"]) == 2
    assert "--within is 'soon': a time such as 30m" in capsys.readouterr().err
    assert cli([*common, "--by", "colour"]) == 2
    assert "--by is 'colour'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"), [("30m", "30 minutes"), ("1h", "1 hours"), (" 2 days ", "2 days"), ("45s", "45 seconds")]
)
def test_durations(text: str, said: str) -> None:
    assert dedupe.duration(text) == said


@pytest.mark.parametrize("text", ["", "0m", "1", "-1h", "1 week", "1h30m"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--within is"):
        dedupe.duration(text)


@pytest.mark.shows("mended: restore and dedupe stop for good at a message they may not write")
def test_rows_that_may_not_be_written_are_told_with_their_place() -> None:
    schema = schema_of()
    rows = [
        {"topic": "t", "broker": "b", "queueId": 0, "queueOffset": i, "body": b"x" * (i != 1), "properties": {}}
        | {"tag": "a\x01" if i == 2 else "a"}
        for i in range(4)
    ]
    rows[3]["properties"] = {"__SHARDINGKEY": "\x02"}
    reasons = dedupe._reasons(pa.RecordBatch.from_pylist(rows, schema), "T").to_pylist()
    assert [bool(why) for why in reasons] == [False, True, True, True]
    assert reasons[1].startswith("t/b/0/1: a row's body is empty")
    assert reasons[2].startswith("t/b/0/2: a row's tag holds the character 0x01")
    assert reasons[3].startswith("t/b/0/3: a row's shardingKey holds the character 0x01")


@pytest.mark.shows("mended: `dedupe` drops a message because one with its key, which it may not write, came before")
def test_a_message_that_may_not_be_written_leaves_its_key_to_the_next(
    spark: SparkSession,
    cluster: Cluster,
    producer: Producer,
    make_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = make_topic(queues=1, brokers=1), make_topic()
    monkeypatch.setattr(validators, "check_body", lambda *args: None)  # Of clients that send empty bodies.
    for body in (b"", b"good", b"later"):
        producer.send(source, body, keys=["k"])
    done = dedupe.run(spark, cluster.namesrv, source, target, checkpoint=tmp_path / "c")
    assert (done.rows, done.passed, done.repeated, done.refused) == (3, 1, 1, 1)
    assert bodies_of(cluster.namesrv, target) == [b"good"]


class OtherOrder(dedupe.SeenReader):
    """Its partitions come the other way round, as the parts of a shuffle do where they are fetched from elsewhere."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return super().partitions(start, end)[::-1]


class OtherSource(dedupe.SeenSource):
    """The source of such a reader."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        made = super().streamReader(schema)
        getattr(made, "_reader", made).__class__ = OtherOrder
        return made


@pytest.mark.shows("mended: `dedupe` ends for good if Spark repeats a committed batch with the other message of a key")
def test_a_repeated_batch_may_choose_another_message_of_a_key(
    spark: SparkSession,
    cluster: Cluster,
    producer: Producer,
    make_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver died after brokers had committed the batch, and before Spark noted it."""
    source, target = make_topic(queues=2, brokers=1), make_topic()
    for queue_id in (0, 1):
        place = MessageQueue(source, "broker-a", queue_id)
        producer.send(Message(topic=source, body=b"in %d" % queue_id, keys=["k"]), queue=place)
    dedupe.run(spark, cluster.namesrv, source, target, checkpoint=tmp_path)
    [passed] = bodies_of(cluster.namesrv, target)
    for name in ("commits/0", "commits/1", "offsets/1"):
        for file in (tmp_path / name, tmp_path / f"{name.replace('/', '/.')}.crc"):
            file.unlink(missing_ok=True)
    monkeypatch.setattr(dedupe, "SeenSource", OtherSource)
    again = dedupe.run(spark, cluster.namesrv, source, target, checkpoint=tmp_path)
    assert (again.rows, again.passed, again.repeated) == (2, 1, 1)
    assert bodies_of(cluster.namesrv, target) == [passed]


@pytest.mark.shows("mended: `dedupe` sums recentProgress")
def test_reports_are_counted_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    counts = dedupe._Counts(Progress("dedupe", sys.stdout))
    for refused in (0, 2):
        counts.add(
            {
                "stateOperators": [
                    {"customMetrics": {"numDroppedDuplicateRows": "3"}, "numRowsDroppedByWatermark": 0},
                ],
                "observedMetrics": {
                    "dedupe": {"passed": 5},
                    "dedupe refused": {"refused": refused, "first": "t/b/0/1: \x1b[0m"},
                },
            }
        )
    assert (counts.passed, counts.repeated, counts.refused, counts.late) == (10, 6, 2, 0)
    assert capsys.readouterr().out == "dedupe: set aside: message t/b/0/1: \\x1b[0m and 1 more\n"


def test_what_is_written_is_not_read_too() -> None:
    with pytest.raises(ConfigError, match="the target 'b' is read too"):
        dedupe.run(None, "127.0.0.1:1", "a, b", "b", checkpoint="c")  # type: ignore[arg-type]


def test_a_checkpoint_may_be_called_anything(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a[1]{b,c}*?"
    assert dedupe.watermark_of(spark, str(folder)) == 0
    (folder / "offsets").mkdir(parents=True)
    for number, watermark_ms in enumerate((5, 9, 7)):
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":{watermark_ms}}}\n{{"t":{{}}}}')
    assert dedupe.watermark_of(spark, str(folder)) == 9
