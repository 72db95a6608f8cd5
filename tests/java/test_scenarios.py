"""The official Java clients on our server, in what no other file of this folder shows; tests/go runs them with Go's.

JAVA_TESTS_ON=apache runs the same tests on the official servers: what fails there too is a fault of the test.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.java.apache import ask
from tests.java.conftest import DriverFactory
from tests.java.test_java_client_on_ours import CLIENTS, Scene
from tests.support.commanded import CommandError, body_of, message
from tests.support.patience import LIMIT_S

both_versions = pytest.mark.parametrize("scene", CLIENTS, indirect=True, ids=lambda value: "-".join(value))

GROUP_SETTINGS = 200
MANY = 120_000


@pytest.fixture
def scene(request: pytest.FixtureRequest, java_driver: DriverFactory, ours: Any) -> Scene:
    version, serialization = request.param
    test = request.node.originalname.removeprefix("test_").replace("_", "-")
    return Scene(java_driver(version, serialization), ours, f"{test}-{version.replace('.', '')}")


def eventually(look: Callable[[], Any], wanted: Callable[[Any], bool], limit_s: float = LIMIT_S) -> Any:
    """What `look` gives once it is as wanted; the clients' errors on the way count as not yet."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            found = look()
            if wanted(found):
                return found
        except CommandError as error:
            found = error
        assert time.monotonic() < deadline, f"not within {limit_s} s: {found}"
        time.sleep(0.05)


def bodies(received: list[dict[str, Any]]) -> list[str]:
    return [body_of(m).decode() for m in received]


def set_group(scene: Scene, **fields: Any) -> None:
    """Makes the group with these settings, and its retry topic."""
    settings = {"groupName": scene.group, "consumeEnable": True, "retryQueueNums": 1} | fields
    assert ask(scene.broker, GROUP_SETTINGS, json.dumps(settings).encode()).code == 0
    scene.create_retry_topic()


@both_versions
def test_a_wrong_expression_is_refused_at_the_start(scene: Scene) -> None:
    scene.create(queues=1)
    subscriptions = [{"topic": scene.topic, "sql": "price BETWEEN 4 AND"}]
    with pytest.raises(CommandError) as refused:
        scene.java.call(
            "push_start", name="refused", namesrv=scene.namesrv, group=scene.group, subscriptions=subscriptions
        )
    assert refused.value.code == 23


@both_versions
def test_a_waiting_pull_is_answered_by_what_arrives(scene: Scene) -> None:
    scene.create(queues=1)
    with scene.puller() as puller, scene.producer() as producer:
        waiting = scene.java.submit("pull", name=puller, queue=scene.queue(0), offset=0, block=True)
        time.sleep(0.3)
        assert not waiting.done()
        scene.java.call("send", name=producer, messages=[message(scene.topic, "it comes")], queue=scene.queue(0))
        found = waiting.result(LIMIT_S)
    assert (found["status"], found["next"], bodies(found["messages"])) == ("FOUND", 1, ["it comes"])


@both_versions
def test_what_always_fails_ends_among_the_dead(scene: Scene) -> None:
    scene.create(queues=1)
    set_group(scene)
    with scene.pusher(fail_first=MANY, max_reconsume_times=1) as consumer:
        [sent] = scene.fill(["hopeless"], tag="t", keys="k")
        received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=MANY)
        # The third time it goes to the dead, and the group is done with it.
        dead = {"topic": f"%DLQ%{scene.group}", "queueId": "0"}
        eventually(lambda: ask(scene.broker, 30, ext_fields=dead).ext_fields.get("offset"), lambda end: end == "1")
        assert len(scene.java.call("push_await", name=consumer, count=2, timeout_ms=0)) == 2
    assert [m["reconsume_times"] for m in received] == [0, 1]
    assert {m["message_id"] for m in received} == {sent["message_id"]}
    assert [(m["topic"], m["tag"], m["keys"]) for m in received] == [(scene.topic, "t", "k")] * 2


