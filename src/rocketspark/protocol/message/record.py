"""The log record: what is stored, pulled, viewed and replicated, byte for byte; its layout: `record_layout`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from rocketspark.errors import RecordError
from rocketspark.model import ReceivedMessage
from rocketspark.model.message import LATE, MADE, UNREAD, make
from rocketspark.model.text import whole_number
from rocketspark.protocol.message import batch, checksums, compression, properties, sysflags
from rocketspark.protocol.message.message_ids import offset_message_id, unpack_host
from rocketspark.protocol.message.record_layout import (
    AFTER_BODY_BYTES_MIN,
    AT,
    CRC_MASK,
    FIXED,
    FIXED_BYTES_V4,
    HOST_FLAGS,
    HOST_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD_BYTES_MIN,
    TOPIC_BYTES_MAX_V1,
    Buffer,
    head_type,
    host_flags,
    only,
    properties_field,
    topic_field,
)
from rocketspark.protocol.message.record_places import at as numbers_at
from rocketspark.protocol.message.record_places import find_records

_SIZE = only("size").unpack_from
_SYS_FLAG = only("sys_flag").unpack_from
_SIZES = only("size", "body_bytes").unpack_from


class Record(NamedTuple):
    """Every field of a record as stored; hosts packed (ip and i4 port), properties as stored bytes."""

    size: int
    version: int
    crc: int
    queue_id: int
    flag: int
    queue_offset: int
    position: int
    sys_flag: int
    born_time_ms: int
    born_host: bytes
    store_time_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_position: int
    body: bytes
    topic: bytes
    properties: bytes


def after_body(topic: bytes, properties: bytes) -> bytes:
    """Return the bytes after the body of a record."""
    return topic_field(topic) + properties_field(properties)


def encode(
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    position: int,
    body: bytes,
    properties: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    born_time_ms: int = 0,
    born_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00",
    store_time_ms: int = 0,
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00",
    reconsume_times: int = 0,
    prepared_position: int = 0,
) -> bytes:
    """Return one whole record as bytes. The host bits of `sys_flag` are set from the hosts' lengths."""
    hosts = host_flags(born_host, store_host)
    sys_flag = sys_flag & ~HOST_FLAGS | hosts
    layout, rest = FIXED[hosts], topic_field(topic) + properties_field(properties)
    fixed = layout.pack(
        layout.size + len(body) + len(rest),
        MAGIC_V1 if len(topic) <= TOPIC_BYTES_MAX_V1 else MAGIC_V2,
        checksums.crc32(body) & CRC_MASK,
        queue_id,
        flag,
        queue_offset,
        position,
        sys_flag,
        born_time_ms,
        born_host,
        store_time_ms,
        store_host,
        reconsume_times,
        prepared_position,
        len(body),
    )
    return b"".join((fixed, body, rest))


