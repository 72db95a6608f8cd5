"""Which messages a page asks for, as its address says it: the search, where it goes on, places of single messages.

Rule: what is no such thing is a UsageError in words; an address made here is read back the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlencode

from rocketspark.admin.messages.search import Search
from rocketspark.errors import UsageError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.model.text import shown, whole_number

# Fields of the form, besides topic and order.
FIELDS = ("key", "tag", "text", "path", "value", "since", "until")
PICKS_MAX = 500


class Place(NamedTuple):
    """Where a message lies."""

    queue: MessageQueue
    offset: int

    def text(self) -> str:
        """Return broker/queue/offset."""
        return f"{self.queue.broker_name}/{self.queue.queue_id}/{self.offset}"


def place_of(topic: str, text: str) -> Place:
    """Return the place that broker/queue/offset names. Raises UsageError."""
    broker, _, rest = text.rpartition("/")[0].rpartition("/") if text.count("/") >= 2 else ("", "", "")
    queue_id, offset = whole_number(rest), whole_number(text.rpartition("/")[2])
    if not broker or queue_id is None or offset is None:
        raise UsageError(f"{shown(text)!r} is no place of a message: broker/queue/offset is needed")
    return Place(MessageQueue(topic, broker, queue_id), offset)


def place_in(message: ReceivedMessage) -> str:
    """Return broker/queue/offset of a message."""
    return f"{message.broker_name}/{message.queue_id}/{message.queue_offset}"


class Asked(NamedTuple):
    """A search of a topic. `newest_first`: from the end on; `starts`: by queue where it goes on; `seen`: how many
    messages were looked at before.
    """

    topic: str
    given: Mapping[str, str]
    newest_first: bool = True
    starts: Mapping[MessageQueue, int] | None = None
    seen: int = 0

    @property
    def search(self) -> Search:
        """The search. Raises UsageError."""
        given = {name: self.given.get(name) or None for name in FIELDS}
        return Search(
            key=given["key"],
            tag=given["tag"],
            contains=given["text"],
            json_path=given["path"],
            json_value=given["value"],
            since_ms=time_of(given["since"]),
            until_ms=time_of(given["until"]),
        )

    def address(self, path: str) -> str:
        """Return the address of a page of this search."""
        pairs = [("topic", self.topic), *((name, self.given[name]) for name in FIELDS if self.given.get(name))]
        pairs += [] if self.newest_first else [("order", "oldest")]
        pairs += [("at", Place(queue, offset).text()) for queue, offset in (self.starts or {}).items()]
        pairs += [("seen", str(self.seen))] if self.seen else []
        return f"{path}?{urlencode(pairs)}"


def asked_of(pairs: Iterable[tuple[str, str]]) -> Asked:
    """Return the search that an address asks for. Raises UsageError."""
    every = list(pairs)
    given = {name: text.strip() for name, text in every}
    topic = given.get("topic", "")
    places = [place_of(topic, text) for name, text in every if name == "at"]
    return Asked(
        topic,
        {name: given[name] for name in FIELDS if given.get(name)},
        given.get("order") != "oldest",
        {place.queue: place.offset for place in places} or None,
        whole_number(given.get("seen")) or 0,
    )


def needed(form: Mapping[str, str], name: str) -> str:
    """Return a field that a form has to have. Raises UsageError."""
    found = form.get(name, "")
    if not found.strip():
        raise UsageError(f"the form lacks {name}: open the page again and fill it in")
    return found


def time_of(text: str | None) -> int | None:
    """Return a time of a form, in UTC unless it says another zone, as ms since 1970. Raises UsageError."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        return max(0, int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UsageError(f"{shown(text)!r} is no time: one such as 2026-01-31T12:00 is needed, in UTC") from None


def runs_of(places: Iterable[Place], gap_max: int = 32) -> list[tuple[MessageQueue, int, int]]:
    """Return ranges [first, end) of queues that hold all the places; those near each other make one range."""
    found: list[tuple[MessageQueue, int, int]] = []
    for queue, offset in sorted(set(places)):
        if found and found[-1][0] == queue and offset - found[-1][2] <= gap_max:
            found[-1] = (queue, found[-1][1], offset + 1)
        else:
            found.append((queue, offset, offset + 1))
    return found
