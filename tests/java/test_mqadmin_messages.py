"""The official `mqadmin` 5.5.0 on messages: found by id, key and offset, printed, consumed, sent.

JAVA_TESTS_ON=apache runs the same on the official servers: the same output is expected of them.
"""

from __future__ import annotations

import time
from typing import Any

from tests.java.mqadmin import Stage, same, until

NONE_FOUND = "208 query message by key finished, but no message."
PRINTED = (
    "MSGID: {id} MessageExt [brokerName=broker-a, queueId={queue}, storeSize=<number>, queueOffset={offset}, sysFlag=0,"
    " bornTimestamp=<ms>, bornHost=/<address>, storeTimestamp=<ms>, storeHost=/BROKER, msgId={offset_id},"
    " commitLogOffset=<number>, bodyCRC=<number>, reconsumeTimes=0, preparedTransactionOffset=0, toString()=Message{{"
    "topic='{topic}', flag=0, properties={{<any>}}, body={body}, transactionId='null'}}] BODY: {text}"
)


def shown(sent: dict[str, Any], keys: str, tag: str, *, offset_id: bool = True, more: str = "") -> str:
    """A message as the queries print it. `more`: properties that only pulls add."""
    pulled = "MIN_OFFSET=0, " if more else ""
    properties = f"{{MSG_REGION=DefaultRegion, UNIQ_KEY={sent['message_id']}, CLUSTER=DefaultCluster, {pulled}"
    properties += f"TAGS={tag}, KEYS={keys}, WAIT=true, "
    return f"""
        {"OffsetID: " + sent["offset_message_id"] if offset_id else ""}
        Topic: {sent["queue"]["topic"]}
        Tags: [{tag}]
        Keys: [{keys}]
        Queue ID: {sent["queue"]["queue_id"]}
        Queue Offset: {sent["queue_offset"]}
        CommitLog Offset: {int(sent["offset_message_id"][16:], 16)}
        Reconsume Times: 0
        Born Timestamp: <time>
        Store Timestamp: <time>
        Born Host: <address>
        Store Host: BROKER
        System Flag: 0
        Properties: {properties}TRACE_ON=true{more}}}
        Message Body Path: /tmp/rocketmq/msgbodys/{sent["message_id"]}
    """


CONSUMED = "MessageTrack [consumerGroup=buyers, trackType=CONSUMED, exceptionDesc=null]"


def test_by_offset_message_id(stage: Stage) -> None:
    sent = stage.sent["Orders"][0]
    find = ("queryMsgById", "-t", "Orders", "-i")
    expected = shown(sent, "Orders-k0", "B")
    same(stage.mqadmin(*find, sent["offset_message_id"]), expected + CONSUMED)
    lines = stage.mqadmin("queryMsgById", "-t", "Bills", "-i", stage.sent["Bills"][0]["offset_message_id"])
    (track,) = (line for line in lines if "consumerGroup=laggards" in line)
    offline = "exceptionDesc=CODE:206 DESC:the consumer group[laggards] not online"
    same([track], f"MessageTrack [consumerGroup=laggards, trackType=NOT_ONLINE, {offline}]")
    nowhere = sent["offset_message_id"][:16] + "00000000FFFFFFFF"
    assert stage.mqadmin.refusal(*find, nowhere) == NONE_FOUND
    client = stage.client_id("buyers")
    same(
        stage.mqadmin(*find, sent["offset_message_id"], "-g", "buyers", "-d", client),
        "ConsumeMessageDirectlyResult [order=false, autoCommit=true, consumeResult=CR_SUCCESS, remark=null,"
        " spentTimeMills=<number>]",
    )


