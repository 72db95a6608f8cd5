"""Namespaces and signed requests, in both directions; what is secret is seen nowhere."""

from __future__ import annotations

import base64
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.clients.test_signed import CONFIG, KEY, SECRET, Guarded, GuardedBroker
from tests.java.apache import ApacheNamesrv
from tests.java.driver import missing_tools
from tests.spark.conftest import await_stored, read_rows

from rocketspark.admin.operations import Admin
from rocketspark.client import Producer
from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines import archive, restore
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.write.batch_sender import send_rows
from rocketspark.tables.options import parse_write
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "`topic`, `topicPattern`, `assign`; NameServer list, namespace, credentials (in no plan, log or error); "
    "from our brokers and Apache's",
    "Spark over TLS with keys and an encrypted client key: batch, stream, exactly once, archive, restore; "
    "files that an executor lacks are named with the machine",
)

TOKEN = "token-of-no-use"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """An official broker that refuses what is not signed."""
    if missing := missing_tools():
        pytest.fail(missing)
    folder = tmp_path_factory.mktemp("guarded")
    namesrv = ApacheNamesrv(folder / "namesrv")
    try:
        broker = GuardedBroker(folder / "broker", namesrv.namesrv, folder / "store", config=CONFIG)
        yield Guarded(namesrv.namesrv, broker.broker)
        broker.kill()
    finally:
        namesrv.kill()


@pytest.mark.shows("Spark on RocketMQ 5.5.0 with access control: read, write, exactly once")
def test_signed_and_in_a_namespace_there_and_back(
    spark: SparkSession, guarded: Guarded, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {
        "namesrv": guarded.namesrv,
        "topic": "signed",
        "namespace": "team",
        "accessKey": KEY,
        "secretKey": SECRET,
        "securityToken": TOKEN,
        "maxMessagesPerPull": "100",
    }
    client: Any = {"namespace": "team", "access_key": KEY, "secret_key": SECRET}
    rows = spark.range(1000).select(F.format_string("body %d", "id").alias("body"))
    with caplog.at_level(logging.DEBUG, "rocketspark"):
        rows.limit(1).write.format("rocketmq").options(**options).mode("append").save()
        await_stored(guarded.namesrv, "signed", 1, **client)
        keyed = rows.offset(1).withColumn("shardingKey", F.col("body"))
        keyed.write.format("rocketmq").options(**options).mode("append").save()
        await_stored(guarded.namesrv, "signed", 1000, **client)
        reader = spark.read.format("rocketmq").options(**options)
        found = reader.schema("topic string, body binary").load()
        assert sorted(bytes(r.body) for r in found.collect()) == sorted(b"body %d" % i for i in range(1000))
        assert {r.topic for r in found.collect()} == {"signed"}
        found.explain(True)
        stream = spark.readStream.format("rocketmq").options(**options).option("startingOffsets", "earliest").load()
        stream.explain(True)
        query = stream.writeStream.format("memory").queryName("signed").trigger(availableNow=True).start()
        assert query.awaitTermination(600)
        assert spark.table("signed").count() == 1000
        query.explain(True)
        shown = f"{query.recentProgress} {query.status} {found} {found.schema}"
    once = options | {"topic": "signed-once", "delivery": "exactly-once", "transactionalId": "signed"}
    rows.limit(1).write.format("rocketmq").options(**{**options, "topic": "signed-once"}).mode("append").save()
    rows.limit(100).write.format("rocketmq").options(**once).mode("append").save()
    await_stored(guarded.namesrv, "signed-once", 101, **client)
    out, err = capfd.readouterr()
    for secret in (SECRET, TOKEN):
        assert secret not in shown + out + err
        assert not [r for r in caplog.records if r.name.startswith("rocketspark") and secret in r.getMessage()]


@pytest.mark.parametrize(("keys", "says"), [({}, "signed requests"), ({"accessKey": KEY, "secretKey": "x9x9"}, "")])
def test_who_is_not_let_in_is_told_in_one_line(
    spark: SparkSession, guarded: Guarded, keys: dict[str, str], says: str
) -> None:
    reader = spark.read.format("rocketmq").option("namesrv", guarded.namesrv).option("topic", "signed")
    with pytest.raises(Exception) as caught:
        reader.options(namespace="team", **keys).load().count()
    text = str(caught.value)
    assert says in text
    assert "Traceback" not in text
    assert "x9x9" not in text
    assert "topic 'signed'" in text or "team%signed" in text


def test_a_namespace_keeps_topics_apart(cluster: Cluster, topic: str) -> None:
    target = {"namesrv": cluster.namesrv, "topic": topic}
    for space in ("one", "two"):
        with Producer(cluster.namesrv, "spaces", namespace=space) as producer:
            producer.send(topic, space.encode(), tag=space)
    for space in ("one", "two"):
        rows = read_rows("topic body tag", **target, namespace=space)
        assert rows == [{"topic": topic, "body": space.encode(), "tag": space}]
        by_pattern = read_rows("topic body", namesrv=cluster.namesrv, namespace=space, topicPattern=".*")
        assert by_pattern == [{"topic": topic, "body": space.encode()}]
        # JSON names topics as columns do, without the namespace.
        [place] = read_rows("broker queueId", **target, namespace=space)
        start = f'{{"{topic}": {{"{place["broker"]}": {{"{place["queueId"]}": -1}}}}}}'
        assert read_rows(**target, namespace=space, startingOffsets=start) == []
    assert read_rows(**target) == []
    assert [r["tag"] for r in read_rows("tag", namesrv=cluster.namesrv, topic=f"one%{topic}")] == ["one"]


MARKER = "hide-7c2f91-spark"
PASSWORD = "hide-7c2f91-key"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """A cluster of ours that takes TLS and signed requests alone, and the options of a query on it."""
    folder = tmp_path_factory.mktemp("locked")
    with run_cluster(store=folder / "store", secure=True) as cluster:
        admin = cluster.client_options
        with Admin(cluster.namesrv, **admin) as operations:
            operations.create_user("spark", MARKER, user_type="Super")
            for topic in ("open", "again"):
                operations.create_topic(f"team%{topic}", queue_count=2)
        pair = Path(str(admin["tls_ca"]))
        key = serialization.load_pem_private_key((pair.parent / "key.pem").read_bytes(), None)
        (folder / "key.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(PASSWORD.encode()),
            )
        )
        yield (
            cluster,
            {
                "namesrv": cluster.namesrv,
                "namespace": "team",
                "accessKey": "spark",
                "secretKey": MARKER,
                "useTls": "true",
                "tlsCa": str(pair),
                "tlsCert": str(pair),
                "tlsKey": str(folder / "key.pem"),
                "tlsKeyPassword": PASSWORD,
            },
        )


