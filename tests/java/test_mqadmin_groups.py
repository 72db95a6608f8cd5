"""The official `mqadmin` 5.5.0 on groups: settings, connections, progress, offsets. The stage's state is in mqadmin.py.

JAVA_TESTS_ON=apache runs the same on the official servers: the same output is expected of them.
"""

from __future__ import annotations

import re
import time

import pytest
from tests.java.apache import ask, committed_offset
from tests.java.mqadmin import Stage, same, table, until
from tests.support.patience import LIMIT_MS
from tests.unit.proxy.conftest import running_proxy
from tests.unit.proxy.consuming.support import PUSH, Consumer
from tests.unit.proxy.consuming.test_group_members import ids as member_ids
from tests.unit.proxy.consuming.test_group_members import until as members_until

pytestmark = pytest.mark.shows(
    "consumers of the proxy at the brokers: connections, subscriptions, running info, stacks, one message by "
    "hand; a broker that starts again"
)

PROGRESS = "#Topic #Broker Name #QID #Broker Offset #Consumer Offset #Diff #Inflight #LastTime"


def progress(stage: Stage, group: str, *arguments: str) -> list[str]:
    """consumerProgress without its retry topic, which a consumer's pace decides about, and without the TPS."""
    lines = stage.mqadmin("consumerProgress", "-g", group, *arguments)
    return [line for line in lines if not line.startswith(("%RETRY%", "Consume TPS"))]


@pytest.mark.shows("types of topics, settings and modes of groups: command line, operations, `mqadmin`")
def test_settings_of_a_group(stage: Stage) -> None:
    policy = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}}'
    options = "-s false -m false -d false -o true -q 2 -r 5 -i 1 -w 2 -a false".split()
    made = stage.mqadmin(
        *("updateSubGroup", "-b", stage.broker, "-g", "made", *options, "-p", policy),
        *("--attributes", "+lite.bind.topic=X"),
    )
    assert made[0] == "create subscription group to BROKER success."
    shown = """
        =============================DefaultCluster:broker-a=============================
        groupName = made
        consumeEnable = false
        consumeFromMinEnable = false
        consumeBroadcastEnable = false
        consumeMessageOrderly = true
        retryQueueNums = 2
        retryMaxTimes = 5
        groupRetryPolicy = GroupRetryPolicy{type=EXPONENTIAL, exponentialRetryPolicy=ExponentialRetryPolicy{"""
    shown += """initial=5000, max=7200000, multiplier=2}, customizedRetryPolicy=null}
        brokerId = 1
        whichBrokerWhenConsumeSlowly = 2
        notifyConsumerIdsChangedEnable = false
        groupSysFlag = 0
        consumeTimeoutMinute = 15
        subscriptionDataSet =
        attributes = {lite.bind.topic=X}
    """
    same(stage.mqadmin("getConsumerConfig", "-g", "made"), shown)
    made = stage.mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", "made", "--attributes", "-lite.bind.topic")
    assert made[0] == "create subscription group to BROKER success."
    changed = table(stage.mqadmin("getConsumerConfig", "-g", "made"))
    assert (changed["consumeEnable"], changed["retryMaxTimes"], changed["attributes"]) == ("true", "16", "{}")
    same(
        stage.mqadmin("deleteSubGroup", "-c", "DefaultCluster", "-g", "made", "-r", "true"),
        "delete subscription group [made] from broker [BROKER] in cluster [DefaultCluster] success.",
    )
    # The tool's question makes a group anew, where groups are made automatically; its settings are the plain ones.
    assert "made" not in str(ask(stage.broker, 201, ext_fields={"groupSeq": "0"}).body)
    refused = stage.mqadmin.refusal("updateSubGroup", "-b", stage.broker, "-g", "a b")
    assert refused.startswith("29 The specified group: ")


def test_consume_mode(stage: Stage) -> None:
    for mode, share in (("POP", "3"), ("PULL", "0")):
        same(
            stage.mqadmin(
                "setConsumeMode", "-b", stage.broker, "-t", "Orders", "-g", "buyers", "-m", mode, "-q", share
            ),
            f"""
            set consume mode to BROKER success.
            topic[Orders] group[buyers] consume mode[{mode}] popShareQueueNum[{share}]
            """,
        )
    unknown = stage.mqadmin.refusal("setConsumeMode", "-b", stage.broker, "-t", "Nowhere", "-g", "buyers", "-m", "PULL")
    assert unknown == "17 topic[Nowhere] not exist"


