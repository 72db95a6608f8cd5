"""One store directory handed from our server to the official broker and back: nothing lost, nothing changed.

Every message is read with the official client before and after and compared field by field. JAVA_TESTS_ON=apache puts
the official broker in our place too: what fails there is a fault of the test.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheNamesrv
from tests.java.conftest import DriverFactory
from tests.java.driver import JavaDriver, message
from tests.java.one_store import Server, starting
from tests.support.patience import PATIENT

pytestmark = pytest.mark.shows("directory layout both ways with the Java broker: clean stop and kill")

# Small files, so that commit log, consume queues and key index all roll over within a thousand messages.
SMALL_FILES: dict[str, Any] = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 128 * 1024,
    "mappedFileSizeConsumeQueue": 100 * 20,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
} | PATIENT
TOPICS = {"flights": 4, "batches": 2, "large": 1}
GROUP = "exchange-readers"
# What one round of `fill` sends besides the flights.
OTHERS = 5 + 60 + 2
# Where a queue begins and ends is told with each pull; it is no part of the message.
OF_THE_PULL = {"MIN_OFFSET", "MAX_OFFSET"}


StartServer = Callable[[Path], Server]


@pytest.fixture
def servers(namesrv: ApacheNamesrv, tmp_path: Path) -> Iterator[tuple[StartServer, StartServer]]:
    """(start ours, start theirs): each starts a server on a store directory."""
    with starting(namesrv, tmp_path, SMALL_FILES) as start:
        yield partial(start, "ours"), partial(start, "theirs")


def queue(topic: str, queue_id: int) -> dict[str, Any]:
    return {"topic": topic, "broker": "broker-a", "queue_id": queue_id}


QUEUES = [queue(topic, queue_id) for topic, count in TOPICS.items() for queue_id in range(count)]


def make_topics(java: JavaDriver, server: Server) -> None:
    with java.started("admin", namesrv=server.namesrv) as admin:
        for topic, queues in TOPICS.items():
            java.call("create_topic", name=admin, topic=topic, queues=queues, broker_address=server.broker)


def fill(java: JavaDriver, server: Server, mark: str, rounds: int) -> list[dict[str, Any]]:
    """Sends messages of every kind; all that returns is acknowledged. Returns the send results."""
    random_bytes = random.Random(mark).randbytes
    results = []
    with java.started("producer", namesrv=server.namesrv, group="exchange-writers") as producer:
        for queue_id in range(TOPICS["flights"]):
            flights = [
                message(
                    "flights",
                    f"{mark} {queue_id} {step} \u00e9\u4e2d".encode() + b"." * (step % 300),
                    tag=("UA", "AA", "B6")[step % 3],
                    keys=f"{mark}-{queue_id}-{step} shared",
                    flag=step,
                    properties={"origin": "Z\u00fcrich", "step": str(step)},
                )
                for step in range(rounds)
            ]
            results += java.call("send", name=producer, messages=flights, queue=queue("flights", queue_id))
        plain = [message("batches", f"{mark} plain {step}") for step in range(5)]
        results += java.call("send", name=producer, messages=plain, queue=queue("batches", 0))
        # So many are stored at once.
        batch = [message("batches", f"{mark} inner {step}", tag="t", keys=f"{mark}-b{step}") for step in range(60)]
        results.append(java.call("send_batch", name=producer, messages=batch, queue=queue("batches", 1)))
        # The first is stored compressed; the second is near the size of a whole log file.
        large = [base64.b64encode(random_bytes(30_000)), random_bytes(100_000)]
        results += java.call("send", name=producer, messages=[message("large", body) for body in large])
    return results


def read_all(
    java: JavaDriver, server: Server, count: int, queues: list[dict[str, Any]] = QUEUES
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Every field of every message, by queue, once there are `count`.

    The Java broker answers a send before its queue shows the message.
    """
    deadline = time.monotonic() + 120
    with java.started("pull", namesrv=server.namesrv, group=GROUP) as puller:
        while True:
            everything = {}
            for place in queues:
                messages = java.call("read_queue", name=puller, queue=place)
                for found in messages:
                    del found["broker"]  # The client's own note of whom it asked.
                    for name in OF_THE_PULL:
                        found["properties"].pop(name, None)
                everything[place["topic"], place["queue_id"]] = messages
            found_count = sum(map(len, everything.values()))
            if found_count >= count:
                return everything
            assert time.monotonic() < deadline, f"{found_count} of {count} messages"
            time.sleep(0.05)


