"""Lite topics, asked by hand of any broker: sends, subscriptions, pops, what is said of messages, what operators ask.

Each part returns what it saw, without times and ids, so that two brokers' answers can be compared as they are.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from tests.java.apache import await_queues
from tests.support.patience import LIMIT_S
from tests.support.raw_frames import read_frame, write_frame

from rocketspark.protocol.light_queues import offset_of
from rocketspark.protocol.message import properties, record

VECTORS = Path(__file__).parent.parent / "vectors" / "lite_topics_5.5.0.json"
SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true"}
TOPIC, GROUP, ALONE, OTHER = "chats", "phones", "alone", "others"
SEND, POP, CTL, ACK, CHANGE = 10, 200070, 200071, 200051, 200053
BIND = "+lite.bind.topic"


class Link:
    """One connection with a broker."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), LIMIT_S)
        self.notices: list[dict[str, str]] = []

    def close(self) -> None:
        """End it."""
        self._socket.close()

    def tell(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Send a request, and do not wait."""
        fields = {"code": code, "language": "JAVA", "version": 513, "opaque": 1, "flag": 0, "extFields": ext or {}}
        write_frame(self._socket, fields, body)

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """Return the next answer; requests of the broker before it are noted."""
        while True:
            head, body = read_frame(self._socket)
            if head.get("flag", 0) & 1:
                return head, body
            if head["code"] == 200073:
                self.notices.append(head["extFields"])

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Send a request and return its answer."""
        self.tell(code, ext, body)
        return self.answer()

    def notice(self) -> dict[str, str]:
        """Return the next request of the broker."""
        while not self.notices:
            head, _ = read_frame(self._socket)
            assert head["code"] == 200073
            self.notices.append(head["extFields"])
        return self.notices.pop(0)

    # -- by name --------------------------------------------------------------------------------------------------

    def create(self, topic: str, attributes: str = "") -> int:
        """Create a topic of one queue."""
        ext = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "false"}
        ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        return int(self.ask(17, ext | ({"attributes": attributes} if attributes else {}))[0]["code"])

    def group(self, name: str, **attributes: str) -> int:
        """Create a group, or change it."""
        rows = {f"+lite.{key.replace('_', '.')}": value for key, value in attributes.items()}
        body = json.dumps({"groupName": name, "attributes": rows}).encode()
        return int(self.ask(200, body=body)[0]["code"])

    def send(self, body: bytes, lite: str | None, topic: str = TOPIC, **pairs: str) -> dict[str, Any]:
        """Send a message."""
        rows = {"UNIQ_KEY": f"U{body.decode()}", **pairs} | ({"__LITE_TOPIC": lite} if lite is not None else {})
        ext = {"producerGroup": "P", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1"}
        ext |= {"queueId": "0", "sysFlag": "0", "bornTimestamp": str(int(time.time() * 1000)), "flag": "0"}
        ext |= {"properties": "".join(f"{name}\x01{value}\x02" for name, value in rows.items())}
        return self.ask(SEND, ext | {"reconsumeTimes": "0", "unitMode": "false"}, body)[0]

    def change(self, action: str, names: list[str], client: str = "c1", group: str = GROUP, **more: Any) -> list[Any]:
        """Change a subscription; return the answer's code and remark."""
        row = {"action": action, "clientId": client, "group": group, "topic": TOPIC, "liteTopicSet": names, **more}
        return self.ctl(json.dumps({"subscriptionSet": [row]}).encode())

    def ctl(self, body: bytes) -> list[Any]:
        """Ask for changes of subscriptions; return the answer's code and remark."""
        head = self.ask(CTL, body=body)[0]
        return [head["code"], head.get("remark")]

    def pop_ext(self, client: str = "c1", group: str = GROUP, topic: str = TOPIC, **more: str) -> dict[str, str]:
        """Return the fields of a pop that does not wait."""
        ext = {"clientId": client, "consumerGroup": group, "topic": topic, "maxMsgNum": "32", "pollTime": "0"}
        return ext | {"invisibleTime": "600000", "bornTime": "0"} | more

    def pop(self, client: str = "c1", group: str = GROUP, topic: str = TOPIC, **more: str) -> Popped:
        """Pop messages, or wait for them if a pollTime is given."""
        head, body = self.ask(POP, self.pop_ext(client, group, topic, **more))
        return Popped(head, body)

    def until(self, count: int, client: str = "c1", group: str = GROUP, **more: str) -> list[Popped]:
        """Pop until so many messages are there, waiting for each."""
        found: list[Popped] = []
        deadline = time.monotonic() + LIMIT_S
        while sum(len(each.rows) for each in found) < count:
            assert time.monotonic() < deadline, f"{count} messages are awaited, these came: {[p.rows for p in found]}"
            found.append(self.pop(client, group, pollTime="20000", **more))
            assert found[-1].code in (0, 210), found[-1].head
        return found

    def handle(self, popped: Popped, number: int, *, pop_time: int | None = None) -> dict[str, str]:
        """Return the fields that name a popped message."""
        _, lite, offset = popped.rows[number]
        time_ms = popped.pop_time if pop_time is None else pop_time
        text = f"{offset} {time_ms} {popped.head['extFields']['invisibleTime']} 999 0 broker-a 0 {offset}"
        ext = {"consumerGroup": popped.group, "topic": TOPIC, "queueId": "0", "extraInfo": text}
        return ext | {"offset": str(offset), "liteTopic": lite}

    def ack(self, popped: Popped, number: int, **changed: str) -> list[Any]:
        """Acknowledge a message; return the answer's code and remark, without this side's address."""
        head = self.ask(ACK, self.handle(popped, number) | changed)[0]
        return [head["code"], str(head.get("remark")).split(" consumer:[")[0]]

    def again(self, popped: Popped, number: int, invisible_ms: int, **changed: str) -> dict[str, Any]:
        """Change when a message is visible again; return the answer."""
        return self.ask(CHANGE, self.handle(popped, number) | {"invisibleTime": str(invisible_ms)} | changed)[0]


class Popped:
    """The answer to a pop. `rows`: body, lite topic and offset in it of each message."""

    def __init__(self, head: dict[str, Any], body: bytes, group: str = GROUP) -> None:
        self.head, self.code, self.group = head, int(head["code"]), group
        self.rows: list[tuple[str, str, int]] = []
        for each in record.decode_all(body):
            pairs = properties.decode(each.properties.decode())
            lite = pairs["__LITE_TOPIC"]
            offset = offset_of(f"%LMQ%${TOPIC}${lite}".encode(), each.properties)
            assert offset is not None
            self.rows.append((each.body.decode(), lite, offset))

    @property
    def pop_time(self) -> int:
        """When they were popped, in ms."""
        return int(self.head["extFields"]["popTime"])

    @property
    def seen(self) -> list[Any]:
        """Code, remark, what came, and how often it came before."""
        ext = self.head["extFields"]
        counts = [ext.get("orderCountInfo"), ext.get("reviveQid"), ext.get("invisibleTime"), "popTime" in ext]
        return [self.code, self.head.get("remark"), sorted(self.rows), *counts]


def made(address: str) -> Link:
    """Return a connection with a broker on which topic and groups are made."""
    link = Link(address)
    assert link.create(TOPIC, "+message.type=LITE,+lite.topic.expiration=30") == 0
    assert link.create("plain") == 0
    assert link.group(GROUP, bind_topic=TOPIC) == 0
    assert link.group(ALONE, bind_topic=TOPIC, sub_model="Exclusive") == 0
    assert link.group(OTHER, bind_topic="plain") == 0
    assert link.group("usual") == 0
    return link


def sends(link: Link) -> list[Any]:
    """Messages to lite topics and to none: where each is, as its record tells."""
    seen = []
    for number, (lite, pairs) in enumerate(
        [("a", {}), ("a", {}), ("b", {"INNER_MULTI_DISPATCH": "%LMQ%x"}), (None, {})]
    ):
        head = link.send(b"s%d" % number, lite, **pairs)
        position = str(int(head["extFields"]["msgId"][16:], 16))
        kept = record.decode(link.ask(33, {"offset": position})[1])
        found = properties.decode(kept.properties.decode())
        names = ("__LITE_TOPIC", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")
        seen.append([head["code"], kept.topic.decode(), [found.get(name) for name in names]])
    seen.append([link.send(b"s9", "a", topic="plain")["code"]])
    return seen


def subscriptions(link: Link) -> list[Any]:
    """Requests that are refused, or do nothing."""
    seen = [link.ctl(b""), link.ctl(b'{"subscriptionSet":[]}'), link.ctl(b"{}")]
    seen += [link.change("PARTIAL_ADD", ["a"], client=""), link.change("PARTIAL_ADD", ["a"], group=" ")]
    assert link.group("closed", bind_topic=TOPIC) == 0
    body = {"groupName": "closed", "consumeEnable": False, "attributes": {}}
    assert link.ask(200, body=json.dumps(body).encode())[0]["code"] == 0
    seen += [link.change(action, ["a"], "c9", "closed") for action in ("PARTIAL_ADD", "COMPLETE_ADD", "PARTIAL_REMOVE")]
    assert link.group("every", bind_topic=TOPIC, sub_wildcard="true") == 0
    seen += [link.change("PARTIAL_ADD", ["a"], "w1", "every"), link.change("COMPLETE_ADD", [], "w1", "every")]
    seen += [link.change("COMPLETE_REMOVE", [], "nobody"), link.change("PARTIAL_REMOVE", ["zzz"], "c7")]
    return seen


def refused_pops(link: Link) -> list[Any]:
    """Pops that no client may ask for."""
    old = str(int(time.time() * 1000) - 60_000)
    asked: list[dict[str, str]] = [
        {"bornTime": old},
        {"maxMsgNum": "33"},
        {"topic": "nowhere"},
        {"topic": "plain"},
        {"group": "closed"},
        {"group": OTHER},
        {"client": "stranger"},
    ]
    seen = []
    for each in asked:
        head = link.pop(**each).head
        # Java puts a link behind the text.
        remark = str(head.get("remark")).split("!")[0]
        seen.append([head["code"], remark.split("] pop message is timeout")[-1], sorted(head.get("extFields", {}))])
    return seen


def order(link: Link) -> list[Any]:
    """Pops, acknowledgements and changes of invisible times in three lite topics."""
    seen: list[Any] = []
    for number, lite in enumerate(["x", "x", "x", "y", "y", "z"]):
        assert link.send(b"m%d" % number, lite)["code"] == 0
    for lite, count in (("x", 3), ("y", 2), ("z", 1)):
        await_queues(link_address(link), f"%LMQ%${TOPIC}${lite}", count)
    seen.append(link.change("PARTIAL_ADD", ["x", "y", "z"], offsetOption={"type": "POLICY", "value": 1}))
    first = link.until(6)
    rows = [row for each in first for row in each.rows]
    seen += [sorted(rows), [row for row in rows if row[1] == "x"] == sorted(row for row in rows if row[1] == "x")]
    seen.append([each.head["extFields"]["orderCountInfo"] for each in first if len(each.rows) == 6])
    seen.append(link.pop().seen)
    popped = {row[1:]: (each, at) for each in first for at, row in enumerate(each.rows)}
    ok = link.ack(*popped["x", 1])
    seen += [ok, link.pop().seen, link.ack(*popped["x", 0]), link.ack(*popped["x", 0])]
    seen += [link.ack(*popped["y", 0], offset="99"), link.ack(*popped["y", 0], queueId="1")]
    seen += [
        link.ack(*popped["y", 0], consumerGroup=OTHER),
        link.ack(*popped["y", 0], extraInfo="0 1 2 3 0 broker-a 0 0"),
    ]
    # The rest of x, and of y what is left, come again.
    changed = link.again(*popped["x", 2], 0)
    seen.append([changed["code"], sorted(changed["extFields"]), changed["extFields"]["reviveQid"]])
    [again] = link.until(1)
    seen.append(again.seen)
    seen.append(link.ack(*popped["x", 2]))
    seen.append(link.ack(again, 0))
    for number in (0, 1):
        link.again(*popped["y", number], 0)
    [both] = link.until(2)
    seen.append(both.seen)
    # As if they had not been given out.
    suspended = link.again(both, 0, 0, suspend="true")
    seen.append([suspended["code"], sorted(suspended["extFields"])])
    [once_more] = link.until(2)
    seen.append(once_more.seen)
    same = link.pop(attemptId="A").seen
    seen.append(same)
    seen += [link.ack(once_more, 0), link.ack(once_more, 1), link.ack(*popped["z", 0])]
    done = link.again(*popped["z", 0], 1000)
    seen.append([done["code"], done.get("remark"), done["extFields"]])
    far = link.again(*popped["z", 0], 1000, offset="77")
    seen.append([far["code"], far["extFields"]])
    return seen


def link_address(link: Link) -> str:
    """Return the broker's address."""
    host, port = link._socket.getpeername()
    return f"{host}:{port}"


def attempts(link: Link) -> list[Any]:
    """A receive that is tried again gets the same; a pop that waits is answered by the next message."""
    assert link.send(b"t0", "tries")["code"] == 0
    await_queues(link_address(link), f"%LMQ%${TOPIC}$tries", 1)
    seen = [link.change("PARTIAL_ADD", ["tries", "later"], offsetOption={"type": "POLICY", "value": 1})]
    [first] = link.until(1, attemptId="A1")
    seen.append(first.seen)
    link.again(first, 0, 0)
    [again] = link.until(1, attemptId="A1")
    seen += [again.seen, link.ack(again, 0)]
    other = Link(link_address(link))
    other.tell(POP, link.pop_ext(pollTime="20000", bornTime=str(int(time.time() * 1000))))
    link.send(b"t1", "later")
    head, body = other.answer()
    seen.append(Popped(head, body).seen)
    seen.append(other.ack(Popped(head, body), 0))
    other.close()
    return seen


def evictions(link: Link) -> list[Any]:
    """In an exclusive group the last client has a lite topic, and the one before hears of it."""
    one, two = Link(link_address(link)), Link(link_address(link))
    seen = [one.change("PARTIAL_ADD", ["e1", "e2"], "one", ALONE), two.change("PARTIAL_ADD", ["e1"], "two", ALONE)]
    seen.append(one.notice())
    seen += [one.change("COMPLETE_ADD", ["e2"], "one", ALONE)]
    assert link.send(b"e", "e1")["code"] == 0
    popped = Popped(two.until(1, "two", ALONE)[0].head, b"", ALONE)
    seen.append(popped.code)
    seen.append(one.pop("one", ALONE).seen)
    one.close()
    two.close()
    return seen


def offsets(link: Link) -> list[Any]:
    """Where a subscription begins, by its option: the offsets of what is popped first."""
    seen = []
    for number in range(5):
        assert link.send(b"o%d" % number, "o")["code"] == 0
    await_queues(link_address(link), f"%LMQ%${TOPIC}$o", 5)
    for kind, value in (("POLICY", 0), ("OFFSET", 3), ("TAIL_N", 2), ("POLICY", 2), ("POLICY", 1), ("OFFSET", 99)):
        link.change("PARTIAL_ADD", ["o"], "o1", offsetOption={"type": kind, "value": value})
        link.change("PARTIAL_REMOVE", ["o"], "o1")
        link.change("PARTIAL_ADD", ["o"], "o1")
        popped = link.pop("o1", pollTime="100", maxMsgNum="1", bornTime=str(int(time.time() * 1000)))
        for row in range(len(popped.rows)):
            link.ack(popped, row)
        seen.append([kind, value, popped.code, [row[2] for row in popped.rows]])
    return seen


def questions(link: Link) -> list[Any]:
    """What operators ask, without times."""
    asked: list[tuple[int, dict[str, str]]] = [
        (200075, {"topic": TOPIC}),
        (200075, {"topic": "plain"}),
        (200075, {"topic": "nowhere"}),
        (200076, {"parentTopic": TOPIC, "liteTopic": "a"}),
        (200076, {"parentTopic": TOPIC, "liteTopic": "never"}),
        (200076, {"parentTopic": "plain", "liteTopic": "a"}),
        (200077, {"parentTopic": TOPIC, "group": GROUP, "clientId": "c1"}),
        (200077, {"parentTopic": TOPIC, "group": GROUP, "clientId": "stranger"}),
        (200077, {"parentTopic": TOPIC, "group": OTHER, "clientId": "c1"}),
        (200077, {"parentTopic": TOPIC, "group": "usual", "clientId": "c1"}),
        (200078, {"group": GROUP, "topK": "5"}),
        (200078, {"group": GROUP, "topK": "5", "liteTopic": "o"}),
        (200078, {"group": GROUP, "topK": "5", "liteTopic": "never"}),
        (200078, {"group": "usual", "topK": "5"}),
        (200079, {"group": GROUP}),
        (200079, {"group": GROUP, "clientId": "c1"}),
        (200079, {"group": "usual"}),
    ]
    seen = []
    for code, ext in asked:
        head, body = link.ask(code, ext)
        seen.append([code, head["code"], head.get("remark"), _timeless(json.loads(body)) if body else None])
    head, body = link.ask(200074)
    info = json.loads(body)
    seen.append([head["code"], sorted(info), info["storeType"], info["topicMeta"], info["maxLmqNum"]])
    seen.append({topic: sorted(groups) for topic, groups in info["groupMeta"].items()})
    return seen


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        rows = {}
        for name, each in value.items():
            is_time = isinstance(each, int) and each > 10**12
            rows[name] = "time" if is_time else _timeless(each)
        return rows
    return sorted((_timeless(each) for each in value), key=str) if isinstance(value, list) else value


def quota(link: Link) -> list[Any]:
    """The broker keeps so many subscriptions and no more."""
    assert link.ask(25, body=b"maxLiteSubscriptionCount=1\n")[0]["code"] == 0
    seen = [link.change("PARTIAL_ADD", ["q1"], "q")]
    assert link.ask(25, body=b"maxLiteSubscriptionCount=100000\n")[0]["code"] == 0
    return seen


PARTS = (sends, subscriptions, refused_pops, order, attempts, evictions, offsets, questions, quota)


def everything(address: str) -> dict[str, list[Any]]:
    """Return what each part saw, one after another, as JSON has it."""
    link = made(address)
    try:
        found: dict[str, list[Any]] = json.loads(json.dumps({part.__name__: part(link) for part in PARTS}))
        return found
    finally:
        link.close()


def golden() -> dict[str, list[Any]]:
    """Return what the official broker 5.5.0 was seen to answer."""
    found: dict[str, list[Any]] = json.loads(VECTORS.read_text())
    return found