@both_versions
def test_a_group_that_is_switched_off_gets_nothing(scene: Scene) -> None:
    scene.create(queues=1)
    scene.fill(["kept from it"])
    set_group(scene, consumeEnable=False)
    with scene.puller(scene.group) as puller:
        with pytest.raises(CommandError) as refused:
            scene.java.call("pull", name=puller, queue=scene.queue(0), offset=0)
        assert refused.value.code == 16
        set_group(scene)
        found = scene.java.call("pull", name=puller, queue=scene.queue(0), offset=0)
    assert bodies(found["messages"]) == ["kept from it"]


@both_versions
def test_delay_levels(scene: Scene) -> None:
    scene.create(queues=1)
    rounds: list[list[str]] = []
    with scene.pusher() as consumer, scene.producer() as producer:
        messages = [message(scene.topic, f"level {level}", delay_level=level) for level in (2, 1)]
        messages.append(message(scene.topic, "at once"))
        # A machine that halts for a second between two sends changes the order: once is enough.
        while ["at once", "level 1", "level 2"] not in rounds:
            assert len(rounds) < 5, rounds
            scene.java.call("send", name=producer, messages=messages, queue=scene.queue(0))
            count = 3 * len(rounds)
            received = scene.java.call("push_await", name=consumer, count=count + 3, timeout_ms=MANY)[count:]
            received.sort(key=lambda m: int(m["queue_offset"]))
            rounds.append(bodies(received))
            delay_ms = {"at once": 0, "level 1": 1000, "level 2": 2000}
            assert sorted(rounds[-1]) == sorted(delay_ms)
            for found in received:
                took_ms = found["store_time_ms"] - found["born_time_ms"]
                assert took_ms >= delay_ms[body_of(found).decode()] - 10
                assert (found["topic"], found["queue_id"]) == (scene.topic, 0)


@both_versions
def test_timer_messages(scene: Scene) -> None:
    scene.create(queues=1)
    at_ms = int(time.time() * 1000) + 2500
    times = [("TIMER_DELAY_SEC", 2), ("TIMER_DELAY_MS", 1200), ("TIMER_DELIVER_MS", at_ms)]
    with scene.pusher() as consumer, scene.producer() as producer:
        messages = [message(scene.topic, name, times={name: str(value)}) for name, value in times]
        scene.java.call("send_timed", name=producer, messages=messages, queue=scene.queue(0))
        received = scene.java.call("push_await", name=consumer, count=3, timeout_ms=MANY)
    found = {body_of(m).decode(): m for m in received}
    assert sorted(found) == sorted(name for name, _ in times)
    for name, value in times:
        due_ms = (
            value
            if name == "TIMER_DELIVER_MS"
            else found[name]["born_time_ms"] + value * (1000 if name == "TIMER_DELAY_SEC" else 1)
        )
        assert found[name]["store_time_ms"] >= due_ms, name
        assert found[name]["topic"] == scene.topic


@both_versions
def test_another_producer_of_the_group_is_asked_for_an_open_transaction(scene: Scene) -> None:
    scene.create(queues=1)
    group = f"{scene.group}-producers"
    begun = message(scene.topic, "begun by the first", properties={"outcome": "UNKNOW", "check": "COMMIT_MESSAGE"})
    with scene.pusher() as consumer:
        with scene.java.started("transactor", namesrv=scene.namesrv, group=group, undecided=True) as first:
            [sent] = scene.java.call("transactor_send", name=first, messages=[begun])
        with scene.java.started("transactor", namesrv=scene.namesrv, group=group) as second:
            # With its first message the broker comes to know it.
            own = message(scene.topic, "its own", properties={"outcome": "COMMIT_MESSAGE"})
            scene.java.call("transactor_send", name=second, messages=[own])
            received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=MANY)
            asked = scene.java.call("transactor_checked", name=second)
    assert sorted(bodies(received)) == ["begun by the first", "its own"]
    # The official broker may ask for one that has just ended, too.
    assert {a["body"]: a["transaction_id"] for a in asked}["begun by the first"] == sent["transaction_id"]


