"""Dispatch: what of a record goes into its consume queue and into the key index.

Rule: appends, recovery and the repair of units all go by this (RocketMQ: DispatchRequest, 5.x).
"""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.model.text import string_hash
from rocketspark.protocol.message import properties, record_layout, sysflags
from rocketspark.store.consumequeue.batch_consume_queue import inner_count
from rocketspark.store.consumequeue.consume_queue import ConsumeQueue

_TAGS = properties.TAGS.encode()
_KEYS = properties.KEYS.encode()
_UNIQUE_ID = properties.UNIQUE_ID.encode()


class DispatchRequest(NamedTuple):
    """What a record's consume queue and the key index get of it.

    `tags_code`: Java hash of the tags, 0 without tags. `unique_id`, `keys`, `tags`: the properties' values as stored,
    None if absent. `message_count`: of an inner batch, else 1.
    """

    tags_code: int
    unique_id: bytes | None
    keys: bytes | None
    tags: bytes | None
    message_count: int


def tags_code(tags: bytes) -> int:
    """Return the code of tags, as Java hashes their text."""
    return string_hash(tags.decode("utf-8", "replace"))


def dispatch_request(sys_flag: int, stored: bytes) -> DispatchRequest:
    """Return what consume queue and key index get of a record with this sys flag and these stored properties."""
    tags = properties.find(stored, _TAGS)
    return DispatchRequest(
        tags_code(tags) if tags else 0,
        properties.find(stored, _UNIQUE_ID),
        properties.find(stored, _KEYS),
        tags,
        inner_count(sys_flag, stored),
    )


def enters_queue(sys_flag: int) -> bool:
    """Tell whether a record goes into its consume queue: half messages and rolled back ones do not."""
    return not sys_flag & sysflags.TRANSACTION_PREPARED


def enters_light(sys_flag: int) -> bool:
    """Tell whether a record may go into light queues: those that enter a queue, but for several messages in one."""
    return not sys_flag & (sysflags.TRANSACTION_PREPARED | sysflags.INNER_BATCH)


def enters_index(sys_flag: int) -> bool:
    """Tell whether a record's keys go into the index: those of a rolled back message do not."""
    return sys_flag & sysflags.TRANSACTION_MASK != sysflags.TRANSACTION_ROLLBACK


def unit_code_of(queue: ConsumeQueue, found: memoryview) -> int:
    """Return the code that a whole record has in its queue unit: its tags code, or in the schedule topic its delivery
    time.
    """
    request = dispatch_request(record_layout.sys_flag_of(found), record_layout.properties_of(found))
    return queue.unit_code(request.tags_code, record_layout.store_time_of(found))
