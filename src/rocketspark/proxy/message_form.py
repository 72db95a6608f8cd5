"""Messages of the gRPC protocol and messages of the log: which property holds which field, which type a message has,
and how a stored message is written as one of the protocol.

Rule: names and order of tests as MessageConst and TopicMessageType, messages as GrpcConverter, 5.5.0, except that a
body which its producer's client compressed arrives readable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from rocketspark.errors import RecordError
from rocketspark.model.text import whole_number
from rocketspark.protocol import topic_attributes
from rocketspark.protocol.message import compression, properties, sysflags
from rocketspark.protocol.message.message_ids import offset_message_id, unpack_host
from rocketspark.protocol.message.record import Record
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import DigestType, Encoding
from rocketspark.transport.loose_threads import LooseThreads
from rocketspark.transport.server_bounds import host_of

TAGS = properties.TAGS
KEYS = properties.KEYS
KEY_SEPARATOR = " "
MESSAGE_ID = properties.UNIQUE_ID
TRANSACTION = properties.TRANSACTION
RECOVERY_S = properties.CHECK_IMMUNITY_S
DELIVERY_MS = properties.TIMER_DELIVER_MS
DELIVERY_DELAY_S = "TIMER_DELAY_SEC"
DELAY_LEVEL = properties.DELAY
RECONSUME_TIME = properties.RECONSUME_TIME
PRODUCER_GROUP = properties.PRODUCER_GROUP
MESSAGE_GROUP = properties.SHARDING_KEY
PRIORITY = properties.PRIORITY
LITE_TOPIC = properties.LITE_TOPIC
TRACE_CONTEXT = "TRACE_CONTEXT"
BORN_HOST = "__BORNHOST"
BORN_TIME_MS = "BORN_TIMESTAMP"
RECEIPT_HANDLE = "POP_CK"
DEAD_LETTER_TOPIC = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

# Names that are no user properties: refused in a send, left out of what is delivered (rule: MessageConst, 5.5.0).
RESERVED_NAMES = frozenset(
    """1ST_POP_TIME ARRIVE_TIME BORN_TIMESTAMP BUYER_ID CLUSTER CONSUME_START_TIME CORRECTION_FLAG CORRELATION_ID DELAY
    DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC DUP_INFO EXTEND_UNIQ_INFO INNER_MULTI_QUEUE_OFFSET INSTANCE_ID KEYS
    MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG MSG_REGION MSG_TYPE ORIGIN_GROUP ORIGIN_MESSAGE_ID PGROUP POP_CK
    POP_CK_OFFSET PUSH_REPLY_TIME REAL_QID REAL_TOPIC RECONSUME_TIME REPLY_TO_CLIENT RETRY_TOPIC TAGS TIMER_DELAY_LEVEL
    TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DEL_UNIQKEY TIMER_DEQUEUE_MS TIMER_ENQUEUE_MS TIMER_OUT_MS
    TIMER_ROLL_TIMES TRACE_ON TRANSFER_FLAG TRAN_MSG TRAN_PREPARED_QUEUE_OFFSET TTL UNIQ_KEY WAIT _SYS_MSG_PRIORITY_
    __BORNHOST __CRC32# __LITE_TOPIC""".split()
)

# The numbers of the types on the wire (MessageType).
WIRE_TYPES = {
    topic_attributes.NORMAL: 1,
    topic_attributes.FIFO: 2,
    topic_attributes.DELAY: 3,
    topic_attributes.TRANSACTION: 4,
    topic_attributes.LITE: 5,
    topic_attributes.PRIORITY: 6,
}


def type_of(pairs: Mapping[str, str]) -> str:
    """Return the type of a message with these properties."""
    if pairs.get(TRANSACTION, "").lower() == "true":
        return topic_attributes.TRANSACTION
    if DELAY_LEVEL in pairs or DELIVERY_MS in pairs or DELIVERY_DELAY_S in pairs or properties.TIMER_DELAY_MS in pairs:
        return topic_attributes.DELAY
    if MESSAGE_GROUP in pairs:
        return topic_attributes.FIFO
    if PRIORITY in pairs:
        return topic_attributes.PRIORITY
    if LITE_TOPIC in pairs:
        return topic_attributes.LITE
    return topic_attributes.NORMAL


def user_properties(pairs: Mapping[str, str]) -> dict[str, str]:
    """Return the user properties among a stored message's properties: those whose names do not belong to the system."""
    return {name: value for name, value in pairs.items() if name not in RESERVED_NAMES}


