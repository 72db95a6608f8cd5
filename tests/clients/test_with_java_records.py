"""Transactions and traces of our clients and the official Java ones together, on both servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.clients.scene import Inbox, Scene
from tests.clients.test_traces import traces
from tests.clients.test_transactions import COMMIT, ROLLBACK, UNKNOWN, Bank
from tests.clients.test_with_java import java_reader
from tests.java.driver import JavaDriver, body_of, message
from tests.java.mqadmin import MqAdmin, same, until
from tests.support.patience import LIMIT_MS

from rocketspark.admin.operations import Admin
from rocketspark.client import Producer, PushConsumer, TransactionProducer
from rocketspark.protocol.trace import Consumed, Ended, Published, Received, Trace

pytestmark = [
    pytest.mark.java,
    pytest.mark.shows("beside the official Java clients, every feature with a wire form, both ways"),
]


@pytest.fixture(scope="session")
def mqadmin(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    made = MqAdmin(tmp_path_factory.mktemp(f"mqadmin-{cluster.name}"), cluster.namesrv, cluster.broker)
    yield made
    made.close()


def test_transactions_and_checks(scene: Scene, java: JavaDriver) -> None:
    group, inbox = f"p-{scene.group}", Inbox()
    consumer = PushConsumer(scene.namesrv, scene.group, consume_from="first")
    consumer.subscribe(scene.topic)
    consumer.listen(inbox)

    def outcome(execute: str, check: str = "UNKNOW") -> dict[str, str]:
        return {"outcome": f"{execute}_MESSAGE" if execute != "UNKNOW" else execute, "check": check}

    with consumer, java_reader(java, scene, "j") as theirs:
        with TransactionProducer(scene.namesrv, group, listener=Bank()) as gone:
            for body, check in (("ours left", "COMMIT_MESSAGE"), ("ours dropped", "ROLLBACK_MESSAGE")):
                pairs = outcome("UNKNOW", check)
                gone.send_in_transaction(scene.topic, body.encode(), argument=UNKNOWN, properties=pairs, keys="k")
            gone.send_in_transaction(scene.topic, b"ours paid", argument=COMMIT)
            gone.send_in_transaction(scene.topic, b"ours bounced", argument=ROLLBACK)
        # No producer of ours is there now: Java's is asked about our half messages.
        with java.started("transactor", namesrv=scene.namesrv, group=group) as transactor:
            sending = [
                message(scene.topic, "java paid", properties=outcome("COMMIT")),
                message(scene.topic, "java bounced", properties=outcome("ROLLBACK")),
                message(scene.topic, "java left", properties=outcome("UNKNOW"), tag="T", keys="a b"),
                message(scene.topic, "java dropped", properties=outcome("UNKNOW")),
            ]
            sent = java.call("transactor_send", name=transactor, messages=sending)
            assert [one["state"] for one in sent] == [
                "COMMIT_MESSAGE",
                "ROLLBACK_MESSAGE",
                "UNKNOW",
                "UNKNOW",
            ]
            until(
                lambda: (
                    {"ours left", "ours dropped"}
                    <= {one["body"] for one in java.call("transactor_checked", name=transactor)}
                )
            )
            java.call("transactor_stop", name=transactor)
        # And ours about Java's, which said "unknown" to each question so far.
        names = {"heir", "java left", "java paid", "ours left", "ours paid"}
        bank = Bank(*names)
        with TransactionProducer(scene.namesrv, group, listener=bank) as heir:
            heir.send_in_transaction(scene.topic, b"heir", argument=COMMIT)
            until(lambda: {b"java left", b"java dropped"} <= {m.body for m in bank.asked})
            asked = next(m for m in bank.asked if m.body == b"java left")
            assert (asked.topic, asked.tag, asked.keys) == (scene.topic, "T", ("a", "b"))
            assert asked.message_id == sent[2]["transaction_id"]
            assert {m.body.decode() for m in inbox.wait_for(5)} == names
        got = java.call("push_await", name=theirs, count=5, timeout_ms=LIMIT_MS)
        assert {body_of(one).decode() for one in got} == names
    assert {m.body.decode() for m in inbox.received} == names


def test_traces_are_alike(scene: Scene, java: JavaDriver, mqadmin: MqAdmin) -> None:
    topics = {who: f"{scene.topic}-{who}" for who in ("ours", "java")}
    with Admin(scene.namesrv) as operations:
        for topic in topics.values():
            operations.create_topic(topic, queue_count=1)
    inbox = Inbox()
    consumer = PushConsumer(scene.namesrv, scene.group, consume_from="first", trace=topics["ours"])
    consumer.subscribe(scene.topic)
    consumer.listen(inbox)
    started: dict[str, Any] = {"namesrv": scene.namesrv, "trace_topic": topics["java"]}
    # Each is traced by its own side alone: sent by one, read by both.
    with (
        consumer,
        java_reader(java, scene, "j", trace_topic=topics["java"]) as reader,
        Producer(scene.namesrv, "pg", trace=topics["ours"]) as ours,
        java.started("producer", group="java-pg", **started) as theirs,
    ):
        sent = ours.send(scene.topic, b"body", tag="A", keys=["k1", "k2"])
        plain = message(scene.topic, "body", tag="A", keys="k1 k2")
        (java_sent,) = java.call("send", name=theirs, messages=[plain])
        assert len(inbox.wait_for(2)) == 2
        assert len(java.call("push_await", name=reader, count=2, timeout_ms=LIMIT_MS)) == 2
        with TransactionProducer(scene.namesrv, f"p-{scene.group}", listener=Bank(), trace=topics["ours"]) as paying:
            paying.send_in_transaction(scene.topic, b"paid", argument=COMMIT, check_after_s=60, tag="A", keys="k1 k2")
        with java.started("transactor", group=f"t-{scene.group}", **started) as transactor:
            pairs = {"outcome": "COMMIT_MESSAGE"}
            paid = message(scene.topic, "paid", tag="A", keys="k1 k2", properties=pairs)
            java.call("transactor_send", name=transactor, messages=[paid])
        assert len(inbox.wait_for(4)) == 4
        assert len(java.call("push_await", name=reader, count=4, timeout_ms=LIMIT_MS)) == 4
    # 4 messages are read, each with a record before and one after; 2 sends, one of them with its end.
    found = {who: traces(scene, topic, 11) for who, topic in topics.items()}
    for records in found.values():
        assert Counter(type(t) for t in records) == {Published: 2, Received: 4, Consumed: 4, Ended: 1}
    ids = {"ours": sent.message_id, "java": java_sent["message_id"]}
    assert shape(found["ours"], ids) == shape(found["java"], ids)
    # The official tool shows who sent our message and who read it, by our traces.
    shown = ("queryMsgTraceById", "-i", sent.message_id, "-t", topics["ours"])
    until(lambda: scene.group in "".join(mqadmin(*shown)))
    same(
        mqadmin(*shown),
        f"""
        #Type #ProducerGroup #ClientHost #SendTime #CostTimes #Status
        Pub pg <any> <time> <number>ms success
        #Type #ConsumerGroup #ClientHost #ConsumerTime #CostTimes #Status
        Sub {scene.group} <any> <time> <number>ms success
        """,
    )


def shape(records: list[Trace], ids: dict[str, str]) -> list[tuple[Any, ...]]:
    """What must be the same for the same work, whoever traced it. `ids`: of the plain message that each sent."""
    names = {message_id: who for who, message_id in ids.items()}
    paid = next(t.message_id for t in records if isinstance(t, Ended))
    joined = {t.request_id: t.message_id for t in records if isinstance(t, Received)}
    found: list[tuple[Any, ...]] = []
    for t in records:
        if isinstance(t, Published):
            assert t.message_id == paid or t.message_id in names
            common = (t.region, t.topic, t.tag, t.keys, t.store_host, t.body_bytes, t.kind, t.success)
            found.append(("Published", *common, len(t.offset_message_id)))
        elif isinstance(t, Received):
            found.append(("Received", t.region, t.retry_times, t.keys, names.get(t.message_id, "paid")))
        elif isinstance(t, Consumed):
            assert joined[t.request_id] == t.message_id
            found.append(("Consumed", t.success, t.keys, t.context, names.get(t.message_id, "paid")))
        else:
            ended = (t.region, t.topic, t.tag, t.keys, t.store_host, t.kind, t.state, t.from_check)
            found.append(("Ended", *ended, t.transaction_id == t.message_id))
    return sorted(found)
