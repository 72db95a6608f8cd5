"""Records decoded one by one, 20 us each, where there is no quick way. Rule: rows equal the message decoder's."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from rocketspark.arrow.decode_request import DecodeRequest
from rocketspark.arrow.message_columns import COLUMNS, schema_of, time_us
from rocketspark.errors import RecordError
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.message import record, sysflags
from rocketspark.protocol.message.record_layout import AT, Buffer, only, sys_flag_of
from rocketspark.protocol.message.record_places import INNER

_INT = struct.Struct(">i")
_SIZE = only("size").unpack_from


class _Row(NamedTuple):
    message: ReceivedMessage
    body: bytes | None
    sys_flag: int


def slow_batches(buffer: Buffer, starts: Sequence[int], asked: DecodeRequest) -> Iterator[pa.RecordBatch]:
    """Decode the records that begin at the positions `starts` of a buffer, one by one, and yield at least one batch of
    rows: a new batch after each `inflated_bytes_max` of bodies.
    """
    held: list[_Row] = []
    size = 0
    made = False
    for row in _within(buffer, starts, asked):
        if not asked.wanted.takes(row.message):
            continue
        length = len(row.body or b"")
        if held and size + length > asked.inflated_bytes_max:
            yield _batch(held, asked.columns)
            held, size, made = [], 0, True
        held.append(row)
        size += length
    if held or not made:
        yield _batch(held, asked.columns)


def batch_of(messages: Sequence[ReceivedMessage], columns: Sequence[str]) -> pa.RecordBatch:
    """Return decoded messages as one batch of rows with these columns."""
    return _batch([_Row(message, message.body, message.sys_flag) for message in messages], columns)


def _within(buffer: Buffer, starts: Sequence[int], asked: DecodeRequest) -> Iterator[_Row]:
    """Return the rows of the range; reports the offsets missing in it."""
    top = asked.offset_first - 1
    for row in _rows(buffer, starts, asked):
        offset = row.message.queue_offset
        if not asked.offset_first <= offset < asked.offset_end or (asked.ascending and offset <= top):
            continue
        if asked.position_end is not None and row.message.physical_offset >= asked.position_end:
            continue
        if asked.whole and offset > top + 1:
            asked.findings.missing(top + 1, offset)
        top = max(top, offset)
        yield row
    if asked.whole and top + 1 < asked.offset_end:
        asked.findings.missing(top + 1, asked.offset_end)


def _rows(buffer: Buffer, starts: Sequence[int], asked: DecodeRequest) -> Iterator[_Row]:
    view = memoryview(buffer)
    for start in starts:
        stored = view[start : start + _SIZE(view, start)[0]]
        try:
            messages = record.decode_messages(stored, asked.broker)
        except RecordError as e:
            yield from _spoiled(stored, e, asked)
        else:
            yield from (_Row(message, message.body, message.sys_flag) for message in messages)


def _spoiled(stored: memoryview, error: RecordError, asked: DecodeRequest) -> Iterator[_Row]:
    """Yield the rows of a record whose body cannot be read. Raises RecordError if more of it is broken."""
    flags = sys_flag_of(stored)
    plain = bytearray(stored)
    # As if its body were meant as it is: neither inflated, nor compared with its CRC, nor cut into messages.
    _INT.pack_into(plain, AT["sys_flag"], flags & ~(sysflags.COMPRESSED | INNER))
    _INT.pack_into(plain, AT["crc"], 0)
    try:
        [message] = record.decode_messages(bytes(plain), asked.broker)
    except RecordError:
        raise error from None
    offset = message.queue_offset
    if flags & INNER == INNER:
        asked.findings.spoiled(offset, f"a batch of messages: {error}", None)
        return
    if asked.offset_first <= offset < asked.offset_end:
        yield _Row(message, asked.findings.spoiled(offset, str(error), message.body), flags)


def _batch(rows: list[_Row], columns: Sequence[str]) -> pa.RecordBatch:
    arrays = []
    for name in columns:
        if name == "body":
            values: list[object] = [row.body for row in rows]
        elif name == "sysFlag":
            values = [row.sys_flag for row in rows]
        else:
            values = [VALUES[name](row.message) for row in rows]
        arrays.append(pa.array(values, COLUMNS[name]))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(tuple(columns)))


VALUES: dict[str, Callable[[ReceivedMessage], object]] = {
    "topic": lambda m: m.topic,
    "broker": lambda m: m.broker_name,
    "queueId": lambda m: m.queue_id,
    "queueOffset": lambda m: m.queue_offset,
    "messageId": lambda m: m.message_id,
    "tag": lambda m: m.tag,
    "keys": lambda m: list(m.keys),
    "body": lambda m: m.body,
    "properties": lambda m: list(m.properties.items()),
    "bornTime": lambda m: time_us(m.born_time_ms),
    "storeTime": lambda m: time_us(m.store_time_ms),
    "bornHost": lambda m: m.born_host,
    "storeHost": lambda m: m.store_host,
    "reconsumeTimes": lambda m: m.reconsume_times,
    "flag": lambda m: m.flag,
    "sysFlag": lambda m: m.sys_flag,
    "offsetMessageId": lambda m: m.offset_message_id,
    "logPosition": lambda m: m.physical_offset,
}
