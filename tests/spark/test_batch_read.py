"""spark.read: exactly the messages that were sent, whole or in part, and clear errors."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from tests.spark.conftest import Place

from rocketspark.client import Producer, validators
from rocketspark.model import Message
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.testing import Cluster

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.shows(
        "offsets: earliest, latest, committed of a group, JSON by queue; times, exact at every edge",
    ),
]

COUNT = 50_000


@pytest.fixture(scope="module")
def loaded(
    make_topic: Callable[..., str], load: Callable[..., dict[Place, Message]]
) -> tuple[str, dict[Place, Message]]:
    """A topic of 50,000 messages and what stands where."""
    topic = make_topic()
    return topic, load(topic, COUNT)


@pytest.fixture
def read(spark: SparkSession, cluster: Cluster) -> Callable[..., DataFrame]:
    """read(topic, schema=None, **options)"""

    def load(topic: str, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic)
        reader = reader.options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return load


def expected(place: Place, message: Message) -> tuple[Any, ...]:
    broker, queue_id, offset = place
    properties = message.properties
    return (broker, queue_id, offset, message.body, message.tag, list(message.keys), message.flag, properties)


@pytest.mark.shows("`seek_to_beginning`, `ReceivedMessage.physical_offset`, Spark's column `physicalOffset`")
def test_the_physical_offset_has_two_names(
    read: Callable[..., DataFrame], loaded: tuple[str, dict[Place, Message]]
) -> None:
    topic, _ = loaded
    rows = read(topic, "physicalOffset long, offsetMessageId string, logPosition long").collect()
    assert [r.physicalOffset for r in rows] == [r.logPosition for r in rows]
    # The broker's id ends in it, as 16 hex digits.
    assert sorted(r.physicalOffset for r in rows) == sorted(int(r.offsetMessageId[-16:], 16) for r in rows)
    alone = read(topic, "physicalOffset long").collect()
    assert sorted(r[0] for r in alone) == sorted(r.logPosition for r in rows)
    assert len(rows) == COUNT


@pytest.mark.shows("option `columns`: its columns alone, decoded faster")
def test_the_option_columns_gives_these_alone(
    spark: SparkSession, cluster: Cluster, read: Callable[..., DataFrame], loaded: tuple[str, dict[Place, Message]]
) -> None:
    topic, placed = loaded
    frame = read(topic, columns="body, tag,queueOffset")
    assert frame.schema.simpleString() == "struct<body:binary,tag:string,queueOffset:bigint>"
    expected = sorted((m.body, m.tag, offset) for (_, _, offset), m in placed.items())
    assert sorted((bytes(r.body), r.tag, r.queueOffset) for r in frame.collect()) == expected
    assert sorted(bytes(r[0]) for r in frame.select("body").collect()) == [body for body, _, _ in expected]
    # A schema that says the same is none too many; another one is a mistake.
    assert read(topic, "tag string", columns="tag").count() == COUNT
    differ = error_of(read(topic, "tag string", columns="tag,body"))
    assert "ConfigError: option columns names tag, body, and the schema tag: leave one of them out" in differ
    with pytest.raises(Exception, match="there is no column 'value'; there are: topic, ") as unknown:
        read(topic, columns="tag,value")
    assert "Traceback" not in differ + str(unknown.value)
    options = f"namesrv '{cluster.namesrv}', topic '{topic}', columns 'tag,queueId'"
    spark.sql(f"CREATE TEMPORARY VIEW narrow USING rocketmq OPTIONS ({options})")
    try:
        assert spark.table("narrow").columns == ["tag", "queueId"]
        [row] = spark.sql("SELECT count(*) AS n, count(DISTINCT queueId) AS queues FROM narrow").collect()
        assert (row.n, row.queues) == (COUNT, len({queue_id for _, queue_id, _ in placed}))
    finally:
        spark.catalog.dropTempView("narrow")


@pytest.mark.shows("Spark: batch read")
def test_every_message_exactly(read: Callable[..., DataFrame], loaded: tuple[str, dict[Place, Message]]) -> None:
    topic, placed = loaded
    frame = read(topic)
    assert frame.schema == READ_SCHEMA
    rows = frame.collect()
    assert len(rows) == COUNT
    own = ("number", "uni")
    found = sorted(
        (
            (
                r.broker,
                r.queueId,
                r.queueOffset,
                bytes(r.body),
                r.tag,
                r["keys"],
                r.flag,
                {k: r.properties[k] for k in own},
            )
            for r in rows
        ),
        key=lambda t: t[:3],
    )
    assert found == [expected(place, message) for place, message in sorted(placed.items())]
    assert {r.topic for r in rows} == {topic}
    assert len({r.messageId for r in rows}) == COUNT
    assert all(r.messageId == r.properties["UNIQ_KEY"] for r in rows)
    assert len({r.offsetMessageId for r in rows}) == COUNT
    assert all(r.bornHost.startswith("127.0.0.1:") and r.storeHost.startswith("127.0.0.1:") for r in rows)
    assert all(r.bornTime <= r.storeTime for r in rows)
    assert all((r.storeTime - r.bornTime).total_seconds() < 60 for r in rows)


@pytest.mark.shows("Spark: a schema may name a subset")
def test_a_schema_names_the_columns_in_its_order(
    read: Callable[..., DataFrame], loaded: tuple[str, dict[Place, Message]]
) -> None:
    topic, placed = loaded
    frame = read(topic, "queueOffset long, body binary, tag string")
    assert frame.columns == ["queueOffset", "body", "tag"]
    found = frame.select(F.sum("queueOffset"), F.sum(F.length("body")), F.count("tag")).first()
    assert found is not None
    assert tuple(found) == (
        sum(offset for _, _, offset in placed),
        sum(len(m.body) for m in placed.values()),
        sum(m.tag is not None for m in placed.values()),
    )
    assert read(topic, "queueId int").count() == COUNT
    assert read(topic, "queueId int").select("queueId").distinct().count() == 2


def test_tags_are_filtered(read: Callable[..., DataFrame], loaded: tuple[str, dict[Place, Message]]) -> None:
    topic, placed = loaded
    rows = read(topic, tags="A || C").select("tag", "broker", "queueId", "queueOffset").collect()
    assert {(r.broker, r.queueId, r.queueOffset) for r in rows} == {p for p, m in placed.items() if m.tag in ("A", "C")}
    assert {r.tag for r in rows} == {"A", "C"}
    assert len(rows) == sum(m.tag in ("A", "C") for m in placed.values())


def test_tags_of_equal_hash_are_told_apart(read: Callable[..., DataFrame], producer: Producer, topic: str) -> None:
    # Both hash to 2112 in Java.
    for tag in ("Aa", "BB", "Aa"):
        producer.send(topic, tag.encode(), tag=tag)
    assert sorted(r.tag for r in read(topic, "tag string", tags="Aa").collect()) == ["Aa", "Aa"]
    assert [bytes(r.body) for r in read(topic, "body binary", tags="BB").collect()] == [b"BB"]


def test_offsets_as_json(read: Callable[..., DataFrame], loaded: tuple[str, dict[Place, Message]]) -> None:
    topic, _ = loaded
    start = {topic: {"broker-a": {"0": 100, "1": -1}, "broker-b": {"0": 7}}}
    end = {topic: {"broker-a": {"0": 120}, "broker-b": {"0": 9, "1": 3}}}
    rows = read(topic, startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)).collect()
    assert sorted((r.broker, r.queueId, r.queueOffset) for r in rows) == [
        *(("broker-a", 0, i) for i in range(100, 120)),
        *(("broker-b", 0, i) for i in range(7, 9)),
        *(("broker-b", 1, i) for i in range(3)),
    ]


@pytest.mark.parametrize(
    ("options", "partitions"),
    [({}, 4), ({"minPartitions": "10"}, 10), ({"maxRecordsPerPartition": "1000"}, 50)],
)
def test_partitions(
    read: Callable[..., DataFrame],
    loaded: tuple[str, dict[Place, Message]],
    options: dict[str, str],
    partitions: int,
) -> None:
    topic, _ = loaded
    frame = read(topic, "broker string, queueId int, queueOffset long", **options)
    found = frame.rdd.getNumPartitions()
    assert found >= partitions
    assert found <= partitions + 4
    assert frame.distinct().count() == COUNT


def test_several_topics(
    read: Callable[..., DataFrame], make_topic: Callable[..., str], load: Callable[..., dict[Place, Message]]
) -> None:
    one, two = make_topic(queues=1, brokers=1), make_topic(queues=1)
    load(one, 30)
    load(two, 50)
    counts = read(f"{one}, {two}", "topic string").groupBy("topic").count().collect()
    assert {r["topic"]: r["count"] for r in counts} == {one: 30, two: 50}


def test_empty_topic(read: Callable[..., DataFrame], topic: str) -> None:
    assert read(topic).collect() == []
    assert read(topic).count() == 0


def test_compressed_bodies_are_inflated(read: Callable[..., DataFrame], producer: Producer, topic: str) -> None:
    body = b"compress me " * 1000
    producer.send(topic, body)
    row = read(topic, "body binary, sysFlag int").first()
    assert row is not None
    assert bytes(row.body) == body
    assert row.sysFlag & 1


def test_offsets_gone_are_data_loss(read: Callable[..., DataFrame], topic: str, load: Callable[..., Any]) -> None:
    load(topic, 200)
    end = json.dumps({topic: {"broker-a": {"0": 100_000}}})
    said = error_of(read(topic, endingOffsets=end))
    assert "are gone" in said
    assert "failOnDataLoss" in said
    assert read(topic, endingOffsets=end, failOnDataLoss="false").count() == 200


def error_of(frame: DataFrame) -> str:
    with pytest.raises(Exception) as caught:
        frame.count()
    return str(caught.value)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


ERRORS: list[tuple[dict[str, str], str | None, str]] = [
    ({"namesrv": ""}, None, 'option namesrv is missing: .option("namesrv", "host:port")'),
    ({"topic": ""}, None, 'option topic is missing: .option("topic", "name")'),
    ({"namesrv": "nowhere"}, None, "'nowhere' is no address"),
    ({"topic": "no-such-topic"}, None, "no topic 'no-such-topic'"),
    ({"startingOffsets": "now"}, None, "option startingOffsets is 'now'"),
    ({"startingOffsets": '{"TOPIC": {"broker-z": {"0": 1}}}'}, None, "on broker 'broker-z', which is not there"),
    ({"minPartition": "3"}, None, "did you mean 'minPartitions'?"),
    ({}, "value binary", "there is no column 'value'; there are: topic string"),
    ({}, "body string", "column 'body' is binary, not string"),
]


@pytest.mark.parametrize(("options", "schema", "says"), ERRORS, ids=lambda v: str(v)[:40])
def test_errors_are_one_clear_line(
    read: Callable[..., DataFrame],
    loaded: tuple[str, dict[Place, Message]],
    options: dict[str, str],
    schema: str | None,
    says: str,
) -> None:
    topic, _ = loaded
    options = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    said = error_of(read(options.pop("topic", topic), schema, **options))
    assert says in said
    assert "Traceback" not in said


def test_wrong_address_is_named(read: Callable[..., DataFrame], topic: str) -> None:
    address = f"127.0.0.1:{closed_port()}"
    said = error_of(read(topic, namesrv=address))
    assert f"cannot connect to {address}" in said
    assert "Traceback" not in said


def test_sql(spark: SparkSession, cluster: Cluster, loaded: tuple[str, dict[Place, Message]]) -> None:
    topic, placed = loaded
    spark.sql(f"CREATE TEMPORARY VIEW m USING rocketmq OPTIONS (namesrv '{cluster.namesrv}', topic '{topic}')")
    try:
        row = spark.sql("SELECT count(*) AS n, max(CAST(properties['number'] AS INT)) AS top FROM m WHERE tag = 'B'")
        wanted = [int(m.properties["number"]) for m in placed.values() if m.tag == "B"]
        assert row.collect() == [Row(n=len(wanted), top=max(wanted))]
    finally:
        spark.catalog.dropTempView("m")


def test_a_table_of_the_catalog_gets_its_options_with_the_query(
    spark: SparkSession, cluster: Cluster, loaded: tuple[str, dict[Place, Message]]
) -> None:
    topic, placed = loaded
    spark.sql(f"CREATE TABLE bare USING rocketmq OPTIONS (namesrv '{cluster.namesrv}', topic '{topic}')")
    try:
        # Spark keeps none of them for a Python source: the error says what to do instead.
        said = error_of(spark.table("bare"))
        assert "option topic is missing" in said
        assert "TEMPORARY VIEW" in said
        asked = f"SELECT count(*) AS n FROM bare WITH ('namesrv'='{cluster.namesrv}', 'topic'='{topic}')"
        assert spark.sql(asked).collect() == [Row(n=len(placed))]
        assert spark.read.options(namesrv=cluster.namesrv, topic=topic).table("bare").count() == len(placed)
    finally:
        spark.sql("DROP TABLE bare")


@pytest.mark.shows("Spark's option compacted: a topic as the table of the last value of each key")
def test_the_last_value_of_each_key(
    spark: SparkSession,
    read: Callable[..., DataFrame],
    make_topic: Callable[..., str],
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(queues=2, brokers=1)
    monkeypatch.setattr(validators, "check_body", lambda *args: None)  # Of clients that send empty bodies.
    for i in range(30):
        producer.send(topic, b"" if i % 10 == 9 else b"%d" % i, keys=[f"k{i % 6}"], sharding_key=f"k{i % 6}")
    latest = read(topic, compacted="true")
    rows = latest.where("body < '27'").selectExpr("keys[0] AS key", "cast(body AS string) AS body").collect()
    assert sorted((row["key"], row["body"]) for row in rows) == [("k0", "24"), ("k1", "25"), ("k2", "26")]
    assert sorted(bytes(row["body"]) for row in latest.select("body").collect()) == [b"24", b"25", b"26", b"27", b"28"]
    stream = spark.readStream.format("rocketmq").options(namesrv="127.0.0.1:1", topic=topic, compacted="true").load()
    query = stream.writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="option compacted is for batch reads"):
        query.awaitTermination()
