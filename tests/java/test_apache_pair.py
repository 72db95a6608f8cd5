"""The harness of pairs itself: each mode of the official pair starts, replicates, loses its master and gets it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.java.apache import max_offset
from tests.java.apache_pair import JavaPair, Mode, elect, members, replicas, routed, until

from rocketspark.admin.operations import SyncOperations
from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue

pytestmark = pytest.mark.xdist_group("jvm")
TOPIC = "pairs"


def send(pair: JavaPair, count: int) -> None:
    with Producer(pair.namesrv, "pg", retries=20, send_timeout_ms=20_000) as producer:
        for number in range(count):
            producer.send(Message(topic=TOPIC, body=b"%d" % number), queue=MessageQueue(TOPIC, "broker-a", 0))


@pytest.mark.parametrize("mode", ["classic", "acting", "controller"])
def test_a_pair_replicates_and_survives_its_master(tmp_path: Path, mode: Mode) -> None:
    pair = JavaPair(tmp_path, mode)
    try:
        with SyncOperations(pair.namesrv) as operations:
            operations.create_topic(TOPIC, queue_count=1)
        send(pair, 10)
        pair.wait_in_sync()
        until(lambda: max_offset(pair.second.broker, TOPIC, 0) == 10)
        assert pair.master() is pair.first
        if mode == "classic":
            assert members(pair.namesrv) == {0: pair.first.broker, 1: pair.second.broker}
        pair.first.kill()
        if mode == "controller":
            until(lambda: pair.master() is pair.second)
            assert replicas(pair.controller).epoch == 2
            send(pair, 5)
        until(lambda: pair.first.broker not in members(pair.namesrv).values())
        if mode == "acting":
            until(lambda: routed(pair.namesrv, TOPIC) == {0: pair.second.broker})
        pair.first.start()
        if mode == "controller":
            pair.wait_in_sync()
            until(lambda: max_offset(pair.first.broker, TOPIC, 0) == 15)
            assert elect(pair.controller, 1) == 0
            until(lambda: pair.master() is pair.first)
        until(lambda: members(pair.namesrv).get(0) == pair.first.broker)
    finally:
        pair.close()
