"""Assignments asked of a broker over raw connections, so that answers of ours and of Apache's are compared as they are.

Members have connections of their own; a row is what was asked, and the answer's queues with their mode.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tests.support.raw_frames import read_frame, write_frame

GOLDEN = Path(__file__).parents[1] / "vectors" / "assignments_5.5.0.json"

MEMBERS = (1, 2, 3, 5, 8, 11)
QUEUES = (1, 3, 4, 8)
STRATEGIES = ("AVG", "AVG_BY_CIRCLE")
SHARES = (-1, 0, 1, 2, 3, 7, 100)


class Link:
    """One connection, asked and answered in turn."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), 60)

    def ask(self, code: int, body: Any = None, ext: dict[str, str] | None = None) -> tuple[int, str | None, bytes]:
        """One request; returns the answer's code, remark and body. Requests of the broker's own are passed over."""
        fields = {"code": code, "language": "JAVA", "version": 513, "opaque": 1, "flag": 0, "extFields": ext or {}}
        write_frame(self._socket, fields, b"" if body is None else json.dumps(body).encode())
        while True:
            answer, found = read_frame(self._socket)
            if answer["flag"] & 1:
                return answer["code"], answer.get("remark"), found

    def join(self, group: str, client_id: str, topics: list[str]) -> None:
        subscriptions = [{"topic": t, "subString": "*", "expressionType": "TAG", "subVersion": 1} for t in topics]
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
        }
        beat = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
        assert self.ask(34, beat)[0] == 0

    def close(self) -> None:
        self._socket.close()


def shown(answer: tuple[int, str | None, bytes]) -> str:
    """An answer's queues: "POP 0 3"; "none" for an empty list, "no list", or "code 17"."""
    code, _, body = answer
    if code != 0:
        return f"code {code}"
    found = json.loads(body).get("messageQueueAssignments")
    if found is None:
        return "no list"
    assert all(a["messageQueue"]["brokerName"] == "broker-a" for a in found)
    modes = {a["mode"] for a in found}
    return " ".join([*modes, *map(str, sorted(a["messageQueue"]["queueId"] for a in found))]) or "none"


def rows(address: str) -> dict[str, list[str]]:
    """Ask a broker, named broker-a, whose NameServer knows it; returns the answers of all members by what was asked."""
    control = Link(address)
    links: list[Link] = []
    topics = [f"assigned{n}" for n in QUEUES]
    for n, topic in zip(QUEUES, topics, strict=True):
        ext = {"topic": topic, "readQueueNums": str(n), "writeQueueNums": str(n), "perm": "6", "defaultTopic": "TBW102"}
        ext |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        assert control.ask(17, ext=ext)[0] == 0
    try:
        found: dict[str, list[str]] = {}
        for count in MEMBERS:
            for n in range(count):
                links.append(Link(address))
                links[-1].join(f"g{count}", f"c{n:02}", topics)
            for n in QUEUES:
                found |= _shares(control, n, count)
        return found | _odd(control)
    finally:
        for link in (*links, control):
            link.close()


def _query(control: Link, **changes: Any) -> str:
    body = {"topic": "assigned4", "consumerGroup": "g1", "clientId": "c00", "strategyName": "AVG"}
    return shown(control.ask(400, body | {"messageModel": "CLUSTERING"} | changes))


def _shares(control: Link, queue_count: int, member_count: int) -> dict[str, list[str]]:
    topic, group = f"assigned{queue_count}", f"g{member_count}"
    found: dict[str, list[str]] = {}
    for share in ("PULL", *SHARES):
        mode = "PULL" if share == "PULL" else "POP"
        wanted = {
            "topic": topic,
            "consumerGroup": group,
            "mode": mode,
            "popShareQueueNum": 0 if mode == "PULL" else share,
        }
        assert control.ask(401, wanted)[0] == 0
        for strategy in STRATEGIES:
            found[f"{queue_count} queues, {member_count} members, share {share}, {strategy}"] = [
                _query(control, topic=topic, consumerGroup=group, clientId=f"c{n:02}", strategyName=strategy)
                for n in range(member_count)
            ]
    return found


ODD: dict[str, dict[str, Any]] = {
    "no such topic": {"topic": "never-made"},
    "no such group": {"consumerGroup": "nobody"},
    "no members": {"clientId": "stranger", "topic": "assigned8", "consumerGroup": "g0"},
    "a stranger": {"clientId": "stranger"},
    "no client id": {"clientId": ""},
    "no such strategy": {"strategyName": "CONSISTENT_HASH"},
    "broadcast": {"messageModel": "BROADCASTING"},
    "retry topic": {"topic": "%RETRY%g1"},
    "light topic": {"topic": "%LMQ%light"},
}


def _odd(control: Link) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for mode in ("POP", "PULL"):
        wanted = {"topic": "assigned4", "consumerGroup": "g1", "mode": mode, "popShareQueueNum": 0}
        assert control.ask(401, wanted)[0] == 0
        found |= {f"{name}, {mode}": [_query(control, **changes)] for name, changes in ODD.items()}
    for topic in ("%RETRY%g1", "never-made"):
        code, remark, _ = control.ask(401, {"topic": topic, "consumerGroup": "g1", "mode": "POP"})
        found[f"set {topic}"] = [f"code {code}, {remark}"]
    return found


def golden() -> dict[str, list[str]]:
    """What Apache's broker 5.5.0 answered."""
    found: dict[str, list[str]] = json.loads(GOLDEN.read_text())
    return found
