"""option("store", DIR): what a broker's files hold, read without it, equals what the broker gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from tests.spark.conftest import Place
from tests.spark.lakehouse.s3 import ACCESS_KEY, SECRET_KEY, s3_store
from tests.spark.test_batch_read import error_of
from tests.support.golden_stores import unpack_all
from tests.unit.store.readonly.test_tier_in_objects import copy
from tests.unit.store.tiered.test_java_tier import VECTOR

from rocketspark.client import Producer
from rocketspark.model import Message
from rocketspark.store.readonly.file_places import ObjectStore
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "`store`: a store directory read directly, live, backed up, killed or damaged; ours and Apache's",
)

COUNT = 3000


@pytest.fixture(scope="module")
def loaded(
    make_topic: Callable[..., str], load: Callable[..., dict[Place, Message]]
) -> tuple[str, dict[Place, Message]]:
    """A topic of two brokers and what stands where."""
    topic = make_topic()
    return topic, load(topic, COUNT)


@pytest.fixture
def stores(cluster: Cluster) -> str:
    """Both brokers' store folders, as the option takes them."""
    return f"{cluster.store}/broker-a, {cluster.store}/broker-b"


@pytest.fixture
def read(spark: SparkSession, stores: str) -> Callable[..., DataFrame]:
    """read(topic, schema=None, **options) from the running brokers' files."""

    def load(topic: str, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("rocketmq").option("store", stores).option("topic", topic).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return load


def in_order(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda r: (r.topic, r.broker, r.queueId, r.queueOffset))


def test_all_columns_equal_those_of_the_brokers(
    spark: SparkSession,
    cluster: Cluster,
    read: Callable[..., DataFrame],
    loaded: tuple[str, dict[Place, Message]],
    producer: Producer,
) -> None:
    topic, placed = loaded
    producer.send(topic, b"compress me " * 1000)
    direct = in_order(read(topic))
    brokers = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic).load()
    assert direct == in_order(brokers)
    assert {(r.broker, r.queueId, r.queueOffset) for r in direct} >= placed.keys()
    assert len(direct) == COUNT + 1


def test_the_physical_offset_has_two_names(
    read: Callable[..., DataFrame], loaded: tuple[str, dict[Place, Message]]
) -> None:
    rows = read(loaded[0], "physicalOffset long, logPosition long, offsetMessageId string").collect()
    assert len(rows) >= COUNT
    assert [r.physicalOffset for r in rows] == [r.logPosition for r in rows]
    assert [r.physicalOffset for r in rows] == [int(r.offsetMessageId[-16:], 16) for r in rows]


def test_options_of_a_read_hold(read: Callable[..., DataFrame], loaded: tuple[str, dict[Place, Message]]) -> None:
    topic, placed = loaded
    start = {topic: {"broker-a": {"0": 100, "1": -1}, "broker-b": {"0": 7}}}
    end = {topic: {"broker-a": {"0": 120}, "broker-b": {"0": 9, "1": 3}}}
    schema = "topic string, queueOffset long, broker string, queueId int, tag string"
    rows = in_order(read(topic, schema, startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)))
    assert [(r.broker, r.queueId, r.queueOffset) for r in rows] == [
        *(("broker-a", 0, i) for i in range(100, 120)),
        *(("broker-b", 0, i) for i in range(7, 9)),
        *(("broker-b", 1, i) for i in range(3)),
    ]
    frame = read(topic, schema, tags="A || C", maxRecordsPerPartition="200")
    assert frame.rdd.getNumPartitions() >= COUNT // 200
    found = {(r.broker, r.queueId, r.queueOffset): r.tag for r in frame.collect()}
    assert found == {place: m.tag for place, m in placed.items() if m.tag in ("A", "C")}


