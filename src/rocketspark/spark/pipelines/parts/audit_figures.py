"""The figures of the pipeline `audit`, and the findings among them. Rule: pure; the figures alone decide whether all is
in order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from rocketspark.errors import UsageError

# The kinds of findings, and the text of each after `count` messages or offsets.
FINDINGS = {
    "missing": "queue offsets hold no message",
    "lost": "messages were deleted before the group consumed them",
    "duplicates": "messages have a unique id that another had before",
    "unconsumed": "messages are not consumed",
    "dead": "messages ended as dead letters",
}


class MessagePlace(NamedTuple):
    """Where a message is. `message_id`: its unique id; `stored_ms`: its store time in ms since 1970."""

    broker: str
    queue_id: int
    queue_offset: int
    message_id: str
    stored_ms: int


class OffsetGap(NamedTuple):
    """Queue offsets [first, end) without a message, between others that have one."""

    topic: str
    broker: str
    queue_id: int
    first: int
    end: int


class Duplicate(NamedTuple):
    """A unique id that several messages of a topic have, and the places of these, the oldest first."""

    topic: str
    message_id: str
    copies: int
    places: list[MessagePlace]


class QueueFigures(NamedTuple):
    """The figures of a queue: the offsets it holds now, [oldest, next), and those of its messages in the audit's time
    range.

    So many `messages` were read, with offsets from `first` to `last`. `missing`: how many offsets between these, or
    between the bounds if the whole queue was read, have no message.
    """

    topic: str
    broker: str
    queue_id: int
    oldest: int
    next: int
    messages: int
    first: int | None
    last: int | None
    missing: int


class TopicFigures(NamedTuple):
    """The figures of a topic's messages in the audit's time range. `duplicates`: messages whose unique id an earlier
    one has, too. Not only in that range: `deleted`, how many offsets have lost their message by its age, and
    `silent_groups`, groups that subscribe, but whose offsets the broker does not have.
    """

    topic: str
    messages: int
    missing: int
    duplicates: int
    deleted: int
    first_ms: int | None
    last_ms: int | None
    silent_groups: list[str]


class GroupQueueProgress(NamedTuple):
    """A group's progress in a queue: the next offset to consume (None: never committed), how many messages it has not
    consumed, and how many were deleted before it did.
    """

    broker: str
    queue_id: int
    committed: int | None
    lag: int
    lost: int


class GroupFigures(NamedTuple):
    """A group's figures in a topic: how many of the messages `produced` in the audit's time range it has consumed, and
    how many not.

    `dead`: dead letters of that range from this topic. `lag`, `lost`: not only in that range. `retrying`: messages in
    the group's retry topic now, from whatever topic. `oldest_unconsumed`: the places of some, by queue.
    """

    topic: str
    group: str
    produced: int
    consumed: int
    unconsumed: int
    dead: int
    lag: int
    lost: int
    retrying: int
    oldest_unconsumed_ms: int | None
    queues: list[GroupQueueProgress]
    oldest_unconsumed: list[MessagePlace]


class Finding(NamedTuple):
    """Something that is wrong: its kind (see FINDINGS), how often it was found, in which topic and, for some kinds, of
    which group.
    """

    kind: str
    topic: str
    group: str
    number: int
    text: str


class AuditReport(NamedTuple):
    """The result of an audit; `ok`: there are no findings. Times are in ms since 1970."""

    ok: bool
    findings: list[Finding]
    since_ms: int | None
    until_ms: int | None
    topics: list[TopicFigures]
    groups: list[GroupFigures]
    queues: list[QueueFigures]
    gaps: list[OffsetGap]
    duplicates: list[Duplicate]


def missing_offsets(messages: int, first: int | None, last: int | None, bounds: tuple[int, int] | None) -> int:
    """Return how many offsets of a queue lack a message. `bounds`: (oldest, next) if all offsets between these were
    read; with None those from `first` to `last`, the ends of what was read, are looked at.
    """
    if bounds is not None:
        return max(0, bounds[1] - bounds[0] - messages)
    return 0 if first is None or last is None else max(0, last - first + 1 - messages)


def check_kinds(kinds: Iterable[str]) -> set[str]:
    """Return the kinds of findings. Raises UsageError for an unknown one."""
    found = set(kinds)
    if unknown := sorted(found - FINDINGS.keys()):
        raise UsageError(f"{unknown[0]!r} is no kind of finding: {', '.join(FINDINGS)} are")
    return found


def find(
    topics: Iterable[TopicFigures], groups: Iterable[GroupFigures], *, ignore: Collection[str] = (), max_lag: int = 0
) -> list[Finding]:
    """Return the findings, the gravest first. `ignore`: kinds that are not to be found; `max_lag`: so many unconsumed
    messages of a group are no finding.
    """
    counted = [("missing", t.topic, "", t.missing) for t in topics]
    counted += [("lost", g.topic, g.group, g.lost) for g in groups]
    counted += [("duplicates", t.topic, "", t.duplicates) for t in topics]
    counted += [("unconsumed", g.topic, g.group, g.unconsumed if g.unconsumed > max_lag else 0) for g in groups]
    counted += [("dead", g.topic, g.group, g.dead) for g in groups]
    order = list(FINDINGS)
    found = [
        Finding(kind, topic, group, count, f"{topic}{', ' + group if group else ''}: {count:,} {FINDINGS[kind]}")
        for kind, topic, group, count in counted
        if count and kind not in ignore
    ]
    return sorted(found, key=lambda f: (order.index(f.kind), f.topic, f.group))
