"""Lite topics of our broker: answers as RocketMQ's, and what holds beyond them: restarts, expiry, wildcards, limits."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.java import lite_topics
from tests.java.lite_topics import GROUP, TOPIC, Link, made
from tests.support.patience import LIMIT_S

from rocketspark import LiteSimpleConsumer, Producer
from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.operations import Admin
from rocketspark.broker.lite import events, parts
from rocketspark.client.consumer.lite import lite_subscriptions
from rocketspark.errors import StoreFull
from rocketspark.store import Store
from rocketspark.testing import Cluster, run_cluster
from rocketspark.testing.process import run_server_process

pytestmark = pytest.mark.shows("lite topics: subscriptions, pops in order within each, expiry, what operators ask")

LIGHT: dict[str, Any] = {"lmq": True, "multi_dispatch": True}
FROM_THE_FIRST = {"offsetOption": {"type": "POLICY", "value": 1}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(**LIGHT, lite_event_check_ms=20, lite_full_dispatch_ms=50) as found:
        yield found


@pytest.fixture
def link(cluster: Cluster) -> Iterator[Link]:
    found = made(cluster.brokers[0])
    yield found
    found.close()


@pytest.mark.shows("lite topics: every request's answer is that of RocketMQ 5.5.0")
def test_every_answer_is_that_of_the_official_broker() -> None:
    with run_cluster(**LIGHT) as alone:
        assert lite_topics.everything(alone.brokers[0]) == lite_topics.golden()


@pytest.mark.parametrize("name", ["a,b", "a$b", "a/b", "x" * 250])
def test_a_name_that_no_lite_topic_may_have_is_refused(link: Link, name: str) -> None:
    head = link.send(b"refused", name)
    assert head["code"] == 13
    assert "lite topic" in head["remark"] or "light queue" in head["remark"]


def test_attributes_have_bounds(link: Link) -> None:
    for attributes in ("+lite.topic.expiration=43201", "+lite.topic.expiration=-2", "+lite.topic.expiration=x"):
        assert link.create("bounded", f"+message.type=LITE,{attributes}") == 29
    assert link.create("bounded", "+message.type=LITE,+lite.topic.expiration=43200") == 0
    for wrong in ({"sub_model": "Both"}, {"sub_client_quota": "-2"}, {"sub_client_max_event_cnt": "9"}):
        assert link.group("bounded", bind_topic=TOPIC, **wrong) == 29
    assert link.group("bounded", bind_topic=TOPIC, sub_client_max_event_cnt="10", sub_client_quota="-1") == 0


def test_a_client_with_more_lite_topics_than_events_gets_them_all(link: Link) -> None:
    assert link.group("narrow", bind_topic=TOPIC, sub_client_max_event_cnt="10") == 0
    names = [f"n{number}" for number in range(60)]
    for number, name in enumerate(names):
        assert link.send(b"%d" % number, name)["code"] == 0
    assert link.change("PARTIAL_ADD", names, "narrow", "narrow", **FROM_THE_FIRST) == [0, None]
    found = link.until(60, "narrow", "narrow")
    assert sorted(row[1] for each in found for row in each.rows) == sorted(names)
    link.change("COMPLETE_REMOVE", [], "narrow", "narrow")


def test_clients_of_a_shared_group_get_each_message_once(link: Link) -> None:
    assert link.group("shared", bind_topic=TOPIC) == 0
    names = [f"s{number}" for number in range(40)]
    for client in ("sa", "sb"):
        assert link.change("PARTIAL_ADD", names, client, "shared", **FROM_THE_FIRST) == [0, None]
    for name in names:
        assert link.send(name.encode(), name)["code"] == 0
    rows: list[str] = []
    for client in ("sa", "sb"):
        popped = link.until(1, client, "shared")
        while popped[-1].rows:
            popped.append(link.pop(client, "shared"))
        rows += [row[1] for each in popped for row in each.rows]
    assert sorted(rows) == sorted(names)


def test_events_go_to_the_clients_that_poll(link: Link) -> None:
    """One whose process has ended is subscribed for a while: its messages do not wait until it counts as gone."""
    assert link.group("lively", bind_topic=TOPIC) == 0
    names = [f"l{number}" for number in range(20)]
    for client in ("ended", "polls"):
        assert link.change("PARTIAL_ADD", names, client, "lively", **FROM_THE_FIRST) == [0, None]
    assert link.pop("polls", "lively").rows == []
    for name in names:
        assert link.send(name.encode(), name)["code"] == 0
    found = [link.pop("polls", "lively")]
    while found[-1].rows:
        found.append(link.pop("polls", "lively"))
    assert sorted(row[1] for each in found for row in each.rows) == sorted(names)


def test_who_has_a_lite_topic_and_says_anew_where_to_begin_is_given_it_from_there(link: Link) -> None:
    """A client that was told no answer asks again, and its repetition of everything may come before that."""
    assert link.send(b"again", "anew")["code"] == 0
    for _ in range(2):
        assert link.change("PARTIAL_ADD", ["anew"], "anew", **FROM_THE_FIRST) == [0, None]
        popped = link.pop("anew", pollTime="20000")
        assert [row[1] for row in popped.rows] == ["anew"]
        assert link.ack(popped, 0)[0] == 0
        assert link.pop("anew").rows == []
    link.change("COMPLETE_REMOVE", [], "anew")


@pytest.mark.parametrize("is_out", [False, True])
def test_a_consumer_that_waits_hears_of_an_offset_that_was_set_by_hand(link: Link, is_out: bool) -> None:
    name = f"set-by-hand-{is_out}"
    for body in (b"0", b"1"):
        assert link.send(body, name)["code"] == 0
    assert link.change("PARTIAL_ADD", [name], name, **FROM_THE_FIRST) == [0, None]
    popped = link.pop(name)
    assert [row[1] for row in popped.rows] == [name, name]
    # Once all are consumed, or while all are out, nothing but the reset brings an event.
    for number in range(0 if is_out else 2):
        assert link.ack(popped, number)[0] == 0
    assert link.pop(name).rows == []
    asked = {"topic": f"%LMQ%${TOPIC}${name}", "group": GROUP, "queueId": "0", "offset": "0"}
    assert link.ask(222, asked)[0]["code"] == 0
    assert [row[1] for row in link.pop(name, pollTime="20000").rows] == [name, name]
    link.change("COMPLETE_REMOVE", [], name)


def test_a_wildcard_group_reads_all_lite_topics_also_new_ones(link: Link) -> None:
    assert link.create("boards", "+message.type=LITE") == 0
    assert link.group("everything", bind_topic="boards", sub_wildcard="true") == 0
    assert link.send(b"old", "w-old", topic="boards")["code"] == 0
    row = '{"action":"COMPLETE_ADD","clientId":"wc","group":"everything","topic":"boards","liteTopicSet":[]}'
    assert link.ctl(b'{"subscriptionSet":[%b]}' % row.encode()) == [0, None]
    assert link.send(b"new", "w-new", topic="boards")["code"] == 0
    assert link.ask(200079, {"group": "everything"})[0]["code"] == 0
    ext = link.pop_ext("wc", "everything", "boards", pollTime="20000")
    bodies = b""
    while bodies.count(b"__LITE_TOPIC") < 2:
        head, body = link.ask(lite_topics.POP, ext)
        assert head["code"] == 0
        bodies += body
    assert b"w-old" in bodies
    assert b"w-new" in bodies


def test_a_light_queue_below_a_topic_that_is_no_lite_topic_is_not_given_out(link: Link) -> None:
    assert link.create("yards", "+message.type=LITE") == 0
    assert link.group("whole", bind_topic="yards", sub_wildcard="true") == 0
    assert link.send(b"odd", None, topic="yards", INNER_MULTI_DISPATCH="%LMQ%$yards$$y")["code"] == 0
    assert link.send(b"own", "y", topic="yards")["code"] == 0
    row = '{"action":"COMPLETE_ADD","clientId":"wh","group":"whole","topic":"yards","liteTopicSet":[]}'
    assert link.ctl(b'{"subscriptionSet":[%b]}' % row.encode()) == [0, None]
    assert link.ask(200079, {"group": "whole"})[0]["code"] == 0
    head, body = link.ask(lite_topics.POP, link.pop_ext("wh", "whole", "yards", pollTime="20000"))
    assert head["code"] == 0
    assert (b"own" in body, b"odd" in body) == (True, False)
    assert b'"liteTopicCount":1,' in link.ask(200075, {"topic": "yards"})[1]


def test_an_offset_of_a_lite_topic_is_found_by_time(link: Link) -> None:
    for number in range(3):
        assert link.send(b"%d" % number, "timed")["code"] == 0

    def search(time_ms: int, lite: str, boundary: str = "LOWER") -> str:
        asked = {"topic": TOPIC, "queueId": "0", "timestamp": f"{time_ms}", "boundaryType": boundary}
        head, _ = link.ask(29, asked | {"liteTopic": lite})
        assert head["code"] == 0
        return str(head["extFields"]["offset"])

    end_ms = 1 << 45
    assert (search(0, "timed"), search(end_ms, "timed"), search(end_ms, "timed", "UPPER")) == ("0", "3", "2")
    assert (search(0, "timed-never"), search(end_ms, "timed-never")) == ("0", "0")


def test_without_events_a_pop_looks_through_what_its_client_subscribed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUEUES_OF_POP", 2)
    with run_cluster(**LIGHT, lite_events_enabled=False, lite_event_check_ms=10) as quiet:
        link = made(quiet.brokers[0])
        assert link.change("PARTIAL_ADD", ["q0", "q1", "q2", "q3"]) == [0, None]
        assert link.pop().rows == []
        # What is not there yet has no offset either.
        assert b'"offsetTableSize":0' in link.ask(200074)[1]
        for name in ("q3", "q2", "q0"):
            assert link.send(name.encode(), name)["code"] == 0
        # Two in a pop, one after another: no queue is looked at twice before all others.
        assert [[row[1] for row in link.pop(maxMsgNum="9").rows] for _ in range(2)] == [["q2", "q3"], ["q0"]]
        asked = {"parentTopic": TOPIC, "group": GROUP, "clientId": "c1"}
        assert b'"lastAccessTime":-1' not in link.ask(200077, asked)[1]
        assert link.send(b"q1", "q1")["code"] == 0
        with Admin(quiet.namesrv) as admin:
            admin.set_broker_config("broker-a", {"enableLiteEventMode": "true"})
        assert [row[1] for row in link.until(1)[-1].rows] == ["q1"]
        link.close()


def test_an_offset_goes_on_over_a_restart_and_what_was_out_comes_again(tmp_path: Path) -> None:
    with run_cluster(store=tmp_path, **LIGHT) as first:
        link = made(first.brokers[0])
        for number in range(3):
            assert link.send(b"r%d" % number, "restarted")["code"] == 0
        assert link.change("PARTIAL_ADD", ["restarted"], "r", **FROM_THE_FIRST) == [0, None]
        popped = link.until(3, "r")
        assert link.ack(popped[0], 0) == [0, "None"]
        link.close()
    with run_cluster(store=tmp_path, **LIGHT) as second:
        link = Link(second.brokers[0])
        assert link.pop("r").code == 210
        assert link.change("COMPLETE_ADD", ["restarted"], "r") == [0, None]
        assert [row[0] for each in link.until(2, "r") for row in each.rows] == ["r1", "r2"]
        link.close()


def test_a_broker_that_was_started_again_is_told_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no receive waited meanwhile, whose end would tell that the broker was lost."""
    monkeypatch.setattr(lite_subscriptions, "AGAIN_S", 3600.0)
    with run_server_process(tmp_path / "store", config=lite_topics.SETTINGS) as server:
        link = made(server.broker)
        with LiteSimpleConsumer(server.namesrv, GROUP, TOPIC) as consumer:
            consumer.subscribe_lite("kept")
            server.kill()
            link.close()
            server.start()
            link = Link(server.broker)
            assert link.send(b"after", "kept")["code"] == 0
            assert [m.body for m in consumer.receive(timeout_ms=LIMIT_S * 1000)] == [b"after"]
        link.close()


