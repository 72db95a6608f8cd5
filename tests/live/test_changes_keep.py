"""What creates or changes something leaves what is not named as it is: topics, rules, modes; by program and command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_calls import call

from rocketspark import MessageQueue, Producer, PullConsumer
from rocketspark.admin.operations import Admin, AsyncAdmin
from rocketspark.client.connection import admin_api
from rocketspark.errors import ServerError, UsageError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.testing.cluster import Cluster, run_cluster

pytestmark = pytest.mark.shows("what creates or changes leaves what is not named: topics, rules, modes, groups")

told = admin_api.topic_config


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def operations(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv) as operations:
        yield operations


def run(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    done = call(*arguments, "--namesrv", cluster.namesrv)
    assert done.exit_code == code, done.told
    return f"{done.stdout}{done.stderr}" if done.exception is None else str(done.exception)


def config(cluster: Cluster, topic: str, broker: int = 0) -> TopicConfig:
    async def ask(operations: AsyncAdmin) -> TopicConfig | None:
        return await told(await operations._broker(cluster.brokers[broker]), topic)

    with Admin(cluster.namesrv) as operations:
        found: TopicConfig | None = operations._loop.call(ask(operations._core))
    assert found is not None
    return found


def test_a_topic_keeps_what_is_not_named(cluster: Cluster, operations: Admin) -> None:
    operations.create_topic("wide", queue_count=16, perm=4, order=True, attributes="+message.type=FIFO")
    before = config(cluster, "wide")
    run(cluster, "topic", "create", "wide")
    with Producer(cluster.namesrv) as producer:
        producer.create_topic("wide")
    operations.create_topic("wide")
    assert [config(cluster, "wide", number) for number in (0, 1)] == [before, before]
    made = json.loads(run(cluster, "topic", "create", "wide", "--type", "mixed", "--json"))
    assert made == {
        "topic": "wide",
        "queues": 16,
        "brokers": ["broker-a", "broker-b"],
        "changed": ["broker-a", "broker-b"],
        "type": "MIXED",
    }
    assert not any(broker.changed for broker in operations.create_topic("wide", message_type="MIXED"))
    after = config(cluster, "wide")
    assert (after.read_queue_nums, after.write_queue_nums, after.perm, after.order) == (16, 16, 4, True)
    for wrong in ("8", 2.5, True, 0, 1025):
        with pytest.raises(UsageError, match="must be a whole number from 1 to 1024"):
            operations.create_topic("wide", queue_count=wrong)  # type: ignore[arg-type]
    operations.create_topic("wide", read_queue_count=20)
    assert (config(cluster, "wide").read_queue_nums, config(cluster, "wide").write_queue_nums) == (20, 16)


def test_one_number_of_queues_for_new_topics(cluster: Cluster, operations: Admin) -> None:
    assert run(cluster, "topic", "create", "n1") == "created n1 with 4 queues on broker-a, broker-b\n"
    operations.create_topic("n2")
    with Producer(cluster.namesrv) as producer:
        producer.create_topic("n3")
        producer.send("n4", b"x")
    made = [config(cluster, topic) for topic in ("n1", "n2", "n3")]
    with PullConsumer(cluster.namesrv, "g") as consumer:
        assert sorted({q.queue_id for q in consumer.queues("n4")}) == [0, 1, 2, 3]
    assert {(c.read_queue_nums, c.write_queue_nums) for c in made} == {(4, 4)}


def test_the_words_say_where_it_was(cluster: Cluster) -> None:
    run(cluster, "topic", "create", "table", "--attributes", "+cleanup.policy=COMPACTION")
    assert config(cluster, "table").attributes == {"cleanup.policy": "COMPACTION"}
    run(cluster, "topic", "create", "half", "--queues", "6", "--broker", "broker-a")
    assert run(cluster, "topic", "create", "half") == (
        "unchanged half with 6 queues on broker-a\ncreated half with 4 queues on broker-b\n"
    )
    assert json.loads(run(cluster, "topic", "create", "half", "--json"))["queues"] == {"broker-a": 6, "broker-b": 4}
    assert run(cluster, "topic", "create", "half", "-q", "8") == "changed half with 8 queues on broker-a, broker-b\n"


def test_queues_that_hold_messages_are_not_taken_away(cluster: Cluster, operations: Admin) -> None:
    operations.create_topic("held", queue_count=8)
    with Producer(cluster.namesrv) as producer:
        for queue_id in (5, 7, 7):
            producer.send("held", b"x", queue=MessageQueue("held", "broker-b", queue_id))
        refused = (
            "topic 'held' has 8 queues on broker-b, and with 5 nobody could read the 3 message(s) in 2 of the others:"
            " keep as many, or say that they may be hidden with force=True (--force)"
        )
        assert refused in run(cluster, "topic", "create", "held", "--queues", "5", code=1)
        for door in (operations, producer):
            with pytest.raises(UsageError) as caught:
                door.create_topic("held", queue_count=5)
            assert str(caught.value) == refused
        # None was changed, also that without messages.
        assert [config(cluster, "held", number).read_queue_nums for number in (0, 1)] == [8, 8]
        run(cluster, "topic", "create", "held", "--queues", "7", "--broker", "broker-a")
        assert "changed held with 5" in run(cluster, "topic", "create", "held", "--queues", "5", "--force")
        producer.create_topic("held", queue_count=1, force=True)
        assert config(cluster, "held", 1).read_queue_nums == 1


@pytest.mark.parametrize("code", [ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION])
def test_settings_that_a_broker_does_not_tell_are_the_routes(
    cluster: Cluster, operations: Admin, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise ServerError(code, "not told")

    topic = f"untold{code}"
    operations.create_topic(topic, queue_count=9, perm=4)
    monkeypatch.setattr(admin_api, "topic_config", refuse)
    made = operations.create_topic(topic, message_type="FIFO")
    assert [(b.existed, b.queue_count) for b in made] == [(True, 9), (True, 9)]
    assert config(cluster, topic).perm == 4
    assert [b.existed for b in operations.create_topic(f"{topic}-new")] == [False, False]


def test_a_mode_keeps_its_share(cluster: Cluster, operations: Admin) -> None:
    operations.create_topic("shared")
    operations.set_request_mode("shared", "g", "POP", pop_share_queue_count=3)
    operations.set_request_mode("shared", "g", "PULL")
    run(cluster, "group", "set-mode", "g", "shared", "pop")
    for name in ("broker-a", "broker-b"):
        saved = next(Path(cluster.store).glob(f"**/*{name[-1]}*/config/messageRequestMode.json"))
        mode = json.loads(saved.read_text())["messageRequestModeMap"]["shared"]["g"]
        assert (mode["mode"], mode["popShareQueueNum"]) == ("POP", 3)


def test_rules_keep_what_is_not_named() -> None:
    with (
        run_cluster(secure=True) as cluster,
        Admin(cluster.namesrv, **cluster.client_options) as operations,
    ):
        operations.create_user("shop", "a password")
        operations.create_acl("shop", ["Topic:orders"], ["Pub"], decision="Deny", source_ips=["10.0.0.0/8"])

        def rules() -> list[tuple[Any, ...]]:
            return [(r.resource, r.actions, r.source_ips, r.decision) for r in operations.get_acl("shop")]

        operations.update_acl("shop", ["Topic:orders"], ["Sub"])
        assert rules() == [("Topic:orders", ("Sub",), ("10.0.0.0/8",), "Deny")]
        operations.create_acl("shop", ["Topic:orders"], ["Pub", "Sub"])
        assert rules() == [("Topic:orders", ("Pub", "Sub"), ("10.0.0.0/8",), "Deny")]
        operations.update_acl("shop", ["Topic:orders"], decision="Allow")
        assert rules() == [("Topic:orders", ("Pub", "Sub"), ("10.0.0.0/8",), "Allow")]
        operations.update_acl("shop", ["Topic:orders"], source_ips=())
        assert rules() == [("Topic:orders", ("Pub", "Sub"), (), "Allow")]
        with pytest.raises(UsageError, match="no rule of 'User:shop' for Topic:new: a new one needs an action"):
            operations.update_acl("shop", ["Topic:new"], decision="Deny")