def test_a_message_found_by_its_id_is_sent_again(stage: Stage) -> None:
    stage.create("Resent", 1)
    stage.send("Resent", 0, 1)
    sent = stage.sent["Resent"][0]
    same(
        stage.mqadmin("queryMsgById", "-t", "Resent", "-i", sent["offset_message_id"], "-s", "true"),
        f"prepare resend msg. originalMsgId={sent['offset_message_id']}SendResult [sendStatus=SEND_OK,"
        f" msgId={sent['message_id']}, offsetMsgId=<id>, messageQueue=MessageQueue [topic=Resent, brokerName=broker-a,"
        " queueId=0], queueOffset=1, recallHandle=null]",
    )
    lines = stage.mqadmin("queryMsgByOffset", "-b", "broker-a", "-t", "Resent", "-i", "0", "-o", "1", "-f", "UTF-8")
    assert "Message Body: Resent-0-0" in lines


def test_by_key_and_tag(stage: Stage) -> None:
    orders = stage.sent["Orders"]
    by_key = [orders[1], orders[6], orders[9]]

    def rows(found: list[dict[str, Any]], kind: str, key: str) -> str:
        """In the order of the log; the last column: where a next question goes on."""
        lines = ["#Message ID #QID #Offset #IndexKey"]
        for m in found:
            where = f"{m['queue']['queue_id']} {m['queue_offset']}"
            index_key = f"<ms>@Orders@{kind}@{key}@{m['message_id']}@{int(m['offset_message_id'][16:], 16)}"
            lines.append(f"{m['message_id']} {where} {index_key}")
        return "\n".join(lines)

    find = ("queryMsgByKey", "-t", "Orders", "-k")
    same(stage.mqadmin(*find, "Orders-k1"), rows(by_key, "K", "Orders-k1"))
    # The newest, when not all are wanted.
    same(stage.mqadmin(*find, "Orders-k1", "-m", "1"), rows(by_key[-1:], "K", "Orders-k1"))
    same(
        stage.mqadmin(*find, "A", "-p", "T", "-c", "DefaultCluster"),
        rows([orders[1], orders[3], orders[6], orders[9]], "T", "A"),
    )
    assert stage.mqadmin.refusal(*find, "nothing") == NONE_FOUND
    assert stage.mqadmin.refusal(*find, "Orders-k1", "-b", "0", "-e", "1") == NONE_FOUND


def test_by_unique_id(stage: Stage) -> None:
    sent = stage.sent["Orders"][0]
    find = ("queryMsgByUniqueKey", "-t", "Orders", "-i")
    expected = shown(sent, "Orders-k0", "B", offset_id=False)
    same(stage.mqadmin(*find, sent["message_id"]), expected + CONSUMED)
    assert stage.mqadmin.refusal(*find, "AC1100010000000000000000000000AB") == NONE_FOUND


def test_by_queue_offset(stage: Stage) -> None:
    sent = stage.sent["Orders"][2]
    find = ("queryMsgByOffset", "-b", "broker-a", "-t", "Orders", "-i", "0", "-o")
    expected = shown(sent, "Orders-k2", "B", more=", MAX_OFFSET=5")
    same(stage.mqadmin(*find, "2", "-f", "UTF-8"), expected + "Message Body: Orders-0-2\n" + CONSUMED)
    assert stage.mqadmin(*find, "99") == []


def test_dead_letters_delayed_and_timer_messages_are_found(stage: Stage) -> None:
    for topic, queue_id, offset, property_ in (
        ("%DLQ%failing", 0, 1, "RETRY_TOPIC=Broken"),
        ("SCHEDULE_TOPIC_XXXX", 17, 1, "DELAY=18"),
        ("rmq_sys_wheel_timer", 0, 2, "TIMER_DELAY_SEC=3600"),
    ):
        find = ("queryMsgByOffset", "-b", "broker-a", "-t", topic, "-i", str(queue_id), "-o")
        lines = stage.mqadmin(*find, str(offset))
        assert f"Topic: {topic}" in lines
        (properties,) = (line for line in lines if line.startswith("Properties:"))
        assert property_ in properties
        assert stage.mqadmin(*find, str(offset + 1)) == []


def printed(sent: dict[str, Any], text: str) -> str:
    return PRINTED.format(
        id=sent["message_id"],
        offset_id=sent["offset_message_id"],
        queue=sent["queue"]["queue_id"],
        offset=sent["queue_offset"],
        topic=sent["queue"]["topic"],
        body=list(text.encode()),
        text=text,
    )


