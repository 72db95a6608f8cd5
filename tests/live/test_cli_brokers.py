"""`cluster`, `broker`, `topic list --details` and `topic update` against a running cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.answers import check_answer
from tests.support.cli_calls import call
from tests.support.patience import LIMIT_S

from rocketspark import Producer, PullConsumer
from rocketspark.admin import AsyncAdmin
from rocketspark.admin.cluster_client import BrokerState
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("`cluster show|top`, `broker show|config|stats|counter`, `topic list --details|update`")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2) as running:
        run(running, "topic", "create", "orders", "--queues", "2")
        with Producer(running.namesrv, "p") as producer:
            for n in range(6):
                producer.send("orders", b"%d" % n)
            with PullConsumer(running.namesrv, "billing", consume_from="first") as consumer:
                consumer.subscribe("orders")
                taken = 0
                while taken < 4:
                    taken += len(consumer.poll(timeout_ms=1000, count_max=1))
                consumer.commit()
            yield running


def run(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    done = call(*arguments, "--namesrv", cluster.namesrv)
    assert done.exit_code == code, done.told
    return done.told


def answer(cluster: Cluster, *arguments: str, of: str = "") -> Any:
    told = run(cluster, *arguments, "--json")
    assert told.count("\n") == 1
    found = json.loads(told)
    check_answer(of or " ".join(arguments[:2]), found)
    return found


def test_the_brokers_of_a_cluster(cluster: Cluster) -> None:
    rows = answer(cluster, "cluster", "show")
    assert [(r["broker_name"], r["broker_id"], r["role"], r["error"]) for r in rows] == [
        ("broker-a", 0, "master", ""),
        ("broker-b", 0, "master", ""),
    ]
    assert sum(r["in_today"] for r in rows) >= 6
    nowhere = run(cluster, "cluster", "show", "--cluster", "nowhere", "--json", code=1)
    assert nowhere == "[]\nno broker answered: the NameServer knows no broker of cluster 'nowhere'"
    text = run(cluster, "cluster", "show").splitlines()
    assert text[1].split()[:5] == ["cluster", "broker", "id", "role", "address"]
    assert [line.split()[:6] for line in text[3:5]] == [
        ["DefaultCluster", r["broker_name"], "0", "master", r["address"], "V5_5_0"] for r in rows
    ]


def test_a_broker_that_does_not_answer_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    known = AsyncAdmin.cluster_info

    async def and_one_that_is_gone(self: AsyncAdmin) -> list[BrokerState]:
        return [*await known(self), BrokerState("DefaultCluster", "broker-z", 0, "127.0.0.1:1")]

    monkeypatch.setattr(AsyncAdmin, "cluster_info", and_one_that_is_gone)
    rows = answer(cluster, "cluster", "show")
    assert [bool(r["error"]) for r in rows] == [False, False, True]
    assert "127.0.0.1:1" in rows[2]["error"]
    assert rows[2]["version"] == ""
    assert "broker-z" in run(cluster, "cluster", "show")
    # Where none answers, a script hears of it.
    with monkeypatch.context() as all_gone:

        async def alone(self: AsyncAdmin) -> list[BrokerState]:
            return [BrokerState("DefaultCluster", "broker-z", 0, "127.0.0.1:1")]

        all_gone.setattr(AsyncAdmin, "cluster_info", alone)
        assert "no broker answered" in run(cluster, "cluster", "show", code=1)
    # And where the NameServer has dropped them all.
    with monkeypatch.context() as all_dropped:

        async def none(self: AsyncAdmin) -> list[BrokerState]:
            return []

        all_dropped.setattr(AsyncAdmin, "cluster_info", none)
        assert "the NameServer knows no broker" in run(cluster, "cluster", "show", code=1)
    # Rates and lags are those of the others.
    assert answer(cluster, "cluster", "top")["groups"][0]["group"] == "billing"


def test_replicas_under_a_controller() -> None:
    with run_cluster(replicas=2) as cluster:
        master, slave = answer(cluster, "cluster", "show")
        assert [(r["role"], r["in_sync"]) for r in (master, slave)] == [("master", True), ("slave", True)]
        assert master["epoch"] == slave["epoch"] >= 1
        shown = answer(cluster, "broker", "show", f"broker-a:{slave['broker_id']}")
        assert (shown["role"], shown["connected"], shown["address"]) == ("slave", True, slave["address"])
        shown = answer(cluster, "broker", "show", "broker-a")
        assert [r["in_sync"] for r in shown["replicas"]] == [True, True]
        assert [s["in_sync"] for s in shown["slaves"]] == [True]
        assert shown["epochs"][-1]["epoch"] == shown["master_epoch"] == master["epoch"]
        assert "replicas" in run(cluster, "broker", "show", "broker-a")


def test_the_busiest(cluster: Cluster) -> None:
    until = time.monotonic() + LIMIT_S
    # They are counted every 10 s.
    while not (found := answer(cluster, "cluster", "top"))["topics"] and time.monotonic() < until:
        time.sleep(0.2)
    while found["topics"][0]["in_day"] < 6 and time.monotonic() < until:
        found = answer(cluster, "cluster", "top")
    (orders,) = (t for t in found["topics"] if t["topic"] == "orders")
    assert (orders["in_day"], orders["queues"]) == (6, 4)
    assert 0 < orders["in_tps"] < 0.7
    (billing,) = (g for g in found["groups"] if g["topic"] == "orders")
    assert (billing["group"], billing["lag"]) == ("billing", 2)
    text = run(cluster, "cluster", "top", "--by", "rate", "--count", "1")
    assert [line.split()[:1] for line in text.splitlines()[3:4]] == [["orders"]]
    assert len(answer(cluster, "cluster", "top", "--count", "1")["topics"]) == 1
    (row,) = (t for t in answer(cluster, *"topic list --details".split(), of="topic list --details"))
    assert row == {
        "topic": "orders",
        "brokers": ["broker-a", "broker-b"],
        "read_queues": 4,
        "write_queues": 4,
        "perm": 6,
        "type": "",
        "in_tps": row["in_tps"],
        "in_day": 6,
        "groups": ["billing"],
    }
    text = run(cluster, "topic", "list", "--details").splitlines()[3]
    assert text.split()[:6] == ["orders", "broker-a,", "broker-b", "4", "4", text.split()[5]]
    counted = [
        answer(cluster, "broker", "counter", name, "TOPIC_PUT_NUMS", "orders") for name in ("broker-a", "broker-b")
    ]
    assert sum(c["minute"]["sum"] for c in counted) == 6
    assert answer(cluster, "broker", "counter", "broker-a", "TOPIC_PUT_NUMS", "nowhere")["day"]["sum"] == 0


def test_one_broker(cluster: Cluster) -> None:
    shown = answer(cluster, "broker", "show", "broker-a")
    assert (shown["broker_name"], shown["role"], shown["slaves"], shown["replicas"]) == ("broker-a", "master", [], [])
    assert (shown["producers"], shown["connected"], shown["controller"]) == (1, None, "")
    text = {
        line.split()[0]: line.split()[1:]
        for line in run(cluster, "broker", "show", "broker-a").splitlines()
        if line.split()
    }
    assert text["address"] == [shown["address"]]
    assert text["log_end"] == [f"{shown['log_end']:,}"]
    stats = answer(cluster, "broker", "stats", "broker-a")
    assert stats["stats"]["commitLogMaxOffset"] == str(shown["log_end"])
    assert "commitLogMaxOffset" in run(cluster, "broker", "stats", "broker-a")
    assert "no broker 'broker-c': these are up: broker-a, broker-b" in run(
        cluster, "broker", "stats", "broker-c", code=1
    )


def test_settings(cluster: Cluster) -> None:
    differing = {s["key"]: s for s in answer(cluster, "broker", "config", "broker-b", "--differing")}
    assert "maxMessageSize" not in differing
    assert differing["brokerName"] == {
        "key": "brokerName",
        "value": "broker-b",
        "default": "broker-a",
        "differs": True,
        "live": False,
    }
    change = ("broker", "config", "broker-b", "set", "maxMessageSize=4000000")
    assert "confirm with --yes" in run(cluster, *change, code=2)
    (done,) = answer(cluster, *change, "--yes")
    assert (done["value"], done["differs"], done["live"]) == ("4000000", True, True)
    (found,) = answer(cluster, "broker", "config", "broker-b", "get", "maxMessageSize")
    assert found == done
    row = run(cluster, "broker", "config", "broker-b", "get", "maxMessageSize").splitlines()[3]
    assert row.split() == ["*", "maxMessageSize", "4000000", "4194304", "live"]
    wrong = [
        (("get",), 2, "get which settings?"),
        (("set",), 2, "set which settings?"),
        (("set", "maxMessageSize", "--yes"), 2, "'maxMessageSize' is no KEY=VALUE"),
        (("get", "maxMesageSize"), 2, "did you mean 'maxMessageSize'"),
        (("set", "maxMesageSize=1", "--yes"), 1, "did you mean 'maxMessageSize'"),
        (("set", "listenPort=1", "--yes"), 1, "cannot change while the broker runs"),
    ]
    for arguments, code, says in wrong:
        assert says in run(cluster, "broker", "config", "broker-b", *arguments, code=code)


def test_no_topics_are_no_lines() -> None:
    with run_cluster() as empty:
        assert run(empty, "topic", "list") == ""
        assert answer(empty, "topic", "list") == []
        assert answer(empty, "cluster", "top") == {"topics": [], "groups": []}
        for name in ("a", "b"):
            run(empty, "topic", "create", name)
        assert run(empty, "topic", "list") == "a\nb\n"


def test_a_topic_is_changed(cluster: Cluster) -> None:
    run(cluster, "topic", "create", "bills", "--queues", "2", "--broker", "broker-b")
    told = answer(cluster, "topic", "update", "bills", "--read-queues", "3", "--perm", "read", "--type", "fifo")
    assert told == {"topic": "bills", "queues": 3, "brokers": ["broker-b"], "changed": ["broker-b"], "type": "FIFO"}
    (row,) = (
        t for t in answer(cluster, *"topic list --details".split(), of="topic list --details") if t["topic"] == "bills"
    )
    assert (row["read_queues"], row["write_queues"], row["perm"], row["type"]) == (3, 2, 4, "FIFO")
    assert run(cluster, "topic", "update", "bills", "--perm", "both") == "changed bills with 3 queues on broker-b\n"
    assert "nothing to change" in run(cluster, "topic", "update", "bills", code=2)
    assert "topic 'nowhere' is not on any broker" in run(
        cluster, "topic", "update", "nowhere", "--perm", "both", code=1
    )


def test_options_of_a_broker_that_is_run_are_refused_before_those_words(cluster: Cluster) -> None:
    done = call("broker", "--namesrv", cluster.namesrv, "show", "broker-a")
    assert done.exit_code == 2
    assert "options stand after it: broker show" in done.told