@pytest.mark.shows(
    "no secret in plans, event log, checkpoint, archive, logs, errors, shown settings, files but those of users"
)
@pytest.mark.official
def test_a_locked_cluster_with_tls_and_no_secret_is_seen(
    spark: SparkSession,
    locked: tuple[Cluster, dict[str, str]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Batch, stream, exactly once and pipelines; then every byte that any of them left is searched."""
    _, options = locked
    from_topic = options | {"topic": "open"}
    once = from_topic | {"delivery": "exactly-once", "transactionalId": "locked-1"}
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG, "rocketspark"):
        rows = spark.range(20).select(F.format_string("body %d", "id").alias("body"))
        rows.write.format("rocketmq").options(**from_topic).mode("append").save()
        rows.write.format("rocketmq").options(**once).mode("append").save()
        found = spark.read.format("rocketmq").options(**from_topic).load()
        assert found.count() == 40
        found.explain(True)
        found.createOrReplaceTempView("locked")
        assert spark.sql("select count(*) n from locked where tag is null").collect()[0].n == 40
        stream = spark.readStream.format("rocketmq").options(**from_topic, startingOffsets="earliest").load()
        writer = stream.select("body").writeStream.format("rocketmq").options(**options, topic="again")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(600)
        query.explain(True)
        where = connection(Connection(options["namesrv"], options=options))
        done = archive.run(spark, where, ["again"], tmp_path / "archive", once=True)
        assert done.rows == 40
        sent = restore.restore(spark, tmp_path / "archive", where, "again", "restored")
        assert sent.rows == 40
        with pytest.raises(Exception) as caught:
            spark.read.format("rocketmq").options(**from_topic | {"secretKey": f"x{MARKER}"}).load().count()
        shown += [f"{query.recentProgress} {query.status} {found} {done} {sent} {where}", str(caught.value)]
    assert "secret_key is not the one" in str(caught.value)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # type: ignore[union-attr]
    events = Path(str(spark.conf.get("spark.eventLog.dir")).removeprefix("file:"))
    shown += [*capfd.readouterr(), *(record.getMessage() for record in caplog.records)]
    forms = [form for secret in (MARKER, PASSWORD) for form in forms_of(secret)]
    assert [text for text in shown if any(form in text.encode() for form in forms)] == []
    left = [path for folder in (events, tmp_path) for path in folder.rglob("*") if path.is_file()]
    assert any(b"SQLExecutionStart" in path.read_bytes() for path in left if events in path.parents)
    for path in left:
        data = path.read_bytes()
        assert [form for form in forms if form in data] == [], path


def forms_of(secret: str) -> list[bytes]:
    """A secret as it is, and what of it stands in base64 wherever it begins."""
    return [secret.encode(), *(base64.b64encode(b"x" * n + secret.encode())[4:-4] for n in range(3))]


def test_files_that_are_not_on_a_machine_are_named_with_it(locked: tuple[Cluster, dict[str, str]]) -> None:
    _, options = locked
    taken = parse_write(options | {"topic": "open"})
    assert taken.access.tls is not None
    away = taken._replace(access=taken.access._replace(tls=dataclasses.replace(taken.access.tls, ca="/nowhere/ca.pem")))
    rows = pa.RecordBatch.from_pydict({"body": [b"x"]})
    with pytest.raises(ConfigError, match=r"tls_ca=/nowhere/ca\.pem cannot be read.* on every executor"):
        send_rows(iter([rows]), away)
