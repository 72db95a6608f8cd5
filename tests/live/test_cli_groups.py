"""`rocketspark group` and topics with a type: what they set is what brokers and mqadmin show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_calls import call

from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.operations import Admin
from rocketspark.errors import MessageIllegal, ServerError, UsageError
from rocketspark.testing.cluster import Cluster, run_cluster

pytestmark = pytest.mark.shows("types of topics, settings and modes of groups: command line, operations, `mqadmin`")

POLICY = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2) as cluster:
        yield cluster


def run(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    done = call(*arguments, "--namesrv", cluster.namesrv)
    assert done.exit_code == code, done.told
    return f"{done.stdout}{done.stderr}" if done.exception is None else str(done.exception)


def shown(cluster: Cluster, *arguments: str) -> Any:
    return json.loads(run(cluster, *arguments, "--json"))


def test_a_group_is_made_and_changed(cluster: Cluster) -> None:
    made = shown(cluster, "group", "create", "g", "--ordered", "--retry-max-times", "5", "--broker", "broker-a")
    assert made["brokers"]["broker-a"]["consumeMessageOrderly"] is True
    assert made["brokers"]["broker-a"]["retryMaxTimes"] == 5
    policy = json.dumps(POLICY)
    changed = shown(cluster, "group", "create", "g", "--retry-policy", policy, "--attributes", "+priority.factor=1")
    assert set(changed["brokers"]) == {"broker-a", "broker-b"}
    for name, settings in changed["brokers"].items():
        assert settings["groupRetryPolicy"] == POLICY
        assert settings["attributes"] == {"priority.factor": "1"}
        # What was not given stays as it was.
        assert settings["consumeMessageOrderly"] is (name == "broker-a")
        assert settings["retryMaxTimes"] == (5 if name == "broker-a" else 16)
    disabled = shown(cluster, "group", "create", "g", "--disabled", "--not-ordered", "--attributes", "-priority.factor")
    assert {s["consumeEnable"] for s in disabled["brokers"].values()} == {False}
    assert {s["consumeMessageOrderly"] for s in disabled["brokers"].values()} == {False}
    assert [s["attributes"] for s in disabled["brokers"].values()] == [{}, {}]
    assert shown(cluster, "group", "show", "g")["brokers"] == disabled["brokers"]
    text = run(cluster, "group", "show", "g")
    assert "broker-a:\n" in text
    assert "  consumeEnable = false\n" in text


def test_a_lite_topic_and_its_group_are_made(cluster: Cluster) -> None:
    run(cluster, "topic", "create", "chats", "--type", "lite", "--lite-expiration", "60")
    expected = {"message.type": "LITE", "lite.topic.expiration": "60"}
    with Admin(cluster.namesrv) as operations:
        assert [each.attributes for each in operations.topic_configs("chats").values()] == [expected] * 2
    made = shown(
        cluster, "group", "create", "agents", "--lite-bind-topic", "chats", "--attributes", "+lite.sub.wildcard=1"
    )
    expected = {"lite.bind.topic": "chats", "lite.sub.wildcard": "1"}
    assert [each["attributes"] for each in made["brokers"].values()] == [expected] * 2
    assert "only letters, digits" in run(cluster, "group", "create", "agents", "--lite-bind-topic", "a,-b", code=1)


def test_a_mode_is_set(cluster: Cluster) -> None:
    run(cluster, "topic", "create", "orders")
    told = shown(cluster, "group", "set-mode", "g", "orders", "pop", "--share", "2")
    assert told == {
        "group": "g",
        "topic": "orders",
        "mode": "POP",
        "share": 2,
        "brokers": ["broker-a", "broker-b"],
    }
    for name in ("broker-a", "broker-b"):
        saved = next(Path(cluster.store).glob(f"**/*{name[-1]}*/config/messageRequestMode.json"))
        modes = json.loads(saved.read_text())["messageRequestModeMap"]
        assert modes == {
            "orders": {"g": {"topic": "orders", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2}}
        }
    (topic,) = shown(cluster, "group", "show", "g")["topics"]
    assert (topic["topic"], topic["mode"]) == ("orders", "POP")
    assert run(cluster, "group", "set-mode", "g", "orders", "pull") == "group g pulls orders on broker-a, broker-b\n"
    assert "topic[nowhere] not exist" in run(cluster, "group", "set-mode", "g", "nowhere", "pop", code=1)


def test_topics_have_a_type(cluster: Cluster) -> None:
    for kind in ("normal", "fifo", "delay", "transaction", "priority", "mixed"):
        made = shown(cluster, "topic", "create", f"t-{kind}", "--type", kind, "--queues", "2")
        assert made == {
            "topic": f"t-{kind}",
            "queues": 2,
            "brokers": ["broker-a", "broker-b"],
            "type": kind.upper(),
        }
        assert shown(cluster, "topic", "show", f"t-{kind}")["type"] == kind.upper()
    # A change of the queues leaves the type.
    run(cluster, "topic", "create", "t-fifo", "--queues", "4")
    assert ", type FIFO" in run(cluster, "topic", "show", "t-fifo")
    run(cluster, "topic", "create", "t-fifo", "--type", "normal")
    assert shown(cluster, "topic", "show", "t-fifo")["type"] == "NORMAL"


def test_mistakes_are_clear(cluster: Cluster) -> None:
    with Admin(cluster.namesrv) as operations:
        with pytest.raises(UsageError, match="message_type 'fifo' is not one of NORMAL, FIFO"):
            operations.create_topic("t", message_type="fifo")
        with pytest.raises(ServerError, match=r"message\.type 'ODD' is not one of UNSPECIFIED, NORMAL"):
            operations.create_topic("t", attributes="+message.type=ODD")
        wrong: list[dict[str, Any]] = [
            {},
            {"type": "LINEAR"},
            {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": []}},
            {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1.5]}},
            {"type": "CUSTOMIZED", "customizedRetryPolicy": [1]},
            {"type": "CUSTOMIZED", "exponentialRetryPolicy": {}},
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 0}},
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 9, "max": 8}},
        ]
        for policy in wrong:
            with pytest.raises(UsageError, match="retry policy: "):
                operations.put_group("g2", GroupSettings(retry_policy=policy))
        for attributes in ("a=b", "+a", "-a=b", "+=b"):
            with pytest.raises(UsageError, match="attribute"):
                operations.put_group("g2", GroupSettings(attributes=attributes))
        with pytest.raises(UsageError, match="retry_max_times"):
            operations.put_group("g2", GroupSettings(retry_max_times=-1))
        with pytest.raises(UsageError, match="mode 'pop' is not one of PULL, POP"):
            operations.set_request_mode("t", "g", "pop")
        with pytest.raises(MessageIllegal):
            operations.put_group("a b")
    assert "is no JSON object" in run(cluster, "group", "create", "g2", "--retry-policy", "x", code=2)