def test_of_what_was_out_over_a_restart_nothing_is_passed_over(tmp_path: Path) -> None:
    with run_cluster(store=tmp_path, **LIGHT) as first:
        link = made(first.brokers[0])
        for number in range(3):
            assert link.send(b"r%d" % number, "late")["code"] == 0
        assert link.change("PARTIAL_ADD", ["late"], "r", **FROM_THE_FIRST) == [0, None]
        [popped] = link.until(3, "r")
        link.close()
    with run_cluster(store=tmp_path, **LIGHT) as second:
        link = Link(second.brokers[0])
        # The one behind it is still at work.
        assert link.ack(popped, 0) == [0, "None"]
        assert link.ack(popped, 2) == [0, "None"]
        assert link.change("COMPLETE_ADD", ["late"], "r") == [0, None]
        assert [row[0] for each in link.until(2, "r") for row in each.rows] == ["r1", "r2"]
        link.close()


def test_a_lite_topic_expires_with_its_offsets_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_cluster(**LIGHT, lite_expiration_check_ms=10, lite_expiration_ms_min=0) as quick:
        link = made(quick.brokers[0])
        assert link.create("kept", "+message.type=LITE,+lite.topic.expiration=-1") == 0
        assert link.send(b"kept", "stays", topic="kept")["code"] == 0
        assert link.send(b"old", "goes")["code"] == 0
        assert link.change("PARTIAL_ADD", ["goes"], "x", **FROM_THE_FIRST) == [0, None]
        [popped] = link.until(1, "x")
        assert link.ack(popped, 0) == [0, "None"]
        monkeypatch.setattr(parts, "now_ms", lambda: int(time.time() * 1000) + 31 * 60_000)
        while b'"liteTopicCount":0' not in link.ask(200075, {"topic": TOPIC})[1]:
            time.sleep(0.01)
        monkeypatch.undo()
        assert b'"liteTopicCount":1' in link.ask(200075, {"topic": "kept"})[1]
        assert link.ask(200077, {"parentTopic": TOPIC, "group": "phones", "clientId": "x"})[1].count(b"goes") == 0
        assert link.send(b"new", "goes")["code"] == 0
        assert link.change("PARTIAL_ADD", ["goes"], "x") == [0, None]
        [popped] = link.until(1, "x")
        assert popped.rows == [("new", "goes", 0)]
        link.close()


