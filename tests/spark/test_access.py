"""Namespaces and signed requests, in both directions; what is secret is seen nowhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.clients.test_signed import CONFIG, KEY, SECRET, Guarded, GuardedBroker
from tests.java.apache import ApacheNamesrv
from tests.java.driver import missing_tools
from tests.spark.conftest import await_stored, read_rows

from rocketspark.client import Producer
from rocketspark.testing import Cluster

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
