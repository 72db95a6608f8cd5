"""What a request needs that names a stored message by its place in the log: the message's own topic too.

RocketMQ asks for what the request says of it alone, so a user of any group could have every message sent back to him.
Rule: a record counts only where its queue says so; a body may hold what looks like a record.
"""

from __future__ import annotations

from collections.abc import Iterator

from rocketspark.access.request_contexts import Context, Ext, NotReadable, of_others, topic_context
from rocketspark.access.resources import GET, PUB, SUB, UPDATE
from rocketspark.broker import topic_names
from rocketspark.errors import RecordError, UsageError
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode as Code
from rocketspark.protocol.headers import (
    ConsumeDirectlyHeader,
    EndTransactionHeader,
    SendBackHeader,
    ViewMessageHeader,
)
from rocketspark.protocol.headers.admin import ResumeCheckHeader
from rocketspark.protocol.message import properties, record
from rocketspark.protocol.message.message_ids import parse_offset_message_id
from rocketspark.store.store import Store

_ACTIONS: dict[int, str] = {
    Code.CONSUMER_SEND_MSG_BACK: SUB,
    Code.CONSUME_MESSAGE_DIRECTLY: SUB,
    Code.VIEW_MESSAGE_BY_ID: GET,
    Code.END_TRANSACTION: PUB,
    Code.RESUME_CHECK_HALF_MESSAGE: UPDATE,
}
# They are about half messages, whose topic stands among their properties.
_OF_HALVES = (Code.END_TRANSACTION, Code.RESUME_CHECK_HALF_MESSAGE)
_HALF_TOPICS = (topic_names.HALF_TOPIC, topic_names.CHECK_MAX_TOPIC)


class StoredMessages:
    """The messages of one broker's log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def contexts(self, code: int, ext: Ext) -> Iterator[Context]:
        """Return what the message needs that a request names; nothing where there is none.

        Raises NotReadable, or FrameError for a header that the handler would not take either.
        """
        position = _position(code, ext)
        found = None if position is None else self._store.record_at(position)
        if found is None:
            return
        try:
            stored = record.decode(found, check_crc=False)
        except RecordError:
            raise NotReadable("no record") from None
        topic = stored.topic.decode("utf-8", "replace")
        if not self._is_queued(topic, stored):
            raise NotReadable("no record of a queue")
        if code in _OF_HALVES and topic in _HALF_TOPICS:
            real = properties.find(stored.properties, properties.REAL_TOPIC.encode())
            topic = (real or b"").decode("utf-8", "replace")
        needed = topic_context(topic, _ACTIONS[code])
        yield needed
        yield from of_others(needed)

    def _is_queued(self, topic: str, stored: record.Record) -> bool:
        low, high = self._store.stored_range(topic, stored.queue_id)
        if not low <= stored.queue_offset < high:
            return False
        units = self._store.queue_units(topic, stored.queue_id, stored.queue_offset, 1)
        return any(position == stored.position for position, _, _ in units)


def _position(code: int, ext: Ext) -> int | None:
    """Return the place that the handler will look at, read as it reads it."""
    fields = dict(ext)
    if code == Code.CONSUMER_SEND_MSG_BACK:
        return headers.from_ext(SendBackHeader, fields).physical_offset
    if code == Code.END_TRANSACTION:
        return headers.from_ext(EndTransactionHeader, fields).physical_offset
    if code == Code.VIEW_MESSAGE_BY_ID:
        return headers.from_ext(ViewMessageHeader, fields).physical_offset
    try:
        if code == Code.RESUME_CHECK_HALF_MESSAGE:
            return parse_offset_message_id(headers.from_ext(ResumeCheckHeader, fields).message_id)[2]
        return parse_offset_message_id(headers.from_ext(ConsumeDirectlyHeader, fields).message_id or "")[2]
    except UsageError:
        return None
