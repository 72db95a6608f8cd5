"""A store that the official broker began and filled, opened by ours, added to, and opened by the official one again.

Each ends once by a clean stop and once by SIGKILL. JAVA_TESTS_ON=apache puts the official broker in our place too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheNamesrv, committed_offset
from tests.java.driver import JavaDriver, body_of, message
from tests.java.one_store import APACHE_ALONE, Server, Start, starting
from tests.java.test_store_exchange import (
    GROUP,
    OTHERS,
    QUEUES,
    SMALL_FILES,
    commit,
    committed,
    end,
    fill,
    make_topics,
    queue,
    read_all,
)
from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark.protocol.json import java_json

pytestmark = pytest.mark.shows(
    "a store that the Java broker began, opened by ours and by it again, by stop and by kill",
)

# Half messages are checked by ours alone; offsets reach the disk soon.
THEIRS = SMALL_FILES | {
    "messageDelayLevel": "1s 5s 2s 14s 1h",
    "flushConsumerOffsetInterval": 300,
    "flushDelayOffsetInterval": 300,
    "transactionTimeOut": 600_000,
    "transactionCheckInterval": 600_000,
}
OURS = THEIRS | {"transactionTimeOut": 500, "transactionCheckInterval": 500, "transactionCheckMax": 10_000}
SOON, LATER, MUCH_LATER = 1, 4, 5
LATER_MS = 14_000
MORE_TOPICS = ("delayed", "paid", "work")
DELAYED, PAID, WORK = queue("delayed", 0), queue("paid", 0), queue("work", 0)
WORKERS, PAYERS = "exchange-workers", "exchange-payers"
EVERYTHING = [*QUEUES, DELAYED, PAID, WORK]


@pytest.fixture
def start(namesrv: ApacheNamesrv, tmp_path: Path) -> Iterator[Start]:
    with starting(namesrv, tmp_path, OURS, THEIRS) as start:
        yield start


def until(holds: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.05)
    return found


def offsets_on_disk(store: Path, file: str) -> dict[str, Any]:
    """The offset table of a file in config/; empty while there is none."""
    path = store / "config" / file
    try:
        return dict(json.loads(java_json.standardize(path.read_bytes()))["offsetTable"])
    except (FileNotFoundError, ValueError, KeyError):
        return {}


def bodies(java: JavaDriver, server: Server, place: dict[str, Any]) -> list[str]:
    with java.started("pull", namesrv=server.namesrv, group=GROUP) as puller:
        return [body_of(m).decode() for m in java.call("read_queue", name=puller, queue=place)]


def send_delayed(java: JavaDriver, server: Server, mark: str, *levels: int) -> int:
    """One message for each level; returns the time in ms before the first."""
    now_ms = int(time.time() * 1000)
    with java.started("producer", namesrv=server.namesrv, group="exchange-writers") as producer:
        messages = [message("delayed", f"{mark} level {level}", tag="d", delay_level=level) for level in levels]
        java.call("send", name=producer, messages=messages, queue=DELAYED)
    return now_ms


def paid(mark: str, outcome: str, check: str = "UNKNOW") -> dict[str, Any]:
    pairs = {"outcome": outcome, "check": check}
    return message("paid", f"{mark} {outcome} {check}", tag="p", keys=f"{mark}-{outcome}", properties=pairs)


def pay(java: JavaDriver, server: Server, mark: str) -> None:
    """One transaction committed, one rolled back, one left open, for a check to commit."""
    wanted = [paid(mark, "COMMIT_MESSAGE"), paid(mark, "ROLLBACK_MESSAGE"), paid(mark, "UNKNOW", "COMMIT_MESSAGE")]
    with java.started("transactor", namesrv=server.namesrv, group=PAYERS) as transactor:
        sent = java.call("transactor_send", name=transactor, messages=wanted)
        assert [one["status"] for one in sent] == ["SEND_OK"] * 3
        # The end of a transaction is told one-way.
        until(lambda: f"{mark} COMMIT_MESSAGE UNKNOW" in bodies(java, server, PAID), "the commit")


def fail_once(java: JavaDriver, server: Server, mark: str) -> None:
    """One message consumed, one failed: it comes again by %RETRY%, after this consumer has gone."""
    wanted = {"namesrv": server.namesrv, "group": WORKERS, "subscriptions": [{"topic": "work"}]}
    with java.started("producer", namesrv=server.namesrv, group="exchange-writers") as producer:
        java.call("send", name=producer, messages=[message("work", f"{mark} done")], queue=WORK)
        with java.started("push", **wanted) as consumer:
            java.call("push_await", name=consumer, count=1, timeout_ms=LIMIT_MS)
        until(lambda: committed_offset(server.broker, WORKERS, "work", 0) == 1, "the first commit")
        with java.started("push", fail_first=1, **wanted) as consumer:
            java.call("send", name=producer, messages=[message("work", f"{mark} failed")], queue=WORK)
            java.call("push_await", name=consumer, count=1, timeout_ms=LIMIT_MS)
    until(lambda: committed_offset(server.broker, WORKERS, "work", 0) == 2, "the commit")


def work_again(java: JavaDriver, server: Server, mark: str) -> None:
    """The failed message comes to the next consumer, and nothing else."""
    with java.started("push", namesrv=server.namesrv, group=WORKERS, subscriptions=[{"topic": "work"}]) as consumer:
        found = java.call("push_await", name=consumer, count=1, timeout_ms=LIMIT_MS)
        assert [(body_of(m).decode(), m["reconsume_times"]) for m in found] == [(f"{mark} failed", 1)]
    until(lambda: committed_offset(server.broker, WORKERS, f"%RETRY%{WORKERS}", 0), "the retry's commit")


def assert_keys(java: JavaDriver, server: Server, found: dict[tuple[str, int], list[dict[str, Any]]]) -> None:
    """By key and by unique id: messages from all over the store.

    Not on the official broker alone: after a kill it drops keys of messages that are older than 3 s.
    """
    if APACHE_ALONE:
        return
    with java.started("pull", namesrv=server.namesrv, group=GROUP) as puller:
        for (topic, _), messages in found.items():
            for one in [*messages[::40], *messages[-1:]]:
                # As the id of the client's own making, then as a key.
                viewed = java.call("view_message", name=puller, topic=topic, message_id=one["message_id"])
                assert viewed["offset_message_id"] == one["offset_message_id"]
                for key in (one["keys"] or "").split(" "):
                    if key and key != "shared":
                        hits = java.call("query_message", name=puller, topic=topic, key=key, count_max=32)
                        assert [hit["offset_message_id"] for hit in hits] == [one["offset_message_id"]], key
        hits = java.call("query_message", name=puller, topic="flights", key="shared", count_max=64)
        assert len(hits) == 64


# A clean stop is handed over in test_store_exchange too.
@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.soak), "kill"])
def test_a_store_that_the_java_broker_began(java_client_55: JavaDriver, start: Start, tmp_path: Path, how: str) -> None:
    java, store = java_client_55, tmp_path / "store"

    server = start("theirs")
    make_topics(java, server)
    with java.started("admin", namesrv=server.namesrv) as admin:
        for topic in MORE_TOPICS:
            java.call("create_topic", name=admin, topic=topic, queues=1, broker_address=server.broker)
    fill(java, server, "first", rounds=130)
    read_all(java, server, 4 * 130 + OTHERS)  # Commits of a group that never read are not taken.
    offsets = [130, 129, 7, 0, 5, 20, 1]
    commit(java, server, offsets)
    pay(java, server, "first")
    send_delayed(java, server, "first", SOON)
    fail_once(java, server, "first")
    until(lambda: bodies(java, server, DELAYED) == ["first level 1"], "the delayed message")
    # What was delivered is told by this file alone; the retry is parked at level 3.
    until(lambda: offsets_on_disk(store, "delayOffset.json").get("1") == 1, "delayOffset.json")
    until(lambda: offsets_on_disk(store, "delayOffset.json").get("3") == 1, "delayOffset.json")
    kept = {f"{q['topic']}@{GROUP}": {} for q in QUEUES} | {f"work@{WORKERS}": {"0": 2}}
    for place, offset in zip(QUEUES, offsets, strict=True):
        kept[f"{place['topic']}@{GROUP}"][str(place["queue_id"])] = offset
    until(lambda: kept.items() <= offsets_on_disk(store, "consumerOffset.json").items(), "consumerOffset.json")
    count = 4 * 130 + OTHERS + 1 + 1 + 2
    before = read_all(java, server, count, EVERYTHING)
    assert sum(map(len, before.values())) == count
    sent_ms = send_delayed(java, server, "first", LATER, MUCH_LATER)
    end(server, how)
    assert len(list((store / "commitlog").iterdir())) > 2
    assert len(list((store / "consumequeue" / "flights" / "0").iterdir())) > 1
    assert len(list((store / "index").iterdir())) > 1
    assert (store / "abort").exists() == (how == "kill")

    server = start("ours")
    # What is delivered late and what is paid may go on at once.
    settled = {place: found for place, found in before.items() if place[0] not in ("delayed", "paid")}
    assert read_all(java, server, sum(map(len, settled.values())), [*QUEUES, WORK]) == settled
    assert committed(java, server) == offsets
    assert committed_offset(server.broker, WORKERS, "work", 0) == 2
    assert_keys(java, server, before)
    work_again(java, server, "first")
    with java.started("transactor", namesrv=server.namesrv, group=PAYERS) as transactor:
        # A producer is known to a broker that it sent to, no earlier (to either broker).
        last = message("work", "unseen", properties={"outcome": "ROLLBACK_MESSAGE", "check": "UNKNOW"})
        java.call("transactor_send", name=transactor, messages=[last])
        wanted = ["first COMMIT_MESSAGE UNKNOW", "first UNKNOW COMMIT_MESSAGE"]
        until(lambda: bodies(java, server, PAID) == wanted, "the check-back")
        assert {a["body"] for a in java.call("transactor_checked", name=transactor)} >= {"first UNKNOW COMMIT_MESSAGE"}
    fill(java, server, "second", rounds=50)
    until(lambda: bodies(java, server, DELAYED) == ["first level 1", "first level 4"], "the delayed message")
    until(lambda: offsets_on_disk(store, "delayOffset.json").get("4") == 1, "delayOffset.json")
    offsets = [150, 135, 8, 3, 10, 33, 3]
    commit(java, server, offsets)
    until(
        lambda: offsets_on_disk(store, "consumerOffset.json").get(f"large@{GROUP}") == {"0": 3}, "consumerOffset.json"
    )
    count += 4 * 50 + OTHERS + 1 + 1
    after = read_all(java, server, count, EVERYTHING)
    assert sum(map(len, after.values())) == count
    due = after["delayed", 0][1]
    assert sent_ms + LATER_MS <= due["store_time_ms"]
    for place, messages in before.items():
        assert after[place][: len(messages)] == messages
        assert [found["queue_offset"] for found in after[place]] == list(range(len(after[place])))
    end(server, how)

    server = start("theirs")
    assert read_all(java, server, count, EVERYTHING) == after
    assert committed(java, server) == offsets
    assert_keys(java, server, after)
    fill(java, server, "third", rounds=1)
    count += 4 + OTHERS
    last = read_all(java, server, count, EVERYTHING)
    assert sum(map(len, last.values())) == count
    for place, messages in after.items():
        assert last[place][: len(messages)] == messages
        assert [found["queue_offset"] for found in last[place]] == list(range(len(last[place])))
    end(server, how)
