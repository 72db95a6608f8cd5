"""The attributes of topics and groups that are about lite topics. Rule: names and bounds are RocketMQ's (5.5.0)."""

from __future__ import annotations

from collections.abc import Mapping

from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ServerError
from rocketspark.model.text import INT_MAX, LONG_MAX, shown, whole_number
from rocketspark.protocol import topic_attributes
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import GroupConfig, TopicConfig
from rocketspark.protocol.lite_topics import BIND_TOPIC, WILDCARD

# Of a topic: the minutes after its last message in which a lite topic expires; -1: never.
EXPIRATION = "lite.topic.expiration"
EXPIRATION_MINUTES_MAX = 30 * 24 * 60
# Of a group: how it reads the lite topics of its topic.
MODEL = "lite.sub.model"
SHARED, EXCLUSIVE = "Shared", "Exclusive"
RESET_EXCLUSIVE, RESET_UNSUBSCRIBE = "lite.sub.reset.offset.exclusive", "lite.sub.reset.offset.unsubscribe"
CLIENT_QUOTA, CLIENT_EVENTS = "lite.sub.client.quota", "lite.sub.client.max.event.cnt"
OF_GROUPS = (BIND_TOPIC, MODEL, RESET_EXCLUSIVE, RESET_UNSUBSCRIBE, CLIENT_QUOTA, CLIENT_EVENTS, WILDCARD)
# Events of a client that wait; a pop looks at all of them in one turn.
CLIENT_EVENTS_MAX = 10_000


def is_lite_topic(config: TopicConfig | None) -> bool:
    """Tell whether a topic has lite topics."""
    return config is not None and topic_attributes.is_lite(config.attributes)


def expiration_minutes(config: TopicConfig) -> int:
    """Return the minutes after its last message in which a lite topic expires; below 1: never."""
    value = whole_number(config.attributes.get(EXPIRATION, "-1"), low=-1, high=EXPIRATION_MINUTES_MAX)
    return -1 if value is None else value


def bind_topic(group: GroupConfig | None) -> str | None:
    """Return the topic whose lite topics a group reads; None for a group of usual topics."""
    return None if group is None else group.attributes.get(BIND_TOPIC)


def is_exclusive(group: GroupConfig | None) -> bool:
    """Tell whether each lite topic has one client of the group at a time, the last to subscribe."""
    return group is not None and group.attributes.get(MODEL) == EXCLUSIVE


def is_wildcard(group: GroupConfig | None) -> bool:
    """Tell whether every client of the group reads all lite topics."""
    return group is not None and WILDCARD in group.attributes


def is_true(group: GroupConfig | None, name: str) -> bool:
    """Tell whether an attribute of a group says true."""
    return group is not None and group.attributes.get(name, "").lower() == "true"


def events_max(group: GroupConfig | None, settings: BrokerSettings) -> int:
    """Return how many events a client of the group may have waiting."""
    value = whole_number(group.attributes.get(CLIENT_EVENTS, ""), high=LONG_MAX) if group is not None else None
    # Java's int: what does not fit is as if it were not there.
    own = value if value is not None and 0 < value <= INT_MAX else settings.client_events_max
    return min(own, CLIENT_EVENTS_MAX)


def check_topic(attributes: Mapping[str, str]) -> None:
    """Raise ServerError 29 for attributes about lite topics that no topic may have."""
    check_number(attributes, EXPIRATION, -1, EXPIRATION_MINUTES_MAX)


def check_group(attributes: Mapping[str, str]) -> None:
    """Raise ServerError 29 for attributes about lite topics that no group may have."""
    check_number(attributes, CLIENT_QUOTA, -1, LONG_MAX)
    check_number(attributes, CLIENT_EVENTS, 10, LONG_MAX)
    _check_word(attributes, MODEL, (SHARED, EXCLUSIVE))
    for name in (RESET_EXCLUSIVE, RESET_UNSUBSCRIBE):
        _check_word(attributes, name, ("true", "false"))


def check_number(attributes: Mapping[str, str], name: str, low: int, high: int) -> None:
    """Raise ServerError 29 if an attribute is there and no number within the bounds."""
    if name in attributes and whole_number(attributes[name], low=low, high=high) is None:
        text = shown(attributes[name])
        raise ServerError(ResponseCode.INVALID_PARAMETER, f"{name} {text!r} is no number from {low} to {high}")


def _check_word(attributes: Mapping[str, str], name: str, words: tuple[str, ...]) -> None:
    if name in attributes and attributes[name] not in words:
        text = shown(attributes[name])
        raise ServerError(ResponseCode.INVALID_PARAMETER, f"{name} {text!r} is not {' or '.join(words)}")
