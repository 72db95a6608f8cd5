"""Reads the values of options: where a read begins and ends, times and durations, the topics and queues to read.

Rule: pure, nothing is asked here. The error for a wrong text says what would be right; for a text that may mean two
things it names both.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from rocketspark.client.validators import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, SYSTEM_TOPICS
from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue
from rocketspark.model.text import INT_MAX, LONG_MAX, shown, whole_number

T = TypeVar("T")

EARLIEST = "earliest"
LATEST = "latest"
# At a group's committed offsets.
COMMITTED = "committed"
# In JSON an offset may be one of these instead of a number (as in Spark's Kafka source).
EARLIEST_NUMBER = -2
LATEST_NUMBER = -1

# topic -> broker -> queue id -> offset
OffsetTable = dict[str, dict[str, dict[str, int]]]


class AtTime(NamedTuple):
    """Stands for each queue's first message that was stored at or after a time, in ms since 1970. `strict`: it is an
    error if there is no such message.
    """

    time_ms: int
    strict: bool = False


class AtTimes(NamedTuple):
    """Stands for the same as AtTime, with a time for each queue that is named: topic -> broker -> queue id -> ms."""

    table: OffsetTable
    strict: bool = False


Where = str | OffsetTable | AtTime | AtTimes


def check_offsets(value: Any, *, least: int = EARLIEST_NUMBER) -> OffsetTable:
    """Check an option's table from topic to broker to queue id to a number, an offset or a time, which is at least
    `least`; return the table.

    Raises ValueError saying what is wrong.
    """
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    for topic, brokers in value.items():
        if not isinstance(brokers, dict):
            raise ValueError(f"under {topic!r} an object of brokers is needed")
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise ValueError(f"under {topic!r}, {broker!r} an object of queues is needed")
            for queue, offset in queues.items():
                if whole_number(str(queue), high=INT_MAX) is None:
                    raise ValueError(f"{shown(queue)!r} is no queue id")
                if type(offset) is not int or not least <= offset <= LONG_MAX:
                    raise ValueError(f"{offset!r} is no {'offset' if least else 'time'} of queue {queue}")
    return value


# Spark's units of time.
_UNITS_MS = {
    **dict.fromkeys(("", "ms"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    "us": 0.001,
}


def duration_ms(name: str, text: str) -> int:
    """Return the duration that the option `name` states, in ms. It is written as in Spark: a number and a unit, ms if
    there is none. Raises ConfigError.
    """
    found = re.fullmatch(r"([0-9]{1,12}) *([a-z]*)", text.lower())
    if found is None or found[2] not in _UNITS_MS:
        raise ConfigError(f"{name} is {shown(text)!r}: a time such as 500ms, 30s, 15m or 1h is needed")
    return int(int(found[1]) * _UNITS_MS[found[2]])


def check_range(since_ms: int | None, until_ms: int | None) -> None:
    """Raise ConfigError for a time range [since_ms, until_ms) that is empty; None is an open end."""
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise ConfigError(f"the time range is empty: it begins at {since_ms} ms and ends at {until_ms} ms")


def time_ms(name: str, text: str) -> int:
    """Return the time that the option `name` states, in ms since 1970. It is written as ms or in ISO 8601 (UTC where no
    zone is named). Raises ConfigError.
    """
    if re.fullmatch("[0-9]+", text):
        if _reads_as_date(text):
            raise ConfigError(
                f"{name} is {text!r}, which may be a date or ms since 1970: write {text[:4]}-{text[4:6]}-{text[6:8]}"
                f" for the date, 0{text} for the ms"
            )
        if (since_ms := whole_number(text)) is None:
            raise ConfigError(f"{name} is {shown(text, characters_max=60)!r}: that many ms no clock counts")
        return since_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{name} is {shown(text)!r}: ms since 1970, or ISO 8601 such as 2026-01-31T12:00:00Z, is needed"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Messages carry whole ms: the first one at or after a finer time is that of the next.
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, math.ceil((since.days * 86_400 + since.seconds) * 1000 + since.microseconds / 1000))


def _reads_as_date(text: str) -> bool:
    """Tell whether digits are a date of our days as 20261121, an hour, minute and second after it or not."""
    form = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}.get(len(text))
    if form is None or not "1970" <= text[:4] <= "2100":
        return False
    try:
        datetime.strptime(text, form)
    except ValueError:
        return False
    return True


# topic -> broker -> queue ids; the broker "" is every broker.
Assigned = dict[str, dict[str, tuple[int, ...]]]

# The prefix of commit topics of exactly-once writes, one for each transactionalId.
COMMIT_PREFIX = "SPARK_TX_"
_OWN_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_", COMMIT_PREFIX)
_OWN_TOPICS = SYSTEM_TOPICS | {"TBW102", "BenchmarkTest"}


def matching(pattern: str, topics: Iterable[str], servers: Iterable[str]) -> list[str]:
    """Return the topics whose whole name matches a regular expression, in order.

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
    """Return the text of a pattern. Raises ConfigError if it is no regular expression."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as e:
        raise ConfigError(f"option topicPattern is {shown(text)!r}: it is no regular expression ({e})") from None
    return text


def json_option(name: str, text: str, check: Callable[[Any], T], needed: str) -> T:
    """Parse the JSON of the option `name`, and return what `check` makes of it. Raises ConfigError, which says that
    `needed` is needed.
    """
    reason: object = "it is nested too deeply"
    try:
        return check(json.loads(text))
    except RecursionError:
        pass
    except (ValueError, TypeError) as e:
        reason = e
    raise ConfigError(f"option {name} is {shown(text)!r} ({reason}): {needed}")


def parse_assigned(text: str) -> Assigned:
    """Parse the queues that option assign names, from JSON. Raises ConfigError."""
    needed = 'JSON such as {"topic": {"broker-a": [0, 1]}}, or {"topic": [0, 1]} for these queues on every broker'
    return json_option("assign", text, check_assigned, f"{needed}, is needed")


def check_assigned(value: Any) -> Assigned:
    """Check the table of option assign, which leads from topic to broker to queue ids, or from topic to queue ids;
    return the table. Raises ValueError saying what is wrong.
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
    """Return the queues, of those given, that option assign names."""
    return [
        queue
        for queue in queues
        if queue.queue_id in assigned.get(queue.topic, {}).get(queue.broker_name, ())
        or queue.queue_id in assigned.get(queue.topic, {}).get("", ())
    ]


def check_all_there(queues: list[MessageQueue], assigned: Assigned) -> None:
    """Raise ConfigError if a queue that option assign names is not among `queues`."""
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