def test_messages_are_printed(stage: Stage) -> None:
    bills = stage.sent["Bills"]
    first = [bills[0], bills[1], *bills[4:8]]
    second = [bills[2], bills[3], *bills[8:]]
    numbers = (0, 1, 0, 1, 2, 3)
    line = "-" * 56

    def queue(queue_id: int, end: int, found: list[str]) -> list[str]:
        bounds = f"minOffset=0, maxOffset={end}, MessageQueue [topic=Bills, brokerName=broker-a, queueId={queue_id}]"
        return [bounds, *found, line]

    whole = [printed(m, f"Bills-0-{n}") for m, n in zip(first, numbers, strict=True)]
    rest = [printed(m, f"Bills-1-{n}") for m, n in zip(second, (0, 1, 0, 1), strict=True)]
    expected = queue(0, 6, whole) + queue(1, 4, rest)
    same(stage.mqadmin("printMsg", "-t", "Bills", "-d", "true"), "\n".join(expected))
    expected = queue(0, 6, whole[1::2]) + queue(1, 4, rest[1::2])
    same(stage.mqadmin("printMsg", "-t", "Bills", "-d", "true", "-s", "A"), "\n".join(expected))
    by_queue = ("printMsgByQueue", "-t", "Bills", "-a", "broker-a", "-i", "0")
    same(stage.mqadmin(*by_queue, "-p", "true", "-d", "true"), "\n".join(whole))
    same(sorted(stage.mqadmin(*by_queue, "-f", "true")), "Tag: A Count: 3\nTag: B Count: 3")


def test_messages_are_consumed_by_the_tool(stage: Stage) -> None:
    def of_queue(queue_id: int) -> list[str]:
        return [m["message_id"] for m in stage.sent["Bills"] if m["queue"]["queue_id"] == queue_id]

    def consumed(*arguments: str) -> list[str]:
        lines = stage.mqadmin("consumeMessage", "-t", "Bills", *arguments)
        return [line.split()[1] for line in lines if line.startswith("MSGID: ")]

    assert consumed() == of_queue(0) + of_queue(1)
    assert consumed("-b", "broker-a", "-i", "0", "-o", "1", "-c", "2") == of_queue(0)[1:3]
    assert consumed("-c", "3", "-g", "eaters") == of_queue(0)[:3]
    now = str(int(time.time() * 1000) + 1)
    assert consumed("-b", "broker-a", "-i", "1", "-s", "0", "-e", now) == of_queue(1)


def test_messages_are_sent_by_the_tool(stage: Stage) -> None:
    stage.create("Typed", 2)
    head = "#Broker Name #QID #Send Result #MsgId"
    send = ("sendMessage", "-t", "Typed", "-p")
    same(stage.mqadmin(*send, "hello", "-k", "kk", "-c", "TG"), f"{head}\nbroker-a <number> SEND_OK <id>")
    lines = stage.mqadmin("queryMsgByKey", "-t", "Typed", "-k", "kk")
    assert len(lines) == 2
    traced = stage.mqadmin(*send, "traced", "-m", "true", "-b", "broker-a", "-i", "1")
    same(traced, f"{head}\nbroker-a 1 SEND_OK <id>")
    message_id = traced[1].split()[-1]
    # The trace is a message of its own, sent after it.
    trace = ("queryMsgTraceById", "-i", message_id)
    until(lambda: "Pub" in "".join(stage.mqadmin(*trace)))
    same(
        stage.mqadmin(*trace),
        """
        #Type #ProducerGroup #ClientHost #SendTime #CostTimes #Status
        Pub <any> <any> <time> <number>ms success
        """,
    )
    assert stage.mqadmin.refusal("queryMsgTraceById", "-i", "no-such-id") == NONE_FOUND


