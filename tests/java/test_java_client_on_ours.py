"""The official Java clients, unchanged, on our NameServer and broker.

JAVA_TESTS_ON=apache runs the same tests on the official servers: what fails there too is a fault of the test.
"""

from __future__ import annotations

import base64
import random
import time
from typing import Any

import pytest
from tests.java.apache import committed_offset
from tests.java.conftest import DriverFactory
from tests.java.driver import JavaError, body_of, message
from tests.java.mqadmin import until
from tests.support.commanded import Commanded
from tests.support.names import own_name
from tests.support.patience import LIMIT_MS, LIMIT_S

pytestmark = pytest.mark.shows(
    "Java clients on our servers: sync, async, one-way, batch, ordered, push with tags, pull",
)

CLIENTS = [("5.5.0", "JSON"), ("4.9.7", "JSON")]
BINARY_CLIENTS = [("5.5.0", "ROCKETMQ"), ("4.9.7", "ROCKETMQ")]


class Scene:
    """One client of one version, our server, and names that no other test uses."""

    def __init__(self, java: Commanded, server: Any, name: str) -> None:
        self.java = java
        self.namesrv: str = server.namesrv
        self.broker: str = server.broker
        self.topic = own_name(name)
        self.group = f"{self.topic}-group"

    def producer(self, **options: Any) -> Any:
        return self.java.started("producer", namesrv=self.namesrv, group="java-producers", **options)

    def puller(self, group: str = "java-lookers") -> Any:
        """A pull consumer joins its group, and takes a share of the queues: hence a group of its own."""
        return self.java.started("pull", namesrv=self.namesrv, group=group, topic=self.topic)

    def committed(self, queue_id: int) -> int | None:
        return committed_offset(self.broker, self.group, self.topic, queue_id)

    def await_committed(self, offset: int) -> None:
        """For queue 0, while the push consumer runs: one that ends may commit before it took its last results."""
        until(lambda: self.committed(0) == offset)

    def pusher(self, tags: str = "*", **options: Any) -> Any:
        subscriptions = [{"topic": self.topic, "tags": tags}]
        return self.java.started("push", namesrv=self.namesrv, group=self.group, subscriptions=subscriptions, **options)

    def queue(self, queue_id: int) -> dict[str, Any]:
        return {"topic": self.topic, "broker": "broker-a", "queue_id": queue_id}

    def create(self, queues: int, topic: str | None = None) -> None:
        """Makes the topic, and waits until the NameServer knows it: clients ask only every 30 s."""
        topic = topic or self.topic
        with self.java.started("admin", namesrv=self.namesrv) as admin:
            self.java.call("create_topic", name=admin, topic=topic, queues=queues, broker_address=self.broker)
            deadline = time.monotonic() + 120
            while topic not in self.java.call("topic_list", name=admin):
                assert time.monotonic() < deadline, f"no route of {topic}"
                time.sleep(0.02)

    def create_retry_topic(self) -> None:
        """The broker makes it with the group's first heartbeat; a consumer that finds it there need not look again."""
        self.create(1, f"%RETRY%{self.group}")

    def fill(self, bodies: list[str], **fields: Any) -> list[dict[str, Any]]:
        """Sends the bodies to queue 0; returns the send results."""
        messages = [message(self.topic, body, **fields) for body in bodies]
        with self.producer() as producer:
            results: list[dict[str, Any]] = self.java.call(
                "send", name=producer, messages=messages, queue=self.queue(0)
            )
        return results

    def stored(self, queues: int = 4) -> list[dict[str, Any]]:
        """Every message of the topic, by pulls from each queue's oldest offset."""
        with self.puller() as puller:
            return [
                found
                for queue_id in range(queues)
                for found in self.java.call("read_queue", name=puller, queue=self.queue(queue_id))
            ]


