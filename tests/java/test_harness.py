"""The harness itself: the official client against the official servers, so that a failure elsewhere is ours.

And mqadmin once on ours, without the stage that its own tests need.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheCluster
from tests.java.conftest import DriverFactory
from tests.java.driver import CLIENT_VERSIONS, JavaError, body_of, message
from tests.java.mqadmin import MqAdmin
from tests.support.patience import LIMIT_MS


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_client_sends_and_consumes(java_driver: DriverFactory, apache: ApacheCluster, version: str) -> None:
    java = java_driver(version)
    topic = f"harness-{version.replace('.', '-')}"
    sending = message(topic, "hello", tag="a", keys="k1", properties={"colour": "red"})
    with java.started("producer", namesrv=apache.namesrv, group="harness-producers") as producer:
        [sent] = java.call("send", name=producer, messages=[sending])
    assert sent["status"] == "SEND_OK"
    assert sent["queue"]["topic"] == topic
    assert sent["queue_offset"] == 0

    subscriptions = [{"topic": topic, "tags": "a"}]
    with java.started("push", namesrv=apache.namesrv, group=f"{topic}-group", subscriptions=subscriptions) as consumer:
        [received] = java.call("push_await", name=consumer, count=1, timeout_ms=LIMIT_MS)
    assert body_of(received) == b"hello"
    assert received["tag"] == "a"
    assert received["keys"] == "k1"
    assert received["properties"]["colour"] == "red"
    assert received["message_id"] == sent["message_id"]
    assert received["offset_message_id"] == sent["offset_message_id"]
    assert received["queue_id"] == sent["queue"]["queue_id"]
    assert received["accepted"] is True


def test_admin_makes_and_removes_a_topic(java_driver: DriverFactory, apache: ApacheCluster) -> None:
    java = java_driver("5.5.0")
    place: dict[str, Any] = {"topic": "made", "broker_address": apache.broker}
    with java.started("admin", namesrv=apache.namesrv) as admin:
        java.call("create_topic", name=admin, queues=3, **place)
        assert java.call("topic_route", name=admin, topic="made") == {
            "queues": [{"broker": "broker-a", "read_queues": 3, "write_queues": 3, "perm": 6}],
            "brokers": {"broker-a": {"0": apache.broker}},
        }
        assert java.call("cluster_info", name=admin)["clusters"] == {"DefaultCluster": ["broker-a"]}
        java.call("delete_topic", name=admin, cluster="DefaultCluster", **place)
        with pytest.raises(JavaError) as failed:
            java.call("topic_route", name=admin, topic="made")
    assert failed.value.code == 17


def test_java_errors_come_back(java_driver: DriverFactory, apache: ApacheCluster) -> None:
    java = java_driver("5.5.0")
    with (
        java.started("producer", namesrv=apache.namesrv, group="harness-producers") as producer,
        pytest.raises(JavaError) as failed,
    ):
        java.call("send", name=producer, messages=[message("no good topic!", "x")])
    assert failed.value.kind == "MQClientException"


def test_mqadmin_makes_a_topic_and_finds_it(ours: Any, tmp_path: Path) -> None:
    with closing(MqAdmin(tmp_path, ours.namesrv, ours.broker)) as mqadmin:
        made = mqadmin("updateTopic", "-b", ours.broker, "-t", "commanded", "-r", "3", "-w", "3")
        assert made[0] == "create topic to BROKER success."
        assert "commanded" in mqadmin("topicList")
        assert '"readQueueNums":3' in "".join(mqadmin("topicRoute", "-t", "commanded"))
        assert mqadmin.refusal("topicRoute", "-t", "none").startswith("17 ")