def test_times_of_sends_are_measured(stage: Stage) -> None:
    stage.create("Timed", 2)
    same(
        stage.mqadmin("checkMsgSendRT", "-t", "Timed", "-a", "3"),
        """
        #Broker Name #QID #Send Result #RT
        broker-a 0 true <number>
        broker-a 1 true <number>
        broker-a 0 true <number>
        Avg RT: <decimal>
        """,
    )
    result = "rt=<number>ms, SendResult=SendResult [sendStatus=SEND_OK, msgId=<id>, offsetMsgId=<id>,"
    result += " messageQueue=MessageQueue [topic=broker-a, brokerName=broker-a, queueId=0], queueOffset=<number>,"
    result += " recallHandle=null]"
    same(stage.mqadmin("sendMsgStatus", "-b", "broker-a", "-c", "2"), f"{result}\n{result}")
    # For ever, until it is interrupted.
    same(
        stage.mqadmin("clusterRT", "-a", "3", "-i", "60", stop_after=2)[:2],
        """
        #Cluster Name #Broker Name #RT #successCount #failCount
        DefaultCluster broker-a <decimal> 3 0
        """,
    )
    line = stage.mqadmin("clusterRT", "-a", "3", "-i", "60", "-p", "true", stop_after=1)[0]
    same([line], "<time>|noname|DefaultCluster|broker-a|<number>")


def test_units_of_a_queue(stage: Stage) -> None:
    first, second = stage.sent["Orders"][:2]
    size = int(second["offset_message_id"][16:], 16)
    rule = "=" * 38

    found = stage.mqadmin("queryCq", "-t", "Orders", "-q", "0", "-i", "0", "-c", "2", "-b", stage.broker)
    unit = "ConsumeQueueData{{physicOffset={at}, physicSize={size}, tagsCode={code}, extendDataJson='null',"
    unit += " bitMap='null', eval=false, msg='null'}}"
    rows = f"""
        Queue data:
        max: 5, min: 0
        {rule}
        idx: 0
        {unit.format(at=0, size=size, code=ord("B"))}
        {rule}
        idx: 1
        {unit.format(at=size, size=size, code=ord("A"))}
        {rule}
    """
    same(found, rows)
    assert int(first["offset_message_id"][16:], 16) == 0
    ask = ("queryCq", "-t", "Orders", "-q", "0", "-i", "0", "-c", "2", "-g")
    filtered = f"""
        Filter data:
        nobody@Orders is not online!
        {rule}
    """
    same(stage.mqadmin(*ask, "nobody", "-b", stage.broker), filtered + rows)
    subscribed = f"""
        Subscription data:
        {{
        "classFilterMode":false,
        "codeSet":[
        ],
        "expressionType":"TAG",
        "subString":"*",
        "subVersion":<ms>,
        "tagsSet":[
        ],
        "topic":"Orders"
        }}
        {rule}
        Filter data:
        null
        {rule}
    """
    same(stage.mqadmin(*ask, "buyers"), subscribed + rows)
    missing = ("queryCq", "-t", "Orders", "-q", "9", "-i", "0", "-b", stage.broker)
    assert stage.mqadmin.refusal(*missing) == "1 9@Orders is not exist!"


def test_monitoring(stage: Stage) -> None:
    """It was started with the stage: its first round comes 20 s later, and is told in a log."""
    assert stage.printed["startMonitoring"] == []

    def reports() -> list[str]:
        logs = (stage.mqadmin.home / "logs").rglob("*.log")
        lines = (line for path in logs for line in path.read_text(errors="replace").splitlines())
        return [
            line.partition("reportUndoneMsgs: ")[2] for line in lines if "consumerGroup=buyers, topic=Orders" in line
        ]

    same(
        until(reports)[:1],
        "UndoneMsgs [consumerGroup=buyers, topic=Orders, undoneMsgsTotal=0, undoneMsgsSingleMQ=0,"
        " undoneMsgsDelayTimeMills=0]",
    )
    same(
        stage.mqadmin("consumerConnection", "-g", "__MONITOR_CONSUMER")[1:2],
        "<client> <address> JAVA V5_5_0",
    )
