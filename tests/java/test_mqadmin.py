"""The official `mqadmin` 5.5.0 against our servers: what it prints is read back and compared with what was done."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import SERVER_JARS, ask
from tests.java.driver import java_tool

from rocketspark import Producer, PushConsumer

# One command takes some 0.1 s; this ends a JVM that hangs.
TIMEOUT_S = 180
LOOP = Path(__file__).parent / "tools" / "MqAdminLoop.java"
COUNT = 12
GROUP = "admin-group"


@pytest.fixture(scope="session")
def mqadmin(ours: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """mqadmin(command, *arguments) runs it with our NameServer and returns its lines. One JVM serves all."""
    home = tmp_path_factory.mktemp("mqadmin")
    call = [java_tool("java"), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
    call += [f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-cp", str(SERVER_JARS / "*"), str(LOOP)]
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    jvm = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert jvm.stdin is not None
    assert jvm.stdout is not None
    watchdog = threading.Timer(TIMEOUT_S, jvm.kill)
    watchdog.start()

    def run(command: str, *arguments: str) -> list[str]:
        print("\x1f".join((command, "-n", ours.namesrv, *arguments)), file=jvm.stdin, flush=True)
        lines = []
        while (line := jvm.stdout.readline()) != "\x04\n":
            assert line, "mqadmin ended"
            # Its log library reports on stdout too.
            if line.strip() and "|-" not in line[:20]:
                lines.append(line.rstrip("\n"))
        return lines

    yield run
    jvm.stdin.close()
    jvm.wait(20)
    watchdog.cancel()


@pytest.fixture(scope="session")
def traffic(ours: Any) -> str:
    """A topic with messages of which some were consumed."""
    topic = "AdminTopic"
    with Producer(ours.namesrv, "admin-producer") as producer:
        for n in range(COUNT):
            producer.send(topic, b"x" * 100, keys=f"k{n}")
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    consumer = PushConsumer(ours.namesrv, GROUP, consume_from="first")
    consumer.subscribe(topic)
    consumer.listen(came.put)
    with consumer:
        for _ in range(COUNT):
            came.get(timeout=20)
    return topic


def table(lines: list[str], split: str = r"\s*[:=]\s+") -> dict[str, str]:
    """Lines of name and value, by name."""
    pairs = (re.split(split, line.strip(), maxsplit=1) for line in lines)
    return {p[0].rstrip(" :="): p[1].strip() if len(p) > 1 else "" for p in pairs}


def test_broker_status(mqadmin: Any, ours: Any, traffic: str) -> None:
    shown = table(mqadmin("brokerStatus", "-b", ours.broker))
    assert shown["brokerVersionDesc"] == "V5_5_0"
    assert shown["brokerActive"] == "true"
    assert int(shown["msgPutTotalTodayNow"]) >= COUNT
    assert int(shown["msgGetTotalTodayNow"]) >= COUNT
    assert int(shown["putMessageTimesTotal"]) >= COUNT
    assert int(shown["commitLogMaxOffset"]) > COUNT * 100
    assert re.fullmatch(r"\[ 0 days, 0 hours, \d+ minutes, \d+ seconds \]", shown["runtime"])


def test_cluster_list(mqadmin: Any, ours: Any, traffic: str) -> None:
    head, row = mqadmin("clusterList")[-2:]
    assert head.split()[0] == "#Cluster"
    words = row.split()
    assert words[:5] == ["DefaultCluster", "broker-a", "0", ours.broker, "V5_5_0"]
    assert words[-1] == "true"
    _, row = mqadmin("clusterList", "-m")[-2:]
    assert int(row.split()[4]) >= COUNT


def test_topic_list_and_status(mqadmin: Any, traffic: str) -> None:
    assert traffic in mqadmin("topicList")
    rows = [line.split() for line in mqadmin("topicStatus", "-t", traffic) if line.startswith("broker-a")]
    assert [int(row[1]) for row in rows] == list(range(len(rows)))
    assert sum(int(row[3]) for row in rows) == COUNT
    assert all(int(row[2]) == 0 for row in rows)


def test_stats_all(mqadmin: Any, ours: Any, traffic: str) -> None:
    """In and out of the last 24 hours, and what the group has left."""
    deadline = time.monotonic() + 30
    while _counted(ours.broker, f"{traffic}@{GROUP}") < COUNT:  # The counters are read every 10 s.
        assert time.monotonic() < deadline
        time.sleep(0.2)
    rows = [line.split() for line in mqadmin("statsAll", "-t", traffic) if line.startswith(traffic)]
    assert [row[1:3] + row[5:] for row in rows] == [[GROUP, "0", str(COUNT), str(COUNT)]]


def _counted(broker: str, key: str) -> int:
    answer = ask(broker, 315, ext_fields={"statsName": "GROUP_GET_NUMS", "statsKey": key})
    return int(json.loads(answer.body)["statsMinute"]["sum"]) if answer.code == 0 else 0


def test_consumer_progress(mqadmin: Any, traffic: str) -> None:
    lines = mqadmin("consumerProgress", "-g", GROUP)
    rows = [line.split() for line in lines if line.startswith(traffic)]
    assert sum(int(row[3]) for row in rows) == COUNT
    assert sum(int(row[4]) for row in rows) == COUNT
    assert any(re.fullmatch(r"Consume (Diff Total|TPS): .*", line) for line in lines)
    assert "Consume Diff Total: 0" in lines


def test_broker_config_is_read_and_changed(mqadmin: Any, ours: Any) -> None:
    shown = table(mqadmin("getBrokerConfig", "-b", ours.broker)[1:])
    assert len(shown) > 480
    assert shown["brokerName"] == "broker-a"
    assert shown["maxMessageSize"] == "4194304"
    (line,) = mqadmin("updateBrokerConfig", "-b", ours.broker, "-k", "maxMessageSize", "-v", "4000000")
    assert line == f"update broker config success, {ours.broker}"
    assert "maxMessageSize=4000000\n" in ask(ours.broker, 26).body.decode()
    assert ask(ours.broker, 25, b"maxMessageSize=4194304\n").code == 0
    (line,) = mqadmin("updateBrokerConfig", "-b", ours.broker, "-k", "noSuchKey", "-v", "1")
    assert line == f"update broker config success, {ours.broker}"
    refused = mqadmin("updateBrokerConfig", "-b", ours.broker, "-k", "configBlackList", "-v", "x")
    assert any("CODE: 16" in line for line in refused)


def test_name_server_config_is_read_and_changed(mqadmin: Any, ours: Any) -> None:
    shown = table(mqadmin("getNamesrvConfig")[1:])
    assert shown["orderMessageEnable"] == "false"
    assert len(shown) > 35
    lines = mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert lines[0].startswith("update name server config success!")
    assert "orderMessageEnable=true\n" in ask(ours.namesrv, 319).body.decode()
    assert ask(ours.namesrv, 318, b"orderMessageEnable=false\n").code == 0


def test_queue_units(mqadmin: Any, ours: Any, traffic: str) -> None:
    lines = mqadmin("queryCq", "-t", traffic, "-q", "0", "-i", "0", "-c", "1", "-b", ours.broker)
    units = [line for line in lines if line.startswith("ConsumeQueueData")]
    assert len(units) == 1
    found = re.search(r"physicOffset=(\d+), physicSize=(\d+), tagsCode=0", units[0])
    assert found is not None
    assert int(found[2]) > 100


def test_consume_stats_of_the_broker(mqadmin: Any, ours: Any, traffic: str) -> None:
    lines = mqadmin("brokerConsumeStats", "-b", ours.broker)
    rows = [line.split() for line in lines if line.startswith(traffic)]
    assert {row[1] for row in rows} == {GROUP}
    assert sum(int(row[4]) for row in rows) == COUNT


def test_cleaning(mqadmin: Any, ours: Any, traffic: str) -> None:
    for command in ("cleanUnusedTopic", "cleanExpiredCQ", "deleteExpiredCommitLog"):
        assert mqadmin(command, "-b", ours.broker) == ["success"]
    rows = [line.split() for line in mqadmin("topicStatus", "-t", traffic) if line.startswith("broker-a")]
    assert sum(int(row[3]) for row in rows) == COUNT


def test_many_topics_at_once(mqadmin: Any, ours: Any, tmp_path: Path) -> None:
    wanted = tmp_path / "topics.json"
    wanted.write_text('[{"topicName":"ListA","readQueueNums":3,"writeQueueNums":3},{"topicName":"ListB","perm":4}]')
    lines = mqadmin("updateTopicList", "-b", ours.broker, "-f", str(wanted))
    assert any("success" in line for line in lines), lines
    rows = [line for line in mqadmin("topicStatus", "-t", "ListA") if line.startswith("broker-a")]
    assert len(rows) == 3
