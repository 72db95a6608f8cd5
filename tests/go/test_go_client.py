"""The Go client, unchanged, on our server: the Java clients' scenarios that it can do, and its own.

JAVA_TESTS_ON=apache runs the same tests on the official servers: what fails there too is a fault of the test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.go.driver import GoDriver
from tests.java import test_java_client_on_ours as on_ours
from tests.java import test_java_client_wholes as wholes
from tests.java import test_scenarios as scenarios
from tests.java.apache import ask
from tests.java.test_signing_clients import KEYS, cluster
from tests.support.commanded import CommandError, message
from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows("Go client")

__all__ = ["cluster"]

CONSUMER_CONNECTIONS, RUNNING_INFO, CONSUME_DIRECTLY = 203, 307, 309


Scenario = Callable[[on_ours.Scene], None]

SAME: list[Scenario] = [
    on_ours.test_sync_send_keeps_everything,
    on_ours.test_async_send,
    on_ours.test_oneway_send,
    on_ours.test_ordered_send,
    on_ours.test_large_bodies_are_compressed_and_come_back_whole,
    on_ours.test_body_over_the_limit_is_refused,
    on_ours.test_push_consume_with_tags,
    on_ours.test_group_goes_on_where_it_stopped,
    on_ours.test_broadcast_reaches_every_consumer,
    wholes.test_transactions_end_as_they_were_decided,
    wholes.test_an_orderly_consumer_gets_each_queue_in_order_and_again_from_where_it_failed,
    wholes.test_a_request_gets_its_reply,
    wholes.test_sql_chooses_by_properties,
    scenarios.test_a_waiting_pull_is_answered_by_what_arrives,
    scenarios.test_what_always_fails_ends_among_the_dead,
    scenarios.test_a_group_that_is_switched_off_gets_nothing,
    scenarios.test_delay_levels,
    scenarios.test_timer_messages,
    scenarios.test_another_producer_of_the_group_is_asked_for_an_open_transaction,
    scenarios.test_queues_that_a_producer_finds,
    scenarios.test_what_is_refused_tells_its_code,
]


def scene_of(name: str, go_client: GoDriver, ours: Any) -> on_ours.Scene:
    return on_ours.Scene(go_client, ours, f"go-{name.removeprefix('test_').replace('_', '-')}")


@pytest.mark.parametrize("scenario", SAME, ids=lambda scenario: scenario.__name__.removeprefix("test_"))
def test_scenario(scenario: Scenario, go_client: GoDriver, ours: Any) -> None:
    scenario(scene_of(scenario.__name__, go_client, ours))


@pytest.fixture
def scene(request: pytest.FixtureRequest, go_client: GoDriver, ours: Any) -> on_ours.Scene:
    return scene_of(request.node.originalname, go_client, ours)


def test_a_batch_becomes_one_message_each(scene: on_ours.Scene) -> None:
    scene.create(queues=2)
    batch = [message(scene.topic, f"batch {n}", tag="b", keys=f"k{n}") for n in range(10)]
    with scene.producer() as producer:
        first = scene.java.call("send_batch", name=producer, messages=batch, queue=scene.queue(1))
        second = scene.java.call("send_batch", name=producer, messages=batch[:3], queue=scene.queue(1))
    stored = scene.stored(queues=2)
    assert scenarios.bodies(stored) == [f"batch {n}" for n in [*range(10), *range(3)]]
    assert [(m["queue_id"], m["queue_offset"]) for m in stored] == [(1, n) for n in range(13)]
    assert [m["keys"] for m in stored[:10]] == [f"k{n}" for n in range(10)]
    assert (first["queue_offset"], second["queue_offset"]) == (0, 10)
    # This client gives the messages of a batch no ids of their own.
    assert first["offset_message_id"].split(",") == [m["message_id"] for m in stored[:10]]


def test_a_pull_and_its_states(scene: on_ours.Scene) -> None:
    scene.create(queues=1)
    scene.fill([f"{n}" for n in range(10)])
    with scene.puller() as puller:
        some = scene.java.call("pull", name=puller, queue=scene.queue(0), offset=4, count_max=3)
        assert (some["status"], some["next"], some["min"], some["max"]) == ("FOUND", 7, 0, 10)
        assert scenarios.bodies(some["messages"]) == ["4", "5", "6"]
        beyond = scene.java.call("pull", name=puller, queue=scene.queue(0), offset=50)
        assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", 10)


def test_polls_bring_everything_and_acknowledge_it(scene: on_ours.Scene) -> None:
    scene.create(queues=1)
    scene.fill([f"{n}" for n in range(30)])
    with scene.java.started("lite", namesrv=scene.namesrv, group=scene.group, topic=scene.topic) as consumer:
        received = scene.java.call("lite_poll", name=consumer, count=30, timeout_ms=LIMIT_MS)
    assert scenarios.bodies(received) == [f"{n}" for n in range(30)]
    scene.await_committed(30)


def test_a_consumer_is_seen_and_asked(scene: on_ours.Scene) -> None:
    scene.create(queues=2)
    [sent] = scene.fill(["seen"])
    group = {"consumerGroup": scene.group}

    def asked(code: int, **fields: str) -> bytes:
        answer = ask(scene.broker, code, ext_fields=group | fields)
        assert answer.code == 0, answer
        return answer.body

    with scene.pusher() as consumer:
        scene.java.call("push_await", name=consumer, count=1, timeout_ms=LIMIT_MS)
        seen = json.loads(asked(CONSUMER_CONNECTIONS))
        [connection] = seen["connectionSet"]
        assert connection["language"] == "GO"
        assert seen["subscriptionTable"][scene.topic]["subString"] == "*"
        client = {"clientId": connection["clientId"]}
        # The client's own text; its tables' keys are objects, which is no JSON.
        info = asked(RUNNING_INFO, jstackEnable="false", **client)
        assert b'"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"' in info
        assert b'{"topic":"%b","brokerName":"broker-a","queueId":1}:' % scene.topic.encode() in info
        place = {"topic": scene.topic, "msgId": sent["offset_message_id"], "brokerName": "broker-a"}
        assert json.loads(asked(CONSUME_DIRECTLY, **client, **place))["consumeResult"] == 0  # Its number for success.
        received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=LIMIT_MS)
        assert scenarios.bodies(received) == ["seen", "seen"]


def test_the_admin_makes_lists_and_deletes_topics(scene: on_ours.Scene) -> None:
    scene.create(queues=1)
    scenarios.set_group(scene)
    with scene.java.started("admin", namesrv=scene.namesrv) as admin:
        groups = scene.java.call("groups", name=admin, broker_address=scene.broker)
        assert groups[scene.group]["ConsumeEnable"] is True
        scene.java.call("delete_topic", name=admin, topic=scene.topic, broker_address=scene.broker)
        assert scene.topic not in scene.java.call("topic_list", name=admin)


@pytest.mark.shows(
    "Java 5.5.0, 4.9.7 and C++ clients with right, wrong, missing, unknown, disabled, unallowed and revoked keys",
    "Go client with right, wrong, missing, unknown, disabled and unallowed keys",
)
def test_keys_are_told_from_wrong_ones(go_client: GoDriver, cluster: Cluster) -> None:
    """Producers with right, wrong, missing, unknown, disabled and unallowed keys, and a consumer with a right one."""
    name, passed = {"namesrv": cluster.namesrv, "group": "go-signed"}, 0
    for key, secret, remark in KEYS:
        keys = {"access_key": key, "secret_key": secret} if key else {}
        with go_client.started("producer", **name, **keys) as producer:
            send = go_client.submit("send", name=producer, messages=[message("orders", f"{key} {passed}")])
            if remark is None:
                send.result(LIMIT_S)
                passed += 1
            else:
                with pytest.raises(CommandError, match=re.escape(remark)):
                    send.result(LIMIT_S)
    keys = {"access_key": "carol", "secret_key": "secret-of-carol"}
    subscribed: dict[str, Any] = {"subscriptions": [{"topic": "orders"}]}
    consumer = {"namesrv": cluster.namesrv, "group": "carols"}
    with go_client.started("push", **consumer, **keys, **subscribed) as pusher:
        received = go_client.call("push_await", name=pusher, count=passed, timeout_ms=LIMIT_MS)
    assert scenarios.bodies(received) == ["alice 0"]
