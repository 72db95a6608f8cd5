"""Light queues (RocketMQ: LMQ): consume queues named %LMQ%…, whose units point to records of other topics.

A message names them in the property INNER_MULTI_DISPATCH, with commas between; its record states the queue offset that
it got in each in INNER_MULTI_QUEUE_OFFSET. Rule: a unit goes where the record says, in appends, recovery and copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rocketspark.model.text import LONG_MAX, whole_number
from rocketspark.protocol.message import properties

PREFIX = b"%LMQ%"
NAME_PREFIX = PREFIX.decode()

DISPATCH = b"INNER_MULTI_DISPATCH"
OFFSETS = b"INNER_MULTI_QUEUE_OFFSET"
# What records with either property contain, and hardly any others do.
MARK = b"INNER_MULTI_"
# A light queue has this one alone.
QUEUE_ID = 0
# Of one message: each costs a unit, and properties have 32 KiB.
NAMES_MAX = 1024
_SEPARATOR = b","
# Topics whose records are copies or parked: RocketMQ dispatches none of the first three (rule:
# MixAll.topicAllowsLMQ, 5.5.0), but does half messages before they are committed, and dead letters a second time.
_LEFT_OUT = (b"%RETRY%", b"rmq_sys_", b"SCHEDULE_TOPIC_XXXX")
_PARKED = (*_LEFT_OUT, b"RMQ_SYS_", b"%DLQ%", PREFIX, b"TRANS_CHECK_MAX_TIME_TOPIC")


class LightUnit(NamedTuple):
    """The place of a record in one light queue."""

    name: bytes
    queue_offset: int


def topic_and_group(key: str) -> tuple[str, str]:
    """Return topic and group of a row's key in a table of offsets, "topic@group"; an empty group if it has none.

    Names of light queues, and of their groups, alone may hold an @ themselves.
    """
    topic, mark, group = key.rpartition(f"@{NAME_PREFIX}")
    if mark:
        return topic, NAME_PREFIX + group
    topic, mark, group = key.rpartition("@")
    return (topic, group) if mark else (key, "")


def is_light(name: bytes) -> bool:
    """Tell whether a name is that of a light queue: the prefix, and any text."""
    try:
        return name.startswith(PREFIX) and bool(name.decode())
    except UnicodeDecodeError:
        return False


def names_in(value: bytes) -> list[bytes]:
    """Return the names in a property, as they stand there; those at the end that are empty are none (String.split)."""
    names = value.split(_SEPARATOR)
    while names and not names[-1]:
        names.pop()
    return names


def takes_part(topic: bytes) -> bool:
    """Tell whether messages of a topic go into light queues: not those that are parked, or tried again."""
    return not topic.startswith(_PARKED)


def wanted(topic: bytes, stored: bytes) -> list[bytes]:
    """Return the light queues that a message of a topic, about to be stored, is to be in; each once."""
    value = properties.find(stored, DISPATCH) if takes_part(topic) else None
    if value is None:
        return []
    return list(dict.fromkeys(name for name in names_in(value) if is_light(name)))[:NAMES_MAX]


def with_offsets(stored: bytes, units: list[LightUnit]) -> bytes:
    """Return a message's properties with the light queues that it is in, and its offset in each.

    A list with other names is replaced: RocketMQ stops dispatching, and does not start again, over some of them.
    """
    stored = properties.without(stored, (OFFSETS,))
    if not units:
        return stored
    names = _SEPARATOR.join([unit.name for unit in units])
    if properties.find(stored, DISPATCH) != names:
        stored = properties.with_value(stored, DISPATCH, names)
    return b"%b%b\x01%b\x02" % (stored, OFFSETS, _SEPARATOR.join([b"%d" % unit.queue_offset for unit in units]))


def units_of(topic: bytes, stored: bytes) -> list[LightUnit]:
    """Return where a record with these stored properties stands in light queues; damaged numbers are left out."""
    if MARK not in stored or topic.startswith(_LEFT_OUT):
        return []
    value, offsets = properties.find(stored, DISPATCH), properties.find(stored, OFFSETS)
    if value is None or offsets is None:
        return []
    found: dict[bytes, int] = {}
    for name, text in zip(names_in(value)[:NAMES_MAX], offsets.split(_SEPARATOR), strict=False):
        offset = whole_number(text, high=LONG_MAX)
        if offset is not None and is_light(name):
            found.setdefault(name, offset)
    return [LightUnit(name, offset) for name, offset in found.items()]


def offset_of(name: bytes, stored: bytes) -> int | None:
    """Return the offset that a record states for a light queue; None if it states none."""
    return next((unit.queue_offset for unit in units_of(b"", stored) if unit.name == name), None)


def offset_in(topic: str, pairs: Mapping[str, str]) -> int | None:
    """Return the offset of a received message in the light queue of this name; None if it states none."""
    stored = properties.encode({name: pairs.get(name, "") for name in (DISPATCH.decode(), OFFSETS.decode())})
    return offset_of(topic.encode(), stored.encode())
