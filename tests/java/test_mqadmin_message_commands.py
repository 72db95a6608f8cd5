"""Our commands about messages tell what the official `mqadmin` 5.5.0 tells of the same servers.

JAVA_TESTS_ON=apache compares both on the official servers.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.java.mqadmin import Stage, table, until
from tests.live.test_message_operations import Undecided
from tests.support.answers import check_answer
from tests.support.cli_calls import call

from rocketspark import TransactionProducer

pytestmark = pytest.mark.shows("commands about messages tell what `mqadmin` tells, also on official servers")


def ours(stage: Stage, *arguments: str, code: int = 0) -> Any:
    """The JSON answer of one of our commands."""
    done = call(*arguments, "--json", "--namesrv", stage.namesrv)
    assert done.exit_code == code, done.told
    answer = json.loads(done.stdout)
    check_answer(" ".join(arguments[:2]), answer)
    return answer


def told(message: dict[str, Any]) -> dict[str, str]:
    """What mqadmin prints of a message, of our answer."""
    pairs = (f"{name}={value}" for name, value in sorted(message["properties"].items()))
    return {
        "Topic": message["topic"],
        "Tags": f"[{message['tag']}]",
        "Keys": f"[{' '.join(message['keys'])}]",
        "Queue ID": str(message["queue_id"]),
        "Queue Offset": str(message["queue_offset"]),
        "CommitLog Offset": str(int(message["offset_message_id"][16:], 16)),
        "Reconsume Times": str(message["reconsume_times"]),
        "Properties": ", ".join(pairs),
    }


def printed(lines: list[str]) -> dict[str, str]:
    """The same of mqadmin's lines."""
    rows = table(lines)
    # A pull in Java adds the queue's bounds.
    every = rows["Properties"].strip("{}").split(", ")
    pairs = sorted(pair for pair in every if not pair.startswith(("MIN_OFFSET=", "MAX_OFFSET=")))
    return {name: rows[name] for name in told_names()} | {"Properties": ", ".join(pairs)}


def told_names() -> list[str]:
    return ["Topic", "Tags", "Keys", "Queue ID", "Queue Offset", "CommitLog Offset", "Reconsume Times"]


def tracks(lines: list[str]) -> dict[str, str]:
    found = (line.split("consumerGroup=")[1] for line in lines if line.startswith("MessageTrack"))
    return {each.split(",")[0]: each.split("trackType=")[1].split(",")[0] for each in found}


def test_a_message_by_its_ids_and_its_place(stage: Stage) -> None:
    for topic, number in (("Orders", 0), ("Orders", 7), ("Bills", 1), ("Bills", 9)):
        sent = stage.sent[topic][number]
        lines = stage.mqadmin("queryMsgById", "-t", topic, "-i", sent["offset_message_id"])
        for ids in ((sent["offset_message_id"],), (sent["message_id"],), (sent["message_id"], "--topic", topic)):
            assert told(ours(stage, "message", "get", *ids)) == printed(lines)
        where = ("-b", "broker-a", "-t", topic, "-i", str(sent["queue"]["queue_id"]), "-o", str(sent["queue_offset"]))
        lines = stage.mqadmin("queryMsgByOffset", *where, "-f", "UTF-8")
        place = ("--queue", str(sent["queue"]["queue_id"]), "--offset", str(sent["queue_offset"]))
        got = ours(stage, "message", "get", topic, *place)
        assert told(got) == printed([line for line in lines if not line.startswith("Message Body:")])
        assert f"Message Body: {got['body']}" in lines
        # Who has consumed it.
        groups = ours(stage, "message", "trace", sent["message_id"], "--topic", topic)["groups"]
        assert {g["group"]: g["track"] for g in groups} == tracks(lines)
        assert tracks(lines)


def test_messages_by_key_and_all_of_a_topic(stage: Stage) -> None:
    lines = stage.mqadmin("queryMsgByKey", "-t", "Orders", "-k", "Orders-k1")[1:]
    found = ours(stage, "message", "find", "Orders", "--key", "Orders-k1")["messages"]
    assert [(m["message_id"], str(m["queue_id"]), str(m["queue_offset"])) for m in found] == [
        tuple(line.split()[:3]) for line in lines
    ]
    for ours_tag, theirs in (((), ()), (("--tag", "A"), ("-s", "A"))):
        lines = stage.mqadmin("printMsg", "-t", "Bills", "-d", "true", *theirs)
        ids = sorted(line.split()[1] for line in lines if line.startswith("MSGID: "))
        found = ours(stage, "message", "find", "Bills", *ours_tag)["messages"]
        assert sorted(m["message_id"] for m in found) == ids
        newest = ours(stage, "message", "find", "Bills", *ours_tag, "--newest")["messages"]
        assert sorted(m["message_id"] for m in newest) == ids


