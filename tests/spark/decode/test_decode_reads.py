"""The option decode of reads, and decode(df): bodies in JSON, Avro and Protobuf, on batches and streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.available_now import run_to_end
from tests.spark.decode.framed_bodies import join
from tests.spark.decode.orders import ORDERS, V1, V2, avro, order_class, order_set
from tests.spark.decode.registry_server import registry_server
from tests.spark.scrapes import scrape_until
from tests.spark.topics import messages_of

from rocketspark import Message, Producer
from rocketspark.errors import ConfigError
from rocketspark.spark import bad_rows, decode
from rocketspark.spark.metrics import listen
from rocketspark.spark.pipelines import sql
from rocketspark.spark.pipelines.parts.sql_file import options_of, parse_sql, parse_yaml
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "decode: option `decode` of reads and `decode(df, …)`: JSON (given, inferred), Avro, Protobuf; batch and "
    "stream, `pipeline sql` in both forms"
)

DDL = "id INT, fruit STRING, price DOUBLE"
JSON_BODIES = [json.dumps(order).encode() for order in ORDERS]


@pytest.fixture
def filled(producer: Producer, make_topic: Callable[..., str]) -> Callable[[list[bytes]], str]:
    """filled(bodies): a topic of one queue that has them."""

    def fill(bodies: list[bytes]) -> str:
        topic = make_topic(queues=1, brokers=1)
        producer.send_batch([Message(topic=topic, body=body) for body in bodies])
        return topic

    return fill


def read(spark: SparkSession, cluster: Cluster, topic: str, **options: Any) -> DataFrame:
    given = {"namesrv": cluster.namesrv, "topic": topic, "columns": "queueOffset,body", **options}
    return spark.read.format("rocketmq").options(**given).load()


def values(frame: DataFrame) -> list[dict[str, Any]]:
    rows = frame.where("value is not null").select("value").collect()
    return sorted((row.value.asDict(recursive=True) for row in rows), key=lambda value: int(value["id"]))


@pytest.mark.every_spark
def test_json_keeps_bad_rows(spark: SparkSession, cluster: Cluster, filled: Callable[[list[bytes]], str]) -> None:
    topic = filled([*JSON_BODIES, b"not JSON", b'{"id": "x"}'])
    frame = read(spark, cluster, topic, decode="json", decodeSchema=DDL)
    assert frame.columns == ["queueOffset", "body", "value", "_decode_error"]
    rows = frame.collect()
    assert [row.value.asDict() for row in rows[:20]] == ORDERS
    assert [row._decode_error for row in rows[:20]] == [None] * 20
    bad = rows[20:]
    assert [(r.queueOffset, bytes(r.body), r.value) for r in bad] == [
        (20, b"not JSON", None),
        (21, b'{"id": "x"}', None),
    ]
    assert bad[0]._decode_error.startswith("the body is no JSON")
    assert bad[1]._decode_error == "the JSON does not fit the schema: Expected `int | null`, got `str` - at `$.id`"
    assert read(spark, cluster, topic, decode="json", decodeSchema=DDL, decodeMode="DROPMALFORMED").count() == 20
    with pytest.raises(Exception, match=r"BodyUndecodable.*queueOffset 20"):
        read(spark, cluster, topic, decode="json", decodeSchema=DDL, decodeMode="FAILFAST").collect()


def test_json_is_inferred(spark: SparkSession, cluster: Cluster, filled: Callable[[list[bytes]], str]) -> None:
    frame = read(spark, cluster, filled([*JSON_BODIES, b"[1]"]), decode="json", columns="value")
    assert frame.schema.simpleString() == "struct<value:struct<id:bigint,fruit:string,price:double>>"
    assert values(frame) == ORDERS


@pytest.mark.every_spark
def test_avro_of_several_schemas(spark: SparkSession, cluster: Cluster, filled: Callable[[list[bytes]], str]) -> None:
    with registry_server(user="us", password="pw-7134") as registry:
        one, two = registry.add("orders", V1), registry.add("orders", V2)
        new = {"id": 99, "fruit": "fig", "price": 0.5, "note": "ripe"}
        good = [join(one, avro(order)) for order in ORDERS] + [join(two, avro(new, V2))]
        wrong = [join(77, b"x"), b"\x01abcdef", b"\0\0", join(one, avro(ORDERS[0])[:-1]), good[0] + b"."]
        topic = filled(good + wrong)
        options = {
            "decode": "avro",
            "schemaRegistry": registry.url,
            "schemaRegistrySubject": "orders",
            "schemaRegistryUser": "us",
            "schemaRegistryPassword": "pw-7134",
        }
        frame = read(spark, cluster, topic, **options)
        assert values(frame) == [order | {"note": None} for order in ORDERS] + [new]
        told = [r[0] for r in frame.where("value is null").orderBy("queueOffset").select("_decode_error").collect()]
        assert told == [
            f"schema registry {registry.url} has no schema id 77: check it, and that this is the right registry",
            "the magic byte is 1, not 0: the body is not in the wire format of a schema registry",
            "2 bytes are too short for a magic byte and a schema id",
            "the body is truncated: it ends within a value of the schema",
            "1 bytes are left behind the value: the schema is another one",
        ]
        assert "pw-7134" not in frame._jdf.queryExecution().toString()  # type: ignore[operator]
        # The same by the function, over rows that are there already.
        rest = {name: value for name, value in options.items() if name != "decode"}
        by_function = decode(read(spark, cluster, topic), "avro", **rest)
        assert values(by_function) == values(frame)
        assert "pw-7134" not in by_function._jdf.queryExecution().toString()  # type: ignore[operator]
        assert by_function.where("_decode_error is not null").count() == 5


@pytest.mark.every_spark
def test_protobuf_of_a_stream(
    spark: SparkSession, cluster: Cluster, filled: Callable[[list[bytes]], str], tmp_path: Path
) -> None:
    make = order_class()
    bodies = [
        make(**ORDERS[0], big=2**64 - 1, kind=1, counts={"a": 3}, items=[{"sku": "s"}], card="c").SerializeToString(),
        make(id=1, fruit="é", cash=7, maybe={"value": 5}, at={"seconds": 1, "nanos": 2000}).SerializeToString(),
        b"\xff",
    ]
    (tmp_path / "shop.desc").write_bytes(order_set())
    stream = (
        spark.readStream.format("rocketmq")
        .option("namesrv", cluster.namesrv)
        .option("topic", filled(bodies))
        .option("startingOffsets", "earliest")
        .option("columns", "value,_decode_error")
        .option("decode", "protobuf")
        .option("decodeDescriptorFile", str(tmp_path / "shop.desc"))
        .option("decodeMessage", "shop.Order")
        .load()
    )
    writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/checkpoint")
    run_to_end(lambda: writer.trigger(availableNow=True).start(f"{tmp_path}/out"))
    rows = [row.asDict(recursive=True) for row in spark.read.parquet(f"{tmp_path}/out").collect()]
    good = sorted((row["value"] for row in rows if row["value"]), key=lambda value: value["id"])
    assert good[0] | {"big": int(good[0]["big"])} == {
        "id": 0,
        "fruit": "pear",
        "price": 0.0,
        "big": 2**64 - 1,
        "kind": "PAID",
        "counts": {"a": 3},
        "items": [{"sku": "s"}],
        "at": None,
        "maybe": None,
        "card": "c",
        "cash": None,
    }
    assert (good[1]["fruit"], good[1]["card"], good[1]["cash"], good[1]["maybe"]) == ("é", None, 7, 5)
    assert good[1]["at"].timestamp() == 1.000002
    assert good[1]["items"] == []
    (bad,) = (row for row in rows if row["value"] is None)
    assert bad["_decode_error"].startswith("the body is no message of the schema")


def test_bad_rows_go_to_a_topic(
    spark: SparkSession, cluster: Cluster, filled: Callable[[list[bytes]], str], make_topic: Callable[..., str]
) -> None:
    source, target, other = filled([JSON_BODIES[0], b"no", b"JSON"]), make_topic(), make_topic()
    options = {"decode": "json", "decodeSchema": DDL, "decodeMode": "dropmalformed", "decodeErrorTopic": target}
    # Ordering would read twice, and send twice.
    assert [r.value.asDict() for r in read(spark, cluster, source, **options).collect()] == ORDERS[:1]
    found = sorted(messages_of(cluster.namesrv, target), key=lambda m: m.properties["originQueueOffset"])
    assert [m.body for m in found] == [b"no", b"JSON"]
    told = {name: value for name, value in found[1].properties.items() if name in ("decodeError",) or "origin" in name}
    assert told.pop("decodeError").startswith("the body is no JSON: ")
    wanted = {"originTopic": source, "originBroker": "broker-a", "originQueueId": "0", "originQueueOffset": "2"}
    assert told == wanted
    frame = decode(read(spark, cluster, source, columns=""), "json", decodeSchema=DDL)
    bad_rows(frame).write.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", other).mode(
        "append"
    ).save()
    again = sorted(messages_of(cluster.namesrv, other), key=lambda m: m.properties["originQueueOffset"])
    assert [m.body for m in again] == [b"no", b"JSON"]
    assert again[1].properties["originTopic"] == source


@pytest.mark.shows(
    "mended: `decode(df, …)`: a frame with a dot in a column's name (Avro, Protobuf) or two columns of one "
    "name failed in Spark; JSON that is no UTF-8 was a good row with other characters"
)
def test_json_by_spark(spark: SparkSession) -> None:
    bodies: list[Any] = [*JSON_BODIES, b"no", b"", None, b'{"id": "x"}', b"[]"]
    frame = spark.createDataFrame([(bytearray(b) if b is not None else None,) for b in bodies], "body binary")
    found = decode(frame, "json", decodeSchema=DDL)
    assert values(found) == ORDERS
    bad = found.where("_decode_error is not null").collect()
    assert [bytes(row.body) for row in bad] == [b"no", b"", b'{"id": "x"}', b"[]"]
    assert found.where("body is null").collect()[0].asDict() == {"body": None, "value": None, "_decode_error": None}
    assert values(decode(frame, "json", decodeSchema=DDL, decodeMode="DROPMALFORMED")) == ORDERS
    with pytest.raises(Exception, match="a body cannot be decoded"):
        decode(frame, "json", decodeSchema=DDL, decodeMode="FAILFAST").select("value").collect()
    assert values(decode(frame.limit(20), "json")) == ORDERS
    (torn,) = decode(
        spark.createDataFrame([(bytearray(b'{"id": 1, "fruit": "\xc3("}'),)], "body binary"), "json", decodeSchema=DDL
    ).collect()
    assert (torn.value, torn._decode_error) == (None, "the body is no JSON: it is no UTF-8 text")
    framed = spark.createDataFrame([(bytearray(join(3, JSON_BODIES[1])),), (bytearray(JSON_BODIES[2]),)], "body binary")
    found = decode(framed, "json", decodeSchema=DDL, decodeWireFormat="confluent")
    assert values(found) == ORDERS[1:2]
    assert [r[0] for r in found.where("value is null").select("_decode_error").collect()] == [
        "the body is not in the wire format of a schema registry"
    ]


@pytest.mark.shows(
    "mended: `decode(df, …)`: a frame with a dot in a column's name (Avro, Protobuf) or two columns of one "
    "name failed in Spark; JSON that is no UTF-8 was a good row with other characters"
)
def test_columns_of_odd_names_stay(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(bytearray(avro(ORDERS[1])), 1, 2, "t")], "`a.b` binary, x int, y int, topic string")
    frame = frame.withColumnRenamed("y", "x")
    for format_, schema in (("avro", V1), ("json", DDL)):
        found = decode(frame, format_, column="a.b", decodeSchema=schema)
        assert found.columns == ["a.b", "x", "x", "topic", "value", "_decode_error"]
        (row,) = found.collect()
        assert tuple(row[1:4]) == (1, 2, "t")
        assert (row[5] is None) == (format_ == "avro")
    with pytest.raises(Exception, match=r"BodyUndecodable.*\(topic t\)"):
        decode(frame, "avro", column="a.b", decodeSchema='"boolean"', decodeMode="FAILFAST").collect()


@pytest.mark.shows("bad rows of option `decode` in `pipeline sql`: its metrics, `bad_rows` of each sink, an alert")
def test_in_a_pipeline(
    spark: SparkSession, cluster: Cluster, filled: Callable[[list[bytes]], str], tmp_path: Path
) -> None:
    source = filled([avro(order) for order in ORDERS] + [b"\x02"])
    (tmp_path / "order.avsc").write_text(V1)
    text = f"""
