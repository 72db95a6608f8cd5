"""`pipeline audit`: counts, gaps, duplicates, lag and dead letters of a scene that is known to the last message."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.pipelines.scene import bury, commit, dies_of_5, repeat, stored

from rocketspark.admin import Admin
from rocketspark.client import Producer
from rocketspark.errors import ConfigError, RouteNotFound
from rocketspark.model import Message, MessageQueue
from rocketspark.spark.pipelines import audit, dlq_resend
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.pipelines.options import AuditOptions, Choice, ResendOptions
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.tables.read_table import read_table
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows("`audit`: counts, gaps, duplicates, lag; one place against another; exit status")

Load = Callable[..., object]


def queues_of(topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, queue) for broker in ("broker-a", "broker-b") for queue in (0, 1)]


def test_a_known_scene(
    spark: SparkSession, cluster: Cluster, topic: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    a0, a1, b0, b1 = queues = queues_of(topic)
    for queue in queues:
        load(topic, 25, queue=queue)
    # One message came three times, to two queues; two are dead letters of billing; offsets 5 to 7 of a queue are gone.
    repeat(cluster, Message(topic=topic, body=b"again"), "TWICE", [a0, b1, b1])
    messages = stored(cluster, topic, 103)
    bury(cluster, "billing", [m for m in messages if m.broker_name == "broker-a" and m.queue_id == 1][:1])
    dies_of_5(cluster, "billing", topic)
    commit(cluster, "billing", {a0: 26, a1: 25, b0: 20, b1: 27})
    commit(cluster, "stock", {a0: 26, a1: 25, b0: 25, b1: 27})

    def holey(self: audit._Audit, columns: str, topics: list[str]) -> DataFrame:
        rows = read(self, columns, topics)
        if "queueOffset" not in rows.columns:
            return rows
        return rows.where(
            ~((F.col("broker") == "broker-b") & (F.col("queueId") == 0) & F.col("queueOffset").between(5, 7))
        )

    read = audit._Audit._read
    monkeypatch.setattr(audit._Audit, "_read", holey)
    report = audit.run(spark, cluster.namesrv, [topic])

    assert [(f.kind, f.group, f.number) for f in report.findings] == [
        ("missing", "", 3),
        ("duplicates", "", 2),
        ("unconsumed", "billing", 5),
        ("dead", "billing", 2),
    ]
    assert not report.ok
    (of_topic,) = report.topics
    assert (of_topic.messages, of_topic.missing, of_topic.duplicates, of_topic.deleted) == (100, 3, 2, 0)
    assert (of_topic.first_ms, of_topic.last_ms) == (
        min(m.store_time_ms for m in messages),
        max(m.store_time_ms for m in messages),
    )
    (gap,) = report.gaps
    assert gap == (topic, "broker-b", 0, 5, 8)
    (twice,) = report.duplicates
    assert (twice.message_id, twice.copies) == ("TWICE", 3)
    assert {(p.broker, p.queue_id, p.queue_offset) for p in twice.places} == {
        ("broker-a", 0, 25),
        ("broker-b", 1, 25),
        ("broker-b", 1, 26),
    }
    billing, stock = report.groups
    assert (billing.group, billing.produced, billing.consumed, billing.unconsumed) == ("billing", 100, 95, 5)
    assert (billing.dead, billing.lag, billing.lost) == (2, 5, 0)
    behind = [m for m in messages if m.broker_name == "broker-b" and m.queue_id == 0][20:]
    assert [p.message_id for p in billing.oldest_unconsumed] == [m.message_id for m in behind]
    assert billing.oldest_unconsumed_ms == behind[0].store_time_ms
    assert [(q.broker, q.queue_id, q.committed, q.lag) for q in billing.queues] == [
        ("broker-a", 0, 26, 0),
        ("broker-a", 1, 25, 0),
        ("broker-b", 0, 20, 5),
        ("broker-b", 1, 27, 0),
    ]
    assert (stock.group, stock.consumed, stock.unconsumed, stock.dead) == ("stock", 100, 0, 0)
    assert [(q.broker, q.queue_id, q.messages, q.missing) for q in report.queues] == [
        ("broker-a", 0, 26, 0),
        ("broker-a", 1, 25, 0),
        ("broker-b", 0, 22, 3),
        ("broker-b", 1, 27, 0),
    ]


def test_a_time_range_and_a_group_that_never_came(
    spark: SparkSession, cluster: Cluster, producer: Producer, make_topic: Callable[..., str], topic: str
) -> None:
    other = make_topic(queues=1, brokers=1)
    queue = queues_of(topic)[0]
    for n in range(10):
        producer.send(topic, b"%d" % n, queue=queue)
    producer.send(other, b"x")
    times = [m.store_time_ms for m in stored(cluster, topic, 10)]
    commit(cluster, "slow", {queue: 4})
    start, end = times[2], times[6] + 1
    within = [n for n, time in enumerate(times) if start <= time < end]
    report = audit.run(
        spark,
        cluster.namesrv,
        [topic, other],
        options=AuditOptions(groups=["slow", "absent"], since_ms=start, until_ms=end, ignore=["missing"]),
    )
    slow, absent = (g for g in report.groups if g.topic == topic)
    assert (slow.produced, slow.consumed) == (len(within), sum(n < 4 for n in within))
    # Lag is that of the whole queue, whatever the range.
    assert (slow.lag, absent.lag) == (6, 10)
    assert (absent.consumed, absent.unconsumed) == (0, len(within))
    assert [q.committed for q in absent.queues] == [None] * 4
    assert [f.group for f in report.findings if f.topic == topic] == ["absent", "slow"]
    with pytest.raises(RouteNotFound, match="no topic 'not-there'"):
        audit.run(spark, cluster.namesrv, ["not-there"])


@pytest.mark.shows(
    "mended: `audit` with a time that is not over counts what came after it asked for the groups' places"
)
def test_what_comes_during_an_audit_does_not_count(
    spark: SparkSession, cluster: Cluster, topic: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queues_of(topic)[0]
    load(topic, 5, queue=queue)
    commit(cluster, "present", {queue: 5})
    asked = audit.ask

    def ask(*given: object, **named: object) -> audit.AuditScope:
        scope: audit.AuditScope = asked(*given, **named)  # type: ignore[arg-type]
        load(topic, 3, queue=queue)
        return scope

    monkeypatch.setattr(audit, "ask", ask)
    in_an_hour_ms = int(time.time() * 1000) + 3_600_000
    report = audit.run(spark, cluster.namesrv, [topic], AuditOptions(groups=["present"], until_ms=in_an_hour_ms))
    assert (report.topics[0].messages, report.groups[0].unconsumed, report.ok) == (5, 0, True)


@pytest.mark.shows("mended: `audit` and reads take a topic that may not be read for an empty one")
def test_dead_letters_that_may_not_be_read(spark: SparkSession, cluster: Cluster, topic: str, load: Load) -> None:
    load(topic, 1, queue=queues_of(topic)[0])
    commit(cluster, "shipping", {queues_of(topic)[0]: 1})
    bury(cluster, "shipping", stored(cluster, topic, 1))
    where = Connection(cluster.namesrv)
    with Admin(cluster.namesrv) as admin:
        admin.update_topic("%DLQ%shipping", perm=2)
        while admin.show_topic("%DLQ%shipping").queues:
            time.sleep(0.01)
    with pytest.raises(ConfigError, match="topic %DLQ%shipping cannot be read, so dead letters cannot be counted"):
        audit.ask(where, [topic], [])
    assert audit.ask(where, [topic], [], dead_letters=False).dead_topics == {}
    with pytest.raises(ConfigError, match="topic '%DLQ%shipping' has no queue that may be read"):
        read_table(cluster.namesrv, "%DLQ%shipping")
    # Where letters that were sent before cannot be seen, none is sent.
    resend = dlq_resend._Resend(spark, where, Choice(groups=["shipping"]), ResendOptions(), Progress("dlq"))
    with pytest.raises(ConfigError, match="letters would go to topic '%DLQ%shipping', which may not be read"):
        resend._check_targets({"%DLQ%shipping"})


@pytest.mark.shows("mended: `audit` takes messages for missing that an option of `-o` left out")
@pytest.mark.parametrize("name", ["tags", "SQL", "endingTimestamp"])
def test_options_that_choose_messages_are_refused(name: str) -> None:
    where = Connection("127.0.0.1:1", options={name: "1", "consumerGroup": "g"})
    with pytest.raises(ConfigError, match=f"option {name.lower()}: an audit counts all messages of its topics"):
        audit.run(None, where, ["t"])  # type: ignore[arg-type]
