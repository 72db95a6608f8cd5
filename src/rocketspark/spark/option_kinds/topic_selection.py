"""The selection of topics and queues to read: names, a pattern, or queues by hand. Rule: pure; nothing is
asked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from rocketspark.client.validators import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, SYSTEM_TOPICS
from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue
from rocketspark.model.text import INT_MAX, shown

# topic -> broker -> queue ids; the broker "" is every broker.
Assigned = dict[str, dict[str, tuple[int, ...]]]

# The prefix of commit topics of exactly-once writes, one for each transactionalId.
COMMIT_PREFIX = "SPARK_TX_"
_OWN_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_", COMMIT_PREFIX)
_OWN_TOPICS = SYSTEM_TOPICS | {"TBW102", "BenchmarkTest"}


def matching(pattern: str, topics: Iterable[str], servers: Iterable[str]) -> list[str]:
    """Return the topics whose whole name matches, in order.

    Retry, dead-letter, commit and system topics match only a pattern that names them: their prefix, or their whole
    name, stands in it as plain text. `servers`: names of brokers and clusters, whose topics are system topics too.
    """
    expression = re.compile(pattern)
    own = _OWN_TOPICS.union(*((name, name + REPLY_SUFFIX) for name in servers))
    return [topic for topic in sorted(topics) if expression.fullmatch(topic) and _is_named(topic, pattern, own)]


def _is_named(topic: str, pattern: str, own: frozenset[str]) -> bool:
    prefix = next((p for p in _OWN_PREFIXES if topic.startswith(p)), None)
    if prefix is not None:
        return prefix in pattern
    return topic not in own or topic in pattern


def check_pattern(text: str) -> str:
    """Return the pattern. Raises ConfigError for one that is no regular expression."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as e:
        raise ConfigError(f"option topicPattern is {shown(text)!r}: it is no regular expression ({e})") from None
    return text


def from_json_text(text: str) -> Any:
    """Parse a text of JSON. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_assigned(text: str) -> Assigned:
    """Parse queues by hand from JSON. Raises ConfigError."""
    try:
        return check_assigned(from_json_text(text))
    except (ValueError, TypeError) as e:
        raise ConfigError(
            f'option assign is {shown(text)!r} ({e}): JSON such as {{"topic": {{"broker-a": [0, 1]}}}}, or'
            ' {"topic": [0, 1]} for these queues on every broker, is needed'
        ) from None


def check_assigned(value: Any) -> Assigned:
    """Return the table of queues by hand, typed, if it is topic to broker to queue ids, or topic to queue ids. Raises
    ValueError saying what is wrong.
    """
    if not isinstance(value, dict) or not value:
        raise ValueError("it is no JSON object with a topic")
    found: Assigned = {}
    for topic, brokers in value.items():
        by_broker = brokers if isinstance(brokers, dict) else {"": brokers}
        if not by_broker:
            raise ValueError(f"under {topic!r} there is no broker")
        for broker, ids in by_broker.items():
            where = f"{topic!r}, {broker!r}" if broker else repr(topic)
            if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i <= INT_MAX for i in ids):
                raise ValueError(f"under {where} a list of queue ids is needed")
            found.setdefault(topic, {})[broker] = tuple(sorted(set(ids)))
    return found


def assigned_of(queues: Iterable[MessageQueue], assigned: Assigned) -> list[MessageQueue]:
    """Return the assigned ones of the queues."""
    return [
        queue
        for queue in queues
        if queue.queue_id in assigned.get(queue.topic, {}).get(queue.broker_name, ())
        or queue.queue_id in assigned.get(queue.topic, {}).get("", ())
    ]


def check_all_there(queues: list[MessageQueue], assigned: Assigned) -> None:
    """Raise ConfigError if an assigned queue is not among `queues`."""
    for topic, brokers in assigned.items():
        there = sorted(queue for queue in queues if queue.topic == topic)
        for broker, ids in brokers.items():
            have = {queue.queue_id for queue in there if broker in ("", queue.broker_name)}
            for queue_id in ids:
                if queue_id not in have:
                    listing = ", ".join(f"{q.broker_name}/{q.queue_id}" for q in there) or "none"
                    where = f" on broker {broker!r}" if broker else ""
                    raise ConfigError(
                        f"option assign names queue {queue_id}{where} of topic {topic!r}, which is not there; there"
                        f" are: {listing}"
                    )