@both_versions
def test_messages_are_found_by_key_unique_id_and_offset_id(scene: Scene) -> None:
    scene.create(queues=1)
    sent = scene.fill(["one", "two"], keys="shared pair")
    scene.fill(["three"], keys="other")
    with scene.puller() as puller:

        def by_key(key: str) -> list[str]:
            found = scene.java.call("query_message", name=puller, topic=scene.topic, key=key, count_max=32)
            return sorted(bodies(found))

        def view(message_id: str) -> dict[str, Any]:
            found: dict[str, Any] = scene.java.call(
                "view_message", name=puller, topic=scene.topic, message_id=message_id
            )
            return found

        # Indexes are made after the reply.
        eventually(lambda: by_key("other"), lambda found: found == ["three"])
        assert by_key("shared") == by_key("pair") == ["one", "two"]
        with pytest.raises(CommandError) as none:
            by_key("no such key")
        assert none.value.code == 208
        for result, body in zip(sent, ("one", "two"), strict=True):
            for message_id in (result["message_id"], result["offset_message_id"]):
                found = view(message_id)
                assert bodies([found]) == [body]
                assert found["offset_message_id"] == result["offset_message_id"]


@both_versions
def test_clients_of_a_group_are_seen_and_asked(scene: Scene) -> None:
    scene.create(queues=2)
    [sent] = scene.fill(["seen"])
    group = {"group": scene.group}
    with (
        scene.java.started("admin", namesrv=scene.namesrv) as admin,
        scene.pusher(tags="*") as consumer,
        scene.producer() as producer,
    ):
        scene.java.call("push_await", name=consumer, count=1, timeout_ms=MANY)

        def ask_admin(command: str, **args: Any) -> Any:
            return scene.java.call(command, name=admin, **args)

        seen = eventually(lambda: ask_admin("consumer_connection", **group), lambda found: len(found["clients"]) == 1)
        assert seen["clients"][0]["language"] == "JAVA"
        assert seen["subscriptions"] == {scene.topic: "*", f"%RETRY%{scene.group}": "*"}
        assert (seen["type"], seen["model"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
        assert seen["from"] == "CONSUME_FROM_FIRST_OFFSET"
        client = seen["clients"][0]["client"]
        info = eventually(
            lambda: ask_admin("running_info", client=client, **group),
            lambda found: found["queues"].get(f"{scene.topic}:0") == 1,
        )
        assert {f"{scene.topic}:0", f"{scene.topic}:1"} <= set(info["queues"])
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert ask_admin("groups_of_topic", topic=scene.topic) == [scene.group]
        again = {"topic": scene.topic, "message_id": sent["offset_message_id"], "client": client}
        assert ask_admin("consume_directly", **group, **again) == "CR_SUCCESS"
        received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=MANY)
        assert bodies(received) == ["seen", "seen"]
        # A producer shows itself with its heartbeat; the tests' producers are all of one group.
        scene.java.call("send", name=producer, messages=[message(scene.topic, "hello")], queue=scene.queue(1))
        asked = {"group": "java-producers", "topic": scene.topic}
        eventually(
            lambda: ask_admin("producer_connection", **asked), lambda found: any(producer in name for name in found)
        )


@both_versions
def test_offsets_are_reset_by_time(scene: Scene) -> None:
    scene.create(queues=1)
    set_group(scene)
    scene.fill(["old 1", "old 2"])
    time.sleep(0.05)  # The reset is to a time between the two.
    scene.fill(["new 1", "new 2"])
    stored = scene.stored(queues=1)
    queue = scene.queue(0)
    with scene.java.started("admin", namesrv=scene.namesrv) as admin, scene.puller(scene.group) as puller:
        scene.java.call("commit_offset", name=puller, queue=queue, offset=4)
        eventually(lambda: scene.committed(0), lambda offset: offset == 4)
        place = {"topic": scene.topic, "group": scene.group, "time_ms": stored[2]["store_time_ms"]}
        assert scene.java.call("reset_offset", name=admin, **place) == {"0": 2}
        assert scene.committed(0) == 2
        # The next pull is told of it, once, wherever it is.
        told = scene.java.call("pull", name=puller, queue=queue, offset=4)
        assert (told["status"], told["next"]) == ("OFFSET_ILLEGAL", 2)
        found = scene.java.call("pull", name=puller, queue=queue, offset=told["next"])
    assert bodies(found["messages"]) == ["new 1", "new 2"]


# Clients of 4.x wait 10 s and a rebalance after a running consumer's offset has moved.
@pytest.mark.parametrize("scene", CLIENTS[:1], indirect=True, ids=lambda value: "-".join(value))
def test_offsets_are_reset_under_a_running_consumer(scene: Scene) -> None:
    scene.create(queues=1)
    set_group(scene)
    scene.fill(["old"])
    time.sleep(0.05)  # The reset is to a time between the two.
    scene.fill(["new"])
    with scene.java.started("admin", namesrv=scene.namesrv) as admin, scene.pusher() as consumer:
        received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=MANY)
        new = next(m for m in received if body_of(m) == b"new")
        place = {"topic": scene.topic, "group": scene.group, "time_ms": new["store_time_ms"]}
        assert scene.java.call("reset_offset", name=admin, **place) == {"0": 1}
        # A pull that waits need not notice before it is answered.
        scene.fill(["newest"])
        received = eventually(
            lambda: scene.java.call("push_await", name=consumer, count=4, timeout_ms=1000),
            lambda found: bodies(found).count("new") == 2 and "newest" in bodies(found),
        )
    assert bodies(received).count("old") == 1


