"""A table of requests about pops, good and bad, asked by hand of any broker; and what its replies say.

Each case is of its own topics and groups. Times, addresses and revive queues differ from run to run: they are named.
Retries are read last and queues one by one, so that every reply is the same each time.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from pathlib import Path
from typing import Any

from tests.support.raw_frames import read_frame, write_frame

from rocketspark.protocol.message import properties, record

GOLDEN = Path(__file__).parents[1] / "vectors" / "pops_5.5.0.json"
# Of the broker that is asked.
SETTINGS = {"popFromRetryProbability": "0"}

POP, ACK, PEEK, CHANGE, NOTIFICATION, POLLING, BATCH_ACK = 200050, 200051, 200052, 200053, 200054, 200055, 200151
HOUR_MS = 3_600_000
ORDERED = 999
Step = tuple[Any, ...]


def pop(topic: str, **changes: Any) -> Step:
    ext = {"consumerGroup": "g", "topic": topic, "queueId": 0, "maxMsgNums": 4, "invisibleTime": HOUR_MS}
    ext |= {"pollTime": 0, "bornTime": "NOW", "initMode": 0}
    return POP, ext | changes


def ack(topic: str, offset: int, handle: str = "HANDLE", **changes: Any) -> Step:
    ext = {"consumerGroup": "g", "topic": topic, "queueId": 0, "extraInfo": handle, "offset": offset}
    return ACK, ext | changes


def change(topic: str, offset: int, invisible: int, handle: str = "HANDLE", **changes: Any) -> Step:
    return CHANGE, ack(topic, offset, handle)[1] | {"invisibleTime": invisible} | changes


def notification(topic: str, **changes: Any) -> Step:
    ext = {"consumerGroup": "g", "topic": topic, "queueId": 0, "pollTime": 0, "bornTime": "NOW"}
    return NOTIFICATION, ext | changes


def peek(topic: str, **changes: Any) -> Step:
    return PEEK, {"consumerGroup": "g", "topic": topic, "queueId": 0, "maxMsgNums": 2} | changes


def polling(topic: str, **changes: Any) -> Step:
    return POLLING, {"consumerGroup": "g", "topic": topic, "queueId": -1} | changes


def batch(topic: str, offsets: list[int], **changes: Any) -> Step:
    bits = bytearray(2)
    for offset in offsets:
        bits[offset // 8] |= 1 << offset % 8
    acked: dict[str, Any] = {"c": "g", "t": topic, "r": "0", "so": 0, "q": 0, "rq": "REVIVE", "pt": "POPPED"}
    acked |= {"it": HOUR_MS, "b": base64.b64encode(bits).decode()} | changes
    return BATCH_ACK, None, {"brokerName": "BROKER", "acks": [acked]}


FIFO = {"order": "true", "maxMsgNums": 3}

# Of each case: messages in queue 0 (their tags), the requests.
CASES: dict[str, tuple[str, list[Step]]] = {
    "what is there": ("ababa", [pop("T"), pop("T"), pop("T"), peek("T")]),
    "a few at a time": ("ababa", [pop("T", maxMsgNums=2), pop("T", maxMsgNums=1), peek("T"), peek("T", maxMsgNums=1)]),
    "by tag": ("ababab", [pop("T", exp="b", expType="TAG", maxMsgNums=2), pop("T", exp="b", expType="TAG"), pop("T")]),
    "nothing matches": ("aaa", [pop("T", exp="x", expType="TAG"), pop("T")]),
    "by properties": ("ababab", [pop("T", exp="TAGS = 'b'", expType="SQL92"), pop("T")]),
    "wrong filters": (
        "a",
        [
            pop("T", exp="n >", expType="SQL92"),
            pop("T", exp="n > 1", expType="XPATH"),
            pop("T", exp="", expType="TAG"),
        ],
    ),
    "an empty queue": ("", [pop("T"), peek("T"), notification("T"), polling("T")]),
    "all queues": ("ab", [pop("T", queueId=-1), pop("T", queueId=-1), peek("T", queueId=-1)]),
    "the end of the queue": ("abc", [pop("T", initMode=1), pop("T", initMode=1, consumerGroup="g2", queueId=1)]),
    "too many": ("a", [pop("T", maxMsgNums=33)]),
    "no such queue": (
        "a",
        [pop("T", queueId=4), peek("T", queueId=4), notification("T", queueId=9), polling("T", queueId=4)],
    ),
    "no such topic": ("a", [pop("none"), peek("none"), notification("none"), polling("none")]),
    "no such topic to acknowledge": ("a", [ack("none", 0, "0 1 1 0 0 b 0 0"), change("none", 0, 1, "0 1 1 0 0 b 0 0")]),
    "too late": ("a", [pop("T", bornTime=1, pollTime=1)]),
    "no time to wait": ("", [pop("T", pollTime=-5), notification("T", pollTime=-5)]),
    "born by itself": ("a", [pop("T", bornTime=0), notification("T", bornTime=0)]),
    "no group allowed": ("a", [pop("T", consumerGroup="off"), notification("T", consumerGroup="off")]),
    "not to be read": ("a", [pop("W"), peek("W"), notification("W"), polling("W")]),
    "acknowledged": ("abc", [pop("T"), ack("T", 0), ack("T", 0), ack("T", 2), ack("T", 1)]),
    "acknowledged oddly": (
        "abc",
        [pop("T"), ack("T", 3), ack("T", 4), ack("T", -1), ack("T", 0, queueId=4), ack("T", 0, queueId=-1)],
    ),
    "acknowledged together": (
        "abcde",
        [pop("T"), batch("T", [0, 2]), batch("T", [1, 9]), batch("none", [1]), (BATCH_ACK, None, {"acks": []})],
    ),
    "acknowledged by nothing": ("a", [(BATCH_ACK, None, None), (BATCH_ACK, None, {})]),
    "changed": ("ab", [pop("T"), change("T", 0, 30_000), change("T", 1, HOUR_MS), change("T", 5, 1)]),
    "changed oddly": ("ab", [pop("T"), change("T", 2, 1000), change("T", 0, 1, queueId=7), change("T", -1, 1)]),
    "in order": (
        "abcdefg",
        [
            pop("T", **FIFO),
            pop("T", **FIFO),
            ack("T", 0),
            pop("T", **FIFO),
            ack("T", 2),
            notification("T", order="true"),
            ack("T", 1),
            notification("T", order="true"),
            pop("T", **FIFO),
            ack("T", 9),
            ack("T", 6),
            ack("T", 0),
        ],
    ),
    "in order by attempts": (
        "abcd",
        [
            pop("T", **FIFO, attemptId="x"),
            pop("T", **FIFO, attemptId="x"),
            pop("T", **FIFO, attemptId="y"),
            ack("T", 0),
            pop("T", **FIFO, attemptId="x"),
        ],
    ),
    "in order again": (
        "abcd",
        [
            pop("T", **FIFO),
            change("T", 0, 0),
            change("T", 1, 0),
            change("T", 2, 0),
            ("wait", 50),
            pop("T", **FIFO),
            ack("T", 0),
            change("T", 1, 0),
            change("T", 2, 0),
            change("T", 0, 0),
            ("wait", 50),
            pop("T", **FIFO),
        ],
    ),
    "told of": (
        "aab",
        [
            notification("T"),
            notification("T", exp="b", expType="TAG"),
            notification("T", exp="c", expType="TAG"),
            notification("T", exp="n >", expType="SQL92"),
            notification("T", queueId=-1),
            pop("T"),
            notification("T"),
        ],
    ),
}


class Asking:
    """Asks a broker, one request after another; `host` is the address that it names itself by."""

    def __init__(self, address: str, name: str, host: str) -> None:
        self._address = address
        self._name, self._host = name, host
        self._link = socket.create_connection((address.split(":")[0], int(address.split(":")[1])), 60)
        self._last: dict[str, str] = {}

    def close(self) -> None:
        self._link.close()

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """One request; returns the reply's header and its body."""
        fields = {k: str(v) for k, v in (ext or {}).items()}
        head = {"code": code, "language": "JAVA", "version": 513, "opaque": 1, "flag": 0, "extFields": fields}
        write_frame(self._link, head, body)
        return read_frame(self._link)

    def case(self, number: int, tags: str, steps: list[Step]) -> list[dict[str, Any]]:
        """Make a case's topics and groups, fill queue 0, ask; returns what the replies say."""
        names = {"T": f"Pops{number}", "W": f"PopsW{number}", "none": "PopsNone"}
        groups = {"g": f"g{number}", "g2": f"g2{number}", "off": f"off{number}"}
        for name, perm in (("T", 6), ("W", 2)):
            topic = {"topic": names[name], "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4}
            kind = {"perm": perm, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
            assert self.ask(17, topic | kind)[0]["code"] == 0
        for group in groups.values():
            settings = {"groupName": group, "consumeEnable": not group.startswith("off")}
            assert self.ask(200, None, json.dumps(settings).encode())[0]["code"] == 0
        for at, tag in enumerate(tags):
            stored = f"TAGS\x01{tag}\x02n\x01{at}\x02UNIQ_KEY\x01{number:016X}{at:016X}\x02"
            send = {"a": "P", "b": names["T"], "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": stored}
            assert self.ask(310, send | {"j": 0, "k": "false", "m": "false"}, str(at).encode())[0]["code"] == 0
        # The official broker shows a message a moment after it took it.
        end = time.monotonic() + 60
        while tags and int(self.ask(30, {"topic": names["T"], "queueId": 0})[0]["extFields"]["offset"]) < len(tags):
            assert time.monotonic() < end
            time.sleep(0.01)
        found = []
        for step in steps:
            if step[0] == "wait":
                time.sleep(step[1] / 1000)
                continue
            code, ext, *body = step
            found.append(self._told(*self.ask(code, *self._filled(ext, body, names, groups)), names | groups))
        return found

    def _filled(
        self, ext: dict[str, Any] | None, body: list[Any], names: dict[str, str], groups: dict[str, str]
    ) -> tuple[dict[str, Any] | None, bytes]:
        last = self._last
        numbers = [last.get(k, "0") for k in ("start", "popTime", "invisibleTime", "reviveQid")]
        handle = f"{' '.join(numbers)} 0 {self._name} 0 "
        if ext is not None:
            ext = dict(ext)
            ext["topic"] = names.get(ext["topic"], ext["topic"])
            ext["consumerGroup"] = groups.get(ext.get("consumerGroup", ""), ext.get("consumerGroup"))
            ext = {k: v for k, v in ext.items() if v is not None}
            if ext.get("bornTime") == "NOW":
                ext["bornTime"] = int(time.time() * 1000)
            if ext.get("extraInfo") == "HANDLE":
                ext["extraInfo"] = handle + str(ext["offset"])
        if not body or body[0] is None:
            return ext, b""
        text = json.dumps(body[0]).replace('"BROKER"', json.dumps(self._name))
        text = text.replace('"REVIVE"', numbers[3]).replace('"POPPED"', numbers[1])
        for each in body[0].get("acks", ()):
            text = text.replace(f'"t": "{each["t"]}"', f'"t": "{names.get(each["t"], each["t"])}"')
            text = text.replace(f'"c": "{each["c"]}"', f'"c": "{groups[each["c"]]}"')
        return ext, text.encode()

    def _told(self, head: dict[str, Any], body: bytes, names: dict[str, str]) -> dict[str, Any]:
        ext = dict(head.get("extFields") or {})
        if "startOffsetInfo" in ext and head["code"] == 0:
            self._last = ext | {"start": ext["startOffsetInfo"].split(" ")[2]}
        told: dict[str, Any] = {"code": head["code"], "remark": self._shown(head.get("remark"), names)}
        if "popTime" in ext:
            ext |= _times(ext)
        told["ext"] = dict(sorted(ext.items()))
        if body:
            told["records"] = [self._record(r) for r in record.decode_all(body)]
        return told

    def _record(self, stored: record.Record) -> str:
        pairs = properties.decode(stored.properties.decode())
        text = f"{stored.queue_id}:{stored.queue_offset} {stored.body.decode()} {pairs['TAGS']}"
        return text + (" POP_CK" if "POP_CK" in pairs else "")

    def _shown(self, remark: str | None, names: dict[str, str]) -> str | None:
        if remark is None:
            return None
        # The official broker adds where to read more; what it shows of its own code differs from ours.
        remark = re.sub(r"[,\s]*See https?://\S+ for further details\.?", "", remark).split("\n")[0]
        remark = re.sub(r"/?127\.0\.0\.1:\d+", "ADDRESS", remark).replace(self._host, "HOST")
        for name, real in names.items():
            remark = re.sub(rf"\b{real}\b", f"<{name}>", remark)
        return remark


def _times(ext: dict[str, str]) -> dict[str, str]:
    """The fields of a reply that differ each time, as what they are."""
    now = time.time() * 1000
    popped, invisible, revive = int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"])
    told = {"popTime": "NOW" if abs(now - popped) < 60_000 else str(popped)}
    # Of an ordered message: from when it was popped.
    told["invisibleTime"] = "SOON" if revive == ORDERED and invisible < 30_000 else str(invisible)
    told["reviveQid"] = "ANY" if 0 <= revive < 8 else str(revive)
    return told


def replies(address: str, name: str, host: str) -> dict[str, list[dict[str, Any]]]:
    """What a broker replies to all cases."""
    asking = Asking(address, name, host)
    try:
        return {case: asking.case(n, tags, steps) for n, (case, (tags, steps)) in enumerate(CASES.items())}
    finally:
        asking.close()


def golden() -> dict[str, list[dict[str, Any]]]:
    """What the 5.5.0 broker replied."""
    found: dict[str, list[dict[str, Any]]] = json.loads(GOLDEN.read_text())
    return found
