"""The pipelines for operators on what the official clients and broker leave: Java's traces, their dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from tests.java.apache import ApacheCluster
from tests.java.driver import JavaDriver, message
from tests.support.patience import LIMIT_MS

from rocketspark.admin.operations import Admin
from rocketspark.client import PullConsumer
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.trace import decode
from rocketspark.spark.pipelines import audit, dlq, dlq_resend, trace
from rocketspark.spark.pipelines.options import Choice

pytestmark = pytest.mark.shows(
    "`trace`: latency, failures, retries, HTML report; also of the Java client's traces",
    "`dlq`: counted, sampled, chosen, sent again once",
)

COUNT = 6


class Sent(NamedTuple):
    """What was sent, where its traces are, who consumed it and who gave it up; the results of the sends."""

    topic: str
    traces: str
    good: str
    bad: str
    results: list[dict[str, Any]]


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


def traced(apache: ApacheCluster, topic: str, count: int) -> bool:
    """Wait until so many records are in a trace topic, which Java's clients send in the background; False if not."""
    records = 0
    deadline = time.monotonic() + 60
    with PullConsumer(apache.namesrv, "look", consume_from="first", auto_commit=False) as consumer:
        consumer.assign(consumer.queues(topic))
        while records < count and time.monotonic() < deadline:
            records += sum(len(list(decode(m.body.decode()))) for m in consumer.poll(500))
    return records >= count


@pytest.fixture(scope="module")
def sent(apache: ApacheCluster, java: JavaDriver) -> Sent:
    """Messages by the official producer, that one official group consumed and another one gave up at once.

    Java's clients drop traces that they cannot send in time: then everything is done anew, with other names.
    """
    for attempt in range(4):
        names = (f"pipelines-{attempt}-{name}" for name in ("java", "java-traces", "good", "bad"))
        made = Sent(*names, results=[])
        if send(apache, java, made):
            return made
    raise AssertionError("no attempt left all its traces")


def send(apache: ApacheCluster, java: JavaDriver, made: Sent) -> bool:
    """Send and consume; return whether all traces came."""
    with Admin(apache.namesrv) as operations:
        for topic in (made.topic, made.traces):
            operations.create_topic(topic, queue_count=2)
    common: dict[str, Any] = {"namesrv": apache.namesrv, "trace_topic": made.traces}
    wanted: dict[str, Any] = {"subscriptions": [{"topic": made.topic, "tags": "*"}]}
    with (
        java.started("producer", group="pipelines-shop", **common) as producer,
        java.started("push", group=made.good, **wanted, **common) as good,
        java.started("push", group=made.bad, **wanted, fail_first=1, max_reconsume_times=0, **common) as bad,
    ):
        messages = [message(made.topic, f"order {n}", tag="A", keys=f"k{n} all", flag=n) for n in range(COUNT)]
        made.results.extend(java.call("send", name=producer, messages=messages))
        for reader in (good, bad):
            assert len(java.call("push_await", name=reader, count=COUNT, timeout_ms=LIMIT_MS)) == COUNT
        with Admin(apache.namesrv) as operations:
            until(lambda: f"%DLQ%{made.bad}" in operations.list_topics())
            # Java's consumers commit every 5 s, and at their end only what their threads were through with.
            for group in (made.good, made.bad):
                until(lambda group=group: not sum(q.lag for q in operations.show_progress(group, made.topic)))
        assert len(stored(apache, f"%DLQ%{made.bad}", COUNT)) == COUNT
        # A record of each send, and two of each delivery.
        return traced(apache, made.traces, COUNT + 2 * 2 * COUNT)


def test_java_s_traces_on_the_official_broker(spark: SparkSession, apache: ApacheCluster, sent: Sent) -> None:
    report = trace.run(spark, apache.namesrv, topic=sent.traces)
    assert (report.malformed, report.records) == (0, {"Pub": COUNT, "SubAfter": 2 * COUNT, "SubBefore": 2 * COUNT})
    (sends,) = report.sends
    assert (sends.topic, sends.group, sends.messages, sends.failed) == (sent.topic, "pipelines-shop", COUNT, 0)
    bad, good = report.deliveries
    assert (bad.group, bad.topic, bad.failed, bad.unconsumed) == (sent.bad, sent.topic, COUNT, COUNT)
    assert sum(bad.failures.values()) == COUNT
    assert (good.group, good.messages, good.deliveries, good.failed) == (sent.good, COUNT, COUNT, 0)
    assert good.end_to_end_ms.measured == COUNT
    ids = {result["message_id"] for result in sent.results}
    assert {slow.message_id for slow in report.slowest} == {slow.message_id for slow in report.unconsumed} == ids


def test_java_s_dead_letters_on_the_official_broker(spark: SparkSession, apache: ApacheCluster, sent: Sent) -> None:
    checked = audit.run(spark, apache.namesrv, [sent.topic])
    assert [(f.kind, f.group, f.number) for f in checked.findings] == [("dead", sent.bad, COUNT)]
    assert [(g.group, g.produced, g.consumed, g.dead) for g in checked.groups] == [
        (sent.bad, COUNT, COUNT, COUNT),
        (sent.good, COUNT, COUNT, 0),
    ]
    report = dlq.run(spark, apache.namesrv, Choice(groups=[sent.bad]), trace_topic=sent.traces)
    assert [(h.group, h.topic, h.tag, h.letters) for h in report.heaps] == [(sent.bad, sent.topic, "A", COUNT)]
    assert report.heaps[0].error in ("failed", "exception")
    assert {s["message_id"] for s in report.samples} == {result["message_id"] for result in sent.results}
    for again in (COUNT, 0):
        assert dlq_resend.run(spark, apache.namesrv, Choice(groups=[sent.bad])).sent == again
        found = stored(apache, sent.topic, 2 * COUNT)
    resent = [m for m in found if "originMessageId" in m.properties]
    assert sorted((m.body, m.tag, m.keys, m.flag) for m in resent) == [
        (b"order %d" % n, "A", (f"k{n}", "all"), n) for n in range(COUNT)
    ]