def decode(buffer: Buffer, at: int = 0, *, check_crc: bool = True) -> Record:
    """Return the record at byte `at`. Raises RecordError naming what is wrong: size, magic, lengths or CRC."""
    view = memoryview(buffer)
    if len(view) - at < RECORD_BYTES_MIN:
        raise RecordError(f"record at {at} is cut off: {len(view) - at} bytes left")
    layout = FIXED[_SYS_FLAG(view, at)[0] & HOST_FLAGS]
    if len(view) - at < layout.size:
        raise RecordError(f"record at {at} is cut off: {len(view) - at} bytes left")
    (
        size, magic, crc, queue_id, flag, queue_offset, position, sys_flag, born_time_ms, born_host, store_time_ms,
        store_host, reconsume_times, prepared_position, body_length,
    ) = layout.unpack_from(view, at)  # fmt: skip
    if magic == MAGIC_V1:
        topic_length_bytes = 1
    elif magic == MAGIC_V2:
        topic_length_bytes = 2
    else:
        raise RecordError(f"record at {at} has magic {magic & 0xFFFFFFFF:#x}")
    if not RECORD_BYTES_MIN <= size <= len(view) - at:
        raise RecordError(f"record at {at} states {size} bytes, {len(view) - at} are left")
    end = at + size
    body_at = at + layout.size
    topic_at = body_at + body_length + topic_length_bytes
    if body_length < 0 or topic_at + 2 > end:
        raise RecordError(f"record at {at} states a body of {body_length} bytes in {size}")
    body = bytes(view[body_at : body_at + body_length])
    topic_length = int.from_bytes(view[body_at + body_length : topic_at], "big")
    properties_at = topic_at + topic_length + 2
    if properties_at > end:
        raise RecordError(f"record at {at} states a topic of {topic_length} bytes, beyond its end")
    properties_length = int.from_bytes(view[properties_at - 2 : properties_at], "big")
    if properties_at + properties_length != end:
        raise RecordError(f"record at {at}: its parts make {properties_at + properties_length - at} bytes, not {size}")
    # A stored CRC of 0 is not checked (rule: CommitLog, 5.x).
    if check_crc and crc and checksums.crc32(body) & CRC_MASK != crc:
        raise RecordError(f"record at {at}: the body's CRC is not {crc}")
    topic, stored = bytes(view[topic_at : topic_at + topic_length]), bytes(view[properties_at:end])
    return Record(
        size, topic_length_bytes, crc, queue_id, flag, queue_offset, position, sys_flag, born_time_ms, born_host,
        store_time_ms, store_host, reconsume_times, prepared_position, body, topic, stored,
    )  # fmt: skip


def to_message(record: Record, broker_name: str = "") -> ReceivedMessage:
    """Return the message an application sees: body inflated, tag, keys and ids taken from the properties."""
    pairs = properties.decode(record.properties.decode("utf-8", "replace"))
    body = record.body
    if record.sys_flag & sysflags.COMPRESSED:
        body = compression.inflate(body, record.sys_flag)
    offset_id = offset_message_id(record.store_host, record.position)
    keys = pairs.get(properties.KEYS)
    return ReceivedMessage(
        topic=record.topic.decode("utf-8", "replace"),
        body=body,
        tag=pairs.get(properties.TAGS),
        keys=tuple(keys.split()) if keys else (),
        properties=pairs,
        broker_name=broker_name,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.position,
        stored_bytes=record.size,
        message_id=pairs.get(properties.UNIQUE_ID, offset_id),
        offset_message_id=offset_id,
        born_time_ms=record.born_time_ms,
        born_host=unpack_host(record.born_host),
        store_time_ms=record.store_time_ms,
        store_host=unpack_host(record.store_host),
        reconsume_times=record.reconsume_times,
        prepared_transaction_position=record.prepared_position,
        flag=record.flag,
        sys_flag=record.sys_flag,
    )


def decode_all(buffer: Buffer, *, check_crc: bool = True) -> Iterator[Record]:
    """Yield every record of a pull reply, one after another; raises RecordError at the first that is not whole."""
    view = memoryview(buffer)
    at = 0
    while at < len(view):
        record = decode(view, at, check_crc=check_crc)
        at += record.size
        yield record


# What decode_messages looks at itself.
_PLAIN = only("size", "magic", "crc", "queue_offset", "position", "sys_flag", "body_bytes")
# Flags of records that decode_messages leaves to the general way.
_NOT_PLAIN = HOST_FLAGS | sysflags.COMPRESSED | sysflags.INNER_BATCH | sysflags.NEED_UNWRAP
_HEADS = head_type("size", "magic", "crc", "queue_offset", "position", "sys_flag", "body_bytes")
_HEAD_BYTES = np.dtype((np.void, _HEADS.itemsize))
# Of messages: their offsets in the queue, and their sizes as stored.
Places = tuple[list[int], list[int]]
# A reply of fewer records, as its first one's size tells, is read one by one: arrays take 40 us whatever they hold.
MANY = 32
# So many records next to one another, of so many bytes together at most, are kept in one piece for the fields that are
# read late: a message that is kept keeps no more than that.
_KEPT_COUNT, _KEPT_BYTES = 16, 4096


# Behind the fields in `_rest` of a plain record's message: the broker's name, the fixed part, properties as stored.
_BROKER, _FIXED, _STORED = MADE + 1, MADE + 2, MADE + 3
_Rest = list[Any]


