"""Answers to POP_MESSAGE: which receipt handle each message has.

Rule (MQClientAPIImpl and ExtraInfoUtil, 5.x): the broker sends offsets by queue, and the client makes the handles; only
a message of a retry topic may carry its own, as it comes under the name of its first topic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from rocketspark.errors import ProtocolError
from rocketspark.model import ReceivedMessage
from rocketspark.model.text import shown
from rocketspark.protocol.headers import PopReply
from rocketspark.protocol.message import properties
from rocketspark.protocol.pop_info import parse_message_offsets, parse_order_counts, parse_start_offsets
from rocketspark.protocol.receipt_handle import ReceiptHandle
from rocketspark.protocol.retry_topics import NORMAL, first_topic, real_topic, retry_flag


class Popped(NamedTuple):
    """What the broker says of all messages of an answer."""

    broker_name: str
    group: str
    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int
    start_offsets: str | None = None
    message_offsets: str | None = None
    order_counts: str | None = None


class TimesAndOffsets:
    """What the answer `told` of a broker says of its messages. Raises FrameError if that is nothing clear."""

    def __init__(self, told: PopReply | Popped, broker_name: str) -> None:
        self._told, self._broker_name = told, broker_name
        self._starts = parse_start_offsets(told.start_offsets)
        self._offsets = {source: sorted(found) for source, found in parse_message_offsets(told.message_offsets).items()}
        self._counts = parse_order_counts(told.order_counts)
        self._retries = any(flag != NORMAL for flag, _ in self._starts)

    def own_handle(self, text: str | None) -> ReceiptHandle | None:
        """Return the handle that the broker put into a message of a retry topic; an application's text is none."""
        if text is None or not self._retries:
            return None
        try:
            handle = ReceiptHandle.decode(text)
        except ProtocolError:
            return None
        own = (handle.retry_flag, handle.queue_id) in self._starts and handle.pop_time_ms == self._told.pop_time_ms
        return handle if own and handle.retry_flag != NORMAL and handle.broker_name == self._broker_name else None

    def handle(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int = -1) -> ReceiptHandle | None:
        """Return the handle of a message, None if the answer tells no offsets of its queue."""
        source = retry_flag(topic), queue_id
        start, offsets = self._starts.get(source), self._offsets.get(source)
        if start is None or not offsets:
            return None
        # Messages of a batch that was stored as one record are acknowledged together.
        place = max(bisect_right(offsets, queue_offset) - 1, 0)
        return ReceiptHandle(
            start_offset=start,
            pop_time_ms=self._told.pop_time_ms,
            invisible_time_ms=self._told.invisible_time_ms,
            revive_queue_id=self._told.revive_queue_id,
            retry_flag=source[0],
            broker_name=self._broker_name,
            queue_id=queue_id,
            queue_offset=offsets[place],
            physical_offset=physical_offset,
        )

    def attempts(self, handle: ReceiptHandle) -> int:
        """Return how often a message of an ordered pop was given out before: not the log knows it; else 0."""
        if not self._counts:
            return 0
        flag, queue_id = handle.retry_flag, handle.queue_id
        whole = self._counts.get((flag, str(queue_id)), 0)
        return self._counts.get((flag, f"qo{queue_id}%{handle.queue_offset}"), whole)


def give_handles(messages: Sequence[ReceivedMessage], popped: Popped) -> None:
    """Set each message's receipt handle, and of one from a retry topic the topic it was first sent to.

    Messages are as decoded from the answer. Raises ProtocolError for an answer that does not fit its messages.
    """
    told = TimesAndOffsets(popped, popped.broker_name)
    for message in messages:
        handle = told.own_handle(message.properties.get(properties.POP_HANDLE))
        if handle is None:
            handle = told.handle(message.topic, message.queue_id, message.queue_offset)
        if handle is None:
            raise ProtocolError(
                f"the answer to a pop has a message of queue {message.queue_id} of topic {shown(message.topic)}, and no"
                " offsets of it"
            )
        _set(message, handle, popped.group)
        if (count := told.attempts(handle)) > 0:
            message.settle()
            message.reconsume_times = count


def _set(message: ReceivedMessage, handle: ReceiptHandle, group: str) -> None:
    message.receipt_handle = handle.encode()
    if handle.retry_flag == NORMAL:
        return
    message.settle()
    first = first_topic(message.topic, group)
    message.read_from, message.topic = real_topic(first, group, handle.retry_flag), first


def with_new_time(
    handle: ReceiptHandle, pop_time_ms: int, invisible_time_ms: int, revive_queue_id: int
) -> ReceiptHandle:
    """Return the handle of a message whose invisible time was changed: a check point of its own, of one message."""
    return msgspec.structs.replace(
        handle,
        start_offset=handle.queue_offset,
        pop_time_ms=pop_time_ms,
        invisible_time_ms=invisible_time_ms,
        revive_queue_id=revive_queue_id,
    )
