"""What a broker answers to a pop, and what names a message that was popped: the figures of each queue, the receipt
handle of each message, and the retry topics of groups.

Rule (MQClientAPIImpl, ExtraInfoUtil and KeyBuilder, 5.x): the broker sends the offsets of each queue as an item. Items
are joined by ';', the parts of an item by spaces; its first two parts are the retry flag and the queue id, a pair that
only one item has. The client makes the receipt handles of these; only a message of a retry topic may carry its own, as
it comes under the name of its first topic. A handle is fields joined by spaces; the ninth, the physical offset, is only
in a proxy's handles. A retry topic of the first form is `%RETRY%group_topic`, one of the second form
`%RETRY%group+topic`, which alone tells where the group ends.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from rocketspark.errors import FrameError, ProtocolError
from rocketspark.model import ReceivedMessage
from rocketspark.model.namespace import RETRY_PREFIX
from rocketspark.model.text import INT_MAX, LONG_MAX, shown, whole_number
from rocketspark.protocol.headers import PopLiteReply, PopReply
from rocketspark.protocol.light_queues import QUEUE_ID as LIGHT_QUEUE_ID
from rocketspark.protocol.message import properties

Source = tuple[str, int]


def start_offset_item(flag: str, queue_id: int, start_offset: int) -> str:
    """Return an item of startOffsetInfo: the offset from which on messages of a queue were popped."""
    return f"{flag} {queue_id} {start_offset}"


def message_offsets_item(flag: str, queue_id: int, offsets: Sequence[int]) -> str:
    """Return an item of msgOffsetInfo: the offsets of the records, in the order of the body."""
    return f"{flag} {queue_id} {','.join(map(str, offsets))}"


def order_count_item(flag: str, queue_id: int, count: int) -> str:
    """Return an item of orderCountInfo: how often the messages of a whole queue were given out before."""
    return f"{flag} {queue_id} {count}"


def message_order_count_item(flag: str, queue_id: int, offset: int, count: int) -> str:
    """Return an item of orderCountInfo: how often one message was given out before."""
    return f"{flag} qo{queue_id}%{offset} {count}"


def parse_start_offsets(text: str | None) -> dict[Source, int]:
    """Return the start offset of each (flag, queue id). Raises FrameError."""
    return {(flag, _number(queue)): _number(value) for flag, queue, value in _items(text)}


def parse_message_offsets(text: str | None) -> dict[Source, list[int]]:
    """Return the message offsets of each (flag, queue id). Raises FrameError."""
    return {(flag, _number(queue)): [_number(o) for o in value.split(",")] for flag, queue, value in _items(text)}


def parse_order_counts(text: str | None) -> dict[tuple[str, str], int]:
    """Return the count of each (flag, key): a key is a queue id, or `qo<queue>%<offset>`. Raises FrameError."""
    return {(flag, key): _number(value) for flag, key, value in _items(text)}


def _items(text: str | None) -> Iterator[list[str]]:
    seen = set()
    for item in (text or "").split(";"):
        if not item:
            continue
        parts = item.split(" ")
        if len(parts) != 3:
            raise FrameError(f"a pop's reply says {shown(item)!r}: three parts were expected")
        if (key := (parts[0], parts[1])) in seen:
            raise FrameError(f"a pop's reply names {shown(' '.join(key))!r} twice")
        seen.add(key)
        yield parts


def _number(text: str) -> int:
    # No more digits than a long has, so that no text costs time.
    if len(text) <= 20 and text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    raise FrameError(f"a pop's reply says {shown(text)!r}: a number was expected")


FIELDS_MIN = 8
# Longer ones are nobody's, and not kept.
CACHED_CHARACTERS_MAX = 512
# The revive queue in handles of ordered pops; there is none of that number.
ORDERED_REVIVE_QUEUE = 999
# The invisible time of a message that is given back, as who had it is gone: it is delivered again without a pause.
GIVEN_BACK_MS = 1


class ReceiptHandle(msgspec.Struct, frozen=True):
    """One message that was popped, together with others of its queue from `start_offset` on.

    `revive_queue_id`: the queue of its check point, 999 for an ordered one; `retry_flag`: 0 of the topic itself, 1 and
    2 of the group's retry topic of the first and the second form; `physical_offset` -1: not told.
    """

    start_offset: int
    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int
    retry_flag: str
    broker_name: str
    queue_id: int
    queue_offset: int
    physical_offset: int = -1

    @property
    def next_visible_ms(self) -> int:
        """When it is visible again, by the broker's clock."""
        return self.pop_time_ms + self.invisible_time_ms

    @property
    def is_ordered(self) -> bool:
        """True for a message of an ordered pop."""
        return self.revive_queue_id == ORDERED_REVIVE_QUEUE

    def encode(self) -> str:
        """Return the handle as text."""
        text = (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_time_ms} {self.revive_queue_id} {self.retry_flag}"
            f" {self.broker_name} {self.queue_id} {self.queue_offset}"
        )
        return text if self.physical_offset < 0 else f"{text} {self.physical_offset}"

    @classmethod
    def decode(cls, text: str) -> ReceiptHandle:
        """Return the handle that a text is. Raises ProtocolError."""
        spaces = text.count(" ")
        if spaces < FIELDS_MIN - 1:
            raise ProtocolError(f"receipt handle {shown(text)!r} has {spaces + 1} fields: {FIELDS_MIN} are needed")
        # The messages of a pop have all but the last in common.
        common, *own = text.rsplit(" ", spaces - FIELDS_MIN + 2)
        shared = _shared(common) if len(common) <= CACHED_CHARACTERS_MAX else _shared.__wrapped__(common)
        return cls(*shared, _handle_number(own[0]), _handle_number(own[1]) if len(own) > 1 else -1)