@pytest.mark.shows("lite topics: one that expires on a full disk, and so stays, keeps its offsets and subscriptions")
def test_a_lite_topic_that_cannot_be_removed_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_cluster(**LIGHT, lite_expiration_check_ms=10, lite_expiration_ms_min=0) as full:
        link = made(full.brokers[0])
        assert link.send(b"first", "stays")["code"] == 0
        assert link.change("PARTIAL_ADD", ["stays"], "x", **FROM_THE_FIRST) == [0, None]
        [popped] = link.until(1, "x")
        assert link.ack(popped, 0) == [0, "None"]
        tries = []

        def delete_light(self: Store, names: list[str]) -> None:
            tries.append(names)
            raise StoreFull("no room")

        monkeypatch.setattr(Store, "delete_light", delete_light)
        monkeypatch.setattr(parts, "now_ms", lambda: int(time.time() * 1000) + 31 * 60_000)
        while not tries:
            time.sleep(0.01)
        monkeypatch.setattr(parts, "now_ms", lambda: int(time.time() * 1000))
        assert link.send(b"second", "stays")["code"] == 0
        [popped] = link.until(1, "x")
        assert popped.rows == [("second", "stays", 1)]
        link.close()


def test_a_client_that_is_not_heard_of_is_forgotten() -> None:
    with run_cluster(**LIGHT, lite_subscription_check_ms=10, lite_subscription_timeout_ms=1) as quick:
        link = made(quick.brokers[0])
        assert link.change("PARTIAL_ADD", ["f"], "silent") == [0, None]
        asked = {"parentTopic": TOPIC, "group": "phones", "clientId": "silent"}
        while b'"liteTopicCount":-1' not in link.ask(200077, asked)[1]:
            time.sleep(0.01)
        assert b'"liteSubscriptionCount":0' in link.ask(200074)[1]
        link.close()


