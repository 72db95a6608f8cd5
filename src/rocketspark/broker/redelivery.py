"""Where a message goes whose consumption failed. Pure: decides, stores nothing.

Rules (wire.md 9.6; AbstractSendMessageProcessor 5.x): %RETRY%group with the delay level 3 + times failed so far, and
%DLQ%group once the attempts are used up or the consumer asks for it with a level below 0.
"""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.broker import names
from rocketspark.protocol import properties
from rocketspark.protocol.message_ids import offset_message_id
from rocketspark.protocol.record import Record

FIRST_RETRY_LEVEL = 3


class Redelivery(NamedTuple):
    """A message to store again: under which topic, with which properties and reconsume times."""

    topic: str
    dead: bool
    properties: dict[str, str]
    reconsume_times: int


def route(record: Record, group: str, *, delay_level: int, max_times: int) -> Redelivery:
    """What becomes of a failed message. `delay_level` 0 leaves the choice to the broker, below 0 gives it up."""
    pairs = properties.decode(record.properties.decode("utf-8", "replace"))
    topic = record.topic.decode("utf-8", "replace")
    pairs[properties.RETRY_TOPIC] = pairs.get(properties.RETRY_TOPIC) or topic
    pairs[properties.WAIT] = "false"
    pairs.pop(properties.RECORD_CRC, None)
    pairs.setdefault(properties.ORIGIN_MESSAGE_ID, offset_message_id(record.store_host, record.position))
    times = record.reconsume_times
    if delay_level < 0 or times >= max_times:
        pairs[properties.DELAY] = "0"
        return Redelivery(names.dead_letter_topic(group), True, pairs, times + 1)
    for parked in (properties.REAL_TOPIC, properties.REAL_QUEUE_ID):
        pairs.pop(parked, None)
    level = delay_level if delay_level > 0 else FIRST_RETRY_LEVEL + times
    pairs[properties.DELAY] = str(level)
    return Redelivery(names.retry_topic(group), False, pairs, times + 1)
