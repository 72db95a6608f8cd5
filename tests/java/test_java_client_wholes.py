"""The official Java clients on our server, in what takes several requests: order, transactions, requests, SQL92.

JAVA_TESTS_ON=apache runs the same tests on the official servers: what fails there too is a fault of the test.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.java.conftest import DriverFactory
from tests.java.driver import body_of, message
from tests.java.test_java_client_on_ours import CLIENTS, Scene
from tests.support.patience import LIMIT_MS

both_versions = pytest.mark.parametrize("scene", CLIENTS, indirect=True, ids=lambda value: "-".join(value))


@pytest.fixture
def scene(request: pytest.FixtureRequest, java_driver: DriverFactory, ours: Any) -> Scene:
    version, serialization = request.param
    test = request.node.originalname.removeprefix("test_").replace("_", "-")
    return Scene(java_driver(version, serialization), ours, f"{test}-{version.replace('.', '')}")


def in_transaction(scene: Scene, body: str, outcome: str, check: str = "UNKNOW") -> dict[str, Any]:
    return message(scene.topic, body, tag="t", properties={"outcome": outcome, "check": check})


@pytest.mark.shows("the official Java clients' transactions, check-back included")
@both_versions
def test_transactions_end_as_they_were_decided(scene: Scene) -> None:
    scene.create(queues=1)
    group = f"{scene.group}-producers"
    with (
        scene.pusher() as consumer,
        scene.java.started("transactor", namesrv=scene.namesrv, group=group) as transactor,
    ):
        sent = scene.java.call(
            "transactor_send",
            name=transactor,
            messages=[
                in_transaction(scene, "committed", "COMMIT_MESSAGE"),
                in_transaction(scene, "rolled back", "ROLLBACK_MESSAGE"),
                in_transaction(scene, "found by the check", "UNKNOW", "COMMIT_MESSAGE"),
                in_transaction(scene, "dropped by the check", "UNKNOW", "ROLLBACK_MESSAGE"),
            ],
        )
        assert [r["status"] for r in sent] == ["SEND_OK"] * 4
        received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=LIMIT_MS)
        deadline = time.monotonic() + 120
        undecided = {"found by the check", "dropped by the check"}
        while not undecided <= {a["body"] for a in scene.java.call("transactor_checked", name=transactor)}:
            assert time.monotonic() < deadline, "not asked"
            time.sleep(0.05)
        # Both were asked for, nothing comes after: not even what is sent last comes before it.
        last = [in_transaction(scene, "last", "COMMIT_MESSAGE")]
        scene.java.call("transactor_send", name=transactor, messages=last)
        received = scene.java.call("push_await", name=consumer, count=3, timeout_ms=LIMIT_MS)
        asked = scene.java.call("transactor_checked", name=transactor)
    ids = {body_of(m).decode(): m["properties"]["UNIQ_KEY"] for m in received}
    assert sorted(body_of(m).decode() for m in received) == ["committed", "found by the check", "last"]
    assert ids["committed"] == sent[0]["transaction_id"]
    # The official broker may ask for one that has just ended, too.
    assert {a["topic"] for a in asked} == {scene.topic}
    by_body = {a["body"]: a["transaction_id"] for a in asked}
    assert by_body["found by the check"] == sent[2]["transaction_id"]


@pytest.mark.shows("order: queue locks")
@both_versions
def test_an_orderly_consumer_gets_each_queue_in_order_and_again_from_where_it_failed(scene: Scene) -> None:
    scene.create(queues=2)
    with scene.producer() as producer:
        for number in range(10):
            for queue_id in range(2):
                scene.java.call(
                    "send",
                    name=producer,
                    messages=[message(scene.topic, f"{queue_id}-{number}")],
                    queue=scene.queue(queue_id),
                )
    # Each message fails once: it comes again before any other of its queue.
    with scene.pusher(orderly=True, fail_first=1, retry_pause_ms=100) as consumer:
        received = scene.java.call("push_await", name=consumer, count=40, timeout_ms=LIMIT_MS)
    for queue_id in range(2):
        bodies = [body_of(m).decode() for m in received if m["queue_id"] == queue_id]
        assert bodies == [f"{queue_id}-{number}" for number in range(10) for _ in range(2)]


@pytest.mark.shows("requests and their replies")
@both_versions
def test_a_request_gets_its_reply(scene: Scene) -> None:
    scene.create(queues=1)
    with scene.java.started("answerer", namesrv=scene.namesrv, group=scene.group, topic=scene.topic):
        for text in ("one", "two"):
            reply = scene.java.call(
                "request",
                namesrv=scene.namesrv,
                group=f"{scene.group}-asking",
                message=message(scene.topic, text),
                timeout_ms=LIMIT_MS,
            )
            assert reply == f"re: {text}"


@both_versions
def test_sql_chooses_by_properties(scene: Scene) -> None:
    scene.create(queues=1)
    sending = [
        message(scene.topic, f"{price} {colour}", properties={"price": str(price), "colour": colour})
        for price in (1, 5, 9)
        for colour in ("red", "blue")
    ]
    subscriptions = [{"topic": scene.topic, "sql": "price BETWEEN 4 AND 9 AND colour = 'red'"}]
    with scene.producer() as producer:
        scene.java.call("send", name=producer, messages=sending, queue=scene.queue(0))
    with scene.java.started("push", namesrv=scene.namesrv, group=scene.group, subscriptions=subscriptions) as consumer:
        received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=LIMIT_MS)
        with scene.producer() as producer:
            scene.java.call("send", name=producer, messages=sending[-2:], queue=scene.queue(0))
        received = scene.java.call("push_await", name=consumer, count=3, timeout_ms=LIMIT_MS)
    # Its listeners run side by side.
    assert sorted(body_of(m).decode() for m in received) == ["5 red", "9 red", "9 red"]
