"""What a pop's reply tells of each queue it read: items joined by ';', their parts by spaces.

Rule (ExtraInfoUtil, 5.x): an item begins with the retry flag and the queue id, and each such pair is there once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rocketspark.errors import FrameError
from rocketspark.model.text import shown

Source = tuple[str, int]


def start_offset_item(flag: str, queue_id: int, start_offset: int) -> str:
    """Return an item of startOffsetInfo."""
    return f"{flag} {queue_id} {start_offset}"


def message_offsets_item(flag: str, queue_id: int, offsets: Sequence[int]) -> str:
    """Return an item of msgOffsetInfo: the offsets of the records, in the order of the body."""
    return f"{flag} {queue_id} {','.join(map(str, offsets))}"


def order_count_item(flag: str, queue_id: int, count: int) -> str:
    """Return an item of orderCountInfo for a whole queue."""
    return f"{flag} {queue_id} {count}"


def message_order_count_item(flag: str, queue_id: int, offset: int, count: int) -> str:
    """Return an item of orderCountInfo for one message."""
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