def test_a_message_is_sent_traced_and_sent_again(stage: Stage) -> None:
    stage.create("Followed", 1)
    sent = ours(stage, "message", "send", "Followed", "hello", "--key", "kk", "--tag", "TG")
    lines = stage.mqadmin("queryMsgById", "-t", "Followed", "-i", sent["offset_message_id"])
    assert (printed(lines)["Tags"], printed(lines)["Keys"]) == ("[TG]", "[kk]")
    again = ours(stage, "message", "resend", sent["message_id"], "--topic", "Followed")
    assert (again["message_id"], again["queue_offset"]) == (sent["message_id"], sent["queue_offset"] + 1)
    traced = stage.mqadmin("sendMessage", "-t", "Followed", "-p", "traced", "-m", "true")[1].split()[-1]
    lines = until(lambda: (x := stage.mqadmin("queryMsgTraceById", "-i", traced)) and "Pub" in "".join(x) and x)
    pub = next(line for line in lines if line.startswith("Pub")).split()
    (event,) = ours(stage, "message", "trace", traced)["events"]
    took, state = pub[-2], pub[-1]
    assert (event["kind"], event["group"], event["client"]) == ("sent", pub[1], pub[2])
    assert (f"{event['cost_ms']}ms", "success" if event["success"] else "failed") == (took, state)


def test_a_message_is_given_to_a_consumer_by_hand(stage: Stage) -> None:
    sent, client = stage.sent["Orders"][0], stage.client_id("buyers")
    where = ("-t", "Orders", "-i", sent["offset_message_id"], "-g", "buyers", "-d", client)
    (line,) = stage.mqadmin("queryMsgById", *where)
    done = ours(stage, "message", "consume-directly", sent["message_id"], "--topic", "Orders", "--group", "buyers")
    assert done["client_id"] == client
    assert f"order={str(done['ordered']).lower()}, autoCommit={str(done['auto_commit']).lower()}" in line
    assert f"consumeResult={done['result']}, remark={done['remark'] or 'null'}," in line


def test_what_is_dead_and_what_waits(stage: Stage) -> None:
    (count,) = [c for c in ours(stage, "dlq", "list") if c["group"] == "failing"]
    lines = stage.mqadmin("topicStatus", "-t", "%DLQ%failing")
    bounds = [line.split()[2:4] for line in lines if line.startswith("broker-a")]
    assert count["letters"] == sum(int(high) - int(low) for low, high in bounds) == 2
    letters = ours(stage, "dlq", "show", "failing")["letters"]
    assert [x["origin_topic"] for x in letters] == ["Broken", "Broken"]
    resend = ("dlq", "resend", "failing", letters[0]["message_id"])
    assert [ours(stage, *resend)["letters"][0]["outcome"] for _ in range(2)] == ["sent", "already"]
    # mqadmin has no command for these: what its printing of their own topics says.
    found = ours(stage, "delayed", "list")
    assert [(x["level"], x["waiting"]) for x in found["levels"] if x["level"] == 18] == [(18, 2)]
    later = {t["kind"]: t["waiting"] for t in found["topics"] if t["topic"] == "Later"}
    assert later == {"level": 2, "timer": 3}


def test_open_transactions(stage: Stage) -> None:
    """mqadmin has no command for them: they are read of the broker's own topics, which are RocketMQ's."""
    assert ours(stage, "transaction", "list") == {"transactions": [], "whole": True}
    stage.create("Paid", 1)
    with TransactionProducer(stage.namesrv, "payers", listener=Undecided()) as producer:
        sent = [producer.send_in_transaction("Paid", body) for body in (b"done", b"open", b"undone")]
        # The ends are one-way; a broker of RocketMQ notes them some time later.
        (one,) = until(lambda: len(x := ours(stage, "transaction", "list")["transactions"]) == 1 and x)
        assert (one["message_id"], one["topic"], one["group"]) == (sent[1].sent.message_id, "Paid", "payers")
        asked = ours(stage, "transaction", "check", one["offset_message_id"])
        assert asked["transaction"]["message_id"] == one["message_id"]
        copies = until(lambda: [t for t in ours(stage, "transaction", "list")["transactions"] if t != one])
        assert [t["message_id"] for t in copies] == [one["message_id"]]
        half = stage.mqadmin("queryMsgById", "-t", "RMQ_SYS_TRANS_HALF_TOPIC", "-i", copies[0]["offset_message_id"])
        assert table(half)["Topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"
        assert "REAL_TOPIC=Paid" in table(half)["Properties"]