@pytest.fixture
def scene(request: pytest.FixtureRequest, java_driver: DriverFactory, ours: Any) -> Scene:
    version, serialization = getattr(request, "param", CLIENTS[0])
    test = request.node.originalname.removeprefix("test_").replace("_", "-")
    return Scene(
        java_driver(version, serialization), ours, f"{test}-{version.replace('.', '')}-{serialization.lower()}"
    )


both_versions = pytest.mark.parametrize("scene", CLIENTS, indirect=True, ids=lambda value: "-".join(value))
every_client = pytest.mark.parametrize(
    "scene", CLIENTS + BINARY_CLIENTS, indirect=True, ids=lambda value: "-".join(value)
)


@every_client
def test_sync_send_keeps_everything(scene: Scene) -> None:
    sending = [
        message(
            scene.topic,
            f"body {index} \u00e9\u4e2d",
            tag=f"tag{index % 2}",
            keys=f"key{index} shared",
            flag=index,
            properties={"colour": "red", "place": "Z\u00fcrich"},
        )
        for index in range(8)
    ]
    with scene.producer() as producer:
        queues = scene.java.call("publish_queues", name=producer, topic="TBW102")
        assert {queue["broker"] for queue in queues} == {"broker-a"}
        sent = scene.java.call("send", name=producer, messages=sending)
    assert [result["status"] for result in sent] == ["SEND_OK"] * 8
    stored = {found["message_id"]: found for found in scene.stored()}
    assert set(stored) == {result["message_id"] for result in sent}
    for index, result in enumerate(sent):
        found = stored[result["message_id"]]
        assert body_of(found).decode() == f"body {index} \u00e9\u4e2d"
        assert (found["tag"], found["keys"], found["flag"]) == (f"tag{index % 2}", f"key{index} shared", index)
        assert found["properties"]["colour"] == "red"
        assert found["properties"]["place"] == "Z\u00fcrich"
        assert found["properties"]["UNIQ_KEY"] == result["message_id"]
        assert found["offset_message_id"] == result["offset_message_id"]
        assert (found["topic"], found["queue_id"]) == (scene.topic, result["queue"]["queue_id"])
        assert found["queue_offset"] == result["queue_offset"]
        assert found["born_time_ms"] <= found["store_time_ms"] + 1
        assert found["reconsume_times"] == 0


@both_versions
def test_async_send(scene: Scene) -> None:
    bodies = [f"async {index}" for index in range(200)]
    with scene.producer() as producer:
        sent = scene.java.call("send_async", name=producer, messages=[message(scene.topic, body) for body in bodies])
    assert {result["status"] for result in sent} == {"SEND_OK"}
    stored = {found["message_id"]: body_of(found).decode() for found in scene.stored()}
    assert [stored[result["message_id"]] for result in sent] == bodies
    assert len(stored) == 200


@both_versions
def test_oneway_send(scene: Scene) -> None:
    scene.create(queues=1)
    bodies = [f"oneway {index}" for index in range(20)]
    with scene.pusher() as consumer, scene.producer() as producer:
        messages = [message(scene.topic, body) for body in bodies]
        scene.java.call("send_oneway", name=producer, messages=messages)
        received = scene.java.call("push_await", name=consumer, count=20, timeout_ms=LIMIT_MS)
    assert sorted(body_of(found).decode() for found in received) == sorted(bodies)


@both_versions
def test_batch_send(scene: Scene) -> None:
    scene.create(queues=2)
    batch = [message(scene.topic, f"batch {index}", tag="b", keys=f"k{index}") for index in range(40)]
    with scene.producer() as producer:
        first = scene.java.call("send_batch", name=producer, messages=batch, queue=scene.queue(1))
        second = scene.java.call("send_batch", name=producer, messages=batch[:3], queue=scene.queue(1))
    stored = scene.stored(queues=2)
    assert [body_of(found).decode() for found in stored] == [f"batch {index}" for index in [*range(40), *range(3)]]
    assert [found["queue_offset"] for found in stored] == list(range(43))
    assert [found["keys"] for found in stored[:40]] == [f"k{index}" for index in range(40)]
    assert {found["queue_id"] for found in stored} == {1}
    assert (first["queue_offset"], second["queue_offset"]) == (0, 40)
    # A batch's ids come as one list, in order: what the client knows and what the broker answers.
    assert first["message_id"].split(",") == [found["message_id"] for found in stored[:40]]
    assert first["offset_message_id"].split(",") == [found["offset_message_id"] for found in stored[:40]]


