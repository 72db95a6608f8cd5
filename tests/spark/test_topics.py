"""Reading by pattern and by hand through the reader itself, on our brokers and Apache's."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.java.apache import ApacheCluster, await_queues
from tests.spark.conftest import Place, read_rows
from tests.spark.stage import staged

from rocketspark.client import Producer
from rocketspark.errors import ConfigError, RouteNotFound
from rocketspark.model import Message
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "`topic`, `topicPattern`, `assign`; NameServer list, namespace, credentials (in no plan, log or error); "
    "from our brokers and Apache's"
)

Load = Callable[..., dict[Place, Message]]


def test_a_pattern_in_spark(spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], load: Load) -> None:
    stem = f"p-{uuid.uuid4().hex[:8]}"
    for number in range(3):
        load(make_topic(queues=1, name=f"{stem}-{number}"), 10 * (number + 1))
    load(make_topic(queues=1, name=f"{stem}-more"), 5)
    reader = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
    counts = reader.option("topicPattern", f"{stem}-[0-9]").load().groupBy("topic").count().collect()
    assert {r["topic"]: r["count"] for r in counts} == {f"{stem}-{n}": 10 * (n + 1) for n in range(3)}
    assert reader.option("topicPattern", f"{stem}-x").load().count() == 0
    with pytest.raises(Exception, match="options topic and topicPattern are given") as caught:
        reader.option("topicPattern", "a.*").option("topic", "a").load().count()
    assert "Traceback" not in str(caught.value)


def test_a_pattern_on_apache_s_leaves_its_own_topics_out(apache: ApacheCluster) -> None:
    stem = f"p{uuid.uuid4().hex[:8]}"
    with Producer(apache.namesrv, "patterns") as producer:
        for name in (f"{stem}-a", f"{stem}-b", f"%RETRY%{stem}"):
            producer.create_topic(name, queue_count=1)
            producer.send(name, name.encode())
            await_queues(apache.broker, name, 1)
    target = {"namesrv": apache.namesrv}
    assert {row["topic"] for row in read_rows("topic", **target, topicPattern=f".*{stem}.*")} == {
        f"{stem}-a",
        f"{stem}-b",
    }
    assert read_rows("body", **target, topicPattern=f"%RETRY%{stem}") == [{"body": f"%RETRY%{stem}".encode()}]
    own = re.compile("SELF_TEST|TBW|broker-a|DefaultCluster|rmq_sys", re.IGNORECASE)
    assert not [row for row in read_rows("topic", **target, topicPattern=".*") if own.match(row["topic"])]


def test_queues_by_hand(cluster: Cluster, topic: str, make_topic: Callable[..., str], load: Load) -> None:
    other = make_topic()
    placed = load(topic, 4000)
    load(other, 800)

    def places(assigned: Any, **options: str) -> list[tuple[str, str, int, int]]:
        rows = read_rows(
            "topic broker queueId queueOffset", namesrv=cluster.namesrv, assign=json.dumps(assigned), **options
        )
        return sorted((r["topic"], r["broker"], r["queueId"], r["queueOffset"]) for r in rows)

    def wanted(*queues: tuple[str, int]) -> list[tuple[str, str, int, int]]:
        return sorted((topic, *place) for place in placed if place[:2] in queues)

    assert places({topic: {"broker-b": [1]}}) == wanted(("broker-b", 1))
    assert places({topic: {"broker-a": [0, 1], "broker-b": [0]}}) == wanted(
        ("broker-a", 0), ("broker-a", 1), ("broker-b", 0)
    )
    assert places({topic: [1]}) == wanted(("broker-a", 1), ("broker-b", 1))
    # Several topics have the same queue ids.
    assert {p[0] for p in places({topic: [0, 1], other: {"broker-a": [0, 1], "broker-b": [0, 1]}})} == {topic, other}
    start = {topic: {"broker-a": {"0": 3}}}
    assert (
        len(places({topic: {"broker-a": [0]}}, startingOffsets=json.dumps(start))) == len(wanted(("broker-a", 0))) - 3
    )
    with pytest.raises(ConfigError, match="names queue 7 of topic"):
        places({topic: [7]})
    with pytest.raises(ConfigError, match="names queue 0 on broker 'broker-z' of topic"):
        places({topic: {"broker-z": [0]}})
    with pytest.raises(RouteNotFound, match="no topic 'absent'"):
        places({"absent": [0]})


def test_topics_that_match_join_a_running_query_and_a_deleted_one_ends_it_with_one_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[tuple[str, str]] = []
    with staged(tmp_path, "broker-a") as stage, Producer(stage.namesrv, "joining") as producer:
        query = (
            spark.readStream.format("rocketmq")
            .option("namesrv", stage.namesrv)
            .option("topicPattern", "log-.*")
            .option("startingOffsets", "earliest")
            .schema("topic string, body binary")
            .load()
            .writeStream.foreachBatch(
                lambda batch, _: seen.extend((r.topic, bytes(r.body).decode()) for r in batch.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            for name in ("log-1", "log-2"):
                stage.create(name, 1)
                producer.send(name, b"first")
                while (name, "first") not in seen:
                    assert query.isActive, query.exception()
                    query.awaitTermination(0.05)
            stage.delete("log-1")
            with pytest.raises(Exception, match=r"topic 'log-1' .* (is|are) gone \(the topic was deleted") as caught:
                query.awaitTermination(600)
        finally:
            query.stop()
    assert seen == [("log-1", "first"), ("log-2", "first")]
    assert 'File "' not in str(caught.value)
