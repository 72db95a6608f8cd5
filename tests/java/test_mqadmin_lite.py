"""The official `mqadmin`'s six commands about lite topics: the official broker and ours make it print the same."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.java import lite_topics
from tests.java.apache import ApacheCluster, await_queues
from tests.java.lite_topics import GROUP, SETTINGS, TOPIC
from tests.java.mqadmin import MqAdmin, same

from rocketspark.admin import Admin
from rocketspark.testing.process import run_server_process

pytestmark = pytest.mark.shows("lite topics: mqadmin's six commands")


def prepared(stack: ExitStack, folder: Path, whose: str) -> tuple[str, str, MqAdmin]:
    """Start a broker with two messages in one lite topic, one of them consumed; return the addresses and the tool."""
    server: Any
    if whose == "ours":
        config = {"brokerName": "broker-a"} | SETTINGS
        server = stack.enter_context(run_server_process(folder / "store", config=config))
    else:
        server = ApacheCluster(folder / "apache", config=SETTINGS)
        stack.callback(server.close)
    link = lite_topics.made(server.broker)
    stack.callback(link.close)
    for body in (b"1", b"2"):
        assert link.send(body, "a")["code"] == 0
    await_queues(server.broker, f"%LMQ%${TOPIC}$a", 2)
    link.change("PARTIAL_ADD", ["a"], offsetOption={"type": "POLICY", "value": 1})
    [popped] = link.until(1, maxMsgNum="1")
    link.ack(popped, 0)
    tool = MqAdmin(folder / "tool", server.namesrv, server.broker)
    stack.callback(tool.close)
    return server.namesrv, server.broker, tool


def check_operations(namesrv: str) -> None:
    """See the same by our operations."""
    with Admin(namesrv) as admin:
        (row,) = admin.list_lite_topics(TOPIC).topics
        assert (row.name, row.min_offset, row.max_offset, row.subscribers) == ("a", 0, 2, 1)
        (state,) = admin.show_lite_topic(TOPIC, "a")
        assert [(s.group, s.client_id) for s in state.subscribers] == [(GROUP, "c1")]
        assert [(g.offset, g.lag) for g in state.groups if g.group == GROUP] == [(1, 1)]
        found = admin.lite_group_lag(GROUP)
        assert (found.topic, found.lag, [(t.name, t.lag) for t in found.topics]) == (TOPIC, 1, [("a", 1)])


@pytest.mark.parametrize("whose", ["ours", "apache"])
def test_lite_topics(tmp_path: Path, whose: str) -> None:
    printed = [
        (
            ("getBrokerLiteInfo", "-b", "BROKER"),
            "#Broker #Store Type #Max LMQ #Current LMQ #SubscriptionCount #OrderInfoCount #CQTableSize #OffsetTableSize"
            """ #eventMapSize
            BROKER default 20000 <number> 1 <number> <number> <number> 1""",
        ),
        (
            ("getParentTopicInfo", "-p", TOPIC),
            """Parent Topic Info: [chats]
            #Broker Name #TTL #Lite Count #LMQ NUM #GROUPS
            broker-a 30 1 1 [<any>]""",
        ),
        (
            ("getLiteTopicInfo", "-p", TOPIC, "-l", "a"),
            """Lite Topic Info: [chats] [a] [%LMQ%$chats$a]
            #Broker Name #MinOffset #MaxOffset #LastUpdate #Sharding #SubClientCount
            broker-a 0 2 <time> true 1""",
        ),
        (
            ("getLiteClientInfo", "-p", TOPIC, "-g", GROUP, "-c", "c1", "-s"),
            """Lite Client Info: [chats] [phones] [c1]
            #Broker #LiteTopicCount #LastAccessTime #LastConsumeTime
            broker-a 1 <time> N/A
            Lite Topics: [%LMQ%$chats$a]""",
        ),
        (
            ("getLiteGroupInfo", "-p", TOPIC, "-g", GROUP, "-l", "a"),
            """Lite Group Info: [phones] [chats]
            #Broker Name #BrokerOffset #ConsumeOffset #LagCount #LastUpdate
            broker-a 2 1 1 <time>
            Total Lag Count: 1
            Min Unconsumed Timestamp: <number> (<number> s ago)""",
        ),
        (
            ("triggerLiteDispatch", "-p", TOPIC, "-g", GROUP),
            """Group And Topic Info: [phones] [chats]
            broker-a dispatched""",
        ),
    ]
    with ExitStack() as stack:
        namesrv, broker, tool = prepared(stack, tmp_path, whose)
        for (command, *arguments), expected in printed:
            same(tool(command, *[broker if each == "BROKER" else each for each in arguments]), expected)
        check_operations(namesrv)