@functools.lru_cache(maxsize=4096)
def _shared(text: str) -> tuple[int, int, int, int, str, str, int]:
    """Return the fields that all messages of one pop of a queue have in common."""
    start, popped, invisible, revive_queue_id, flag, broker_name, queue_id = text.split(" ")
    return (
        _handle_number(start),
        _handle_number(popped),
        _handle_number(invisible),
        _handle_number(revive_queue_id, INT_MAX),
        flag,
        broker_name,
        _handle_number(queue_id, INT_MAX),
    )


def _handle_number(text: str, high: int = LONG_MAX) -> int:
    found = whole_number(text, low=-1, high=high)
    if found is None:
        raise ProtocolError(f"a receipt handle holds {shown(text)!r}, which is no whole number in its bounds")
    return found


# Flag of the topic itself, of a retry topic of the first form, and of the second.
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
_MARKS = {RETRY_V1: "_", RETRY_V2: "+"}


def retry_flag(topic: str) -> str:
    """Return the flag of a topic by its name."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if _MARKS[RETRY_V2] in topic else RETRY_V1


def retry_topic(topic: str, group: str, flag: str) -> str:
    """Return the retry topic of a group and a topic, of the form that RETRY_V1 or RETRY_V2 says."""
    return f"{RETRY_PREFIX}{group}{_MARKS[flag]}{topic}"


def real_topic(topic: str, group: str, flag: str) -> str:
    """Return the topic that a message with a flag is in: `topic` itself, or the group's retry topic of it."""
    return retry_topic(topic, group, flag) if flag in _MARKS else topic


def may_be_of_others(topic: str) -> bool:
    """Tell whether a retry topic of the first form can belong to several pairs of group and topic.

    So `%RETRY%a_b_c` is that of group `a` and topic `b_c`, and of group `a_b` and topic `c`.
    """
    return topic.count(_MARKS[RETRY_V1], len(RETRY_PREFIX)) > 1 and retry_flag(topic) == RETRY_V1


def first_topic(topic: str, group: str) -> str:
    """Return the topic that a group's retry topic stands for; any other topic is returned as it is."""
    for mark in _MARKS.values():
        prefix = f"{RETRY_PREFIX}{group}{mark}"
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


def normal_topic(topic: str, group: str) -> str:
    """Return what follows the group's name and one more character in a retry topic's name; any other topic is returned
    as it is.
    """
    prefix = RETRY_PREFIX + group
    if topic.startswith(prefix) and len(topic) > len(prefix) + 1:
        return topic[len(prefix) + 1 :]
    return topic