def test_patterns_assigned_queues_and_namespaces_hold(
    spark: SparkSession, cluster: Cluster, stores: str, make_topic: Callable[..., str], load: Callable[..., Any]
) -> None:
    name = make_topic(name="space-1%store-pattern-a")
    load(name, 40)
    reader = spark.read.format("rocketmq").option("store", stores).schema("topic string, queueId int")
    spaced = reader.option("topicPattern", "store-pattern-.*").option("namespace", "space-1").load().collect()
    assert [r.topic for r in spaced] == ["store-pattern-a"] * 40
    reader = spark.read.format("rocketmq").option("store", stores).schema("topic string, queueId int")
    assert {r.topic for r in reader.option("topicPattern", "space.*store-pattern-.").load().collect()} == {name}
    reader = spark.read.format("rocketmq").option("store", stores).schema("topic string, queueId int")
    assert {r.queueId for r in reader.option("assign", json.dumps({name: [1]})).load().collect()} <= {1}


def test_a_time_chooses_as_it_does_through_brokers(
    spark: SparkSession, cluster: Cluster, read: Callable[..., DataFrame], loaded: tuple[str, dict[Place, Message]]
) -> None:
    topic, _ = loaded
    times = sorted(r.storeTime.timestamp() for r in read(topic, "storeTime timestamp").collect())
    middle = str(round(times[len(times) // 2] * 1000))
    schema = "topic string, broker string, queueId int, queueOffset long"
    for option in ("startingTimestamp", "endingTimestamp"):
        found = in_order(read(topic, schema, **{option: middle}))
        brokers = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic)
        assert found == in_order(brokers.option(option, middle).schema(schema).load())
        assert found


def test_filters_of_a_query_leave_the_same_rows_pushed_down_or_not(
    spark: SparkSession, read: Callable[..., DataFrame], loaded: tuple[str, dict[Place, Message]]
) -> None:
    topic, placed = loaded
    expected = sorted(place for place, m in placed.items() if m.tag == "B" and place[1] == 1 and 20 <= place[2] < 400)
    assert expected
    found = []
    for on in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", on)
        try:
            frame = read(topic, "broker string, queueId int, queueOffset long, tag string, storeTime timestamp")
            frame = frame.where(
                "tag = 'B' and queueId = 1 and queueOffset between 20 and 399 and storeTime > '2020-01-01'"
            )
            found.append(sorted((r.broker, r.queueId, r.queueOffset) for r in frame.collect()))
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found == [expected, expected]
    sql = read(topic, "broker string, queueId int, queueOffset long", sql="TAGS = 'B' AND number > 100").collect()
    wanted = sorted(p for p, m in placed.items() if m.tag == "B" and int(m.properties["number"]) > 100)
    assert sorted((r.broker, r.queueId, r.queueOffset) for r in sql) == wanted


def test_a_backup_is_read_without_its_broker(spark: SparkSession, tmp_path: Path) -> None:
    with run_cluster(store=tmp_path) as running:
        with Producer(running.namesrv, "backup") as producer:
            producer.send_batch([Message(topic="backup-topic", body=b"%d" % i) for i in range(100)])
        shutil.copytree(tmp_path / "broker-a", tmp_path / "copy")
    for folder in ("broker-a", "copy"):
        frame = spark.read.format("rocketmq").option("store", f"{tmp_path}/{folder}").option("topic", "backup-topic")
        rows = frame.schema("body binary, broker string").load().collect()
        assert sorted(int(r.body) for r in rows) == list(range(100))
        assert {r.broker for r in rows} == {folder}
    named = frame.option("brokerName", "broker-a").schema("broker string").load()
    assert {r.broker for r in named.collect()} == {"broker-a"}


@pytest.mark.shows("second tier: Spark reads a broker's folder in it, and one in an object store")
def test_a_second_tier_is_read_without_its_broker(spark: SparkSession, tmp_path: Path) -> None:
    unpack_all(VECTOR, tmp_path)
    folder = f"{tmp_path}/running/tier/212d6b50_DefaultCluster/broker-a"
    with s3_store("bucket") as server:
        place = ObjectStore(f"http://127.0.0.1:{server.port}", ACCESS_KEY, SECRET_KEY)
        copy(Path(folder), place, "s3://bucket/tier/cluster/broker-b")
        (tmp_path / "secret").write_text(SECRET_KEY)
        stores = {"store": f"{folder},s3a://bucket/tier/cluster/broker-b", "topic": "base"}
        keys = {"objectStoreAccessKey": ACCESS_KEY, "objectStoreSecretKeyFile": f"{tmp_path}/secret"}
        frame = spark.read.format("rocketmq").options(**stores, **keys, objectStoreEndpoint=place.endpoint)
        rows = frame.schema("body binary, broker string, queueId int, queueOffset bigint").load().collect()
    bodies = {(r.broker, r.queueId, r.queueOffset): bytes(r.body) for r in rows}
    assert bodies == {(name, n % 2, n // 2): b"%d" % n * 50 for n in range(120) for name in ("broker-a", "broker-b")}
    assert len(rows) == 240


ERRORS: list[tuple[dict[str, str], str]] = [
    ({"store": "/nowhere/at/all"}, "there is no directory /nowhere/at/all: give a broker's storePathRootDir"),
    ({"store": "STORE"}, "STORE holds no commitlog/: the stores in it are STORE/broker-a, STORE/broker-b"),
    ({"topic": "no-such-topic"}, "no topic 'no-such-topic' in "),
    ({"namesrv": "127.0.0.1:9876"}, "options store and namesrv: one reads files, the other asks servers"),
    ({"brokerName": "a"}, "option brokerName has 1 names for 2 stores"),
    ({"startingOffsets": '{"TOPIC": {"broker-z": {"0": 1}}}'}, "on broker 'broker-z', which is not there"),
    ({"endingOffsets": '{"TOPIC": {"broker-a": {"0": 1000000}}}'}, "are gone"),
]


@pytest.mark.parametrize(("options", "says"), ERRORS, ids=lambda v: str(v)[:40])
def test_errors_are_one_clear_line(
    cluster: Cluster,
    read: Callable[..., DataFrame],
    loaded: tuple[str, dict[Place, Message]],
    options: dict[str, str],
    says: str,
) -> None:
    topic, _ = loaded
    options = {name: v.replace("TOPIC", topic).replace("STORE", str(cluster.store)) for name, v in options.items()}
    said = error_of(read(options.pop("topic", topic), **options))
    assert says.replace("STORE", str(cluster.store)) in said
    assert "Traceback" not in said


def test_a_stream_says_what_to_do(spark: SparkSession, stores: str, tmp_path: Path) -> None:
    stream = spark.readStream.format("rocketmq").option("store", stores).option("topic", "t")
    query = stream.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="option store is for batch reads: a stream reads from brokers") as caught:
        query.processAllAvailable()
    assert "Traceback" not in str(caught.value)


def test_damage_is_one_clear_line_or_left_out(spark: SparkSession, tmp_path: Path) -> None:
    with run_cluster(store=tmp_path) as running, Producer(running.namesrv, "damage") as producer:
        producer.send_batch([Message(topic="damaged", body=b"body %d" % i) for i in range(100)])
    log = tmp_path / "broker-a" / "commitlog" / f"{0:020d}"
    content = log.read_bytes()
    log.write_bytes(content.replace(b"body 42", b"body 24"))
    frame = spark.read.format("rocketmq").option("store", f"{tmp_path}/broker-a").option("topic", "damaged")
    said = error_of(frame.schema("body binary").load().select("body"))
    assert "are gone (damaged, or cut off, in the log or their consume queue); set failOnDataLoss to false" in said
    assert "Traceback" not in said
    rows = frame.option("failOnDataLoss", "false").load().collect()
    assert sorted(int(r.body[5:]) for r in rows) == [i for i in range(100) if i != 42]
