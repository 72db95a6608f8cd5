"""Messages of SendMessage as protobuf's JSON, those that are stored and those that break a rule, each with its name.

`vectors.json` holds what Apache's proxy 5.5.0 answered to each, and stored of it.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

TOPIC = "Mixed"
# A time that is over: a delayed message is stored under the topic of timers before, and delivered at once.
PAST = "2024-05-06T07:08:09.123456789Z"


def message(body: bytes = b"body", user: dict[str, str] | None = None, topic: str = TOPIC, **system: Any) -> Any:
    """Return a message; fields of the system by their names in protobuf's JSON."""
    fields = {"messageId": "01ID", "bornTimestamp": PAST, "bornHost": "10.1.2.3"} | system
    return {
        "topic": {"name": topic},
        "userProperties": user or {},
        "systemProperties": {name: value for name, value in fields.items() if value is not None},
        "body": base64.b64encode(body).decode(),
    }


STORED = {
    "plain": message(),
    "body bytes": message(bytes(range(256))),
    "tag and keys": message(tag="tag-A", keys=["k1", "k2"]),
    "key with space": message(keys=["a b", "c"]),
    "empty keys": message(keys=["", ""]),
    "one empty key": message(keys=["a", ""]),
    "tag with spaces": message(tag=" a b "),
    "user properties": message(user={"a": "1", "b": "two words", "ключ": "значение", "😀": "😀"}),
    "empty user value": message(user={"a": "", "b": "2"}),
    "empty user key": message(user={"": "1", "b": "2"}),
    "names that are free": message(
        user={"TRACE_CONTEXT": "mine", "CHECK_IMMUNITY_TIME_IN_SECONDS": "7", "__transactionId__": "t"}
    ),
    "user and own trace context": message(user={"TRACE_CONTEXT": "mine"}, traceContext="own"),
    "trace context": message(traceContext="00-4bf92f3577b34da6-01"),
    "message group": message(messageGroup="order-1", messageType="FIFO"),
    "message group with space": message(messageGroup=" a b", messageType="FIFO"),
    "message group of 63 bytes": message(messageGroup="ж" * 31 + "x", messageType="FIFO"),
    "type alone makes nothing": message(messageType="FIFO"),
    "priority": message(priority=3),
    "priority 0": message(priority=0),
    "delivery attempt": message(deliveryAttempt=7),
    "delivery attempt below 0": message(deliveryAttempt=-7),
    "gzip": message(zlib.compress(b"body"), bodyEncoding="GZIP"),
    "identity": message(bodyEncoding="IDENTITY"),
    "no born time": message(bornTimestamp=None),
    "born long ago": message(bornTimestamp="1900-01-01T00:00:00Z"),
    "born host of spaces": message(bornHost="  "),
    "no born host": message(bornHost=None),
    "id of any text": message(messageId="any text, длинный"),
    "digest is not looked at": message(bodyDigest={"type": "CRC32", "checksum": "00000000"}),
    "what the server sets": message(queueId=3, queueOffset=9, storeHost="x", receiptHandle="h"),
    "properties of 16384 bytes": message(user={"a": "x" * 16379}, tag="abc", keys=["d"]),
    "128 user properties": message(user={f"p{i}": "v" for i in range(128)}),
    "delayed": message(deliveryTimestamp=PAST),
    "delayed of a group": message(deliveryTimestamp=PAST, messageGroup="g"),
    "half message": message(messageType="TRANSACTION"),
    "half message with recovery": message(messageType="TRANSACTION", orphanedTransactionRecoveryDuration="60.5s"),
    "half message with recovery 3600 s": message(
        messageType="TRANSACTION", orphanedTransactionRecoveryDuration="3600.999s"
    ),
    "half message with recovery below 0": message(messageType="TRANSACTION", orphanedTransactionRecoveryDuration="-5s"),
    "recovery without transaction": message(orphanedTransactionRecoveryDuration="9999s"),
    "blank of Python alone in tag": message(tag="\xa0"),
}

REFUSED = {
    "topic blank": message(topic=" "),
    "topic empty": message(topic=""),
    "topic of 128": message(topic="t" * 128),
    "topic with dot": message(topic="a.b"),
    "topic in Russian": message(topic="тема"),
    "topic of line end": message(topic="Mixed\n"),
    "system topic": message(topic="SCHEDULE_TOPIC_XXXX"),
    "system topic TBW102": message(topic="TBW102"),
    "system topic by prefix": message(topic="rmq_sys_x"),
    "tag blank": message(tag="  "),
    "tag of line end": message(tag="\n"),
    "tag with |": message(tag="a|b"),
    "tag with control": message(tag="a\x01b"),
    "tag with C1 control": message(tag="a\x85b"),
    "key blank": message(keys=["a", " "]),
    "key with control": message(keys=["a\x7f"]),
    "message group blank": message(messageGroup="  "),
    "message group of 64 bytes": message(messageGroup="ж" * 32),
    "message group with control": message(messageGroup="a\tb"),
    "129 user properties": message(user={f"p{i}": "v" for i in range(129)}),
    "properties of 16385 bytes": message(user={"a": "x" * 16380}, tag="abc", keys=["d"]),
    "tag of 16385 bytes": message(tag="ж" * 8192 + "x"),
    "user key of the system": message(user={"KEYS": "x"}),
    "user key of the proxy": message(user={"__BORNHOST": "x"}),
    "user key of lite": message(user={"__LITE_TOPIC": "x"}),
    "user key with control": message(user={"a\x02": "x"}),
    "user value with control": message(user={"a": "x\x00"}),
    "message id empty": message(messageId=""),
    "message id blank": message(messageId=" \t"),
    "body empty": message(b""),
    "delivery in 25 hours": message(deliveryTimestamp="in 25 hours"),
    "recovery of 3601 s": message(messageType="TRANSACTION", orphanedTransactionRecoveryDuration="3601s"),
}
