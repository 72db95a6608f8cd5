"""A message whose body does not inflate, which any producer can send, stops no pipeline that is about messages."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.topics import messages_of

from rocketspark import AsyncProducer, Producer
from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.model import MessageQueue
from rocketspark.protocol.message import sysflags
from rocketspark.protocol.message.message_ids import unique_ids
from rocketspark.spark.pipelines import archive, compare, dlq, dlq_resend, trace
from rocketspark.spark.pipelines.compare import Side
from rocketspark.spark.pipelines.options import Choice, ResendOptions
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows("dlq, resend, trace and comparison beside a body that does not inflate")

BAD = b"no zlib"


def send(namesrv: str, topic: str, body: bytes = BAD, more: str = "") -> None:
    async def work() -> None:
        async with AsyncProducer(namesrv, "bad") as producer:
            number = unique_ids.next()
            flags = sysflags.COMPRESSED if body == BAD else 0
            out = PreparedMessage(topic, body, f"UNIQ_KEY\x01{number}\x02{more}", flags, 0, number)
            await producer.send_packed(out, None, MessageQueue(topic, "broker-a", 0), None)

    asyncio.run(work())


def test_dead_letters_are_shown_and_sent_again_as_they_are_stored(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str]
) -> None:
    group, target = f"g-{uuid.uuid4().hex[:12]}", make_topic(queues=1, brokers=1)
    dead = make_topic(queues=1, brokers=1, name=f"%DLQ%{group}")
    for body in (b"one", BAD, b"two"):
        send(cluster.namesrv, dead, body, f"RETRY_TOPIC\x01{target}\x02")
    choice = Choice(groups=(group,))
    report = dlq.run(spark, cluster.namesrv, choice)
    assert report.letters == 3
    assert {sample.get("body", sample.get("body_hex")) for sample in report.samples} == {"one", "no zlib", "two"}
    sent = dlq_resend.run(spark, cluster.namesrv, choice, ResendOptions(to=target))
    assert (sent.chosen, sent.sent, sent.failed) == (3, 3, 0)
    assert sorted(m.body for m in messages_of(cluster.namesrv, target)) == [b"no zlib", b"one", b"two"]


def test_a_trace_and_a_comparison_go_on(
    spark: SparkSession, cluster: Cluster, producer: Producer, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    traced, topic = make_topic(queues=1, brokers=1), make_topic(queues=1, brokers=1)
    producer.send(traced, b"garbage")
    send(cluster.namesrv, traced)
    assert trace.run(spark, cluster.namesrv, topic=traced).trace_messages == 2
    producer.send(topic, b"good")
    send(cluster.namesrv, topic)
    assert archive.run(spark, cluster.namesrv, [topic], tmp_path).rows == 2
    assert compare.run(spark, Side(cluster.namesrv, topic), Side(cluster.namesrv, topic, tmp_path)).ok