@both_versions
def test_write_permission_of_a_broker_and_key_values(scene: Scene) -> None:
    scene.create(queues=3)
    with scene.java.started("admin", namesrv=scene.namesrv) as admin:

        def ask_admin(command: str, **args: Any) -> Any:
            return scene.java.call(command, name=admin, **args)

        def permission() -> int:
            [queues] = ask_admin("topic_route", topic=scene.topic)["queues"]
            return int(queues["perm"])

        here = {"namesrv": scene.namesrv, "broker_name": "broker-a"}
        assert permission() == 6
        try:
            assert ask_admin("wipe_write_permission", **here) > 0
            assert permission() == 4
        finally:
            assert ask_admin("add_write_permission", **here) > 0
        assert permission() == 6
        entry = {"namespace": scene.group, "key": "colour"}
        ask_admin("put_kv", value="red", **entry)
        assert ask_admin("get_kv", **entry) == "red"
        ask_admin("delete_kv", **entry)
        with pytest.raises(CommandError) as missing:
            ask_admin("get_kv", **entry)
        assert missing.value.code == 22


@both_versions
def test_queues_that_a_producer_finds(scene: Scene) -> None:
    scene.create(queues=3)
    with scene.producer() as producer:
        queues = scene.java.call("publish_queues", name=producer, topic=scene.topic)
    assert queues == [scene.queue(queue_id) for queue_id in range(3)]


@both_versions
def test_what_is_refused_tells_its_code(scene: Scene) -> None:
    scene.create(queues=1)
    large = message(scene.topic, "x", properties={"p": "x" * 32_768})
    with scene.producer() as producer, pytest.raises(CommandError) as too_large:
        scene.java.call("send", name=producer, messages=[large])
    assert too_large.value.code == 13
    with scene.java.started("admin", namesrv=scene.namesrv) as admin:
        place = {"topic": scene.topic, "queues": 1, "broker_address": scene.broker}
        scene.java.call("create_topic", name=admin, perm=2, **place)
    with scene.puller() as puller, pytest.raises(CommandError) as write_only:
        scene.java.call("pull", name=puller, queue=scene.queue(0), offset=0)
    assert write_only.value.code == 16