CREATE STREAMING SOURCE orders USING rocketmq OPTIONS (topic '{source}', startingOffsets 'earliest', decode 'avro',
  decodeSchemaFile '{tmp_path}/order.avsc');
CREATE SINK good USING parquet OPTIONS (path '{tmp_path}/good') AS SELECT value.* FROM orders WHERE value IS NOT NULL;
CREATE SINK bad USING parquet OPTIONS (path '{tmp_path}/bad') AS SELECT body, _decode_error FROM orders
  WHERE value IS NULL;
"""
    declared = parse_sql(text, "p")
    text = f"""
sources:
  - name: orders
    topic: {source}
    stream: true
    options: {{startingOffsets: earliest, decode: avro, decodeSchemaFile: {tmp_path}/order.avsc}}
sinks:
  - {{name: good, sql: "SELECT value.* FROM orders WHERE value IS NOT NULL", format: parquet, path: {tmp_path}/good}}
  - {{name: bad, sql: "SELECT body, _decode_error FROM orders WHERE value IS NULL", format: parquet,
      path: {tmp_path}/bad}}
"""
    plan = parse_yaml(text, "p")
    # The same either way.
    (told,), (source_told,) = ([options_of(one) for one in made.sources] for made in (plan, declared))
    assert told == source_told
    with listen(spark) as listening:
        done = sql.run(spark, plan, cluster.namesrv, checkpoint=tmp_path / "checkpoints")
        ends = "rocketspark_stream_ends_total"
        told = scrape_until(
            listening.url, lambda s: all(s.value(ends, query=sink, outcome="stopped") == 1 for sink in ("good", "bad"))
        )
    # Each sink reads for itself.
    assert [(sink.sink, sink.rows, sink.bad_rows) for sink in done.sinks] == [("good", 21, 1), ("bad", 21, 1)]
    assert [told.value("rocketspark_stream_bad_rows_total", query=sink.sink) for sink in done.sinks] == [1, 1]
    good = spark.read.parquet(f"{tmp_path}/good").orderBy("id").collect()
    assert [row.asDict() for row in good] == ORDERS
    assert [bytes(row.body) for row in spark.read.parquet(f"{tmp_path}/bad").collect()] == [b"\x02"]


def test_wrong_calls(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("x",)], "body string")
    with pytest.raises(ConfigError, match="did you mean 'decodeSchema'"):
        decode(frame, "json", decodeShema="id INT")
    with pytest.raises(ConfigError, match="there is no column 'b'; there are: body"):
        decode(frame, "json", column="b")
