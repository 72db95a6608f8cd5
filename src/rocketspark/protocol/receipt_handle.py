"""Receipt handles: what names one message that was popped, for its acknowledgement.

Rule (ExtraInfoUtil, 5.x): fields joined by spaces; the ninth, the physical offset, is in handles of a proxy alone.
"""

from __future__ import annotations

import functools

import msgspec

from rocketspark.errors import ProtocolError
from rocketspark.model.text import INT_MAX, LONG_MAX, shown, whole_number

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
        return cls(*shared, _number(own[0]), _number(own[1]) if len(own) > 1 else -1)


@functools.lru_cache(maxsize=4096)
def _shared(text: str) -> tuple[int, int, int, int, str, str, int]:
    """Return the fields that all messages of one pop of a queue have in common."""
    start, popped, invisible, revive_queue_id, flag, broker_name, queue_id = text.split(" ")
    return (
        _number(start),
        _number(popped),
        _number(invisible),
        _number(revive_queue_id, INT_MAX),
        flag,
        broker_name,
        _number(queue_id, INT_MAX),
    )


def _number(text: str, high: int = LONG_MAX) -> int:
    found = whole_number(text, low=-1, high=high)
    if found is None:
        raise ProtocolError(f"a receipt handle holds {shown(text)!r}, which is no whole number in its bounds")
    return found
