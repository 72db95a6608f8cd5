"""`pipeline trace`: figures of traces that are known to the last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from rocketspark.client import Producer
from rocketspark.errors import UsageError
from rocketspark.protocol.trace import Consumed, Ended, Published, Received, Trace, encode
from rocketspark.spark.pipelines import trace
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows("`trace`: latency, failures, retries, HTML report; also of the Java client's traces")

T0 = 1_700_000_000_000


def sent(number: int, **fields: Any) -> Published:
    values: dict[str, Any] = {
        "time_ms": T0 + 1000 * number,
        "region": "R",
        "group": "shop",
        "topic": "orders",
        "message_id": f"M{number}",
        "tag": "",
        "keys": f"k{number}",
        "store_host": "h:1",
        "body_bytes": 10,
        "cost_ms": 2 * number,
        "kind": 0,
        "offset_message_id": "O",
        "success": True,
    }
    return Published(**(values | fields))


def taken(
    number: int,
    after_ms: int,
    cost_ms: int,
    *,
    group: str = "billing",
    retry: int = 0,
    success: bool = True,
    **more: Any,
) -> list[Trace]:
    """A delivery so long after the send began; `more`: fields of its end."""
    request = f"{group}-{number}-{retry}"
    at_ms = T0 + 1000 * number + after_ms
    common = {"request_id": request, "message_id": f"M{number}", "group": group, "keys": f"k{number}"}
    end: dict[str, Any] = {"cost_ms": cost_ms, "success": success, "context": 0 if success else 2}
    return [
        Received(time_ms=at_ms, region="R", retry_times=retry, **common),
        Consumed(**(common | end | {"time_ms": at_ms + cost_ms} | more)),
    ]


def transactions() -> list[Trace]:
    """Five half messages: committed, rolled back, unknown, unknown and then committed by a check, never ended."""

    def ended(number: int, after_ms: int, state: str, *, check: bool = False) -> Ended:
        return Ended(
            time_ms=T0 + 1000 * number + after_ms,
            region="R",
            group="bank",
            topic="orders",
            message_id=f"M{number}",
            tag="",
            keys="",
            store_host="h:1",
            kind=2,
            transaction_id=f"M{number}",
            state=state,
            from_check=check,
        )

    return [
        *(sent(n, kind=1, group="bank") for n in range(1000, 1005)),
        *(ended(1000, 5, "COMMIT_MESSAGE"), ended(1001, 7, "ROLLBACK_MESSAGE"), ended(1002, 9, "UNKNOW")),
        *(ended(1003, 1, "UNKNOW"), ended(1003, 6000, "COMMIT_MESSAGE", check=True)),
    ]


@pytest.fixture
def trace_topic(make_topic: Callable[..., str], producer: Producer) -> Callable[..., str]:
    """trace_topic(records, *bodies): a topic with these traces, three to a message, and these bodies."""

    def make(records: list[Trace], *bodies: bytes) -> str:
        topic = make_topic()
        texts = [encode(r) for r in records]
        for start in range(0, len(texts), 3):
            producer.send(topic, "".join(texts[start : start + 3]).encode())
        for body in bodies:
            producer.send(topic, body)
        return topic

    return make


def test_figures_of_known_traces(spark: SparkSession, cluster: Cluster, trace_topic: Callable[..., str]) -> None:
    count = 200
    records: list[Trace] = []
    for n in range(1, count + 1):
        records += [sent(n), *taken(n, after_ms=10 + n, cost_ms=n % 7)]
    # Three are tried again, of which one never succeeds; one send failed; a delayed one; a second group; one whose send
    # nobody traced; a repeated trace record.
    records += taken(1, 500, 1, group="audit", success=False)
    records += taken(1, 900, 1, group="audit", retry=1)
    records += taken(2, 500, 1, group="audit", success=False, context=1)
    records += taken(2, 900, 1, group="audit", retry=1, success=False, context=9)
    records += [sent(901, success=False), sent(902, kind=3), *taken(902, 60_000, 1), *taken(903, 5, 1)]
    records += [records[0], *taken(1, 500, 1, group="audit", success=False)]
    records += transactions()
    report = trace.run(spark, cluster.namesrv, topic=trace_topic(records, b"Pub\x01x\x02", b"Recall\x01x\x02", b"\xff"))

    waited = [10 + n - n for n in range(1, count + 1)]
    took = [10 + n + n % 7 for n in range(1, count + 1)]
    assert report.malformed == 1
    assert report.records["Recall"] == 1
    assert (report.records["Pub"], report.records["SubBefore"]) == (count + 8, count + 7)
    bank, sends = report.sends
    assert (bank.topic, bank.group, bank.messages) == ("orders", "bank", 5)
    assert (sends.topic, sends.group, sends.messages, sends.failed) == ("orders", "shop", count + 2, 1)
    assert sends.bytes == 10 * (count + 2)
    costs = [2 * n for n in range(1, count + 1)] + [2 * 902]
    assert (sends.cost_ms.measured, sends.cost_ms.max) == (count + 1, 1804)
    assert sends.cost_ms.p99 == pytest.approx(np.percentile(costs, 99), abs=1e-3)

    unknown, audit, billing = report.deliveries
    assert (unknown.topic, unknown.group, unknown.messages, unknown.end_to_end_ms.measured) == ("", "billing", 1, 0)
    assert (audit.topic, audit.group) == ("orders", "audit")
    assert (audit.messages, audit.deliveries, audit.retried, audit.failed, audit.unconsumed) == (2, 4, 2, 3, 1)
    assert audit.failures == {"timeout": 1, "exception": 1, "other": 1}
    assert (audit.most_retries, audit.end_to_end_ms.p50) == (1, 901)
    assert (billing.messages, billing.deliveries, billing.failed, billing.delayed) == (count + 1, count + 1, 0, 1)
    assert billing.end_to_end_ms.measured == count
    for name, percent in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p999", 99.9), ("max", 100)):
        assert getattr(billing.end_to_end_ms, name) == pytest.approx(np.percentile(took, percent), abs=1e-3)
        assert getattr(billing.store_to_consume_ms, name) == pytest.approx(np.percentile(waited, percent), abs=1e-3)
    assert billing.end_to_end_ms.mean == pytest.approx(np.mean(took), abs=1e-3)

    assert [(s.message_id, s.group, s.end_to_end_ms) for s in report.slowest[:2]] == [
        ("M1", "audit", 901),
        ("M200", "billing", 214),
    ]
    (stuck,) = report.unconsumed
    assert (stuck.message_id, stuck.keys, stuck.deliveries, stuck.failed) == ("M2", "k2", 2, 2)
    assert stuck.last_failure == "code 9"
    (ends,) = report.transactions
    assert (ends.topic, ends.group) == ("orders", "bank")
    assert (ends.committed, ends.rolled_back, ends.unknown, ends.checked, ends.open) == (2, 1, 1, 1, 1)
    assert (ends.half_to_end_ms.measured, ends.half_to_end_ms.max) == (4, 6000)
    line = [m for m in report.timeline if m.group == "billing" and m.topic]
    assert sum(m.messages for m in line) == count + 1
    assert sum(m.failed for m in report.timeline if not m.topic) == 1


def test_only_what_lies_in_the_range_counts(
    spark: SparkSession, cluster: Cluster, trace_topic: Callable[..., str]
) -> None:
    records = [r for n in range(10) for r in (sent(n), *taken(n, after_ms=1500, cost_ms=0))]
    topic = trace_topic(records)
    # These times are years before the traces are stored: the slack is as long.
    slack_ms = 20 * 365 * 86_400_000
    range_ms = {"since_ms": T0 + 2000, "until_ms": T0 + 6000}
    report = trace.run(spark, cluster.namesrv, topic=topic, slack_ms=slack_ms, **range_ms)
    # Sent at 2..5 s; received at 2.5 to 5.5 s, of which those sent at 1 s count too.
    assert [s.messages for s in report.sends] == [4]
    assert [(d.topic, d.messages, d.end_to_end_ms.p50) for d in report.deliveries] == [("orders", 4, 1500)]
    assert [s.message_id for s in report.slowest] == ["M1", "M2", "M3", "M4"]
    nothing = trace.run(spark, cluster.namesrv, topic=topic, until_ms=T0, slack_ms=0)
    assert (nothing.trace_messages, nothing.records, nothing.malformed) == (0, {}, 0)
    found = (nothing.sends, nothing.deliveries, nothing.transactions, nothing.slowest, nothing.timeline)
    assert found == ([], [], [], [], [])
    with pytest.raises(UsageError, match="range is empty"):
        trace.run(spark, cluster.namesrv, topic=topic, since_ms=5, until_ms=5)
