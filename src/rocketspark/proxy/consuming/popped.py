"""What a broker gave out in one pop: its records, each with its receipt handle. Pure.

Rule: a record that cannot be read harms itself alone: it is left out, and comes again until it is a dead letter.
Handles are those of Apache's proxy: nine fields, the last one the place in the log (ConsumerProcessor, 5.5.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from rocketspark.errors import RecordError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown, whole_number
from rocketspark.protocol.headers import PopReply
from rocketspark.protocol.message import batch, properties, sysflags
from rocketspark.protocol.message.compression import inflate
from rocketspark.protocol.message.record import Record, decode
from rocketspark.protocol.pop_answers import TimesAndOffsets
from rocketspark.protocol.receipt_handle import ReceiptHandle
from rocketspark.proxy.message_form import pairs_of
from rocketspark.proxy.messages import RECEIPT_HANDLE

log = LimitedLog("rocketspark.proxy")

_INNER = sysflags.INNER_BATCH | sysflags.NEED_UNWRAP


class Popped(NamedTuple):
    """One message. `pairs`: its properties, its handle among them; `record` counts its attempts."""

    record: Record
    pairs: dict[str, str]
    handle: ReceiptHandle


def popped(answer: PopReply, body: bytes, broker_name: str) -> list[Popped]:
    """Return the messages of a reply to a pop. Raises FrameError for a reply that says nothing clear of its queues."""
    told = TimesAndOffsets(answer, broker_name)
    found = []
    for record in _records(body):
        pairs = pairs_of(record)
        handle = told.own_handle(pairs.get(RECEIPT_HANDLE))
        if handle is None:
            topic = record.topic.decode("utf-8", "replace")
            handle = told.handle(topic, record.queue_id, record.queue_offset, record.position)
        elif handle.physical_offset != record.position:
            handle = msgspec.structs.replace(handle, physical_offset=record.position)
        if handle is None:
            where = f"offset {record.queue_offset} of queue {record.queue_id}"
            log.warning("broker %s popped %s and tells no place of it: left out", broker_name, where)
            continue
        if (count := told.attempts(handle)) > 0:
            record = record._replace(reconsume_times=count)
        pairs[RECEIPT_HANDLE] = handle.encode()
        found.append(Popped(record, pairs, handle))
    return found


def _records(body: bytes) -> Iterator[Record]:
    """Yield the records that can be read; those of a batch one by one."""
    at, size = 0, len(body)
    while at < size:
        try:
            record = decode(body, at)
        except RecordError as e:
            try:
                spoiled = decode(body, at, check_crc=False)
            except RecordError:
                log.warning("the rest of what was popped cannot be read, %d bytes: %s", size - at, e)
                return
            place = f"offset {spoiled.queue_offset} of queue {spoiled.queue_id}"
            log.warning(
                "%s of topic %s is not delivered: %s", place, shown(spoiled.topic.decode("utf-8", "replace")), e
            )
            at += spoiled.size
            continue
        at += record.size
        if record.sys_flag & _INNER == _INNER:
            try:
                yield from _inner(record)
            except RecordError as e:
                log.warning("a batch at offset %d cannot be read: %s", record.queue_offset, e)
        else:
            yield record


def _inner(record: Record) -> list[Record]:
    """Return the messages of a batch that is stored as one record."""
    given = pairs_of(record).get(properties.INNER_BASE)
    base = record.queue_offset if given is None else whole_number(given)
    if base is None:
        raise RecordError(f"{properties.INNER_BASE} is no number")
    rest = record.sys_flag & ~(_INNER | sysflags.COMPRESSED)
    body = record.body
    if record.sys_flag & sysflags.COMPRESSED:
        body = inflate(body, record.sys_flag)
    return [
        record._replace(
            queue_offset=base + i,
            flag=inner.flag,
            body=inner.body,
            properties=properties.of_inner(inner.properties, record.properties),
            sys_flag=rest,
        )
        for i, inner in enumerate(batch.decode(body))
    ]
