"""Where a message goes whose consumption failed: to a retry topic or the dead letter queue. Pure: it stores nothing.

Rules (AbstractSendMessageProcessor, 5.x): %RETRY%group with the delay level 3 + times failed so far, and %DLQ%group
once the attempts are used up or the consumer asks for it with a level below 0. Consumers send messages back (`route`),
or store them anew in the retry topic themselves (`is_dead_letter`), as ordered consumers do.

A message whose properties leave no room for those of a retry cannot be taken back: its consumer tries it again by
itself. Its dead letter goes without the longest ones (`properties.fitted`), or that consumer would stay behind it."""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.broker import topic_names
from rocketspark.protocol.headers import SendHeader
from rocketspark.protocol.message import properties
from rocketspark.protocol.message.message_ids import offset_message_id
from rocketspark.protocol.message.record import Record

FIRST_RETRY_LEVEL = 3
# Room for the properties that parking adds (REAL_TOPIC, REAL_QID, the broker's marks).
PARKED_BYTES = 192
_PARKED = (properties.REAL_TOPIC, properties.REAL_QUEUE_ID)


class RetryMessage(NamedTuple):
    """A failed message as it is to be stored: its new topic, its properties (in bytes) and its reconsume times."""

    topic: str
    dead: bool
    stored: bytes
    reconsume_times: int

    @property
    def properties(self) -> dict[str, str]:
        """The properties, decoded."""
        return properties.decode(self.stored.decode("utf-8", "replace"))


def is_dead_letter(resent: SendHeader, retry_max_times: int) -> bool:
    """Tell whether a message that a consumer sends to the retry topic must go to the dead letter queue instead.

    `retry_max_times`: the group's limit of attempts, unless the request's header states one.
    """
    max_times = resent.max_reconsume_times if resent.max_reconsume_times is not None else retry_max_times
    return resent.reconsume_times > max_times


def route(record: Record, group: str, *, delay_level: int, max_times: int) -> RetryMessage:
    """Return a failed message as it is to be stored: for a retry of its group, or as a dead letter.

    `delay_level`: of the retry; 0 leaves it to the broker, below 0 makes a dead letter. `max_times`: the limit of
    attempts.
    """
    pairs = properties.decode(record.properties.decode("utf-8", "replace"))
    topic = record.topic.decode("utf-8", "replace")
    times = record.reconsume_times
    dead = delay_level < 0 or times >= max_times
    level = 0 if dead else delay_level if delay_level > 0 else FIRST_RETRY_LEVEL + times
    needed = {properties.RETRY_TOPIC: pairs.get(properties.RETRY_TOPIC) or topic, properties.DELAY: str(level)}
    told = {properties.WAIT: "false"}
    if properties.ORIGIN_MESSAGE_ID not in pairs:
        told[properties.ORIGIN_MESSAGE_ID] = offset_message_id(record.store_host, record.position)
    dropped = [properties.RECORD_CRC, properties.POP_HANDLE, *needed, *told, *(() if dead else _PARKED)]
    # All other properties stay as they are, whatever they hold.
    kept = properties.without(record.properties, [name.encode() for name in dropped])
    stored = kept + _encoded(needed | told)
    if len(stored) + PARKED_BYTES > properties.BYTES_MAX:
        # Without room for all of them the message gets the needed properties only.
        stored = kept + _encoded(needed)
    if dead:
        stored = properties.fitted(stored, properties.BYTES_MAX)
    topic_of = topic_names.dead_letter_topic if dead else topic_names.retry_topic
    return RetryMessage(topic_of(group), dead, stored, times + 1)


def _encoded(pairs: dict[str, str]) -> bytes:
    return b"".join([b"%b\x01%b\x02" % (name.encode(), value.encode()) for name, value in pairs.items()])
