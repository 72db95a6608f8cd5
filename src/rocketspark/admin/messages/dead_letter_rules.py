"""What a dead letter is, and the message that sends one again. Pure.

Rule: a letter's resend has one unique id for ever, so every sender can see whether it was sent before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from rocketspark.client.producer.prepared_message import PackingSettings, PreparedMessage, key_of, pack, queue_of_key
from rocketspark.model import Message, MessageQueue, namespace
from rocketspark.protocol.message import origins, properties

# The property in which 5.x brokers note a letter's topic; if that is a retry topic, another property has the first one.
DEAD_FROM_TOPIC = "DLQ_ORIGIN_TOPIC"
# The properties that `origin_of` looks at.
ORIGINS = (properties.RETRY_TOPIC, DEAD_FROM_TOPIC)


class DeadLetter(NamedTuple):
    """What is needed of a dead letter to send it again. `topic`: the topic it came from; `target`: the topic it goes
    to.
    """

    group: str
    topic: str
    target: str
    place: str
    resend_id: str
    message_id: str
    body: bytes
    tag: str | None
    keys: list[str]
    properties: Mapping[str, str]
    flag: int
    born_ms: int
    dead_ms: int


def origin_of(pairs: Mapping[str, str]) -> str:
    """Return the topic that a dead letter with these properties came from; "" if they do not say it."""
    found = pairs.get(properties.RETRY_TOPIC) or pairs.get(DEAD_FROM_TOPIC) or ""
    return "" if found.startswith(namespace.RETRY_PREFIX) else found


def resend_id(place: str | None, message_id: str | None, dead_ms: int | None) -> str:
    """Return the unique id under which a dead letter is sent again: 32 hex digits, made only of the place, id and time
    of the letter, so that each resend has the same.

    The part in which tools look for a message's time (ms since the month began) is the time at which it became a dead
    letter.
    """
    digest = hashlib.sha256(f"{place}\0{message_id}\0{dead_ms}".encode()).digest()
    at = datetime.fromtimestamp((dead_ms or 0) / 1000, UTC)
    start = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    into_month_ms = (dead_ms or 0) - round(start.timestamp() * 1000)
    return (digest[:10] + into_month_ms.to_bytes(4, "big") + digest[10:12]).hex().upper()


def outgoing(letter: DeadLetter, packing: PackingSettings, *, to_group: bool) -> tuple[PreparedMessage, str | None]:
    """Return a dead letter as a message to send, with body, tag, keys, flag and own properties as they were, and what
    decides its queue: its sharding key, or its lite topic.

    to_group: it goes to the group's retry topic, whose consumers take it as a message of the topic it came from. Raises
    MessageIllegal for what cannot be sent.
    """
    own = {k: v for k, v in letter.properties.items() if k not in properties.SYSTEM_NAMES and k not in origins.NAMES}
    labels = {
        origins.ORIGIN_PLACE: letter.place,
        origins.ORIGIN_MESSAGE_ID: letter.message_id,
        origins.ORIGIN_BORN_TIME: str(letter.born_ms),
    }
    message = Message(
        topic=letter.target,
        body=letter.body,
        tag=letter.tag,
        keys=letter.keys,
        properties=own | labels,
        sharding_key=letter.properties.get(properties.SHARDING_KEY),
        flag=letter.flag,
    )
    out = pack(message, packing, letter.resend_id)
    if to_group:
        topic = namespace.wrap(packing.namespace, letter.topic)
        out = msgspec.structs.replace(
            out, properties=out.properties + properties.encode({properties.RETRY_TOPIC: topic})
        )
    return out, key_of(message)


def queue_of(letter: DeadLetter, sharding_key: str | None, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the queue of its target that a dead letter is sent to, the same each time: that of its key, else one of
    the broker that holds the letter, so that whoever can read the letter can see whether it was sent before.
    """
    if sharding_key:
        return queue_of_key(sharding_key, queues)
    broker_name = letter.place.split("/")[-3]
    near = [queue for queue in queues if queue.broker_name == broker_name] or queues
    return near[int(letter.resend_id[:8], 16) % len(near)]
