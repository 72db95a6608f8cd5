"""The messages of a broker's reply to a pop, one by one, each with its receipt handle.

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
from rocketspark.protocol import light_queues, lite_topics
from rocketspark.protocol.headers import PopLiteReply, PopReply
from rocketspark.protocol.message import batch, properties, sysflags
from rocketspark.protocol.message.compression import inflate
from rocketspark.protocol.message.record import Record, decode
from rocketspark.protocol.pop_answers import ReceiptHandle, TimesAndOffsets, lite_handle, lite_order_counts
from rocketspark.proxy.message_form import LITE_TOPIC, RECEIPT_HANDLE, pairs_of

log = LimitedLog("rocketspark.proxy")

_INNER = sysflags.INNER_BATCH | sysflags.NEED_UNWRAP


class Popped(NamedTuple):
    """One message of a reply to a pop. `pairs`: its properties, among them its receipt handle; `record`: as stored,
    with the number of its attempts; `lite_topic`: the lite topic that it was popped from.
    """

    record: Record
    pairs: dict[str, str]
    handle: ReceiptHandle
    lite_topic: str = ""


def popped(answer: PopReply, body: bytes, broker_name: str, *, whole: bool = False) -> Iterator[Popped]:
    """Yield the messages of a broker's reply to a pop; `whole`: a batch, which has one handle, as one. Raises
    FrameError if the reply does not say clearly which queues they are of.
    """
    told = TimesAndOffsets(answer, broker_name)
    for record in _records(body, whole):
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
        yield Popped(record, pairs, handle)


def popped_lite(answer: PopLiteReply, body: bytes, broker_name: str) -> Iterator[Popped]:
    """Yield the messages of a broker's reply to a pop of lite topics."""
    records = list(_records(body, whole=False))
    for record, count in zip(records, lite_order_counts(answer.order_counts, len(records)), strict=True):
        pairs = pairs_of(record)
        lite_topic = pairs.get(LITE_TOPIC, "")
        topic = record.topic.decode("utf-8", "replace")
        queue_offset = light_queues.offset_in(lite_topics.queue_name(topic, lite_topic), pairs)
        if queue_offset is None:
            log.warning("broker %s popped a message that tells no offset in its lite topic: left out", broker_name)
            continue
        handle = lite_handle(answer, broker_name, queue_offset, record.position)
        pairs[RECEIPT_HANDLE] = handle.encode()
        record = record._replace(queue_offset=queue_offset, reconsume_times=count)
        yield Popped(record, pairs, handle, lite_topic)


def _records(body: bytes, whole: bool) -> Iterator[Record]:
    """Yield the records that can be read; those of a batch one by one, unless it is `whole`."""
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
        if record.sys_flag & _INNER == _INNER and not whole:
            try:
                yield from _inner(record)
            except RecordError as e:
                log.warning("a batch at offset %d cannot be read: %s", record.queue_offset, e)
        else:
            yield record


def _inner(record: Record) -> Iterator[Record]:
    """Return the messages of a batch that is stored as one record. Raises RecordError before the first of them."""
    given = pairs_of(record).get(properties.INNER_BASE)
    base = record.queue_offset if given is None else whole_number(given)
    if base is None:
        raise RecordError(f"{properties.INNER_BASE} is no number")
    rest = record.sys_flag & ~(_INNER | sysflags.COMPRESSED)
    body = record.body
    if record.sys_flag & sysflags.COMPRESSED:
        body = inflate(body, record.sys_flag)
    return (
        record._replace(
            queue_offset=base + i,
            flag=inner.flag,
            body=inner.body,
            properties=properties.of_inner(inner.properties, record.properties),
            sys_flag=rest,
        )
        for i, inner in enumerate(batch.decode(body))
    )