# What clients of the gRPC protocol compress begins so; they set no kind.
_GZIP = b"\x1f\x8b"
_ZLIB = (0, sysflags.COMPRESSION_ZLIB)
# What a body may inflate to in a turn of the loop, some ms; one may inflate to 64 MiB.
AT_ONCE_BYTES_MAX = 256 << 10
_inflating = LooseThreads("inflating")
_OPTIONAL = {
    "message_group": MESSAGE_GROUP,
    "trace_context": TRACE_CONTEXT,
    "lite_topic": LITE_TOPIC,
}
_SECONDS_MAX = 253_402_300_799


async def message_apart(record: Record, topic: str, pairs: dict[str, str], now_ms: int) -> Any:
    """Return a stored record as a Message of the gRPC protocol, made as `fill_apart` does it."""
    made = messages.Message()
    await fill_apart(made, record, topic, pairs, now_ms)
    return made


async def fill_apart(made: Any, record: Record, topic: str, pairs: dict[str, str], now_ms: int) -> None:
    """Do what `fill` does, in a thread for a body that inflates to much: others have their turn meanwhile."""
    if is_packed(record):
        try:
            body = compression.inflate(record.body, record.sys_flag, AT_ONCE_BYTES_MAX)
        except RecordError:
            await _inflating.run(partial(fill, made, record, topic, pairs, now_ms))
            return
        record = record._replace(body=body, sys_flag=record.sys_flag & ~sysflags.COMPRESSED)
    fill(made, record, topic, pairs, now_ms)


def fill(made: Any, record: Record, topic: str, pairs: dict[str, str], now_ms: int) -> None:
    """Write a stored record into an empty Message, which within an answer need not be copied there then. `topic`: the
    name that the client reads it by; `pairs`: its properties.
    """
    body, encoding = readable(record)
    made.topic.name = topic
    made.body = body
    if user := user_properties(pairs):
        made.user_properties.update(user)
    system = made.system_properties
    if tag := pairs.get(TAGS):
        system.tag = tag
    if keys := pairs.get(KEYS):
        system.keys.extend(key for key in keys.split(KEY_SEPARATOR) if key)
    system.message_id = pairs.get(MESSAGE_ID) or offset_message_id(record.store_host, record.position)
    system.body_digest.type = int(DigestType.MD5)
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = int(encoding)
    system.message_type = WIRE_TYPES[type_of(pairs)]
    _set_ms(system.born_timestamp, record.born_time_ms)
    system.born_host = pairs.get(BORN_HOST) or host_of(unpack_host(record.born_host))
    _set_ms(system.store_timestamp, record.store_time_ms)
    system.store_host = unpack_host(record.store_host)
    delay_s = whole_number(pairs.get(DELIVERY_DELAY_S))
    delivery_ms = now_ms + delay_s * 1000 if delay_s is not None else whole_number(pairs.get(DELIVERY_MS))
    if delivery_ms is not None:
        _set_ms(system.delivery_timestamp, delivery_ms)
    priority = whole_number(pairs.get(PRIORITY), high=(1 << 31) - 1)
    if priority is not None:
        system.priority = priority
    if handle := pairs.get(RECEIPT_HANDLE):
        system.receipt_handle = handle
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = min(max(record.reconsume_times, 0) + 1, (1 << 31) - 1)
    # What a message lacks is not there, not empty: clients tell these apart.
    for field, name in _OPTIONAL.items():
        if (value := pairs.get(name)) is not None:
            setattr(system, field, value)
    dead_topic, dead_id = pairs.get(DEAD_LETTER_TOPIC), pairs.get(DEAD_LETTER_MESSAGE_ID)
    if dead_topic and dead_id:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = dead_topic, dead_id


def is_packed(record: Record) -> bool:
    """Tell whether a record's body has to be inflated here, as clients of the gRPC protocol read GZIP alone."""
    if not record.sys_flag & sysflags.COMPRESSED:
        return False
    return record.body[:2] != _GZIP or record.sys_flag & sysflags.COMPRESSION_MASK not in _ZLIB


def readable(record: Record) -> tuple[bytes, Encoding]:
    """Return a record's body, inflated, and its encoding. A body that is GZIP, or does not inflate, is returned as it
    is stored, with encoding GZIP.
    """
    body = record.body
    if not is_packed(record):
        return body, Encoding.GZIP if record.sys_flag & sysflags.COMPRESSED else Encoding.IDENTITY
    try:
        return compression.inflate(body, record.sys_flag), Encoding.IDENTITY
    except RecordError:
        return body, Encoding.GZIP


def pairs_of(record: Record) -> dict[str, str]:
    """Return a record's properties as text."""
    return properties.decode(record.properties.decode("utf-8", "replace"))


def _set_ms(stamp: Any, time_ms: int) -> None:
    """Set a Timestamp, to the nearest that it may be."""
    seconds, ms = divmod(time_ms, 1000)
    stamp.seconds = max(min(seconds, _SECONDS_MAX), -62_135_596_800)
    stamp.nanos = ms * 1_000_000
