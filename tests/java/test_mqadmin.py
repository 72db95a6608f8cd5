"""The official `mqadmin` 5.5.0 on topics and NameServers: what it prints, whole, and that the table of it is complete.

JAVA_TESTS_ON=apache runs the same on the official servers: the same output is expected of them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.java.apache import ask
from tests.java.driver import ROOT
from tests.java.mqadmin import Stage, same, table

pytestmark = pytest.mark.shows("every command of `mqadmin` 5.5.0")

# Topics of POP, RocksDB and replicas: the official broker makes them, ours has no use for them.
NOT_OURS = {
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
}
ROUTE = """
#ClusterName #BrokerName #BrokerAddrs #ReadQueue #WriteQueue #Perm
DefaultCluster broker-a {{0=BROKER}} {read} {write} {perm}
------------------------------------------------------------------------------{line}
Total: 1 {read} {write}
"""


def route_list(read: int, write: int, perm: int) -> str:
    return ROUTE.format(read=read, write=write, perm=perm, line="-" * 80)


def no_route(topic: str) -> str:
    return f"17 No topic route info in name server for the topic: {topic}"


OTHER_TESTS = ("test_controller.py", "test_failover.py", "test_static_topics.py", "test_store_compaction.py")


def test_the_table_of_commands_is_that_of_the_tool(stage: Stage) -> None:
    """docs/reference/mqadmin.md names each with the test that shows it, or why it is left out."""
    head, *lines = stage.mqadmin.raw()
    assert head == "The most commonly used mqadmin commands are:"
    assert lines.pop().startswith("See 'mqadmin help <command>'")
    commands = [line.split()[0] for line in lines]
    page = (ROOT / "docs/reference/mqadmin.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (works|left out) \| (.+) \|$", page, re.M)
    assert [row[0] for row in rows] == commands
    here = Path(__file__).parent
    tests = "".join(path.read_text() for path in [*here.glob("test_mqadmin*.py"), *map(here.joinpath, OTHER_TESTS)])
    for command, state, said in rows:
        if state == "works":
            name = re.fullmatch(r"`(test_\w+)`", said)
            assert name is not None, (command, said)
            body = re.search(rf"^def {name[1]}\(.*?(?=^def |\Z)", tests, re.M | re.S)
            assert body is not None, said
            assert re.search(rf'"{command}"', body[0]), (command, said)


def test_topics_are_made_changed_and_deleted(stage: Stage) -> None:
    mqadmin = stage.mqadmin
    same(
        mqadmin("updateTopic", "-b", stage.broker, "-t", "Made", "-r", "3", "-w", "2", "-a", "+message.type=NORMAL"),
        """
        create topic to BROKER success.
        TopicConfig [topicName=Made, readQueueNums=3, writeQueueNums=2, perm=RW-, topicFilterType=SINGLE_TAG,
        """.rstrip().rstrip("\n")
        + " topicSysFlag=0, order=false, attributes={+message.type=NORMAL}]",
    )
    same(mqadmin("topicRoute", "-l", "-t", "Made"), route_list(3, 2, 6))
    # By cluster, and all switches: a unit's topic, in order.
    same(
        mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "Made", *"-r 4 -w 4 -p 4 -o true -u true -s true".split()),
        """
        create topic to BROKER success.
        set cluster orderConf. isOrder=true, orderConf=[broker-a:4]
        TopicConfig [topicName=Made, readQueueNums=4, writeQueueNums=4, perm=R--, topicFilterType=SINGLE_TAG,"""
        " topicSysFlag=3, order=true, attributes={}]",
    )
    same(
        mqadmin("topicRoute", "-t", "Made"),
        """
        {
        "brokerDatas":[
        {
        "brokerAddrs":{
        0:"BROKER"
        },
        "brokerName":"broker-a",
        "cluster":"DefaultCluster",
        "enableActingMaster":false
        }
        ],
        "filterServerTable":{},
        "queueDatas":[
        {
        "brokerName":"broker-a",
        "perm":4,
        "readQueueNums":4,
        "topicSysFlag":3,
        "writeQueueNums":4
        }
        ]
        }
        """,
    )
    exported = stage.mqadmin.home / "made"
    mqadmin("exportMetadata", "-b", stage.broker, "-t", "-f", str(exported))
    config = json.loads((exported / "topic.json").read_text())["topicConfigTable"]["Made"]
    assert config == {
        "attributes": {"message.type": "NORMAL"},
        "order": True,
        "perm": 4,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "Made",
        "topicSysFlag": 3,
        "writeQueueNums": 4,
    }
    same(
        mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", "Made"),
        """
        delete topic [Made] from cluster [DefaultCluster] success.
        delete topic [Made] from NameServer success.
        """,
    )
    assert mqadmin.refusal("topicRoute", "-t", "Made") == no_route("Made")
    assert "Made" not in mqadmin("topicList")
    illegal = "29 The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    assert mqadmin.refusal("updateTopic", "-b", stage.broker, "-t", "a b") == illegal
    for name in ("TBW102", "broker-a", "DefaultCluster_REPLY_TOPIC"):
        taken = f"29 The topic[{name}] is conflict with system topic."
        assert mqadmin.refusal("updateTopic", "-b", stage.broker, "-t", name) == taken
        assert mqadmin.refusal("deleteTopic", "-c", "DefaultCluster", "-t", name) == taken


def test_permissions_of_a_topic(stage: Stage) -> None:
    stage.create("Guarded", 3)
    change = ("updateTopicPerm", "-t", "Guarded", "-p")
    same(
        stage.mqadmin(*change, "4", "-b", stage.broker),
        """
        update topic perm from 6 to 4 in BROKER success.
        TopicConfig [topicName=Guarded, readQueueNums=3, writeQueueNums=3, perm=R--, topicFilterType=SINGLE_TAG,"""
        " topicSysFlag=0, order=false, attributes={}].",
    )
    same(stage.mqadmin("topicRoute", "-l", "-t", "Guarded"), route_list(3, 3, 4))
    same(stage.mqadmin(*change, "2", "-c", "DefaultCluster"), "update topic perm from 4 to 2 in BROKER success.")
    same(stage.mqadmin("topicRoute", "-l", "-t", "Guarded"), route_list(3, 3, 2))


def test_many_topics_and_groups_at_once(stage: Stage) -> None:
    topics, groups = stage.mqadmin.home / "topics.json", stage.mqadmin.home / "groups.json"
    topics.write_text('[{"topicName":"ListA","readQueueNums":3,"writeQueueNums":3},{"topicName":"ListB","perm":4}]')
    done = "submit batch of topic config to BROKER success, please check the result later."
    same(stage.mqadmin("updateTopicList", "-b", stage.broker, "-f", str(topics)), done)
    same(stage.mqadmin("topicRoute", "-l", "-t", "ListA"), route_list(3, 3, 6))
    same(stage.mqadmin("topicRoute", "-l", "-t", "ListB"), route_list(16, 16, 4))
    groups.write_text('[{"groupName":"listed-a","retryQueueNums":3},{"groupName":"listed-b","consumeEnable":false}]')
    done = "submit batch of group config to BROKER success, please check the result later."
    same(stage.mqadmin("updateSubGroupList", "-b", stage.broker, "-f", str(groups)), done)
    assert table(stage.mqadmin("getConsumerConfig", "-g", "listed-a"))["retryQueueNums"] == "3"
    assert table(stage.mqadmin("getConsumerConfig", "-g", "listed-b"))["consumeEnable"] == "false"


def test_topics_are_listed_with_their_groups(stage: Stage) -> None:
    own = {"Orders", "Bills", "Broken", "Later", "%RETRY%buyers", "%RETRY%laggards", "%RETRY%failing", "%DLQ%failing"}
    system = """
        TBW102 BenchmarkTest SELF_TEST_TOPIC OFFSET_MOVED_EVENT SCHEDULE_TOPIC_XXXX rmq_sys_wheel_timer
        RMQ_SYS_TRACE_TOPIC RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC DefaultCluster_REPLY_TOPIC
        DefaultCluster broker-a
    """
    listed = set(stage.mqadmin("topicList"))
    assert own | set(system.split()) <= listed
    head, *rows = [line.split() for line in stage.mqadmin("topicList", "-c")]
    assert head == "#Cluster Name #Topic #Consumer Group".split()
    assert {row[0] for row in rows} == {"DefaultCluster"}
    # Topics of retries and dead letters are left out by the tool.
    of = {row[1]: row[2:] for row in rows}
    assert {t for t in of if t.startswith("%")} == set()
    assert {t for t in listed if not t.startswith("%")} == of.keys()
    assert (of["Orders"], of["Broken"], of["Later"]) == (["buyers"], ["failing"], [])
    assert ["DefaultCluster", "Bills", "laggards"] in rows
    same(stage.mqadmin("topicClusterList", "-t", "Orders"), "DefaultCluster")
    assert stage.mqadmin.refusal("topicClusterList", "-t", "Nowhere") == no_route("Nowhere")


def test_status_of_a_topic(stage: Stage) -> None:
    same(
        stage.mqadmin("topicStatus", "-t", "Orders"),
        """
        #Broker Name #QID #Min Offset #Max Offset #Last Updated
        broker-a 0 0 5 <time>
        broker-a 1 0 3 <time>
        broker-a 2 0 2 <time>
        broker-a 3 0 0
        Topic Put TPS: 0.0
        """,
    )
    assert stage.mqadmin.refusal("topicStatus", "-t", "Nowhere") == no_route("Nowhere")


def test_queues_are_dealt_out_to_consumers(stage: Stage) -> None:
    (line,) = stage.mqadmin("allocateMQ", "-t", "Orders", "-i", "10.0.0.1,10.0.0.2,10.0.0.3")
    dealt = json.loads(line)["result"]
    assert {ip: len(queues) for ip, queues in dealt.items()} == {"10.0.0.1": 2, "10.0.0.2": 1, "10.0.0.3": 1}
    assert sorted(q["queueId"] for queues in dealt.values() for q in queues) == [0, 1, 2, 3]


def test_a_broker_s_write_permission_is_wiped_and_given_back(stage: Stage) -> None:
    stage.create("Wiped", 4)
    count = len(stage.mqadmin("topicList"))
    same(
        stage.mqadmin("wipeWritePerm", "-b", "broker-a"),
        f"wipe write perm of broker[broker-a] in name server[NAMESRV] OK, {count}",
    )
    same(stage.mqadmin("topicRoute", "-l", "-t", "Wiped"), route_list(4, 4, 4))
    same(
        stage.mqadmin("addWritePerm", "-b", "broker-a"),
        f"add write perm of broker[broker-a] in name server[NAMESRV] OK, {count}",
    )
    same(stage.mqadmin("topicRoute", "-l", "-t", "Wiped"), route_list(4, 4, 6))
    same(
        stage.mqadmin("wipeWritePerm", "-b", "nobody"),
        "wipe write perm of broker[nobody] in name server[NAMESRV] OK, 0",
    )


def test_order_and_other_key_value_settings(stage: Stage) -> None:
    order = ("updateOrderConf", "-t", "Orders", "-m")
    same(
        stage.mqadmin(*order, "put", "-v", "broker-a:4"),
        "update orderConf success. topic=[Orders], orderConf=[broker-a:4]",
    )
    same(stage.mqadmin(*order, "get"), "get orderConf success. topic=[Orders], orderConf=[broker-a:4]")
    same(stage.mqadmin(*order, "delete"), "delete orderConf success. topic=[Orders]")
    gone = "22 No config item, Namespace: ORDER_TOPIC_CONFIG Key: Orders"
    assert stage.mqadmin.refusal(*order, "get") == gone
    where = {"namespace": "tests", "key": "colour"}
    same(
        stage.mqadmin("updateKvConfig", "-s", "tests", "-k", "colour", "-v", "red"),
        "create or update kv config to namespace success.",
    )
    assert ask(stage.namesrv, 101, ext_fields=where).ext_fields == {"value": "red"}
    same(stage.mqadmin("deleteKvConfig", "-s", "tests", "-k", "colour"), "delete kv config from namespace success.")
    assert ask(stage.namesrv, 101, ext_fields=where).code == 22


def test_settings_of_a_name_server(stage: Stage) -> None:
    head, *lines = stage.mqadmin("getNamesrvConfig")
    assert head == "============NAMESRV============"
    shown = table(lines)
    assert (shown["orderMessageEnable"], shown["returnOrderTopicConfigToBroker"]) == ("false", "true")
    assert shown["scanNotActiveBrokerInterval"] == "5000"
    assert stage.namesrv == f"{shown['bindAddress']}:{shown['listenPort']}"
    assert len(shown) == 40
    for value in ("true", "false"):
        same(
            stage.mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", value),
            f"""
            update name server config success![NAMESRV]
            orderMessageEnable : {value}
            """,
        )
        assert table(stage.mqadmin("getNamesrvConfig"))["orderMessageEnable"] == value
    barred = stage.mqadmin.refusal("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/elsewhere")
    assert barred == "16 Can not update config in black list."
