"""Dead letters as values: which are chosen, and as what one is sent again. Rule: pure; a letter's resend has one unique
id for ever, so whoever sends it can see whether it was sent before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from rocketspark.client.outgoing import Outgoing, Packing, pack
from rocketspark.model import Message, namespace
from rocketspark.protocol import properties
from rocketspark.spark.pipelines import origin

# Where 5.x brokers note the topic that a letter was taken from; before a retry topic, another property tells it.
DEAD_FROM_TOPIC = "DLQ_ORIGIN_TOPIC"
BODY_SHOWN = 200
AGES_MS = {"1 h": 3_600_000, "1 d": 86_400_000, "7 d": 604_800_000}


class Choice(NamedTuple):
    """Which dead letters are meant; what is empty or None chooses nothing out. Times in ms since 1970.

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


class Letter(NamedTuple):
    """What sending a letter again needs. `topic`: where it came from, `target`: where it goes."""

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
    """The topic a letter came from, "" where nothing tells."""
    found = pairs.get(properties.RETRY_TOPIC) or pairs.get(DEAD_FROM_TOPIC) or ""
    return "" if found.startswith(namespace.RETRY_PREFIX) else found


def resend_id(place: str | None, message_id: str | None, dead_ms: int | None) -> str:
    """The unique id of a letter when it is sent again: 32 hex digits, made of its place and nothing that changes.

    The time in it, where tools look for one (ms since the month began), is that of its death.
    """
    digest = hashlib.sha256(f"{place}\0{message_id}\0{dead_ms}".encode()).digest()
    at = datetime.fromtimestamp((dead_ms or 0) / 1000, UTC)
    start = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    into_month_ms = (dead_ms or 0) - round(start.timestamp() * 1000)
    return (digest[:10] + into_month_ms.to_bytes(4, "big") + digest[10:12]).hex().upper()


def outgoing(letter: Letter, packing: Packing, *, to_group: bool) -> tuple[Outgoing, str | None]:
    """What to send for a letter, and its sharding key: body, tag, keys, flag and own properties as they were.

    to_group: to the group's retry topic, whose consumers take it as a message of the topic it came from. Raises
    MessageIllegal for what cannot be sent.
    """
    own = {k: v for k, v in letter.properties.items() if k not in properties.SYSTEM_NAMES and k not in origin.NAMES}
    labels = {
        origin.ORIGIN_PLACE: letter.place,
        origin.ORIGIN_MESSAGE_ID: letter.message_id,
        origin.ORIGIN_BORN_TIME: str(letter.born_ms),
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
    """The class of an age: under 1 h, 1 d, 7 d, or older."""
    return next((f"under {name}" for name, limit_ms in AGES_MS.items() if age_ms < limit_ms), "older")


def shown(body: bytes) -> dict[str, Any]:
    """A body for a report: its begin as text, or as bytes if it is none."""
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
    """Names for a line of text."""
    return ", ".join(sorted(values))
