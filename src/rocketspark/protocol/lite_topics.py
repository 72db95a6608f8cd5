"""Lite topics: small topics below a parent topic, each one light queue named %LMQ%$parent$lite."""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.protocol import light_queues

SEPARATOR = "$"
NAME_PREFIX = light_queues.NAME_PREFIX + SEPARATOR
# The attribute of a group that names the topic whose lite topics it reads.
BIND_TOPIC = "lite.bind.topic"
# With it each client of a group reads all lite topics; its value does not matter (SubscriptionGroupConfig, 5.5.0).
WILDCARD = "lite.sub.wildcard"


class LiteTopic(NamedTuple):
    """A lite topic and the topic that it belongs to."""

    parent: str
    name: str

    def queue_name(self) -> str:
        """Return the name of the light queue that holds its messages."""
        return f"{NAME_PREFIX}{self.parent}{SEPARATOR}{self.name}"


def queue_name(parent: str, name: str) -> str:
    """Return the name of the light queue of a lite topic."""
    return LiteTopic(parent, name).queue_name()


def is_lite(queue: str) -> bool:
    """Tell whether a queue has the prefix of lite topics."""
    return queue.startswith(NAME_PREFIX)


def parent_of(queue: str) -> str:
    """Return the topic of a queue with the prefix of lite topics; any other name as it is."""
    return queue.removeprefix(NAME_PREFIX).partition(SEPARATOR)[0] if is_lite(queue) else queue


def above(queue: str) -> str | None:
    """Return the topic of a queue %LMQ%$topic$…, also where more parts follow than a lite topic's name; else None."""
    parent, mark, _ = queue.removeprefix(NAME_PREFIX).partition(SEPARATOR)
    return parent if mark and is_lite(queue) else None


def of_queue(queue: str) -> LiteTopic | None:
    """Return the lite topic of a light queue; None for any other name (rule: LiteUtil, 5.5.0: two parts, no more)."""
    if not is_lite(queue):
        return None
    parent, _, name = queue[len(NAME_PREFIX) :].partition(SEPARATOR)
    return LiteTopic(parent, name) if parent and name and SEPARATOR not in name else None
