"""Static topics over a broker of ours and an official one: mqadmin makes and moves them, the official client goes on.

Moved from ours to the official broker and back, so that each forwards pulls, bounds and offsets to the other.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheBroker, ask, await_queues
from tests.java.apache_pair import java_json, until
from tests.java.driver import JavaDriver, message
from tests.java.mqadmin import MqAdmin
from tests.live import pop_support
from tests.live.pop_support import ack, pop, popped
from tests.live.support import GROUP, connected, create_group
from tests.live.test_static_topics import item, put_mapping
from tests.support.patience import LIMIT_MS, LIMIT_S, PATIENT

from rocketspark.admin import Admin
from rocketspark.client import Producer, PushConsumer
from rocketspark.tables.read_table import read_table
from rocketspark.testing import run_server_process
from rocketspark.transport.peer import Peer

pytestmark = [
    pytest.mark.xdist_group("jvm"),
    pytest.mark.shows(
        "`mqadmin` updateStaticTopic, remappingStaticTopic, the official client, over ours and Java 5.5.0: "
        "moved from ours to Java's and back",
        "our client on static topics of ours and the Java broker, moved to Java's and back",
    ),
]
TOPIC, QUEUES = "Static", 4


class Mixed:
    """Our NameServer and broker-a, the official broker-b, mqadmin and the official client."""

    def __init__(self, java: JavaDriver, folder: Path, stack: ExitStack) -> None:
        self.java = java
        ours = stack.enter_context(run_server_process(folder / "ours", config={"brokerName": "broker-a"} | PATIENT))
        self.namesrv, self.ours = ours.namesrv, ours.broker
        official = ApacheBroker(folder / "b", self.namesrv, folder / "store-b", name="broker-b", config=PATIENT)
        stack.callback(official.kill)
        self.official = official.broker
        self.mqadmin = MqAdmin(folder / "mqadmin", self.namesrv, self.ours)
        stack.callback(self.mqadmin.close)

    def leaders(self) -> dict[int, str]:
        """Leading broker by logical queue, as the route names them."""
        route = java_json(ask(self.namesrv, 105, ext_fields={"topic": TOPIC}).body)
        mappings = route.get("topicQueueMappingByBroker") or {}
        return {int(queue): name for name, info in mappings.items() for queue in info["currIdMap"]}

    def map(self, command: str, to: str, *more: str) -> None:
        """Have mqadmin give all logical queues to a broker, and wait until the route says so."""
        lines = self.mqadmin(command, "-b", to, "-t", TOPIC, *more)
        assert not any("Exception" in line for line in lines), lines
        until(lambda: self.leaders() == dict.fromkeys(range(QUEUES), to), what=f"{to} to lead")

    def send(self, name: str, count: int = 12) -> list[str]:
        """Send messages name-0, name-1, ... over all logical queues; returns their bodies."""
        bodies = [f"{name}-{n}" for n in range(count)]
        with self.java.started("producer", namesrv=self.namesrv, group="shop") as producer:
            self._send(producer, bodies)
        return bodies

    def _send(self, producer: str, bodies: list[str]) -> None:
        for n, body in enumerate(bodies):
            where = {"topic": TOPIC, "broker": "__syslo__global__", "queue_id": n % QUEUES}

            def sent(body: str = body, where: dict[str, Any] = where) -> bool:
                # Until the route is known to it.
                try:
                    found = self.java.call("send", name=producer, messages=[message(TOPIC, body)], queue=where)
                except Exception:
                    return False
                return bool(found[0]["status"] == "SEND_OK")

            until(sent, 40, what="a send")

    def send_by_ours(self, name: str, count: int) -> list[str]:
        """Send messages over all logical queues with our client; returns their bodies."""
        with Producer(self.namesrv, "shop") as producer:
            queues = producer.queues(TOPIC)
            assert [(q.broker_name, q.queue_id) for q in queues] == [("__syslo__global__", n) for n in range(QUEUES)]
            for n in range(count):
                producer.send(TOPIC, f"{name}-{n}".encode(), queue=queues[n % QUEUES])
        return [f"{name}-{n}" for n in range(count)]

    def read_by_ours(self, group: str, count: int) -> list[str]:
        """The bodies that a group of our client gets until it has so many and has committed."""
        bodies: list[str] = []
        consumer = PushConsumer(self.namesrv, group, consume_from="first")
        consumer.subscribe(TOPIC)
        consumer.listen(lambda m: bodies.append(m.body.decode()))
        with consumer:
            until(lambda: len(bodies) >= count, 120, what="what our client reads")
        return sorted(bodies)

    def reader(self, group: str) -> Any:
        """A push consumer for the length of a `with` block."""
        wanted = [{"topic": TOPIC, "tags": "*"}]
        return self.java.started("push", namesrv=self.namesrv, group=group, subscriptions=wanted)

    def received(self, consumer: str, count: int) -> list[str]:
        """The bodies that a consumer got, once it has so many."""
        found = self.java.call("push_await", name=consumer, count=count, timeout_ms=LIMIT_MS)
        return sorted(base64.b64decode(m["body"]).decode() for m in found)

    def check_table(self, consumer: str, count: int) -> None:
        """Compare the rows of `read_table` with the places and bodies of what a consumer got."""
        found = self.java.call("push_await", name=consumer, count=count, timeout_ms=LIMIT_MS)
        seen = {(m["queue_id"], m["queue_offset"], base64.b64decode(m["body"])) for m in found}
        rows = read_table(self.namesrv, TOPIC, columns=["queueId", "queueOffset", "body"]).to_pydict()
        assert sorted(zip(*rows.values(), strict=True)) == sorted(seen)
        assert len({offset // 1000 for _, offset, _ in seen}) == 3

    def read(self, group: str, count: int) -> list[str]:
        """The bodies that a group gets until it has so many and has committed."""
        with self.reader(group) as consumer:
            return self.received(consumer, count)


@pytest.fixture(scope="module")
def mixed(java_client_55: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    with ExitStack() as stack:
        yield Mixed(java_client_55, tmp_path_factory.mktemp("mixed"), stack)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_topic_moves_from_ours_to_the_official_broker_and_back(mixed: Mixed, stack: ExitStack) -> None:
    mixed.map("updateStaticTopic", "broker-a", "-qn", str(QUEUES))
    first = mixed.send("first")
    live = stack.enter_context(mixed.reader("live"))
    assert mixed.read("steady", len(first)) == sorted(first)
    mixed.map("remappingStaticTopic", "broker-b")
    second = mixed.send("second", 6) + mixed.send_by_ours("ours", 6)
    # Our client, whose leader is the official broker, reads what lies on both.
    assert mixed.read_by_ours("our-own", len(first + second)) == sorted(first + second)
    # The group goes on behind what it had; a new one gets all, what lies on ours through the official broker.
    assert mixed.read("steady", len(second)) == sorted(second)
    assert mixed.read("later", len(first + second)) == sorted(first + second)
    mixed.map("remappingStaticTopic", "broker-a")
    third = mixed.send("third")
    assert mixed.read("steady", len(third)) == sorted(third)
    # Now ours leads: what lies on the official broker comes through ours.
    assert mixed.read("last", len(first + second + third)) == sorted(first + second + third)
    # And one that read on all the time.
    assert mixed.received(live, len(first + second + third)) == sorted(first + second + third)
    # As a table, by the logical offsets that the official client saw, from parts on both brokers.
    mixed.check_table(live, len(first + second + third))
    # Our client goes on behind what it had, with the offsets that it committed at the official broker.
    assert mixed.read_by_ours("our-own", len(third)) == sorted(third)


def test_a_topic_made_by_our_operations_is_one_for_mqadmin(mixed: Mixed, monkeypatch: pytest.MonkeyPatch) -> None:
    """On our broker and the official one; mqadmin gives it more queues, and moves it."""
    monkeypatch.setattr(sys.modules[__name__], "TOPIC", "Ledger")
    with Admin(mixed.namesrv) as admin:
        made = admin.create_static_topic("Ledger", 2)
        assert made.leaders == mixed.leaders() == {0: "broker-a", 1: "broker-b"}
        lines = mixed.mqadmin("updateStaticTopic", "-b", "broker-b", "-t", "Ledger", "-qn", "3")
        assert not any("Exception" in line for line in lines), lines
        # mqadmin draws which of the two gets it, as both have as many.
        until(lambda: set(mixed.leaders()) == {0, 1, 2}, what="mqadmin's queue")
        drawn = mixed.leaders()
        assert drawn == made.leaders | {2: drawn[2]}
        other = {"broker-a": "broker-b", "broker-b": "broker-a"}[drawn[2]]
        assert admin.create_static_topic("Ledger", QUEUES).leaders == mixed.leaders() == drawn | {3: other}
    sent = mixed.send("ledger", 8)
    mixed.map("remappingStaticTopic", "broker-b")
    assert mixed.read("readers", len(sent)) == sorted(sent)


@pytest.mark.shows("pops of a static topic: of the broker's own queues, with offsets by logical queue, as 5.5.0's")
def test_a_static_topic_is_popped_by_the_own_queues_of_a_broker(mixed: Mixed, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the official broker and on ours the same: neither translates what pops and acknowledgements name."""

    async def play(address: str, name: str) -> list[Any]:
        monkeypatch.setattr(pop_support, "BROKER", name)
        topic = f"Popped-{name}"
        # Logical queue 0 is the broker's queue 1, and begins at 100.
        parts = {0: [item(0, 1, name, 100)], 1: [item(0, 0, name, 0)]}
        detail = {"bname": name, "currIdMap": {}, "dirty": False, "epoch": 1000, "hostedQueues": parts}
        detail |= {"scope": "__global__", "topic": topic, "totalQueues": 2}
        seen: list[Any] = []
        async with connected(address) as peer:
            await create_group(peer)
            await put_mapping(peer, detail, 2, topic)
            for n in range(4):
                header = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": str(n % 2), "f": "0", "g": "1", "h": "0"}
                header |= {"i": "", "j": "0", "k": "false", "m": "false"}
                sent = await peer.request(310, header, b"%d" % n)
                seen.append((sent.code, {k: v for k, v in _fields(sent).items() if k.startswith("queue")}))
            await asyncio.to_thread(await_queues, address, topic, 102, 2)
            given = sorted(await popped(peer, topic), key=lambda m: m.body)
            seen += [(m.body, m.queue_id, m.offset) for m in given]
            seen += [(await ack(peer, m, topic)).code for m in given]
            seen.append((await pop(peer, topic)).code)
            refused = await pop(peer, topic, 2)
            seen.append((refused.code, (refused.remark or "").replace(topic, "T").partition(" consumer")[0]))
            # A broker moves the group on once it has looked at what was acknowledged.
            deadline = time.monotonic() + LIMIT_S
            while (offsets := [await _committed(peer, topic, *queue) for queue in WAYS]) != ["102", "2", "2", "2"]:
                assert time.monotonic() < deadline, offsets
                await asyncio.sleep(0.05)
        return seen

    ours = asyncio.run(play(mixed.ours, "broker-a"))
    assert ours == asyncio.run(play(mixed.official, "broker-b"))
    assert ours[4:8] == [(b"0", 1, 0), (b"1", 0, 0), (b"2", 1, 1), (b"3", 0, 1)]
    refused = 29, "queueId[2] is illegal, topic:[T] topicConfig.readQueueNums:[2]"
    assert ours[8:] == [0, 0, 0, 0, 210, refused]


def _fields(answer: Any) -> dict[str, str]:
    return {name: str(value) for name, value in json.loads(bytes(answer.ext)).items()}


# Logical queues, and the broker's own ones.
WAYS = [(0, "true"), (0, "false"), (1, "true"), (1, "false")]


async def _committed(peer: Peer, topic: str, queue_id: int, logical: str) -> str:
    wanted = {"consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id), "lo": logical}
    return _fields(await peer.request(14, wanted)).get("offset", "")