def test_connections_of_consumers(stage: Stage) -> None:
    expected = """
        #ClientId #ClientAddr #Language #Version
        <client> <address> JAVA V5_5_0
        Below is subscription:
        #Topic #SubExpression
        %RETRY%buyers *
        Orders *
        ConsumeType: CONSUME_PASSIVELY
        MessageModel: CLUSTERING
        ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET
    """
    for arguments in ((), ("-b", stage.broker)):
        lines = stage.mqadmin("consumerConnection", "-g", "buyers", *arguments)
        # Subscriptions come in the order of a hash table.
        same(lines[:4] + sorted(lines[4:6]) + lines[6:], expected)
    offline = stage.mqadmin.refusal("consumerConnection", "-g", "laggards")
    assert offline == "206 the consumer group[laggards] not online"


def test_connections_of_producers(stage: Stage) -> None:
    same(stage.mqadmin("producerConnection", "-g", "shop", "-t", "Orders"), "0001 <client> <address> JAVA V5_5_0")
    missing = stage.mqadmin.refusal("producerConnection", "-g", "nobody", "-t", "Orders")
    assert missing == "1 the producer group[nobody] not exist"
    instance = "clientId=<client>,remoteIP=/<address>, language=JAVA, version=513, lastUpdateTimestamp=<ms>"
    shown = [line for line in stage.mqadmin("producer", "-b", stage.broker) if "(shop)" in line]
    same(shown, f"producer group (shop) instance : {instance}")


def test_progress_of_a_live_group(stage: Stage) -> None:
    same(
        progress(stage, "buyers"),
        f"""
        {PROGRESS}
        Orders broker-a 0 5 5 0 0 <time>
        Orders broker-a 1 3 3 0 0 <time>
        Orders broker-a 2 2 2 0 0 <time>
        Orders broker-a 3 0 0 0 0 N/A
        Consume Diff Total: 0
        Consume Inflight Total: 0
        """,
    )
    lines = stage.mqadmin("consumerProgress", "-g", "buyers", "-t", "Orders", "-s", "true")
    ip = stage.client_id("buyers").split("@")[0]
    same(
        [line for line in lines if not line.startswith("Consume TPS")],
        f"""
        #Topic #Broker Name #QID #Broker Offset #Consumer Offset #Client IP #Diff #Inflight #LastTime
        Orders broker-a 0 5 5 {ip} 0 0 <time>
        Orders broker-a 1 3 3 {ip} 0 0 <time>
        Orders broker-a 2 2 2 {ip} 0 0 <time>
        Orders broker-a 3 0 0 {ip} 0 0 N/A
        Consume Diff Total: 0
        Consume Inflight Total: 0
        """,
    )


def test_progress_shows_a_backlog_and_the_time_of_the_last_consumed(stage: Stage) -> None:
    same(
        progress(stage, "laggards"),
        f"""
        {PROGRESS}
        Bills broker-a 0 6 2 4 0 <time>
        Bills broker-a 1 4 2 2 0 <time>
        Consume Diff Total: 6
        Consume Inflight Total: 0
        """,
    )
    row = progress(stage, "laggards")[1]
    last = stage.mqadmin("queryMsgByOffset", "-b", "broker-a", "-t", "Bills", "-i", "0", "-o", "1")
    assert row[-19:] == table(last)["Store Timestamp"][:19]
    # What failed too often counts as consumed.
    same(
        progress(stage, "failing"),
        f"""
        {PROGRESS}
        Broken broker-a 0 2 2 0 0 <time>
        Consume Diff Total: 0
        Consume Inflight Total: 0
        """,
    )


def test_progress_of_all_groups(stage: Stage) -> None:
    head, *rows = stage.mqadmin("consumerProgress")
    assert head == "#Group #Count #Version #Type #Model #TPS #Diff Total"
    shown = {row.split()[0]: row for row in rows}
    same([shown["laggards"]], "laggards 0 OFFLINE <number> 6")
    same([shown["buyers"]], "buyers 1 V5_5_0 PUSH CLUSTERING <number> 0")


