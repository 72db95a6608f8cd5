"""A consumer of lite topics while its broker, RocketMQ's, is stopped and started again."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
from tests.java.apache import ApacheCluster
from tests.support.patience import LIMIT_S
from tests.v5.servers import BROKER, Servers

from rocketspark import LitePushConsumer, Producer, ReceivedMessage

pytestmark = pytest.mark.shows("a consumer of lite topics goes on by itself when RocketMQ's broker was started again")


def test_a_subscription_is_told_again_to_a_broker_that_was_started_again(tmp_path: Path, java_tools: None) -> None:
    cluster = ApacheCluster(tmp_path, config=BROKER)
    try:
        servers = Servers("apache", "", cluster.namesrv, cluster.broker)
        servers.make_topic("parent", "LITE", queues=1)
        servers.make_group("readers", attributes={"+lite.bind.topic": "parent"})
        taken: queue.Queue[bytes] = queue.Queue()
        consumer = LitePushConsumer(cluster.namesrv, "readers", "parent")

        @consumer.listen
        def listener(message: ReceivedMessage) -> None:
            taken.put(message.body)

        with Producer(cluster.namesrv) as producer, consumer:
            for name in "ab":
                consumer.subscribe_lite(name)
            producer.send("parent", b"a0", lite_topic="a")
            assert taken.get(timeout=LIMIT_S) == b"a0"
            cluster.restart()
            with Producer(cluster.namesrv) as later:
                for body in (b"a1", b"a2"):
                    later.send("parent", body, lite_topic="a")
            # What it was acknowledged last may be lost, and comes first then.
            found = [taken.get(timeout=LIMIT_S)]
            while found[-1] != b"a2":
                found.append(taken.get(timeout=LIMIT_S))
            assert [body for body in found if body != b"a0"] == [b"a1", b"a2"]
            assert consumer.lite_topics() == ["a", "b"]
    finally:
        cluster.close()