def commit(java: JavaDriver, server: Server, offsets: list[int]) -> None:
    deadline = time.monotonic() + 120
    with java.started("pull", namesrv=server.namesrv, group=GROUP) as puller:
        while True:
            for place, offset in zip(QUEUES, offsets, strict=True):
                java.call("commit_offset", name=puller, queue=place, offset=offset)
            # The client commits one-way, and one that comes before the client's heartbeat is not taken.
            arrived = time.monotonic() + 1
            while time.monotonic() < arrived:
                if committed(java, server) == offsets:
                    return
                time.sleep(0.02)
            assert time.monotonic() < deadline, "the commits did not arrive"


def committed(java: JavaDriver, server: Server) -> list[int]:
    with java.started("pull", namesrv=server.namesrv, group=GROUP) as puller:
        return [java.call("committed_offset", name=puller, queue=place) for place in QUEUES]


def end(server: Server, how: str) -> None:
    if how == "kill":
        server.kill()
    else:
        server.stop()


@pytest.mark.shows("a store of ours booted by the Java broker")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_store_goes_to_the_java_broker_and_back(
    java_driver: DriverFactory, servers: tuple[StartServer, StartServer], tmp_path: Path, how: str
) -> None:
    java = java_driver("5.5.0")
    start_ours, start_theirs = servers
    store = tmp_path / "store"

    server = start_ours(store)
    make_topics(java, server)
    sent = fill(java, server, "first", rounds=250)
    count = 4 * 250 + OTHERS
    before = read_all(java, server, count)
    assert sum(map(len, before.values())) == count
    acknowledged = {one for result in sent for one in result["message_id"].split(",")}
    assert acknowledged == {found["message_id"] for messages in before.values() for found in messages}
    offsets = [250, 249, 7, 0, 5, 20, 1]
    if how == "stop":  # Offsets are written now and then, not with each commit; a kill may lose the last ones.
        commit(java, server, offsets)
    end(server, how)
    assert len(list((store / "commitlog").iterdir())) > 2
    assert (store / "abort").exists() == (how == "kill")

    server = start_theirs(store)
    assert read_all(java, server, count) == before
    if how == "stop":
        assert committed(java, server) == offsets
    with java.started("admin", namesrv=server.namesrv) as admin:
        for topic, queues in TOPICS.items():
            [data] = java.call("topic_route", name=admin, topic=topic)["queues"]
            assert (data["read_queues"], data["write_queues"], data["perm"]) == (queues, queues, 6)
    with java.started("pull", namesrv=server.namesrv, group=GROUP) as puller:
        # Their key lookup over our index: the first key, the last, one in a batch, one that many share.
        for topic, key, hits in [
            ("flights", "first-0-0", 1),
            ("flights", "first-3-249", 1),
            ("batches", "first-b7", 1),
            ("flights", "shared", 64),
        ]:
            found = java.call("query_message", name=puller, topic=topic, key=key, count_max=64)
            assert len(found) == hits, key
            assert all(key in one["keys"].split(" ") for one in found)
    fill(java, server, "second", rounds=120)
    count += 4 * 120 + OTHERS
    after = read_all(java, server, count)
    assert sum(map(len, after.values())) == count
    for place, messages in before.items():
        assert after[place][: len(messages)] == messages
        assert [found["queue_offset"] for found in after[place]] == list(range(len(after[place])))
    end(server, how)

    server = start_ours(store)
    assert read_all(java, server, count) == after
    fill(java, server, "third", rounds=1)
    count += 4 + OTHERS
    last = read_all(java, server, count)
    assert sum(map(len, last.values())) == count
    for place, messages in after.items():
        assert last[place][: len(messages)] == messages
        assert [found["queue_offset"] for found in last[place]] == list(range(len(last[place])))
    server.stop()