def test_a_deleted_topic_takes_its_lite_topics_along(link: Link) -> None:
    assert link.create("short", "+message.type=LITE") == 0
    for name in ("d1", "d2"):
        assert link.send(name.encode(), name, topic="short")["code"] == 0
    before = link.ask(200075, {"topic": "short"})[1]
    assert b'"liteTopicCount":2' in before
    assert link.ask(215, {"topic": "short"})[0]["code"] == 0
    assert link.create("short", "+message.type=LITE") == 0
    assert b'"liteTopicCount":0' in link.ask(200075, {"topic": "short"})[1]


def test_each_message_says_how_often_it_came_also_beside_new_ones(link: Link) -> None:
    assert link.send(b"0", "counted")["code"] == 0
    assert link.change("PARTIAL_ADD", ["counted"], "counting", **FROM_THE_FIRST) == [0, None]
    [first] = link.until(1, "counting")
    assert link.again(first, 0, 0)["code"] == 0
    assert link.send(b"1", "counted")["code"] == 0
    [both] = link.until(2, "counting")
    assert both.head["extFields"]["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 0"
    link.change("COMPLETE_REMOVE", [], "counting")


def test_what_no_lite_topic_is_named_is_not_kept(link: Link) -> None:
    names = ["fits", "x" * 65536, "a,b", "a$b", "a/b", "\0"]
    assert link.change("PARTIAL_ADD", names, "odd") == [0, None]
    found = link.ask(200077, {"parentTopic": TOPIC, "group": "phones", "clientId": "odd"})[1]
    assert json.loads(found)["liteTopicSet"] == [f"%LMQ%${TOPIC}$fits"]
    link.change("COMPLETE_REMOVE", [], "odd")
    assert link.change("PARTIAL_ADD", ["fits"], "x" * 1025)[0] == 29


def test_a_proxy_that_a_client_left_does_not_end_what_it_has_at_the_next(cluster: Cluster, link: Link) -> None:
    following = Link(cluster.brokers[0])
    asked = {"parentTopic": TOPIC, "group": "phones", "clientId": "moved"}
    for each in (link, following):
        assert each.change("COMPLETE_ADD", ["m"], "moved") == [0, None]
    assert link.change("COMPLETE_REMOVE", [], "moved") == [0, None]
    assert b'"liteTopicCount":1' in link.ask(200077, asked)[1]
    assert following.change("COMPLETE_REMOVE", [], "moved") == [0, None]
    assert b'"liteTopicCount":-1' in link.ask(200077, asked)[1]
    following.close()


def test_a_broker_without_light_queues_takes_no_subscription() -> None:
    with run_cluster() as without:
        link = made(without.brokers[0])
        code, remark = link.change("PARTIAL_ADD", ["a"])
        assert code == 604
        assert "enableLmq=true and enableMultiDispatch=true" in remark
        link.close()


def test_a_client_that_may_only_subscribe_reads_lite_topics() -> None:
    with run_cluster(secure=True, **LIGHT) as safe, Admin(safe.namesrv, **safe.client_options) as operations:
        operations.create_topic(TOPIC, message_type="LITE")
        operations.put_group("phones", GroupSettings(attributes=f"+lite.bind.topic={TOPIC}"))
        operations.create_user("reader", "long-enough")
        operations.create_acl("reader", [f"Topic:{TOPIC}", "Group:phones"], ["SUB"])
        with Producer(safe.namesrv, **safe.client_options) as producer:
            producer.send(TOPIC, b"read", lite_topic="a")
        own = safe.client_options | {"access_key": "reader", "secret_key": "long-enough"}
        with LiteSimpleConsumer(safe.namesrv, "phones", TOPIC, **own) as consumer:
            consumer.subscribe_lite("a", position="first")
            assert [message.body for message in consumer.receive(timeout_ms=LIMIT_S * 1000)] == [b"read"]


def test_a_held_pop_ends_with_its_time(link: Link) -> None:
    born_ms = int(time.time() * 1000)
    popped = link.pop("nobody-yet", pollTime="300", bornTime=str(born_ms))
    assert (popped.code, popped.head["remark"]) == (210, "NO_MESSAGE_IN_QUEUE")
    assert time.time() * 1000 >= born_ms + 200


def test_who_ends_what_he_does_not_have_is_not_kept(link: Link) -> None:
    asked = {"parentTopic": TOPIC, "group": "phones", "clientId": "nobody"}
    assert link.change("PARTIAL_REMOVE", ["a"], "nobody") == [0, None]
    assert json.loads(link.ask(200077, asked)[1])["liteTopicCount"] == -1


def test_a_pop_of_another_group_is_no_sign_of_life_of_a_client(link: Link) -> None:
    assert link.group("strangers", bind_topic=TOPIC) == 0
    assert link.change("PARTIAL_ADD", ["seen"], "watched") == [0, None]
    assert link.send(b"x", "seen")["code"] == 0
    asked = {"parentTopic": TOPIC, "group": "phones", "clientId": "watched"}

    def accessed_ms() -> int:
        return int(json.loads(link.ask(200077, asked)[1])["lastAccessTime"])

    while not 0 < (before_ms := accessed_ms()) < int(time.time() * 1000):
        time.sleep(0.001)
    for group, is_later in (("strangers", False), ("phones", True)):
        link.pop("watched", group, pollTime="0")
        assert (accessed_ms() > before_ms) is is_later
    link.change("COMPLETE_REMOVE", [], "watched")


@pytest.mark.shows("enableLitePopLog: pops of lite topics that are held are logged; liteLagLatencyTopK bounds a list")
def test_settings_that_show_more_of_lite_topics(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rocketspark.broker")
    with run_cluster(**LIGHT, lite_pop_log=True, lite_lag_times=True, lite_lag_times_max=2) as told:
        link = made(told.brokers[0])
        names = ["s0", "s1", "s2"]
        assert link.change("PARTIAL_ADD", names) == [0, None]
        for name in names * 2:
            assert link.send(b"x", name)["code"] == 0
        link.until(6)
        body = json.loads(link.ask(200078, {"group": GROUP, "topK": "3"})[1])
        assert [len(body[key]) for key in ("lagCountTopK", "lagTimestampTopK")] == [3, 2]
        assert link.pop(pollTime="200").code == 210
        link.close()
    lines = [line for line in caplog.messages if "pop of lite topics" in line]
    assert any("is held for" in line for line in lines), lines
    assert lines[-1] == f"a held pop of lite topics of {TOPIC} by c1 of {GROUP} gets 0 messages"
