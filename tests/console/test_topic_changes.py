"""The page of a topic, and what is done to topics by the console; each effect is seen by a client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.console.support import done, opened, posted

from rocketspark import Producer, PullConsumer
from rocketspark.admin import Admin
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("the console: topics created, changed, deleted, sent to, after a confirmation in words")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(2) as running:
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv) as found:
        yield found


@pytest.fixture
def client(cluster: Cluster) -> Iterator[TestClient]:
    with opened(cluster.namesrv) as found:
        yield found


def test_a_topic_is_created(client: TestClient, admin: Admin) -> None:
    asked = posted(client, "/topics/create", name="made", queues="3", message_type="FIFO", brokers="broker-b")
    assert "It gets 3 queues on broker-b. Message type: FIFO." in asked.text
    assert "made" not in admin.list_topics()
    page = done(client, "/topics/create", name="made", queues="3", message_type="FIFO", perm="6", brokers="broker-b")
    assert "Topic made was created on broker-b." in page
    (config,) = admin.topic_configs("made").items()
    assert (config[0], config[1].write_queue_nums, config[1].attributes) == ("broker-b", 3, {"message.type": "FIFO"})


def test_a_topic_of_batches_is_created(client: TestClient, admin: Admin) -> None:
    done(client, "/topics/create", name="batches", batch="yes")
    assert {c.attributes["queue.type"] for c in admin.topic_configs("batches").values()} == {"BatchCQ"}
    assert "one for each batch sent" in client.get("/topic?name=batches").text


def test_a_topic_with_attributes_is_created(client: TestClient, admin: Admin) -> None:
    asked = posted(client, "/topics/create", name="prices", attributes="+cleanup.policy=COMPACTION")
    assert "Attributes: +cleanup.policy=COMPACTION." in asked.text
    done(client, "/topics/create", name="prices", attributes="+cleanup.policy=COMPACTION")
    assert [c.attributes for c in admin.topic_configs("prices").values()] == [{"cleanup.policy": "COMPACTION"}] * 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "a b"}, "only letters, digits"),
        ({"name": ""}, "empty"),
        ({"name": "SCHEDULE_TOPIC_XXXX"}, "belongs to the broker itself"),
        ({"name": "x", "queues": "many"}, "no whole number from 1 to 65536"),
        ({"name": "<script>alert(1)</script>"}, "&lt;script&gt;"),
    ],
)
def test_what_cannot_be_created_is_said_in_a_line(client: TestClient, fields: dict[str, str], says: str) -> None:
    answer = posted(client, "/topics/create", **fields)
    assert answer.status_code == 400
    assert says in answer.text
    assert "<script>alert" not in answer.text


def test_a_topic_that_is_there_is_not_created_again(client: TestClient, admin: Admin) -> None:
    admin.create_topic("there")
    answer = posted(client, "/topics/create", name="there", queues="9")
    assert (answer.status_code, "is there already" in answer.text) == (400, True)


def test_a_topic_shows_queues_groups_and_settings(client: TestClient, cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("shown", queue_count=2, message_type="NORMAL")
    with Producer(cluster.namesrv, group="p") as producer:
        for number in range(7):
            producer.send("shown", str(number).encode())
    with PullConsumer(cluster.namesrv, "readers", consume_from="first") as consumer:
        consumer.subscribe("shown")
        got = 0
        while got < 7:
            got += len(consumer.poll())
        consumer.poll(0)
    page = client.get("/topic?name=shown").text
    assert page.count('<th scope="row">broker-a</th>') == page.count('<th scope="row">broker-b</th>') == 2
    assert "<span>7</span>" in page
    assert ">readers</a>" in page
    assert "What clients of RocketMQ 5 may send" in page
    assert client.get("/topic?name=missing").status_code == 404


def test_a_topic_is_changed(client: TestClient, admin: Admin) -> None:
    admin.create_topic("changed", queue_count=2)
    asked = posted(client, "/topic/change", name="changed", read_queues="5", write_queues="5", perm="4")
    assert "Queues to read: from 2 to 5." in asked.text
    page = done(client, "/topic/change", name="changed", read_queues="5", write_queues="5", perm="4")
    assert "Topic changed was changed." in page
    found = {(c.read_queue_nums, c.write_queue_nums, c.perm) for c in admin.topic_configs("changed").values()}
    assert found == {(5, 5, 4)}
    nothing = posted(client, "/topic/change", name="changed")
    assert (nothing.status_code, "nothing to change" in nothing.text) == (400, True)


def test_a_topic_is_deleted(client: TestClient, cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("gone", queue_count=1, brokers=["broker-a"])
    with Producer(cluster.namesrv, group="p") as producer:
        producer.send("gone", b"x")
    asked = posted(client, "/topic/delete", name="gone")
    assert "Its 1 queues on broker-a go, and with them 1 messages." in asked.text
    assert "This cannot be undone." in asked.text
    assert "gone" in admin.list_topics()
    assert "Topic gone was deleted from broker-a." in done(client, "/topic/delete", name="gone")
    assert "gone" not in admin.list_topics()


def received(cluster: Cluster, topic: str) -> Any:
    with PullConsumer(cluster.namesrv, f"r-{topic}", consume_from="first") as consumer:
        consumer.subscribe(topic)
        while not (found := consumer.poll(timeout_ms=1000)):
            pass
    (message,) = found
    return message


def test_a_message_is_sent_by_fields(client: TestClient, cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("sent", queue_count=2)
    fields = {
        "name": "sent",
        "body": "two\r\nlines <b>\u00e9",
        "tag": "t",
        "keys": "k1 k2",
        "properties": "a=1\r\nb=x=y",
        "queue": "broker-b:1",
    }
    page = done(client, "/topic/send", **fields)
    assert "to queue 1 of broker-b, offset 0." in page
    message = received(cluster, "sent")
    assert (message.body.decode(), message.tag, list(message.keys)) == ("two\nlines <b>\u00e9", "t", ["k1", "k2"])
    assert (message.properties["a"], message.properties["b"], message.queue_id) == ("1", "x=y", 1)


def test_a_message_is_sent_as_json(client: TestClient, cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("json", queue_count=1, brokers=["broker-a"])
    text = json.dumps({"body": {"id": [1, "\u00e9"]}, "keys": ["k"], "properties": {"p": "<i>"}, "priority": 0})
    asked = posted(client, "/topic/send", name="json", json=text)
    assert "<i>" not in asked.text
    done(client, "/topic/send", name="json", json=text)
    message = received(cluster, "json")
    assert (json.loads(message.body), list(message.keys)) == ({"id": [1, "\u00e9"]}, ["k"])
    assert (message.properties["p"], message.properties["_SYS_MSG_PRIORITY_"]) == ("<i>", "0")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"json": "{"}, "the message&#39;s JSON"),
        ({"json": '{"body": "", "wrong": 1}'}, "unknown field"),
        ({"properties": "novalue"}, "name=value is needed"),
        ({"delay_level": "99"}, "no whole number from 0 to 18"),
    ],
)
def test_what_cannot_be_sent_is_said_in_a_line(client: TestClient, fields: dict[str, str], says: str) -> None:
    answer = posted(client, "/topic/send", name="sent", **fields)
    assert answer.status_code == 400
    assert says in answer.text


CHANGES = ["/topics/create", "/topic/change", "/topic/delete", "/topic/send"]


@pytest.mark.parametrize("path", CHANGES)
def test_nothing_is_changed_by_a_console_that_only_reads(cluster: Cluster, admin: Admin, path: str) -> None:
    admin.create_topic("kept", queue_count=1)
    with opened(cluster.namesrv, read_only=True) as client:
        answer = posted(client, path, name="kept" if path != "/topics/create" else "new", confirmed="yes", perm="2")
        assert answer.status_code == 400
        assert "read-only" in answer.text
        page = client.get("/topic?name=kept").text
        assert 'action="/topic/delete"' not in page
        assert "/topic/edit" not in page
    assert "kept" in admin.list_topics()
    assert "new" not in admin.list_topics()


def test_a_change_is_put_on_record_with_its_outcome(cluster: Cluster, tmp_path: Path) -> None:
    with opened(cluster.namesrv, audit_path=str(tmp_path / "audit.log")) as client:
        done(client, "/topics/create", name="audited")
        posted(client, "/topics/create", name="asked-only")
        refused = posted(client, "/topics/create", name="refused", brokers="nobody", confirmed="yes")
        assert refused.status_code == 400
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(e["event"], e["request"], e["what"], e["outcome"]) for e in lines] == [
        ("changed", "POST /topics/create", {"words": "Create topic audited"}, "done"),
        ("changed", "POST /topics/create", {"words": "Create topic refused"}, "failed"),
    ]
    assert lines[0]["server"] == "console"
    assert "no broker nobody" in lines[1]["remark"]
