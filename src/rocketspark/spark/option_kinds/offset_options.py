"""Where a read begins and ends, as an option says it: a word, offsets, or times. Rule: a wrong one is told where."""

from __future__ import annotations

from typing import Any, NamedTuple

from rocketspark.model.text import INT_MAX, LONG_MAX, shown, whole_number

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
    """The first message stored at or after a time, in ms since 1970. `strict`: it is a mistake if there is none."""

    time_ms: int
    strict: bool = False


class AtTimes(NamedTuple):
    """As AtTime, with a time for each queue that is named: topic -> broker -> queue id -> ms."""

    table: OffsetTable
    strict: bool = False


Where = str | OffsetTable | AtTime | AtTimes


def check_offsets(value: Any, *, least: int = EARLIEST_NUMBER) -> OffsetTable:
    """Return the table, if it is topic to broker to queue id to a number from `least` up, an offset or a time.

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
