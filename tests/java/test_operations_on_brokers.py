"""`cluster`, `broker` and `topic` beside the official `mqadmin` 5.5.0, on our servers and on the official ones: both
give the same answers.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.java.mqadmin import Stage, same, table, until
from tests.support.answers import check_answer
from tests.support.cli_calls import call

from rocketspark.admin import Admin

pytestmark = pytest.mark.shows(
    "answers about brokers, settings and topics are those of `mqadmin`, on both kinds of servers"
)


def answer(stage: Stage, *arguments: str, of: str = "") -> Any:
    done = call(*arguments, "--json", "--namesrv", stage.namesrv)
    assert done.exit_code == 0, done.told
    found = json.loads(done.stdout)
    check_answer(of or " ".join(arguments[:2]), found)
    return found


def status(stage: Stage) -> dict[str, str]:
    return table(stage.mqadmin("brokerStatus", "-b", stage.broker))


def test_brokers_are_those_of_cluster_list(each_stage: Stage) -> None:
    stage = each_stage

    def same_figures() -> bool:
        (row,) = answer(stage, "cluster", "show")
        _, line = stage.mqadmin("clusterList")
        cluster, name, broker_id, address, version, in_tps, out_tps, *_, hours, space, active = re.sub(
            r"\(.*?\)", "", line
        ).split()
        assert [cluster, name, broker_id, address.replace("BROKER", stage.broker), version, active] == [
            *(row["cluster"], row["broker_name"], str(row["broker_id"]), row["address"], row["version"]),
            str(row["active"]).lower(),
        ]
        assert abs(float(space) - row["disk_used"]) < 0.01
        assert float(hours) < 1
        assert row["oldest_ms"] == int(status(stage)["earliestMessageTimeStamp"])
        _, totals = stage.mqadmin("clusterList", "-m")
        days = [str(row[key]) for key in ("in_today", "out_today")]
        assert (row["epoch"], row["in_sync"], row["role"], row["error"]) == (None, None, "master", "")
        # Rates are of the last 10 s, and heartbeats write messages of their own.
        return [in_tps, out_tps, *totals.split()[4:]] == [f"{row['in_tps']:.2f}", f"{row['out_tps']:.2f}", *days]

    until(same_figures)


def test_state_is_that_of_broker_status(each_stage: Stage) -> None:
    stage = each_stage
    moving = re.compile("runtime|Tps$|Ratio|DirCapacity|Time|Latency|Distribute|put|msg|timer|commitLogMaxOffset|Flush")
    ours = answer(stage, "broker", "stats", "broker-a")["stats"]
    theirs = status(stage)
    assert ours.keys() == theirs.keys()
    still = {name for name in theirs if not moving.search(name)}
    assert len(still) > 15
    # Blanks are squeezed in what the tool prints.
    assert {n: " ".join(ours[n].split()) for n in still} == {n: theirs[n] for n in still}
    shown = answer(stage, "broker", "show", stage.broker)
    assert (shown["broker_name"], shown["started_ms"]) == ("broker-a", int(theirs["bootTimestamp"]))
    assert shown["log_end"] == int(status(stage)["commitLogMaxOffset"])
    assert shown["producers"] >= 1
    with Admin(stage.namesrv) as admin:
        found = admin.replication("broker-a")
        assert (found.is_master, found.slaves) == (True, ())
        same(
            stage.mqadmin("haStatus", "-b", stage.broker)[:4],
            f"""
            #MasterAddr BROKER
            #MasterCommitLogMaxOffset {found.log_end}
            #SlaveNum 0
            #InSyncSlaveNum {found.in_sync_slaves}
            """,
        )


def test_settings_are_those_of_get_broker_config(each_stage: Stage) -> None:
    stage = each_stage
    theirs = table(stage.mqadmin("getBrokerConfig", "-b", stage.broker)[1:])
    ours = {s["key"]: " ".join(s["value"].split()) for s in answer(stage, "broker", "config", "broker-a")}
    assert len(ours) > 480
    paths = {key for key in ours if "/" in ours[key] or "/" in theirs.get(key, "") or ":" in ours[key]}
    assert len(paths) < 20
    assert {k: v for k, v in ours.items() if k not in paths} == {k: v for k, v in theirs.items() if k not in paths}
    # What nobody set has the default that is told, but for what depends on the machine.
    unlike = {s["key"] for s in answer(stage, "broker", "config", "broker-a", "--differing")}
    assert {"maxMessageSize", "fileReservedTime", "flushDiskType", "brokerRole"}.isdisjoint(unlike)
    assert len(unlike) < 60, sorted(unlike)
    change = ("broker", "config", "broker-a", "set", "--yes")
    (done,) = answer(stage, *change, "maxMessageSize=4000000")
    assert (done["value"], done["default"], done["differs"]) == ("4000000", "4194304", True)
    assert table(stage.mqadmin("getBrokerConfig", "-b", stage.broker))["maxMessageSize"] == "4000000"
    stage.mqadmin("updateBrokerConfig", "-b", stage.broker, "-k", "maxMessageSize", "-v", "4194304")
    (found,) = answer(stage, "broker", "config", "broker-a", "get", "maxMessageSize")
    assert (found["value"], found["differs"]) == ("4194304", False)
    barred = call(*change, "configBlackList=x", "--namesrv", stage.namesrv)
    assert "Can not update config in black list." in barred.told


def test_topics_are_those_of_topic_list_and_stats_all(each_stage: Stage) -> None:
    stage = each_stage
    assert answer(stage, "topic", "list", "--all") == sorted(stage.mqadmin("topicList"))
    _, *rows = [line.split() for line in stage.mqadmin("topicList", "-c")]
    theirs: dict[str, set[str]] = {}
    for _, topic, *groups in rows:
        theirs.setdefault(topic, set()).update(groups)
    listed = answer(stage, "topic", "list", "--details", "--all", of="topic list --details")
    ours = {row["topic"]: row for row in listed}
    for topic in ("Orders", "Bills", "Broken", "Later"):
        assert set(ours[topic]["groups"]) == theirs[topic]
    assert (ours["Orders"]["read_queues"], ours["Orders"]["perm"], ours["Orders"]["brokers"]) == (4, 6, ["broker-a"])

    stage.create("Counted2", 1)
    stage.send("Counted2", 0, 40)
    stage.consume("counting", "Counted2", 40)
    until(lambda: stage.counted("GROUP_GET_NUMS", "Counted2@counting") == 40)
    stage.send("Counted2", 0, 5)
    until(lambda: stage.counted("TOPIC_PUT_NUMS", "Counted2") == 45)

    def same_rates() -> bool:
        (line,) = (line for line in stage.mqadmin("statsAll", "-t", "Counted2") if line.startswith("Counted2 "))
        _, group, left, in_tps, out_tps, in_day, _ = line.split()
        top = answer(stage, "cluster", "top", "--count", "10000")
        (topic,) = (row for row in top["topics"] if row["topic"] == "Counted2")
        (reader,) = (row for row in top["groups"] if row["topic"] == "Counted2")
        assert (reader["group"], reader["lag"]) == (group, int(left)) == ("counting", 5)
        assert topic["in_day"] == int(in_day) == 45
        return [in_tps, out_tps] == [f"{topic['in_tps']:.2f}", f"{reader['out_tps']:.2f}"]

    until(same_rates)
    counted = answer(stage, "broker", "counter", "broker-a", "TOPIC_PUT_NUMS", "Counted2")
    assert counted["day"]["sum"] in (0, 45)
    assert counted["minute"]["sum"] in (40, 45)


def test_queues_are_those_of_topic_status(each_stage: Stage) -> None:
    stage = each_stage
    with Admin(stage.namesrv) as admin:
        stats = admin.topic_stats("Orders")
    rows = [line.split() for line in stage.mqadmin("topicStatus", "-t", "Orders")[1:5]]
    assert [
        [q.queue.broker_name, str(q.queue.queue_id), str(q.min_offset), str(q.max_offset)] for q in stats.queues
    ] == [row[:4] for row in rows]
    assert [q.last_update_ms > 0 for q in stats.queues] == [len(row) > 4 for row in rows]


def test_a_topic_is_changed_as_by_update_topic(each_stage: Stage) -> None:
    stage = each_stage
    stage.create("Changed", 2)
    told = answer(stage, *"topic update Changed --read-queues 4 --write-queues 3 --perm read --order".split())
    assert told == {"topic": "Changed", "queues": 4, "brokers": ["broker-a"], "changed": ["broker-a"]}
    (row,) = stage.mqadmin("topicRoute", "-l", "-t", "Changed")[1:2]
    assert [number for number in row.split() if number.isdigit()][-3:] == ["4", "3", "4"]
    # Only what differs from before is said.
    lines = stage.mqadmin("updateTopicPerm", "-t", "Changed", "-p", "6", "-b", stage.broker)
    assert lines[0] == "update topic perm from 4 to 6 in BROKER success."
    (found,) = (
        r for r in answer(stage, *"topic list --details".split(), of="topic list --details") if r["topic"] == "Changed"
    )
    assert (found["read_queues"], found["write_queues"], found["perm"]) == (4, 3, 6)