@both_versions
def test_ordered_send(scene: Scene) -> None:
    scene.create(queues=4)
    shards = ["N14228", "N24211", "N619AA", "N804JB", "N668DN"]
    messages = [message(scene.topic, f"{shard} {step}", shard=shard) for step in range(10) for shard in shards]
    with scene.producer() as producer:
        scene.java.call("send_ordered", name=producer, messages=messages)
    stored = scene.stored()
    assert len(stored) == 50
    for shard in shards:
        of_shard = [found for found in stored if body_of(found).decode().startswith(shard)]
        assert len({found["queue_id"] for found in of_shard}) == 1
        assert [body_of(found).decode() for found in of_shard] == [f"{shard} {step}" for step in range(10)]


@both_versions
def test_large_bodies_are_compressed_and_come_back_whole(scene: Scene) -> None:
    body = base64.b64encode(random.Random(7).randbytes(150_000))
    scene.create(queues=1)
    with scene.producer() as producer:
        scene.java.call("send", name=producer, messages=[message(scene.topic, body)])
    [found] = scene.stored(queues=1)
    assert body_of(found) == body
    assert found["stored_bytes"] < len(body)


@both_versions
def test_body_over_the_limit_is_refused(scene: Scene) -> None:
    body = random.Random(7).randbytes(4 * 1024 * 1024 + 1)
    with scene.producer(max_message_bytes=8 * 1024 * 1024, compress_over_bytes=8 * 1024 * 1024) as producer:
        with pytest.raises(JavaError) as refused:
            scene.java.call("send", name=producer, messages=[message(scene.topic, body)])
        [sent] = scene.java.call("send", name=producer, messages=[message(scene.topic, body[:-1])])
    assert refused.value.code == 13
    assert sent["status"] == "SEND_OK"


@every_client
def test_push_consume_with_tags(scene: Scene) -> None:
    scene.create(queues=2)
    messages = [message(scene.topic, f"{index}", tag="abcd"[index % 4]) for index in range(40)]
    with scene.producer() as producer:
        scene.java.call("send", name=producer, messages=messages)
        with scene.pusher(tags="a || c") as consumer:
            received = scene.java.call("push_await", name=consumer, count=20, timeout_ms=LIMIT_MS)
            # What is sent now finds the consumer waiting in a long poll.
            scene.java.call("push_await", name=consumer, count=21, timeout_ms=1_000)
            late = [message(scene.topic, "late d", tag="d"), message(scene.topic, "late a", tag="a")]
            scene.java.call("send", name=producer, messages=late)
            received = scene.java.call("push_await", name=consumer, count=21, timeout_ms=LIMIT_MS)
    wanted = [str(index) for index in range(40) if "abcd"[index % 4] in "ac"] + ["late a"]
    assert sorted(body_of(found).decode() for found in received) == sorted(wanted)
    assert {found["tag"] for found in received} == {"a", "c"}


@both_versions
def test_pull_and_its_states(scene: Scene) -> None:
    scene.create(queues=1)
    scene.fill([f"{index}" for index in range(10)], tag="even")

    def pull(**args: Any) -> dict[str, Any]:
        answer: dict[str, Any] = scene.java.call("pull", name=puller, queue=scene.queue(0), **args)
        return answer

    with scene.puller() as puller:
        queues = scene.java.call("subscribe_queues", name=puller, topic=scene.topic)
        assert queues == [scene.queue(0)]
        some = pull(offset=4, count_max=3)
        assert (some["status"], some["next"], some["min"], some["max"]) == ("FOUND", 7, 0, 10)
        assert [body_of(found).decode() for found in some["messages"]] == ["4", "5", "6"]
        none = pull(offset=0, tags="odd")
        assert (none["status"], none["next"], none["messages"]) == ("NO_MATCHED_MSG", 10, [])
        end = pull(offset=10)
        assert (end["status"], end["next"]) == ("NO_NEW_MSG", 10)
        beyond = pull(offset=50)
        assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", 10)