def _text(name: str) -> Callable[[_Rest], str | None]:
    found = properties.finder(name)

    def text(rest: _Rest) -> str | None:
        return None if (pair := found(rest[_STORED])) is None else pair[1].decode("utf-8", "replace")

    return text


def _number(name: str) -> Callable[[_Rest], int]:
    unpack = only(name).unpack_from
    return lambda rest: unpack(rest[_FIXED])[0]


def _packed(name: str) -> Callable[[_Rest], bytes]:
    begin, end = AT[name], AT[name] + HOST_V4_BYTES
    return lambda rest: rest[_FIXED][begin:end]


_keys, _unique_id, _position = _text(properties.KEYS), _text(properties.UNIQUE_ID), _number("position")
_born_host, _store_host = _packed("born_host"), _packed("store_host")


def _offset_id(rest: _Rest) -> str:
    return offset_message_id(_store_host(rest), _position(rest))


_BY_NAME: dict[str, Callable[[_Rest], Any]] = {
    "broker_name": itemgetter(_BROKER),
    "queue_id": _number("queue_id"),
    "flag": _number("flag"),
    "physical_offset": _position,
    "sys_flag": _number("sys_flag"),
    "born_time_ms": _number("born_time_ms"),
    "born_host": lambda rest: unpack_host(_born_host(rest)),
    "store_time_ms": _number("store_time_ms"),
    "store_host": lambda rest: unpack_host(_store_host(rest)),
    "reconsume_times": _number("reconsume_times"),
    "prepared_transaction_position": _number("prepared_position"),
    "properties": lambda rest: properties.decode(rest[_STORED].decode("utf-8", "replace")),
    # The other properties are not decoded for these.
    "tag": _text(properties.TAGS),
    "keys": lambda rest: tuple((_keys(rest) or "").split()),
    "message_id": lambda rest: _unique_id(rest) or _offset_id(rest),
    "offset_message_id": _offset_id,
}


def _none(rest: _Rest) -> None:
    """Whoever knows of one sets it."""


_LATE = [_BY_NAME.get(name, _none) for name in LATE]


def _made(rest: _Rest, at: int) -> Any:
    rest[at] = value = _LATE[at](rest)
    return value


_UNREAD = (*repeat(UNREAD, len(LATE)), _made)


def _late(waiting: tuple[Any, str, bytes, bytes], at: int) -> _Rest:
    """Return the fields of a plain record that are left until they are first read."""
    return [*_UNREAD, *waiting[1:]]


def _late_in_piece(waiting: tuple[Any, str, bytes], at: int) -> _Rest:
    """As `_late`, of some records next to one another, of which the message's begins at `at`."""
    _, broker_name, piece = waiting
    size, body_bytes = _SIZES(piece, at)
    body_at = at + FIXED_BYTES_V4
    body_end = body_at + body_bytes
    properties_at = body_end + piece[body_end] + AFTER_BODY_BYTES_MIN
    # In copies: a message that is kept keeps no others.
    return [*_UNREAD, broker_name, piece[at:body_at], piece[properties_at : at + size]]