class Popped(NamedTuple):
    """What a broker's answer to a pop says of all its messages: the fields of its header."""

    broker_name: str
    group: str
    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int
    start_offsets: str | None = None
    message_offsets: str | None = None
    order_counts: str | None = None


class TimesAndOffsets:
    """The times and offsets in a broker's answer to a pop, from which the receipt handles of its messages are made.

    Raises FrameError if they cannot be read.
    """

    def __init__(self, told: PopReply | Popped, broker_name: str) -> None:
        self._told, self._broker_name = told, broker_name
        self._starts = parse_start_offsets(told.start_offsets)
        self._offsets = {source: sorted(found) for source, found in parse_message_offsets(told.message_offsets).items()}
        self._counts = parse_order_counts(told.order_counts)
        self._retries = any(flag != NORMAL for flag, _ in self._starts)

    def own_handle(self, text: str | None) -> ReceiptHandle | None:
        """Return the handle that the broker put into a message of a retry topic.

        None for a text that is no handle, or not one of this answer: an application may have put it there.
        """
        if text is None or not self._retries:
            return None
        try:
            handle = ReceiptHandle.decode(text)
        except ProtocolError:
            return None
        own = (handle.retry_flag, handle.queue_id) in self._starts and handle.pop_time_ms == self._told.pop_time_ms
        return handle if own and handle.retry_flag != NORMAL and handle.broker_name == self._broker_name else None

    def handle(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int = -1) -> ReceiptHandle | None:
        """Return the receipt handle of a message; None if the answer tells no offsets of its queue."""
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
        """Return how often a message of an ordered pop was given out before, which only the answer tells; 0 for other
        messages.
        """
        if not self._counts:
            return 0
        flag, queue_id = handle.retry_flag, handle.queue_id
        whole = self._counts.get((flag, str(queue_id)), 0)
        return self._counts.get((flag, f"qo{queue_id}%{handle.queue_offset}"), whole)


def lite_order_counts(text: str | None, count: int) -> list[int]:
    """Return how often each of `count` messages of lite topics was given out before; 0 if the answer does not say.

    An item is a number, or as for other ordered pops: flag, offset and number.
    """
    found = [whole_number(item.rpartition(" ")[2], high=INT_MAX) or 0 for item in (text or "").split(";")]
    return found if len(found) == count else [0] * count


def lite_handle(told: PopLiteReply, broker_name: str, queue_offset: int, physical_offset: int = -1) -> ReceiptHandle:
    """Return the receipt handle of a message of a lite topic; `queue_offset`: its offset in the lite topic's queue."""
    return ReceiptHandle(
        start_offset=0,
        pop_time_ms=told.pop_time_ms,
        invisible_time_ms=told.invisible_time_ms,
        revive_queue_id=told.revive_queue_id,
        retry_flag=NORMAL,
        broker_name=broker_name,
        queue_id=LIGHT_QUEUE_ID,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
    )


def give_handles(messages: Sequence[ReceivedMessage], popped: Popped) -> None:
    """Set each message's receipt handle; a message from a retry topic also gets the topic it was first sent to.

    `messages`: as decoded from the answer. Raises ProtocolError if the answer does not fit them.
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
            message.reconsume_times = count


def _set(message: ReceivedMessage, handle: ReceiptHandle, group: str) -> None:
    message.receipt_handle = handle.encode()
    if handle.retry_flag == NORMAL:
        return
    first = first_topic(message.topic, group)
    message.read_from, message.topic = real_topic(first, group, handle.retry_flag), first


def with_new_time(
    handle: ReceiptHandle, pop_time_ms: int, invisible_time_ms: int, revive_queue_id: int
) -> ReceiptHandle:
    """Return the handle of a message whose invisible time was changed; from then on it has a check point for itself."""
    return msgspec.structs.replace(
        handle,
        start_offset=handle.queue_offset,
        pop_time_ms=pop_time_ms,
        invisible_time_ms=invisible_time_ms,
        revive_queue_id=revive_queue_id,
    )
