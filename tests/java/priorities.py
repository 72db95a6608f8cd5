"""Priorities, asked by hand of any broker: which queue a message goes to, and in which order they are popped."""

from __future__ import annotations

import json
import time

from tests.java.apache import ask

from rocketspark.protocol.message import properties, record

TOPIC, QUEUES = "urgent", 4
PRIORITY = "_SYS_MSG_PRIORITY_"
# Each with the queue that was asked for, the one that it is in, and its priority as stored.
SENT: list[tuple[dict[str, str], int, int, str | None]] = [
    ({PRIORITY: "0"}, 2, 0, "0"),
    ({PRIORITY: "1"}, 0, 1, "1"),
    ({PRIORITY: "3"}, 0, 3, "3"),
    ({PRIORITY: "99"}, 0, 3, "99"),
    ({PRIORITY: "2147483647"}, 0, 3, "2147483647"),
    ({PRIORITY: "-1"}, 2, 2, "-1"),
    ({PRIORITY: "2147483648"}, 2, 2, "2147483648"),
    ({PRIORITY: "high"}, 2, 2, "high"),
    ({PRIORITY: "3", "__SHARDINGKEY": "k"}, 1, 1, None),
    ({}, 1, 1, None),
]
# Offsets by queue, the most urgent first.
POPPED = [3, 3, 3, 2, 2, 2, 1, 1, 1, 0]


def rows(address: str) -> tuple[list[tuple[int, str | None]], list[int]]:
    """Send what SENT says, and pop it one by one: (queue, priority as stored) of each, and the queues popped."""
    wanted = {
        "topic": TOPIC,
        "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES),
        "perm": "6",
        "order": "false",
    }
    more = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    assert ask(address, 17, ext_fields=wanted | more | {"attributes": "+message.type=PRIORITY"}).code == 0
    assert ask(address, 200, json.dumps({"groupName": "nurses", "retryQueueNums": 1}).encode()).code == 0
    stored = []
    for number, (pairs, queue_id, _, _) in enumerate(SENT):
        text = "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": f"U{number}", **pairs}.items())
        ext = {"producerGroup": "P", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
        ext |= {"queueId": str(queue_id), "sysFlag": "0", "bornTimestamp": str(int(time.time() * 1000)), "flag": "0"}
        sent = ask(address, 10, b"x", ext | {"properties": text, "reconsumeTimes": "0", "unitMode": "false"})
        assert sent.code == 0
        kept = record.decode(ask(address, 33, ext_fields={"offset": str(int(sent.ext_fields["msgId"][16:], 16))}).body)
        assert kept.queue_id == int(sent.ext_fields["queueId"])
        stored.append((kept.queue_id, properties.decode(kept.properties.decode()).get(PRIORITY)))
    popped: list[int] = []
    while len(popped) < len(SENT):
        pop = {
            "consumerGroup": "nurses",
            "topic": TOPIC,
            "queueId": "-1",
            "maxMsgNums": "1",
            "invisibleTime": "3600000",
        }
        pop |= {"pollTime": "0", "bornTime": str(int(time.time() * 1000)), "initMode": "0", "order": "false"}
        answer = ask(address, 200050, ext_fields=pop)
        popped += [each.queue_id for each in record.decode_all(answer.body)] if answer.code == 0 else []
    return stored, popped
