"""Each property of RocketMQ's, arriving from a client by each way of sending, and what the broker then stored.

`rows(address)` asks any broker, by hand; the record is read by its place, so nothing has to consume. Names that make
another kind of message (delay levels, timers) are left out, as is INNER_NUM, which a sender is answered by.
"""

from __future__ import annotations

import json
import re
import struct
import time

from tests.java.apache import Answer, ask
from tests.support.patience import LIMIT_S

from rocketspark.protocol.message import properties, record
from rocketspark.protocol.message.record import Record

TOPIC, BATCHES, GROUP = "owned", "owned_batches", "owners"
PARKING = {"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DELAY_LEVEL", "TIMER_DEL_UNIQKEY"}
NAMES = sorted(
    {"POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "ORIGIN_GROUP", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"}
    | {"REDIRECT", "PROPERTY_FORWARD_QUEUE_ID", "__BORNHOST", "TRANS_OFFSET", "__RMQ.TRANSIENT.x", "E_T", "mine"}
    | properties.SYSTEM_NAMES - PARKING - {"INNER_NUM"}
)
VALUE = "7"


def text(*pairs: tuple[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


def item(stored: str) -> bytes:
    """A message as a batch holds it."""
    kept = stored.encode()
    return struct.pack(">iiiii", 23 + len(kept), 0, 0, 0, 1) + b"x" + struct.pack(">h", len(kept)) + kept


class Asked:
    """One broker. Each way returns the answer to a send with one property."""

    def __init__(self, address: str) -> None:
        self.address = address
        for topic, attributes in ((TOPIC, {}), (BATCHES, {"attributes": "+queue.type=BatchCQ"})):
            wanted = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "false"}
            more = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
            assert ask(address, 17, ext_fields=wanted | more | attributes).code == 0
        group = {"groupName": GROUP, "consumeEnable": True, "retryQueueNums": 1}
        assert ask(address, 200, json.dumps(group).encode()).code == 0

    def send(self, stored: str, code: int = 10, body: bytes = b"x", **changes: str) -> Answer:
        ext = {
            "producerGroup": "P",
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": str(int(time.time() * 1000)),
            "flag": "0",
            "properties": stored,
            "reconsumeTimes": "0",
            "unitMode": "false",
        }
        ext |= changes
        if code == 320:
            ext = dict(zip("abcdefghijkm", ext.values(), strict=True))
        return ask(self.address, code, body, ext)

    def single(self, stored: str) -> Answer:
        return self.send(stored)

    def reply(self, stored: str) -> Answer:
        return self.send(stored, 324)

    def retry(self, stored: str) -> Answer:
        """A consumer's own send of what failed."""
        return self.send(stored, topic=f"%RETRY%{GROUP}", reconsumeTimes="1")

    def batch_header(self, stored: str) -> Answer:
        return self.send(stored, 320, item(text(("UNIQ_KEY", "I"))), batch="true")

    def batch_item(self, stored: str) -> Answer:
        return self.send(text(("UNIQ_KEY", "B")), 320, item(stored), batch="true")

    def one_record(self, stored: str) -> Answer:
        """The header's properties of a batch that is stored as one record."""
        return self.send(stored, 320, item(text(("UNIQ_KEY", "I"))), batch="true", topic=BATCHES)

    def half(self, stored: str) -> Answer:
        return self.send(stored + text(("TRAN_MSG", "true"), ("PGROUP", "P")), sysFlag="4")

    def committed(self, stored: str) -> Answer | Record:
        """A half message, and what its commit stored."""
        sent = self.half(stored)
        if sent.code:
            return sent
        half = self.at(place(sent))
        assert half is not None
        end = {
            "producerGroup": "P",
            "tranStateTableOffset": sent.ext_fields["queueOffset"],
            "commitLogOffset": str(half.position),
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "msgId": "U",
            "transactionId": "U",
        }
        answer = ask(self.address, 37, b"", end)
        return answer if answer.code else self.next_of(half, TOPIC)

    def sent_back(self, stored: str) -> Answer | Record:
        """What was stored with the property, as an item of a batch is, and then failed at a consumer."""
        sent = self.batch_item(stored)
        if sent.code:
            return sent
        failed = self.at(place(sent))
        assert failed is not None
        back = {"group": GROUP, "offset": str(failed.position), "delayLevel": "0", "originTopic": TOPIC}
        answer = ask(self.address, 36, b"", back | {"unitMode": "false", "originMsgId": "O"})
        return answer if answer.code else self.next_of(failed, "SCHEDULE_TOPIC_XXXX")

    def at(self, position: int) -> Record | None:
        seen = ask(self.address, 33, ext_fields={"offset": str(position)})
        return record.decode(seen.body) if seen.code == 0 else None

    def next_of(self, last: Record, topic: str) -> Record:
        """The next record of a topic in the log."""
        deadline, position = time.monotonic() + LIMIT_S, last.position + last.size
        while True:
            found = self.at(position)
            if found is not None and found.topic == topic.encode():
                return found
            assert time.monotonic() < deadline
            position += found.size if found is not None else 0

    def row(self, way: str, name: str) -> dict[str, str] | int:
        """The properties that were stored, or the code of the refusal."""
        stored = text(*(pair for pair in (("UNIQ_KEY", "U"), ("KEYS", "k")) if pair[0] != name), (name, VALUE))
        found = getattr(self, way)(stored)
        if isinstance(found, Answer):
            if "msgId" not in found.ext_fields:
                return found.code
            found = self.at(place(found))
            assert found is not None
        return {name: shown(name, value) for name, value in properties.decode(found.properties.decode()).items()}


def place(answer: Answer) -> int:
    return int(answer.ext_fields["msgId"].split(",")[0][16:], 16)


def shown(name: str, value: str) -> str:
    """A value without what differs from run to run."""
    changing = re.search(r"[0-9A-F]{16}|\d{12}", value) or name in ("INNER_BASE", "TRAN_PREPARED_QUEUE_OFFSET")
    return "..." if changing and value != VALUE else value


WAYS = ("single", "reply", "retry", "batch_header", "batch_item", "one_record", "half", "committed", "sent_back")


def rows(address: str) -> dict[tuple[str, str], dict[str, str] | int]:
    asked = Asked(address)
    return {(way, name): asked.row(way, name) for way in WAYS for name in NAMES}