def _many(data: bytes, broker_name: str) -> tuple[list[ReceivedMessage], Places] | None:
    """Return the messages of plain records of one topic, 0.4 us each; None if one of them may be anything else."""
    try:
        starts = find_records(data, (0, len(data)))
    except RecordError:
        return None
    octets = np.frombuffer(data, np.uint8)
    # As bytes: to gather fields one by one costs six times as much.
    heads = numbers_at(octets, _HEAD_BYTES)[starts].view(_HEADS)
    sizes, crcs = heads["size"], heads["crc"]
    ends, bodies_at = starts + sizes, starts + FIXED_BYTES_V4
    bodies_end = bodies_at + heads["body_bytes"]
    if (
        (heads["magic"] != MAGIC_V1).any()
        or (heads["sys_flag"] & _NOT_PLAIN).any()
        or (heads["position"] < 0).any()
        or (bodies_end < bodies_at).any()
        or (bodies_end + AFTER_BODY_BYTES_MIN > ends).any()
    ):
        return None
    topic_bytes = octets[bodies_end]
    lengths_at = bodies_end + topic_bytes + 1
    lengths_end = lengths_at + PROPERTIES_LENGTH_BYTES
    if (
        (topic_bytes != topic_bytes[0]).any()
        or (lengths_end > ends).any()
        or (lengths_end + numbers_at(octets, ">u2")[lengths_at] != ends).any()
    ):
        return None
    first = data[bodies_end[0] : lengths_at[0]]
    if numbers_at(octets, f"V{len(first)}")[bodies_end].tobytes() != first * len(starts):
        return None
    bodies = [data[begin:end] for begin, end in zip(bodies_at.tolist(), bodies_end.tolist(), strict=True)]
    found = np.fromiter(map(checksums.crc32, bodies), np.int64, len(bodies)) & CRC_MASK
    if ((found != crcs) & (crcs != 0)).any():
        return None
    together = max(1, min(_KEPT_COUNT, _KEPT_BYTES // int(sizes.max())))
    cuts = [*starts[::together].tolist(), len(data)]
    pieces: list[tuple[Any, ...]]
    if together > 1:
        pieces = [(_late_in_piece, broker_name, data[cuts[i] : cuts[i + 1]]) for i in range(len(cuts) - 1)]
    else:
        # A body is long: it is not kept a second time.
        places_of = (starts.tolist(), bodies_at.tolist(), lengths_end.tolist(), ends.tolist())
        pieces = [(_late, broker_name, data[a:b], data[c:d]) for a, b, c, d in zip(*places_of, strict=True)]
    places = (starts - np.repeat(starts[::together], together)[: len(starts)]).tolist()
    topic = first[1:].decode("utf-8", "replace")
    late = chain.from_iterable(repeat(piece, together) for piece in pieces)
    offsets, stored_bytes = heads["queue_offset"].tolist(), sizes.tolist()
    messages = list(map(make, repeat(ReceivedMessage), repeat(topic), bodies, offsets, stored_bytes, late, places))
    return messages, (offsets, stored_bytes)


class Inflation:
    """How far `decode_messages` has come in a pull's reply, whose messages are decoded in pieces so that inflated
    bodies stay within a bound.

    A piece begins at byte `at`, and sets it to where it ended: at the end of the reply, or before a record once the
    bodies had inflated to `bytes_max` or more. `inflated`: the bytes that the bodies of compressed records inflated to.
    A message whose body does not inflate, or with `check_crc` false does not match its CRC, keeps its body as stored,
    has a `body_error`, and is in `spoiled`. `places`: of all messages, if they are known at once. With `to_end` there
    is one piece, and compressed bodies beyond `bytes_max` count as spoiled too.
    """

    __slots__ = ("at", "bytes_max", "check_crc", "inflated", "places", "spoiled", "to_end")

    def __init__(self, bytes_max: int, *, check_crc: bool = True, to_end: bool = False) -> None:
        self.at = 0
        self.bytes_max = bytes_max
        self.check_crc = check_crc
        self.to_end = to_end
        self.inflated = 0
        self.spoiled: list[ReceivedMessage] = []
        self.places: Places | None = None

    @property
    def is_over(self) -> bool:
        """True if bodies inflated to the limit."""
        return self.inflated >= self.bytes_max

    def messages(self, data: bytes, broker_name: str) -> list[ReceivedMessage]:
        """Return the messages of the record at byte `at`. Raises RecordError if the record is not whole."""
        why: RecordError | None = None
        try:
            record = decode(data, self.at)
        except RecordError as e:
            if self.check_crc:
                raise
            record, why = decode(data, self.at, check_crc=False), e
        if why is None and self.is_over and record.sys_flag & sysflags.COMPRESSED:
            why = RecordError(f"it is not inflated: bodies before it make {self.inflated} bytes, ask for fewer at once")
        if why is None:
            try:
                messages = _messages_of(record, broker_name)
            except RecordError as e:
                why = e
        if why is not None:
            kept = record.sys_flag
            messages = [to_message(record._replace(sys_flag=kept & ~sysflags.COMPRESSED), broker_name)]
            messages[0].sys_flag = kept
            messages[0].body_error = str(why)
            self.spoiled += messages
        elif record.sys_flag & sysflags.COMPRESSED:
            self.inflated += sum(len(message.body) for message in messages)
        self.at += record.size
        return messages


def decode_messages(buffer: Buffer, broker_name: str = "", inflation: Inflation | None = None) -> list[ReceivedMessage]:
    """Return the messages of a pull reply, inner batches unwrapped; with `inflation` as it says.

    An inner message takes place, hosts and times from its batch record and counts on from its queue offset.
    Raises RecordError at the first record that is not whole.
    """
    # Plain records are read in this one loop, most fields only when they are looked at; whatever is not plain, or looks
    # wrong, goes through `decode`, which knows every case and every error.
    data = buffer if type(buffer) is bytes else bytes(buffer)
    messages: list[ReceivedMessage] = []
    append, unpack, crc32 = messages.append, _PLAIN.unpack_from, checksums.crc32
    # In variables of this function: each costs a twentieth of a message less.
    kind, v1, not_plain, mask, late = ReceivedMessage, MAGIC_V1, _NOT_PLAIN, CRC_MASK, _late
    topic_field, topic = b"", ""
    at, total, fixed = inflation.at if inflation is not None else 0, len(data), FIXED_BYTES_V4
    last = total - RECORD_BYTES_MIN
    if not at and total >= MANY * RECORD_BYTES_MIN and total >= MANY * _SIZE(data)[0]:
        many = None if _SYS_FLAG(data)[0] & not_plain else _many(data, broker_name)
        if many is not None:
            messages, places = many
            if inflation is not None:
                inflation.at, inflation.places = total, places
            return messages
    while at < total:
        if at < last:
            size, magic, crc, queue_offset, position, sys_flag, body_length = unpack(data, at)
            end, body_at = at + size, at + fixed
            body_end = body_at + body_length
            if (
                magic == v1
                and not sys_flag & not_plain
                and position >= 0
                and body_at <= body_end <= end - AFTER_BODY_BYTES_MIN
                and end <= total
            ):
                properties_at = body_end + data[body_end] + AFTER_BODY_BYTES_MIN
                body = data[body_at:body_end]
                if (
                    properties_at <= end
                    and properties_at + (data[properties_at - 2] << 8 | data[properties_at - 1]) == end
                    and (not crc or crc32(body) & mask == crc)
                ):
                    if data[body_end : properties_at - 2] != topic_field:
                        topic_field = data[body_end : properties_at - 2]
                        topic = topic_field[1:].decode("utf-8", "replace")
                    rest = late, broker_name, data[at:body_at], data[properties_at:end]
                    append(make(kind, topic, body, queue_offset, size, rest, 0))
                    at = end
                    continue
        if inflation is None:
            record = decode(data, at)
            at += record.size
            messages += _messages_of(record, broker_name)
        else:
            inflation.at = at
            if inflation.is_over and not inflation.to_end:
                return messages
            messages += inflation.messages(data, broker_name)
            at = inflation.at
    if inflation is not None:
        inflation.at = at
    return messages


def _messages_of(record: Record, broker_name: str) -> list[ReceivedMessage]:
    message = to_message(record, broker_name)
    if record.sys_flag & sysflags.INNER_BATCH and record.sys_flag & sysflags.NEED_UNWRAP:
        return list(_unwrap(record, message))
    return [message]


def _unwrap(record: Record, outer: ReceivedMessage) -> Iterator[ReceivedMessage]:
    given = outer.properties.get(properties.INNER_BASE)
    base = record.queue_offset if given is None else whole_number(given)
    if base is None:
        raise RecordError(f"inner batch at position {record.position}: {properties.INNER_BASE} is no number")
    for i, inner in enumerate(batch.decode(outer.body)):
        yield to_message(
            record._replace(
                queue_offset=base + i,
                flag=inner.flag,
                body=inner.body,
                properties=properties.of_inner(inner.properties, record.properties),
                sys_flag=record.sys_flag & ~(sysflags.INNER_BATCH | sysflags.NEED_UNWRAP | sysflags.COMPRESSED),
            ),
            outer.broker_name,
        )
