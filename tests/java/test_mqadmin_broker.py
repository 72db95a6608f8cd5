"""The official `mqadmin` 5.5.0 on a broker: state, figures under a known load, settings, cleaning, exports.

JAVA_TESTS_ON=apache runs the same on the official servers: the same output is expected of them.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.java.apache import ask
from tests.java.mqadmin import Stage, same, table, until

pytestmark = pytest.mark.shows("statistics: as mqadmin shows them")

CLUSTER_HEAD = (
    "#Cluster Name #Broker Name #BID #Addr #Version #InTPS(LOAD) #OutTPS(LOAD) #Timer(Progress) #PCWait(ms) #Hour"
    " #SPACE #ACTIVATED"
)


def status(stage: Stage) -> dict[str, str]:
    return table(stage.mqadmin("brokerStatus", "-b", stage.broker))


def test_state_of_a_broker(stage: Stage) -> None:
    shown = status(stage)
    # Kept where the name has a path in it.
    names = {re.sub(r"_/.*", "", name) for name in shown}
    assert names == set(
        """
        EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
        ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerActive brokerVersionDesc
        commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio
        dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp getFoundTps getMessageEntireTimeMax getMissTps
        getTotalTps getTransferredTps litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills
        litePullThreadPoolQueueSize msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning
        msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning pageCacheLockTimeMills
        pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putLatency99
        putLatency999 putMessageAverageSize putMessageDistributeTime putMessageEntireTimeMax putMessageFailedTimes
        putMessageSizeTotal putMessageTimesTotal putTps queryThreadPoolQueueCapacity
        queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
        remainTransientStoreBufferNumbs runtime scheduleMessageOffset_18 sendThreadPoolQueueCapacity
        sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize startAcceptSendRequestTimeStamp timerCongestNum
        timerDequeueTps timerEnqueueTps timerOffsetBehind timerReadBehind
        """.split()
    )
    assert (shown["brokerVersionDesc"], shown["brokerActive"]) == ("V5_5_0", "true")
    # Two wait at delay level 18, none is through.
    assert shown["scheduleMessageOffset_18"] == "0,2"
    assert re.fullmatch(r"\[ 0 days, 0 hours, \d+ minutes, \d+ seconds \]", shown["runtime"])
    assert re.fullmatch(r"Total : [\d.]+ [KMGTP]iB, Free : [\d.]+ [KMGTP]iB\.", shown["commitLogDirCapacity"])
    assert float(shown["putMessageAverageSize"]) == int(shown["putMessageSizeTotal"]) / int(
        shown["putMessageTimesTotal"]
    )
    by_cluster = stage.mqadmin("brokerStatus", "-c", "DefaultCluster")
    assert len(by_cluster) == len(shown)
    assert all(line.startswith("BROKER ") for line in by_cluster)


def test_totals_grow_by_what_was_sent_and_consumed(stage: Stage) -> None:
    stage.create("Counted", 1)
    before = status(stage)
    stage.send("Counted", 0, 7)
    stage.consume("counters", "Counted", 7)
    after = status(stage)
    grown = {
        name: int(after[name]) - int(before[name])
        for name in ("msgPutTotalTodayNow", "msgGetTotalTodayNow", "putMessageTimesTotal", "putMessageSizeTotal")
    }
    record_bytes = int(after["commitLogMaxOffset"]) - int(before["commitLogMaxOffset"])
    assert record_bytes > 7 * 200
    assert grown == {
        "msgPutTotalTodayNow": 7,
        "msgGetTotalTodayNow": 7,
        "putMessageTimesTotal": 7,
        "putMessageSizeTotal": record_bytes,
    }
    head, row = stage.mqadmin("clusterList", "-m")
    assert head == "#Cluster Name #Broker Name #InTotalYest #OutTotalYest #InTotalToday #OutTotalToday"
    same([row], f"DefaultCluster broker-a 0 0 {after['msgPutTotalTodayNow']} {after['msgGetTotalTodayNow']}")


def test_rates_and_sums_of_a_known_load(stage: Stage) -> None:
    """The figures of the last minute, each right after its load: counters are read every 10 s."""

    def row() -> list[str]:
        (found,) = (line for line in stage.mqadmin("statsAll", "-t", "Busy") if line.startswith("Busy "))
        return found.split()

    stage.create("Busy", 1)
    stage.send("Busy", 0, 80)
    until(lambda: stage.counted("TOPIC_PUT_NUMS", "Busy") == 80)
    _, left, rate, total, consumers = row()
    assert (left, total, consumers) == ("0", "80", "NO_CONSUMER")
    # Of 10 to 60 s.
    assert 0.9 < float(rate) <= 8
    # The tool asks for the topic's rate and shows 0.0 whatever the broker says.
    found = re.search(rb'"topicPutTps":([\d.]+)', ask(stage.broker, 202, ext_fields={"topic": "Busy"}).body)
    assert found is not None
    assert 0.9 < float(found[1]) <= 8

    stage.consume("busy", "Busy", 80)
    until(lambda: stage.counted("GROUP_GET_NUMS", "Busy@busy") == 80)
    _, group, left, _, rate, _, total = row()
    assert (group, left, total) == ("busy", "0", "80")
    assert 0.9 < float(rate) <= 8
    assert any(line.startswith("Busy busy 0 ") for line in stage.mqadmin("statsAll", "-a"))
    (tps,) = (line for line in stage.mqadmin("consumerProgress", "-g", "busy") if line.startswith("Consume TPS"))
    assert 0.9 < float(tps.removeprefix("Consume TPS: ")) <= 8

    stage.send("Busy", 0, 20)
    assert row()[2] == "20"
    assert "Consume Diff Total: 20" in stage.mqadmin("consumerProgress", "-g", "busy")


def test_clusters_are_listed(stage: Stage) -> None:
    row = "DefaultCluster broker-a 0 BROKER V5_5_0 <decimal>(0,0ms) <decimal>(0,0ms|0,0ms)"
    row += " <number>-<number>(<decimal>w, <decimal>, <decimal>) <number> <decimal> <decimal> true"
    for arguments in ((), ("-c", "DefaultCluster")):
        same(stage.mqadmin("clusterList", *arguments), f"{CLUSTER_HEAD}\n{row}")
    same(stage.mqadmin("clusterList", "-c", "Nowhere"), CLUSTER_HEAD)
    # Again and again, until it is interrupted.
    shown = stage.mqadmin("clusterList", "-i", "1", stop_after=4)
    same(shown[:2], f"{CLUSTER_HEAD}\n{row}")


def test_settings_of_a_broker(stage: Stage) -> None:
    head, *lines = stage.mqadmin("getBrokerConfig", "-b", stage.broker)
    assert head == "============BROKER============"
    shown = table(lines)
    assert len(shown) > 480
    assert (shown["brokerName"], shown["maxMessageSize"]) == ("broker-a", "4194304")
    head, *lines = stage.mqadmin("getBrokerConfig", "-c", "DefaultCluster")
    assert head == "============Master: BROKER============"
    assert table(lines[: len(shown)]) == shown
    change = ("updateBrokerConfig", "-k", "maxMessageSize", "-v")
    same(stage.mqadmin(*change, "4000000", "-b", stage.broker), "update broker config success, BROKER")
    assert b"maxMessageSize=4000000\n" in ask(stage.broker, 26).body
    for where in (("-c", "DefaultCluster"), ("-c", "DefaultCluster", "-a", "true")):
        same(stage.mqadmin(*change, "4194304", *where), "update broker config success, BROKER")
    assert b"maxMessageSize=4194304\n" in ask(stage.broker, 26).body
    unknown = ("updateBrokerConfig", "-b", stage.broker, "-k", "noSuchKey", "-v", "1")
    same(stage.mqadmin(*unknown), "update broker config success, BROKER")
    barred = stage.mqadmin.refusal("updateBrokerConfig", "-b", stage.broker, "-k", "configBlackList", "-v", "x")
    assert barred == "16 Can not update config in black list."


def test_cleaning(stage: Stage) -> None:
    for command in ("cleanUnusedTopic", "cleanExpiredCQ", "deleteExpiredCommitLog"):
        for where in (("-b", stage.broker), ("-c", "DefaultCluster"), ()):
            assert stage.mqadmin(command, *where) == ["success"]
        assert stage.mqadmin(command, "-c", "Nowhere") == ["false"]
    rows = [line.split()[:4] for line in stage.mqadmin("topicStatus", "-t", "Orders")[1:5]]
    assert rows == [["broker-a", str(n), "0", str(count)] for n, count in enumerate((5, 3, 2, 0))]


def test_what_a_single_master_has_little_to_do_for(stage: Stage) -> None:
    done = "reset master flush offset to 0 success"
    same(stage.mqadmin("resetMasterFlushOffset", "-b", stage.broker, "-o", "0"), done)
    for where in (("-b", stage.broker), ("-c", "DefaultCluster")):
        same(
            stage.mqadmin("haStatus", *where),
            f"""
            #MasterAddr BROKER
            #MasterCommitLogMaxOffset {status(stage)["commitLogMaxOffset"]}
            #SlaveNum 0
            #InSyncSlaveNum 0
            #SlaveAddr #SlaveAckOffset #Diff #TransferSpeed(KB/s) #Status #TransferFromWhere
            """,
        )


def test_reading_ahead_and_the_timers_engine(stage: Stage) -> None:
    mode = ("setCommitLogReadAheadMode", "-m")
    for value in ("1", "0"):
        same(
            stage.mqadmin(*mode, value, "-b", stage.broker),
            f"""
            ============BROKER============
            commitLog set readAhead mode rstStrset commitlog readahead mode success, mode: {value}
            """,
        )
    same(
        stage.mqadmin(*mode, "0", "-c", "DefaultCluster"),
        """
        ============Master: BROKER============
        commitLog set readAhead mode rstStrset commitlog readahead mode success, mode: 0
        """,
    )
    # It is read as before.
    assert "Message Body: Orders-0-0" in stage.mqadmin(
        *("queryMsgByOffset", "-b", "broker-a", "-t", "Orders", "-i", "0", "-o", "0", "-f", "UTF-8")
    )
    engine = ("switchTimerEngine", "-b", stage.broker, "-e")
    same(stage.mqadmin(*engine, "F"), "switchTimerEngine to FILE_TIME_WHEEL success, BROKER")
    rocks = "29 timerRocksDBEnable must be configured true when broker start"
    assert stage.mqadmin.refusal(*engine, "R") == rocks


def test_limits_of_cold_reads(stage: Stage) -> None:
    def limits(*rows: str) -> str:
        table = "\n".join(['"configTable":{', *rows, "},"]) if rows else '"configTable":{},'
        return f"""
            {{
            "runtimeTable":{{}},
            {table}
            "cgColdReadThreshold":3145728,
            "globalColdReadThreshold":104857600,
            "globalAcc":0
            }}
            """

    show, change = ("getColdDataFlowCtrInfo",), ("updateColdDataFlowCtrGroupConfig", "-g", "buyers", "-v", "12345")
    remove, broker, cluster = (
        ("removeColdDataFlowCtrGroupConfig", "-g", "buyers"),
        ("-b", stage.broker),
        ("-c", "DefaultCluster"),
    )
    same(stage.mqadmin(*show, *broker), "============BROKER============" + limits())
    for where, name in ((broker, "BROKER"), (cluster, "Master: BROKER")):
        same(stage.mqadmin(*change, *where), "updateColdDataFlowCtrGroupConfig success, BROKER")
        same(stage.mqadmin(*show, *where), f"============{name}============" + limits('"buyers":12345'))
        same(stage.mqadmin(*remove, *where), "remove broker cold read threshold success, BROKER")
        same(stage.mqadmin(*show, *where), f"============{name}============" + limits())


def test_records_of_pops_are_in_files_already(stage: Stage) -> None:
    for where in (("-b", stage.broker), ("-c", "DefaultCluster")):
        same(
            stage.mqadmin("exportPopRecord", *where),
            "Export broker records, brokerName=broker-a, brokerAddr=BROKER, dryRun=false",
        )


def test_exports(stage: Stage) -> None:
    folder = stage.mqadmin.home / "exports"

    def exported(name: str, *call: str) -> Any:
        same(stage.mqadmin(*call, "-f", str(folder)), f"export HOME/exports/{name} success")
        return json.loads((folder / name).read_text())

    configs = exported("configs.json", "exportConfigs", "-c", "DefaultCluster")
    assert configs["clusterScale"] == {"masterBrokerSize": 1, "namesrvSize": 1, "slaveBrokerSize": 0}
    assert configs["brokerConfigs"]["broker-a"]["brokerRole"] == "ASYNC_MASTER"
    assert configs["brokerConfigs"]["broker-a"]["fileReservedTime"] == "72"
    metadata = exported("metadata.json", "exportMetadata", "-c", "DefaultCluster")
    orders = metadata["topicConfigTable"]["Orders"]
    assert (orders["readQueueNums"], orders["writeQueueNums"], orders["perm"]) == (4, 4, 6)
    assert metadata["subscriptionGroupTable"].keys() >= {"buyers", "laggards", "failing"}
    topics = exported("topic.json", "exportMetadata", "-b", stage.broker, "-t")["topicConfigTable"]
    assert topics.keys() >= {"Orders", "Bills", "Broken", "Later"}
    assert not any(topic.startswith("%") for topic in topics)
    special = exported("topic.json", "exportMetadata", "-b", stage.broker, "-t", "-s")["topicConfigTable"]
    assert special.keys() - topics.keys() >= {"%RETRY%buyers", "%RETRY%laggards", "%RETRY%failing", "%DLQ%failing"}
    groups = exported("subscriptionGroup.json", "exportMetadata", "-b", stage.broker, "-g")
    assert groups["subscriptionGroupTable"]["buyers"]["retryMaxTimes"] == 16
    metrics = exported("metrics.json", "exportMetrics", "-c", "DefaultCluster")
    report = metrics["evaluateReport"]["broker-a"]
    assert report["runtimeVersion"] == {"clientInfo": ["JAVA%V5_5_0"], "rocketmqVersion": "V5_5_0"}
    quota = report["runtimeQuota"]
    assert quota["topicSize"] >= 4
    assert quota["messageAverageSize"] == status(stage)["putMessageAverageSize"]
    assert metrics["totalData"]["totalOneDayNum"].keys() == {
        *("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum")
    }