def test_progress_counts_what_is_in_flight(stage: Stage) -> None:
    """Pulled and not consumed: an orderly listener that fails keeps its queue's messages."""
    stage.create("Stuck", 1)
    stage.send("Stuck", 0, 3)
    options = {"orderly": True, "fail_first": 1_000_000, "retry_pause_ms": 200}
    with stage.pusher("stuck", "Stuck", **options):
        until(lambda: progress(stage, "stuck", "-t", "Stuck")[-1] == "Consume Inflight Total: 3")
        lines = progress(stage, "stuck", "-t", "Stuck")
    same(
        lines,
        f"""
        {PROGRESS}
        Stuck broker-a 0 3 0 3 3 N/A
        Consume Diff Total: 3
        Consume Inflight Total: 3
        """,
    )
    stage.mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", "Stuck")


def test_consumers_are_asked_for_their_state(stage: Stage) -> None:
    expected = """
        #Index #ClientId #Version #ConsumerRunningInfoFile
        1 <client> V5_5_0 <any>
        Same subscription in the same group of consumer
        Rebalance OK
    """
    same(stage.mqadmin("consumerStatus", "-g", "buyers"), expected)
    same(stage.mqadmin("consumerStatus", "-g", "buyers", "-s"), expected)
    client = stage.client_id("buyers")
    lines = stage.mqadmin("consumerStatus", "-g", "buyers", "-i", client)
    assert "consumerGroup : buyers" in lines
    offsets = lines[lines.index("#Consumer Offset#") + 2 : lines.index("#Consumer MQ Detail#")]
    same(
        offsets,
        """
        %RETRY%buyers broker-a 0 <any>
        Orders broker-a 0 5
        Orders broker-a 1 3
        Orders broker-a 2 2
        Orders broker-a 3 <any>
        """,
    )
    missing = stage.mqadmin.refusal("consumerStatus", "-g", "buyers", "-i", "nobody")
    assert missing == "1 The Consumer <buyers> <nobody> not online"


def test_consumers_behind_our_proxy_are_seen_and_asked(stage: Stage) -> None:
    with running_proxy(stage.namesrv) as proxy:
        consumers = [Consumer(proxy.address, "fifth", "Orders", PUSH, f"me@{n}") for n in range(2)]
        members_until(lambda: member_ids(stage.broker, "fifth"), ["me@0", "me@1"])
        lines = stage.mqadmin("consumerConnection", "-g", "fifth")
        expected = """
            #ClientId #ClientAddr #Language #Version
            me@0 <address> PYTHON V5_5_0
            me@1 <address> PYTHON V5_5_0
            Below is subscription:
            #Topic #SubExpression
            %RETRY%fifth_Orders *
            Orders *
            ConsumeType: CONSUME_PASSIVELY
            MessageModel: CLUSTERING
            ConsumeFromWhere: CONSUME_FROM_LAST_OFFSET
        """
        same([lines[0], *sorted(lines[1:3]), *lines[3:5], *sorted(lines[5:7]), *lines[7:]], expected)
        expected = """
            #Index #ClientId #Version #ConsumerRunningInfoFile
            <number> me@<number> V5_5_0 <any>
            <number> me@<number> V5_5_0 <any>
            Same subscription in the same group of consumer
            Rebalance OK
        """
        same(stage.mqadmin("consumerStatus", "-g", "fifth"), expected)
        lines = stage.mqadmin("consumerStatus", "-g", "fifth", "-i", "me@1")
        assert "consumerGroup : fifth" in lines
        assert "clientAddress : 127.0.0.1" in "".join(line[:25] for line in lines if line.startswith("clientAddress"))
        for consumer in consumers:
            consumer.terminate()
        members_until(lambda: member_ids(stage.broker, "fifth"), [])


