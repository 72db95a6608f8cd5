"""A stored message as clients of the gRPC protocol get it.

Rule: GrpcConverter, 5.5.0, except that a body which its producer's client compressed arrives readable.
"""

from __future__ import annotations

import hashlib
from typing import Any

from rocketspark.errors import RecordError
from rocketspark.model.text import whole_number
from rocketspark.protocol.message import compression, properties, sysflags
from rocketspark.protocol.message.message_ids import offset_message_id, unpack_host
from rocketspark.protocol.message.record import Record
from rocketspark.proxy import messages as names
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.codes import DigestType, Encoding

# What clients of the gRPC protocol compress begins so; they set no kind.
_GZIP = b"\x1f\x8b"
_ZLIB = (0, sysflags.COMPRESSION_ZLIB)
_OPTIONAL = {
    "message_group": names.MESSAGE_GROUP,
    "trace_context": names.TRACE_CONTEXT,
    "lite_topic": names.LITE_TOPIC,
}
_SECONDS_MAX = 253_402_300_799


def message_of(record: Record, topic: str, pairs: dict[str, str], now_ms: int) -> Any:
    """Return the Message of a record with these properties; `topic`: the one that it is shown under."""
    made = messages.Message()
    fill(made, record, topic, pairs, now_ms)
    return made


def fill(made: Any, record: Record, topic: str, pairs: dict[str, str], now_ms: int) -> None:
    """Fill an empty Message, as `message_of`: one within an answer is not copied there then."""
    body, encoding = readable(record)
    made.topic.name = topic
    made.body = body
    if user := names.user_properties(pairs):
        made.user_properties.update(user)
    system = made.system_properties
    if tag := pairs.get(names.TAGS):
        system.tag = tag
    if keys := pairs.get(names.KEYS):
        system.keys.extend(key for key in keys.split(names.KEY_SEPARATOR) if key)
    system.message_id = pairs.get(names.MESSAGE_ID) or offset_message_id(record.store_host, record.position)
    system.body_digest.type = int(DigestType.MD5)
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = int(encoding)
    system.message_type = names.WIRE_TYPES[names.type_of(pairs)]
    _set_ms(system.born_timestamp, record.born_time_ms)
    system.born_host = pairs.get(names.BORN_HOST) or unpack_host(record.born_host).rpartition(":")[0].strip("[]")
    _set_ms(system.store_timestamp, record.store_time_ms)
    system.store_host = unpack_host(record.store_host)
    delay_s = whole_number(pairs.get(names.DELIVERY_DELAY_S))
    delivery_ms = now_ms + delay_s * 1000 if delay_s is not None else whole_number(pairs.get(names.DELIVERY_MS))
    if delivery_ms is not None:
        _set_ms(system.delivery_timestamp, delivery_ms)
    priority = whole_number(pairs.get(names.PRIORITY), high=(1 << 31) - 1)
    if priority is not None:
        system.priority = priority
    if handle := pairs.get(names.RECEIPT_HANDLE):
        system.receipt_handle = handle
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = min(max(record.reconsume_times, 0) + 1, (1 << 31) - 1)
    # What a message lacks is not there, not empty: clients tell these apart.
    for field, name in _OPTIONAL.items():
        if (value := pairs.get(name)) is not None:
            setattr(system, field, value)
    dead_topic, dead_id = pairs.get(names.DEAD_LETTER_TOPIC), pairs.get(names.DEAD_LETTER_MESSAGE_ID)
    if dead_topic and dead_id:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = dead_topic, dead_id


def readable(record: Record) -> tuple[bytes, Encoding]:
    """Return a record's body inflated; as it is stored, called GZIP, if it is that or does not inflate."""
    body = record.body
    if not record.sys_flag & sysflags.COMPRESSED:
        return body, Encoding.IDENTITY
    if body[:2] == _GZIP and record.sys_flag & sysflags.COMPRESSION_MASK in _ZLIB:
        return body, Encoding.GZIP
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
