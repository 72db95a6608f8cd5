"""The pipelines for operators on what the official clients and broker leave: Java's traces, their dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.java.apache import ApacheCluster
from tests.java.driver import JavaDriver, message
from tests.patience import LIMIT_MS

from rocketspark.admin.operations import SyncOperations
from rocketspark.client import PullConsumer
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.trace import decode
from rocketspark.spark.pipelines.audit import pipeline as audit
from rocketspark.spark.pipelines.dlq import pipeline as dlq
from rocketspark.spark.pipelines.dlq import resend
from rocketspark.spark.pipelines.dlq.dead_letters import Choice
from rocketspark.spark.pipelines.trace import pipeline as trace

COUNT = 6
TOPIC, TRACES = "pipelines-java", "pipelines-java-traces"
GOOD, BAD = "pipelines-good", "pipelines-bad"


@pytest.fixture(scope="module")
def java(apache: ApacheCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    """The official client 5.5.0."""
    driver = JavaDriver("5.5.0", tmp_path_factory.mktemp("java-pipelines"))
    yield driver
    driver.close()


def until(found: Callable[[], bool], limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def stored(apache: ApacheCluster, topic: str, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    with PullConsumer(apache.namesrv, "look", consume_from="first", auto_commit=False) as consumer:
        consumer.assign(consumer.queues(topic))

        def enough() -> bool:
            found.extend(consumer.poll(500))
            return len(found) >= count

        until(enough)
    return found


def traced(apache: ApacheCluster, count: int) -> None:
    """Wait until so many records are in the trace topic: Java's clients send them in the background."""
    records = 0
    with PullConsumer(apache.namesrv, "look", consume_from="first", auto_commit=False) as consumer:
        consumer.assign(consumer.queues(TRACES))

        def enough() -> bool:
            nonlocal records
            records += sum(len(list(decode(m.body.decode()))) for m in consumer.poll(500))
            return records >= count

        until(enough)


@pytest.fixture(scope="module")
def sent(apache: ApacheCluster, java: JavaDriver) -> list[dict[str, Any]]:
    """Messages by the official producer, that one official group consumed and another one gave up at once."""
    with SyncOperations(apache.namesrv) as operations:
        for topic in (TOPIC, TRACES):
            operations.create_topic(topic, queue_count=2)
    common: dict[str, Any] = {"namesrv": apache.namesrv, "trace_topic": TRACES}
    wanted = [{"topic": TOPIC, "tags": "*"}]
    with (
        java.started("producer", group="pipelines-shop", **common) as producer,
        java.started("push", group=GOOD, subscriptions=wanted, **common) as good,
        java.started("push", group=BAD, subscriptions=wanted, fail_first=1, max_reconsume_times=0, **common) as bad,
    ):
        messages = [message(TOPIC, f"order {n}", tag="A", keys=f"k{n} all", flag=n) for n in range(COUNT)]
        results = java.call("send", name=producer, messages=messages)
        for reader in (good, bad):
            assert len(java.call("push_await", name=reader, count=COUNT, timeout_ms=LIMIT_MS)) == COUNT
        with SyncOperations(apache.namesrv) as operations:
            until(lambda: f"%DLQ%{BAD}" in operations.list_topics())
            # Java's consumers commit every 5 s, and at their end only what their threads were through with.
            for group in (GOOD, BAD):
                until(lambda group=group: not sum(q.lag for q in operations.show_progress(group, TOPIC)))
        assert len(stored(apache, f"%DLQ%{BAD}", COUNT)) == COUNT
        # A record of each send, and two of each delivery.
        traced(apache, COUNT + 2 * 2 * COUNT)
    found: list[dict[str, Any]] = results
    return found


def test_java_s_traces_on_the_official_broker(
    spark: SparkSession, apache: ApacheCluster, sent: list[dict[str, Any]]
) -> None:
    report = trace.run(spark, apache.namesrv, topic=TRACES)
    assert (report.malformed, report.records) == (0, {"Pub": COUNT, "SubAfter": 2 * COUNT, "SubBefore": 2 * COUNT})
    (sends,) = report.sends
    assert (sends.topic, sends.group, sends.messages, sends.failed) == (TOPIC, "pipelines-shop", COUNT, 0)
    bad, good = report.deliveries
    assert (bad.group, bad.topic, bad.failed, bad.unconsumed) == (BAD, TOPIC, COUNT, COUNT)
    assert sum(bad.failures.values()) == COUNT
    assert (good.group, good.messages, good.deliveries, good.failed) == (GOOD, COUNT, COUNT, 0)
    assert good.end_to_end_ms.measured == COUNT
    ids = {result["message_id"] for result in sent}
    assert {slow.message_id for slow in report.slowest} == {slow.message_id for slow in report.unconsumed} == ids


def test_java_s_dead_letters_on_the_official_broker(
    spark: SparkSession, apache: ApacheCluster, sent: list[dict[str, Any]]
) -> None:
    checked = audit.run(spark, apache.namesrv, [TOPIC])
    assert [(f.kind, f.group, f.number) for f in checked.findings] == [("dead", BAD, COUNT)]
    assert [(g.group, g.produced, g.consumed, g.dead) for g in checked.groups] == [
        (BAD, COUNT, COUNT, COUNT),
        (GOOD, COUNT, COUNT, 0),
    ]
    report = dlq.run(spark, apache.namesrv, Choice(groups=[BAD]), trace_topic=TRACES)
    assert [(h.group, h.topic, h.tag, h.letters) for h in report.heaps] == [(BAD, TOPIC, "A", COUNT)]
    assert report.heaps[0].error in ("failed", "exception")
    assert {s["message_id"] for s in report.samples} == {result["message_id"] for result in sent}
    for again in (COUNT, 0):
        assert resend.run(spark, apache.namesrv, Choice(groups=[BAD])).sent == again
        found = stored(apache, TOPIC, 2 * COUNT)
    resent = [m for m in found if "originMessageId" in m.properties]
    assert sorted((m.body, m.tag, m.keys, m.flag) for m in resent) == [
        (b"order %d" % n, "A", (f"k{n}", "all"), n) for n in range(COUNT)
    ]