@both_versions
def test_offsets(scene: Scene) -> None:
    scene.create(queues=1)
    scene.fill(["a", "b"])
    time.sleep(0.05)  # The search below is by time of storing; the two halves must differ in it.
    scene.fill(["c"])
    stored = scene.stored(queues=1)
    queue = scene.queue(0)
    with scene.puller(scene.group) as puller:
        offsets = scene.java.call("offsets", name=puller, queue=queue)
        assert offsets == {"min": 0, "max": 3, "oldest_time_ms": stored[0]["store_time_ms"]}

        def search(time_ms: int) -> Any:
            return scene.java.call("search_offset", name=puller, queue=queue, time_ms=time_ms)

        assert search(stored[2]["store_time_ms"]) == 2
        assert search(stored[1]["store_time_ms"] + 1) == 2
        assert search(stored[0]["store_time_ms"] - 1000) == 0
        # The client commits one-way: its next request may overtake that, and before the group's first heartbeat it is
        # refused without a word.
        deadline = time.monotonic() + 120
        scene.java.call("commit_offset", name=puller, queue=queue, offset=2)
        while scene.java.call("committed_offset", name=puller, queue=queue) != 2:
            assert time.monotonic() < deadline, "the commit did not arrive"
            time.sleep(0.02)
            scene.java.call("commit_offset", name=puller, queue=queue, offset=2)
    with scene.puller(scene.group) as another:
        assert scene.java.call("committed_offset", name=another, queue=queue) == 2
    assert scene.committed(0) == 2


@both_versions
def test_group_goes_on_where_it_stopped(scene: Scene) -> None:
    scene.create(queues=2)
    scene.fill(["a", "b", "c"])
    with scene.pusher() as consumer:
        received = scene.java.call("push_await", name=consumer, count=3, timeout_ms=LIMIT_MS)
        scene.await_committed(3)
    assert sorted(body_of(found).decode() for found in received) == ["a", "b", "c"]
    scene.fill(["d"])
    with scene.pusher() as consumer:
        received = scene.java.call("push_await", name=consumer, count=1, timeout_ms=LIMIT_MS)
        received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=500)
    assert [body_of(found).decode() for found in received] == ["d"]


@both_versions
def test_topic_is_created_by_the_first_send(scene: Scene) -> None:
    with scene.java.started("admin", namesrv=scene.namesrv) as admin:
        with pytest.raises(JavaError) as missing:
            scene.java.call("topic_route", name=admin, topic=scene.topic)
        assert missing.value.code == 17
        with scene.producer() as producer:
            scene.java.call("send", name=producer, messages=[message(scene.topic, "first")])
        assert scene.java.call("topic_route", name=admin, topic=scene.topic) == {
            "queues": [{"broker": "broker-a", "read_queues": 4, "write_queues": 4, "perm": 6}],
            "brokers": {"broker-a": {"0": scene.broker}},
        }


@both_versions
def test_admin_sees_cluster_and_topics(scene: Scene) -> None:
    place: dict[str, Any] = {"topic": scene.topic, "broker_address": scene.broker}
    with scene.java.started("admin", namesrv=scene.namesrv) as admin:
        assert scene.java.call("cluster_info", name=admin) == {
            "clusters": {"DefaultCluster": ["broker-a"]},
            "brokers": {"broker-a": {"cluster": "DefaultCluster", "addresses": {"0": scene.broker}}},
        }
        scene.java.call("create_topic", name=admin, queues=3, **place)
        assert scene.topic in scene.java.call("topic_list", name=admin)
        scene.java.call("create_topic", name=admin, queues=5, **place)
        [queues] = scene.java.call("topic_route", name=admin, topic=scene.topic)["queues"]
        assert (queues["read_queues"], queues["write_queues"]) == (5, 5)
        scene.java.call("delete_topic", name=admin, cluster="DefaultCluster", **place)
        assert scene.topic not in scene.java.call("topic_list", name=admin)
        with pytest.raises(JavaError) as missing:
            scene.java.call("topic_route", name=admin, topic=scene.topic)
        assert missing.value.code == 17


