"""Dead letters as values: the choice of letters, and the message that sends one again. Rule: pure; a letter's resend
has one unique id for ever, so every sender can see whether it was sent before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from rocketspark.client.producer.prepared_message import PackingSettings, PreparedMessage, pack
from rocketspark.model import Message, namespace
from rocketspark.protocol.message import properties
from rocketspark.spark.pipelines.restore import origin_properties

# The property in which 5.x brokers note a letter's topic; if that is a retry topic, another property has the first one.
DEAD_FROM_TOPIC = "DLQ_ORIGIN_TOPIC"
BODY_SHOWN = 200
AGES_MS = {"1 h": 3_600_000, "1 d": 86_400_000, "7 d": 604_800_000}


class Choice(NamedTuple):
    """A choice of dead letters; an empty or None field chooses nothing out. Times in ms since 1970.

    groups: whose letters; topics: those they came from; keys: with one of these; ids: unique ids; since_ms, until_ms:
    that died in [since, until); sql: a condition in Spark SQL over the columns of `dlq.letters`; limit: the oldest so
    many.
    """

    groups: Sequence[str] = ()
    topics: Sequence[str] = ()
    tags: Sequence[str] = ()
    keys: Sequence[str] = ()
    ids: Sequence[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    sql: str = ""
    limit: int | None = None


class DeadLetter(NamedTuple):
    """The fields needed to send a letter again. `topic`: where it came from, `target`: where it goes."""

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
    """Return the topic a letter came from, "" where it is unknown."""
    found = pairs.get(properties.RETRY_TOPIC) or pairs.get(DEAD_FROM_TOPIC) or ""
    return "" if found.startswith(namespace.RETRY_PREFIX) else found


def resend_id(place: str | None, message_id: str | None, dead_ms: int | None) -> str:
    """Return the unique id of a letter's resend: 32 hex digits, made of its place and nothing that changes.

    The time in it, where tools look for one (ms since the month began), is that of its death.
    """
    digest = hashlib.sha256(f"{place}\0{message_id}\0{dead_ms}".encode()).digest()
    at = datetime.fromtimestamp((dead_ms or 0) / 1000, UTC)
    start = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    into_month_ms = (dead_ms or 0) - round(start.timestamp() * 1000)
    return (digest[:10] + into_month_ms.to_bytes(4, "big") + digest[10:12]).hex().upper()


def outgoing(letter: DeadLetter, packing: PackingSettings, *, to_group: bool) -> tuple[PreparedMessage, str | None]:
    """Prepare a letter for sending, and return its sharding key too: body, tag, keys, flag and own properties as they
    were.

    to_group: to the group's retry topic, whose consumers take it as a message of the topic it came from. Raises
    MessageIllegal for what cannot be sent.
    """
    own = {
        k: v
        for k, v in letter.properties.items()
        if k not in properties.SYSTEM_NAMES and k not in origin_properties.NAMES
    }
    labels = {
        origin_properties.ORIGIN_PLACE: letter.place,
        origin_properties.ORIGIN_MESSAGE_ID: letter.message_id,
        origin_properties.ORIGIN_BORN_TIME: str(letter.born_ms),
    }
    sharding_key = letter.properties.get(properties.SHARDING_KEY)
    message = Message(
        topic=letter.target,
        body=letter.body,
        tag=letter.tag,
        keys=letter.keys,
        properties=own | labels,
        sharding_key=sharding_key,
        flag=letter.flag,
    )
    out = pack(message, packing, letter.resend_id)
    if to_group:
        topic = namespace.wrap(packing.namespace, letter.topic)
        out = msgspec.structs.replace(
            out, properties=out.properties + properties.encode({properties.RETRY_TOPIC: topic})
        )
    return out, sharding_key


def age_name(age_ms: int) -> str:
    """Return the class of an age: under 1 h, 1 d, 7 d, or older."""
    return next((f"under {name}" for name, limit_ms in AGES_MS.items() if age_ms < limit_ms), "older")


def shown(body: bytes) -> dict[str, Any]:
    """Return the begin of a body for a report: as text, or as bytes if it is none."""
    begin = body[:BODY_SHOWN]
    try:
        # A character may be cut in two.
        text = begin.decode("utf-8") if len(body) <= BODY_SHOWN else begin.decode("utf-8", "ignore")
        if "\ufffd" not in text and not _is_binary(body):
            return {"body": text, "body_bytes": len(body)}
    except UnicodeDecodeError:
        pass
    return {"body_hex": begin.hex(), "body_bytes": len(body)}


def _is_binary(body: bytes) -> bool:
    try:
        return any(ord(c) < 32 and c not in "\t\r\n" for c in body.decode("utf-8"))
    except UnicodeDecodeError:
        return True


def quoted(values: Collection[str]) -> str:
    """Join names for a line of text."""
    return ", ".join(sorted(values))
