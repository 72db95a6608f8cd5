"""Our clients on official pairs whose master is killed: reading goes on, offsets follow, what was answered is there."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.clients.scene import Inbox
from tests.java.apache import committed_offset, max_offset
from tests.java.apache_pair import JavaPair, Mode, until
from tests.support.patience import LIMIT_S

from rocketspark.client import Producer, PullConsumer, PushConsumer, SendStatus
from rocketspark.errors import RocketSparkError
from rocketspark.model import Message, MessageQueue, ReceivedMessage

pytestmark = [
    pytest.mark.xdist_group("jvm"),
    pytest.mark.shows(
        "Java pairs whose master is killed: consumers read on from the slave, offsets come back; under "
        "Apache's controller a producer under load loses nothing acknowledged, order per key kept"
    ),
]
TOPIC = "failover"
QUEUES = 2
QUICK: dict[str, Any] = {"rebalance_interval_ms": 500, "commit_interval_ms": 200, "consume_from": "first"}


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JavaPair]:
    """An official pair with a topic that both know: by itself a slave learns of it later."""
    mode: Mode = request.param
    config = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2} if mode == "classic" else {}
    made = JavaPair(tmp_path, mode, first=config)
    try:
        made.make_topic(TOPIC, QUEUES)
        if mode == "controller":
            made.wait_in_sync()
        yield made
    finally:
        made.close()


def send(pair: JavaPair, begin: int, end: int) -> None:
    """One message of each number, in turn to the queues; each is on both brokers."""
    with Producer(pair.namesrv, "pg", retries=20, send_timeout_ms=60_000) as producer:
        for number in range(begin, end):
            queue = MessageQueue(TOPIC, "broker-a", number % QUEUES)
            sent = producer.send(Message(topic=TOPIC, body=b"%d" % number), queue=queue)
            assert sent.status is SendStatus.SEND_OK


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)


@pytest.mark.parametrize("pair", ["classic"], indirect=True)
def test_consumers_read_on_from_the_slave_and_their_offsets_come_back(pair: JavaPair) -> None:
    pair.wait_in_sync()
    send(pair, 0, 100)
    gate = threading.Event()
    inbox = Inbox(then=lambda message: gate.wait(LIMIT_S) if message.queue_offset >= 20 else None)
    pushed = PushConsumer(pair.namesrv, "pushed", threads=2, pull_count_max=8, backlog_count_max=16, **QUICK)
    pushed.subscribe(TOPIC)
    pushed.listen(inbox)
    pulled: list[ReceivedMessage] = []

    def committed(broker: str, group: str) -> list[int | None]:
        return [committed_offset(broker, group, TOPIC, queue_id) for queue_id in range(QUEUES)]

    with pushed, PullConsumer(pair.namesrv, "pulled", pull_count_max=8, backlog_count_max=16, **QUICK) as pulling:
        pulling.subscribe(TOPIC)
        inbox.wait_for(20)
        until(lambda: len(pulled.extend(pulling.poll(200, count_max=5)) or pulled) >= 40)
        pair.first.kill()
        gate.set()
        assert numbers(inbox.wait_for(100)) == list(range(100))
        until(lambda: len(pulled.extend(pulling.poll(200)) or pulled) >= 100)
        assert numbers(pulled) == list(range(100))
        pulling.commit()
        for group in ("pushed", "pulled"):
            until(lambda group=group: committed(pair.second.broker, group) == [50, 50])
        # One that only begins now finds its way too.
        with PullConsumer(pair.namesrv, "late", **QUICK) as late:
            late.assign(late.queues(TOPIC))
            assert [late.end_offset(queue) for queue in late.queues(TOPIC)] == [50, 50]
            found: list[ReceivedMessage] = []
            until(lambda: len(found.extend(late.poll(200)) or found) == 100)
            assert numbers(found) == list(range(100))
        pair.first.start()
        pair.wait_in_sync()
        send(pair, 100, 120)
        assert numbers(inbox.wait_for(120)) == list(range(120))
        until(lambda: len(pulled.extend(pulling.poll(200)) or pulled) >= 120)
        pulling.commit()
        for group in ("pushed", "pulled"):
            until(lambda group=group: committed(pair.first.broker, group) == [60, 60])
    assert numbers(inbox.received) == numbers(pulled) == list(range(120))


class Load:
    """Sends by sharding key, one after another for each, until told to end. `acked`: numbers by key, in order."""

    def __init__(self, namesrv: str, keys: int) -> None:
        self.acked: dict[str, list[int]] = {f"key-{number}": [] for number in range(keys)}
        self.failed = 0
        self.acked_s: list[float] = []
        self._end = threading.Event()
        self._producer = Producer(namesrv, "load", retries=2)
        self._producer.start()
        self._threads = [threading.Thread(target=self._send, args=(key,)) for key in self.acked]
        for thread in self._threads:
            thread.start()

    def _send(self, key: str) -> None:
        number = 0
        while not self._end.is_set():
            message = Message(topic=TOPIC, body=b"%s %d" % (key.encode(), number), sharding_key=key)
            try:
                if self._producer.send(message).status is SendStatus.SEND_OK:
                    self.acked[key].append(number)
                    self.acked_s.append(time.monotonic())
            except RocketSparkError:
                # As an application would: the same again, later.
                self.failed += 1
                self._end.wait(0.2)
                continue
            number += 1

    def count(self) -> int:
        return len(self.acked_s)

    def end(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
        self._producer.close()


@pytest.mark.parametrize("pair", ["controller"], indirect=True)
def test_a_producer_goes_on_at_the_new_master_and_nothing_acknowledged_is_lost(pair: JavaPair) -> None:
    inbox = Inbox()
    consumer = PushConsumer(pair.namesrv, "watching", threads=2, **QUICK)
    consumer.subscribe(TOPIC)
    consumer.listen(inbox)
    load = Load(pair.namesrv, keys=4)
    try:
        with consumer:
            until(lambda: load.count() >= 200)
            killed_s = time.monotonic()
            pair.first.kill()
            until(lambda: pair.master() is pair.second)
            elected_s = time.monotonic()
            before = load.count()
            until(lambda: load.count() >= before + 200)
            load.end()
            # The longest time without an answer. A route lives 30 s; it is fetched when the old master is gone.
            outage_s = max(after - at for at, after in pairwise(sorted(load.acked_s)))
            print(f"elected after {elected_s - killed_s:.2f} s, nothing acknowledged for {outage_s:.2f} s")
            assert outage_s < 30
            total = sum(max_offset(pair.second.broker, TOPIC, queue_id) for queue_id in range(QUEUES))
            seen = defaultdict(list)
            for message in inbox.wait_for(total):
                key, _, number = message.body.decode().partition(" ")
                seen[key].append((message.queue_id, message.queue_offset, int(number)))
    finally:
        load.end()
    for key, acked in load.acked.items():
        found = sorted(set(seen[key]))
        assert len({queue_id for queue_id, _, _ in found}) == 1
        order = [number for _, _, number in found]
        assert set(acked) <= set(order)
        # What was sent again lies twice, beside each other: order is kept.
        assert order == sorted(order)
        assert acked == list(range(len(acked)))