@both_versions
def test_two_consumers_share_the_queues(scene: Scene) -> None:
    scene.create(queues=4)

    def held(consumer: str, count: int) -> set[int]:
        deadline = time.monotonic() + LIMIT_S
        while True:
            queues = scene.java.call("push_queues", name=consumer)
            ids = {queue["queue_id"] for queue in queues if queue["topic"] == scene.topic}
            if len(ids) == count or time.monotonic() > deadline:
                return ids
            time.sleep(0.05)

    with scene.pusher() as first:
        assert held(first, 4) == {0, 1, 2, 3}
        with scene.pusher() as second:
            shares = held(first, 2), held(second, 2)
            assert sorted(map(sorted, shares)) == [[0, 1], [2, 3]]
            with scene.producer() as producer:
                for queue_id in range(4):
                    sending = [message(scene.topic, f"for {queue_id}")]
                    scene.java.call("send", name=producer, messages=sending, queue=scene.queue(queue_id))
            for consumer, share in zip((first, second), shares, strict=True):
                received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=LIMIT_MS)
                holds = scene.java.call("push_queues", name=consumer)
                assert {found["queue_id"] for found in received} == share, f"it holds {holds}"
        assert held(first, 4) == {0, 1, 2, 3}


@both_versions
def test_failed_message_comes_again(scene: Scene) -> None:
    scene.create(queues=1)
    scene.create_retry_topic()
    with scene.pusher(fail_first=1) as consumer:
        scene.fill(["unlucky"], tag="t", keys="k")
        received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=LIMIT_MS)
    assert [found["accepted"] for found in received] == [False, True]
    first, again = received
    assert again["reconsume_times"] == 1
    assert body_of(again) == body_of(first) == b"unlucky"
    assert (again["topic"], again["tag"], again["keys"]) == (scene.topic, "t", "k")
    assert again["message_id"] == first["message_id"]
    assert again["store_time_ms"] - first["store_time_ms"] >= 990  # delay level 3


@both_versions
def test_lite_pull_with_seek_and_commit(scene: Scene) -> None:
    scene.create(queues=1)
    scene.fill([f"{index}" for index in range(30)])
    options = {"namesrv": scene.namesrv, "group": scene.group, "topic": scene.topic}
    with scene.java.started("lite", **options) as consumer:
        received = scene.java.call("lite_poll", name=consumer, count=30, timeout_ms=LIMIT_MS)
        assert [body_of(found).decode() for found in received] == [f"{index}" for index in range(30)]
        scene.java.call("lite_seek", name=consumer, queue=scene.queue(0), offset=27)
        received = scene.java.call("lite_poll", name=consumer, count=3, timeout_ms=LIMIT_MS)
        assert [body_of(found).decode() for found in received] == ["27", "28", "29"]
        scene.java.call("lite_commit", name=consumer)
    scene.await_committed(30)


@both_versions
def test_broadcast_reaches_every_consumer(scene: Scene) -> None:
    scene.create(queues=2)
    with (
        scene.pusher(model="BROADCASTING") as first,
        scene.pusher(model="BROADCASTING") as second,
        scene.producer() as producer,
    ):
        messages = [message(scene.topic, f"{index}") for index in range(6)]
        scene.java.call("send", name=producer, messages=messages)
        for consumer in (first, second):
            received = scene.java.call("push_await", name=consumer, count=6, timeout_ms=LIMIT_MS)
            assert sorted(body_of(found).decode() for found in received) == [f"{index}" for index in range(6)]