def test_progress_of_all_groups_of_a_broker(stage: Stage) -> None:
    lines = stage.mqadmin("brokerConsumeStats", "-b", stage.broker, "-t", "30000")
    assert lines[0] == "#Topic #Group #Broker Name #QID #Broker Offset #Consumer Offset #Diff #LastTime"
    same(
        sorted(line for line in lines if line.split()[1] in ("buyers", "laggards", "failing") and line[0] != "%"),
        """
        Bills laggards broker-a 0 6 2 4 <time>
        Bills laggards broker-a 1 4 2 2 <time>
        Broken failing broker-a 0 2 2 0 <time>
        Orders buyers broker-a 0 5 5 0 <time>
        Orders buyers broker-a 1 3 3 0 <time>
        Orders buyers broker-a 2 2 2 0 <time>
        """,
    )
    total = re.fullmatch(r"Diff Total: (\d+)", lines[-1])
    assert total is not None
    assert int(total[1]) == sum(int(line.split()[6]) for line in lines[1:-1])
    # Only rows from that difference on; no topic here is an ordered one.
    shown = stage.mqadmin("brokerConsumeStats", "-b", stage.broker, "-t", "30000", "-l", "4")
    same([line for line in shown if line.startswith("Bills")], "Bills laggards broker-a 0 6 2 4 <time>")
    shown = stage.mqadmin("brokerConsumeStats", "-b", stage.broker, "-t", "30000", "-o", "true")
    assert shown[1:] == ["Diff Total: 0"]


def test_offsets_are_cloned_to_a_group_that_is_there(stage: Stage) -> None:
    clone = ("cloneGroupOffset", "-s", "laggards", "-t", "Bills", "-d")
    assert stage.mqadmin.refusal(*clone, "cloned") == "26 Group cloned not exist!"
    stage.mqadmin("updateSubGroup", "-b", stage.broker, "-g", "cloned")
    same(
        stage.mqadmin(*clone, "cloned"),
        "clone group offset success. srcGroup[laggards], destGroup=[cloned], topic[Bills]",
    )
    offsets = [committed_offset(stage.broker, "cloned", "Bills", queue_id) for queue_id in range(2)]
    assert offsets == [2, 2]
    stage.mqadmin("deleteSubGroup", "-b", stage.broker, "-g", "cloned", "-r", "true")
    assert committed_offset(stage.broker, "cloned", "Bills", 0) is None


def test_offsets_are_reset_by_time_and_by_hand(stage: Stage) -> None:
    stage.create("Rewound", 2)
    stage.send("Rewound", 0, 3)
    between = int(time.time() * 1000) + 1
    until(lambda: time.time() * 1000 > between + 1)
    stage.send("Rewound", 0, 2)
    stage.send("Rewound", 1, 4)
    stage.consume("rewinders", "Rewound", 9)
    reset = ("resetOffsetByTime", "-g", "rewinders", "-t", "Rewound", "-s")

    def offsets() -> list[int | None]:
        return [committed_offset(stage.broker, "rewinders", "Rewound", queue_id) for queue_id in range(2)]

    assert offsets() == [5, 4]
    for when, wanted in ((str(between), [3, 0]), ("0", [0, 0]), ("now", [5, 4])):
        lines = stage.mqadmin(*reset, when)
        same(
            lines[:1] + sorted(lines[1:]),
            f"""
            start reset consumer offset by specified, group[rewinders], topic[Rewound], force[true],"""
            f""" timestamp(string)[{when}], timestamp(long)[<number>]
            #brokerName #queueId #offset
            broker-a 0 {wanted[0]}
            broker-a 1 {wanted[1]}
            """,
        )
        assert offsets() == wanted
    same(
        stage.mqadmin(*reset, "-1", "-q", "0", "-o", "1", "-b", stage.broker),
        """
        start reset consumer offset by specified, group[rewinders], topic[Rewound], queueId[0], broker[BROKER],"""
        """ timestamp(string)[-1], timestamp(long)[-1]
        reset consumer offset to 1
        """,
    )
    assert offsets() == [1, 4]
    same(
        sorted(stage.mqadmin("skipAccumulatedMessage", "-g", "rewinders", "-t", "Rewound")),
        """
        #brokerName #queueId #offset
        broker-a 0 5
        broker-a 1 4
        """,
    )
    assert offsets() == [5, 4]


def test_a_live_consumer_goes_on_where_it_is_reset_to(stage: Stage) -> None:
    stage.create("Again", 1)
    stage.send("Again", 0, 4)
    with stage.pusher("repeaters", "Again") as consumer:
        assert len(stage.java.call("push_await", name=consumer, count=4, timeout_ms=LIMIT_MS)) == 4
        stage.mqadmin("resetOffsetByTime", "-g", "repeaters", "-t", "Again", "-s", "0")
        received = stage.java.call("push_await", name=consumer, count=8, timeout_ms=LIMIT_MS)
    assert sorted(m["queue_offset"] for m in received) == [0, 0, 1, 1, 2, 2, 3, 3]
