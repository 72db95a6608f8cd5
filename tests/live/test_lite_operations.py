"""Lite topics for operators: listed, shown, and how far groups are, by commands and in the console."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient
from tests.console.support import done, opened
from tests.support.answers import check_answer
from tests.support.cli_calls import call

from rocketspark import LiteSimpleConsumer, Producer
from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.operations import Admin
from rocketspark.errors import ServerError, UsageError
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("lite topics: listed, with subscribers and lag, by commands and in the console")


class Stage(NamedTuple):
    """Two brokers with lite topics s00 to s59 of `chats`, a message in each and two more in s07; the group `agents` has
    consumed the first of s07, to which and to s08 its one client subscribed.
    """

    cluster: Cluster
    admin: Admin
    console: TestClient
    client_id: str

    def told(self, command: str, *arguments: str) -> Any:
        called = call(*command.split(), *arguments, "--json", "--namesrv", self.cluster.namesrv)
        assert called.exit_code == 0, called.told
        answer = json.loads(called.stdout)
        check_answer(command, answer)
        return answer

    def printed(self, *arguments: str) -> str:
        called = call(*arguments, "--namesrv", self.cluster.namesrv)
        assert called.exit_code == 0, called.told
        return called.stdout

    def page(self, path: str) -> str:
        got = self.console.get(path)
        assert got.status_code == 200, got.text
        return re.sub(r"\s+", " ", got.text)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with (
        run_cluster(brokers=2, lmq=True, multi_dispatch=True, lite_event_check_ms=20) as cluster,
        Admin(cluster.namesrv) as admin,
        Producer(cluster.namesrv) as producer,
    ):
        admin.create_topic("chats", message_type="LITE", attributes="+lite.topic.expiration=60")
        admin.create_topic("plain")
        for group in ("agents", "others"):
            admin.put_group(group, GroupSettings(attributes="+lite.bind.topic=chats"))
        for number in range(60):
            producer.send("chats", b"0", lite_topic=f"s{number:02}")
        for _ in range(2):
            producer.send("chats", b"more", lite_topic="s07")
        with LiteSimpleConsumer(cluster.namesrv, "agents", "chats") as consumer:
            consumer.subscribe_lite("s07", position="first")
            consumer.subscribe_lite("s08", position="end")
            (message,) = consumer.receive(1)
            consumer.ack(message)
            with opened(cluster.namesrv) as console:
                yield Stage(cluster, admin, console, consumer.client_id)


def test_lite_topics_are_listed_by_name(stage: Stage) -> None:
    first = stage.told("topic list-lite", "chats", "--limit", "7")
    assert (first["topic"], first["expiration_minutes"], first["count"]) == ("chats", 60, 60)
    assert first["groups"] == ["agents", "others"]
    assert (first["more"], first["whole"]) == (True, True)
    assert [row["name"] for row in first["lite_topics"]] == [f"s{number:02}" for number in range(7)]
    second = stage.told("topic list-lite", "chats", "--after", "s06")
    assert [row["name"] for row in second["lite_topics"]] == [f"s{number:02}" for number in range(7, 60)]
    assert second["more"] is False
    rows = {row["name"]: row for row in second["lite_topics"]}
    assert [(rows[name]["max_offset"], rows[name]["subscribers"]) for name in ("s07", "s08", "s09")] == [
        (3, 1),
        (1, 1),
        (1, 0),
    ]
    assert {row["broker_name"] for row in second["lite_topics"]} == {"broker-a", "broker-b"}
    found = stage.told("topic list-lite", "chats", "--contains", "5", "--limit", "1")
    assert ([row["name"] for row in found["lite_topics"]], found["more"]) == (["s05"], True)
    text = stage.printed("topic", "list-lite", "chats", "--limit", "7")
    assert "chats: 60 lite topics, which expire 1 h 0 min after the newest message; groups: agents, others" in text
    assert "more: --after s06" in text


def test_a_lite_topic_tells_who_subscribed_and_how_far_groups_are(stage: Stage) -> None:
    (state,) = stage.told("topic show-lite", "chats", "s07")
    assert (state["min_offset"], state["max_offset"], state["gets_messages"]) == (0, 3, True)
    assert state["subscribers"] == [{"group": "agents", "client_id": stage.client_id}]
    agents, others = state["groups"]
    assert (agents["group"], agents["offset"], agents["lag"]) == ("agents", 1, 2)
    assert agents["waiting_since_ms"] > 0
    assert others == {"group": "others", "offset": None, "lag": None, "waiting_since_ms": -1}
    text = stage.printed("topic", "show-lite", "chats", "s07")
    assert f"s07 of chats on {state['broker_name']}: offsets 0 to 3, the newest of 20" in text
    assert stage.client_id in text


def test_a_group_s_lag_is_told_where_it_is_farthest_behind(stage: Stage) -> None:
    found = stage.told("group lag-lite", "agents")
    assert (found["topic"], found["lag"]) == ("chats", 2)
    assert [(row["name"], row["lag"]) for row in found["lite_topics"]] == [("s07", 2)]
    assert found["waiting_since_ms"] == found["lite_topics"][0]["waiting_since_ms"] > 0
    assert "agents: 2 messages behind in lite topics of chats" in stage.printed("group", "lag-lite", "agents")


def test_the_settings_of_a_group_lead_to_its_lag(stage: Stage) -> None:
    text = stage.printed("group", "show", "agents")
    assert "it reads lite topics of chats: how far, says `rocketspark group lag-lite agents`\n" in text
    assert "it reads lite topics" not in stage.printed("group", "show", "TOOLS_CONSUMER")


def test_a_client_shows_its_lite_topics(stage: Stage) -> None:
    found = stage.told("client show-lite", "agents", stage.client_id)
    names = {name: row["broker_name"] for row in found for name in row["names"]}
    brokers = {row.name: row.broker_name for row in stage.admin.list_lite_topics("chats").topics}
    assert names == {name: brokers[name] for name in ("s07", "s08")}
    for row in found:
        assert (row["group"], row["topic"], row["count"]) == ("agents", "chats", len(row["names"]))
    assert max(row["seen_ms"] for row in found) > 0
    stage.told("client show-lite", "agents", stage.client_id, "--limit", "1")
    text = stage.printed("client", "show-lite", "agents", stage.client_id)
    assert f"{brokers['s07']}: {len(found[0]['names'])} lite topic" in text
    assert "s08" in text
    with pytest.raises(UsageError, match="client 'nobody' of group 'agents' is subscribed to no lite topic"):
        stage.admin.show_lite_client("agents", "nobody")


def test_a_broker_tells_how_much_it_has_of_lite_topics(stage: Stage) -> None:
    found = stage.told("broker show-lite", "broker-b")
    assert (found["broker_name"], found["light_queues_max"]) == ("broker-b", 20_000)
    (row,) = [each for each in found["topics"] if each["topic"] == "chats"]
    assert (row["expiration_minutes"], row["groups"]) == (60, ["agents", "others"])
    both = found, stage.told("broker show-lite", "broker-a")
    assert sum(each["light_queues"] for each in both) == stage.admin.list_lite_topics("chats").count
    assert sum(each["subscriptions"] for each in both) == 2
    assert "broker-b:" in stage.printed("broker", "show-lite", "broker-b")


def test_brokers_look_through_a_group_on_request(stage: Stage) -> None:
    found = stage.told("group dispatch-lite", "agents")
    assert found == {"group": "agents", "client_id": None, "brokers": ["broker-a", "broker-b"]}
    text = stage.printed("group", "dispatch-lite", "agents", "--client", stage.client_id)
    assert f"the lite topics of client {stage.client_id} are looked through on broker-a, broker-b" in text


def test_a_subscription_that_one_broker_refuses_is_taken_back_from_the_other(stage: Stage) -> None:
    name = next(row.name for row in stage.admin.list_lite_topics("chats").topics if row.broker_name == "broker-a")
    stage.admin.put_group("half", GroupSettings(attributes="+lite.bind.topic=chats"))
    stage.admin.put_group("half", GroupSettings(consume_enabled=False), brokers=["broker-b"])
    with LiteSimpleConsumer(stage.cluster.namesrv, "half", "chats") as consumer:
        with pytest.raises(ServerError, match="Consumer group is not allowed to consume"):
            consumer.subscribe_lite(name)
        assert consumer.lite_topics() == []
        with pytest.raises(UsageError, match="subscribed to no lite topic of any broker"):
            stage.admin.show_lite_client("half", consumer.client_id)
        stage.admin.put_group("half", GroupSettings(consume_enabled=True), brokers=["broker-b"])
        consumer.subscribe_lite(name)
        (found,) = stage.admin.show_lite_client("half", consumer.client_id)
        assert (found.broker_name, found.names) == ("broker-a", (name,))
    stage.admin.delete_group("half")


def test_what_is_none_is_told_in_a_line(stage: Stage) -> None:
    with pytest.raises(UsageError, match="topic 'plain' has no lite topics: it is not of the type LITE"):
        stage.admin.list_lite_topics("plain")
    with pytest.raises(UsageError, match="topic 'chats' has no lite topic 'nobody': it may have expired"):
        stage.admin.show_lite_topic("chats", "nobody")
    with pytest.raises(UsageError, match="no broker knows group 'nobody'"):
        stage.admin.lite_group_lag("nobody")
    stage.admin.put_group("usual")
    with pytest.raises(UsageError, match="group 'usual' is not bound to a topic with lite topics"):
        stage.admin.lite_group_lag("usual")
    with pytest.raises(UsageError, match="limit 1001 is not from 1 to 1000"):
        stage.admin.list_lite_topics("chats", limit=1001)


def test_the_console_shows_them(stage: Stage) -> None:
    topic, group = stage.page("/topic?name=chats"), stage.page("/group?name=agents")
    for text in (topic, group):
        assert '<a class="button" href="/topic/lite?name=chats">Lite topics</a>' in text
    assert "lite.topic.expiration" in topic
    assert "<dt>lite.bind.topic</dt><dd>chats</dd>" in group
    assert "Lite topics</a>" not in stage.page("/topic?name=plain")
    text = stage.page("/topic/lite?name=chats")
    assert re.findall(r"lite=(s\d\d)", text) == ["s07", *(f"s{number:02}" for number in range(50))]
    assert "2 messages behind; farthest in:" in text
    following = stage.page("/topic/lite?name=chats&after=s49")
    assert re.findall(r"lite=(s5\d)", following) == [f"s{number}" for number in range(50, 60)]
    one = stage.page("/topic/lite/one?name=chats&lite=s07")
    assert "Offsets 0 to 3: 3 messages." in one
    assert stage.client_id in one
    hostile = stage.console.get("/topic/lite", params={"name": "chats", "q": "<b>x"}).text
    assert "No lite topic whose name has this in it." in hostile
    assert "<b>x" not in hostile


def test_a_message_is_sent_to_a_lite_topic_and_once_more(stage: Stage) -> None:
    for number in range(5):
        name = f"again-{number}"
        first = stage.told("message send", "chats", "hello", "--lite-topic", name)
        stage.admin.resend_message(first["message_id"], topic="chats")
        done(stage.console, "/topic/send", name="chats", body="hi", lite_topic=name)
        # On the broker that has it, like those before.
        (state,) = stage.admin.show_lite_topic("chats", name)
        assert (state.max_offset, state.gets_messages) == (3, True)


def test_attributes_of_topics_are_shown(stage: Stage) -> None:
    stage.admin.create_topic("prices", attributes="+cleanup.policy=COMPACTION")
    stage.admin.create_topic("jobs", message_type="PRIORITY")
    assert stage.told("topic show", "prices")["attributes"] == {"cleanup.policy": "COMPACTION"}
    assert stage.told("topic show", "jobs")["attributes"] == {"message.type": "PRIORITY"}
    assert "prices: 0 messages, cleanup.policy=COMPACTION" in stage.printed("topic", "show", "prices")
    assert "jobs: 0 messages, type PRIORITY" in stage.printed("topic", "show", "jobs")
    assert "Messages, those compacted too" in stage.page("/topic?name=prices")
    assert "COMPACTION</td><td>What goes of old messages" in stage.page("/topic?name=prices")
    assert "PRIORITY</td><td>What clients of RocketMQ 5 may send" in stage.page("/topic?name=jobs")
