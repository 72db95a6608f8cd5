"""Consumers on an official master with a slave: whom they read from, and where offsets are while the master is down."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.clients.scene import Cluster, Inbox, Scene
from tests.java.apache import ApacheBroker, ApacheNamesrv, committed_offset, max_offset
from tests.java.mqadmin import until
from tests.support.patience import LIMIT_S, PATIENT

from rocketspark.client import Producer, PullConsumer, PushConsumer
from rocketspark.client.hooks import Hooks
from rocketspark.model import Message, ReceivedMessage

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("jvm"),
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.shows("reading from a slave, and back"),
]

PULL = 11
MASTER: dict[str, Any] = {
    "brokerRole": "ASYNC_MASTER",
    "slaveReadEnable": "true",
    # Whoever is behind is told to read from the slave.
    "accessMessageInMemoryMaxRatio": "0",
} | PATIENT
SLAVE: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"} | PATIENT


class Pulls(Hooks):
    """Where pulls go to."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
        if code == PULL:
            self.addresses.append(address)


def send(scene: Scene, begin: int, end: int) -> None:
    with Producer(scene.namesrv, "pg", retries=20, send_timeout_ms=20_000) as producer:
        messages = [Message(topic=scene.topic, body=b"%d" % i) for i in range(begin, end)]
        producer.send_batch(messages, queue=scene.queue())


def test_reading_from_a_slave_while_the_master_is_down(tmp_path: Path) -> None:
    with ExitStack() as stack:

        def started(make: Callable[[], Any]) -> Any:
            server = make()
            stack.callback(server.kill)
            return server

        names = started(lambda: ApacheNamesrv(tmp_path / "names"))
        store = tmp_path / "store"
        master = started(lambda: ApacheBroker(tmp_path / "master", names.namesrv, store, config=MASTER))
        scene = Scene(Cluster("apache", names.namesrv, master.broker), "slaves", queues=1)
        # By itself a slave learns of topics only after a minute.
        # That file alone: others are being written anew now and then.
        (tmp_path / "copy" / "config").mkdir(parents=True)
        shutil.copy(store / "config" / "topics.json", tmp_path / "copy" / "config")
        slave = started(lambda: ApacheBroker(tmp_path / "slave", names.namesrv, tmp_path / "copy", config=SLAVE))
        send(scene, 0, 200)
        until(lambda: max_offset(slave.broker, scene.topic, 0) == 200)
        pulls, gate = Pulls(), threading.Event()

        def listener(message: ReceivedMessage) -> None:
            if message.queue_offset >= 60:
                gate.wait(LIMIT_S)

        inbox = Inbox(then=listener)
        options: dict[str, Any] = {
            "route_interval_ms": 500,
            "rebalance_interval_ms": 500,
            "commit_interval_ms": 200,
            "consume_from": "first",
        }
        consumer = PushConsumer(
            scene.namesrv,
            scene.group,
            threads=1,
            hooks=[pulls],
            pull_count_max=16,
            backlog_count_max=40,
            **options,
        )
        consumer.subscribe(scene.topic)
        consumer.listen(inbox)
        with consumer:
            inbox.wait_for(61)
            # It was behind, so the master sent it to the slave.
            assert pulls.addresses[0] == master.broker
            until(lambda: slave.broker in pulls.addresses)
            master.kill()
            gate.set()
            assert [m.queue_offset for m in inbox.wait_for(200)] == list(range(200))
            until(lambda: committed_offset(slave.broker, scene.group, scene.topic, 0) == 200)
            # One that only begins now finds its way too.
            with PullConsumer(scene.namesrv, f"late-{scene.group}", **options) as late:
                late.assign(late.queues(scene.topic))
                found: list[ReceivedMessage] = []
                until(lambda: len(found.extend(late.poll(200)) or found) == 200)
            back = started(lambda: ApacheBroker(tmp_path / "back", names.namesrv, store, config=MASTER))
            # What it missed it is told of, though nothing more was consumed.
            until(lambda: committed_offset(back.broker, scene.group, scene.topic, 0) == 200)
            send(scene, 200, 220)
            assert [m.queue_offset for m in inbox.wait_for(220)] == list(range(220))
            until(lambda: committed_offset(back.broker, scene.group, scene.topic, 0) == 220)
