"""Offsets of many queues: where to begin and end, how much to take, how to split. Rule: pure; queries are handed in.

A stream's offset is JSON, topic to broker to queue id to the next queue offset to read. Its keys are in order, since
Spark compares offsets as text. Spark records where each micro-batch ends but not where the first one began, so the end
of the first one tells that too, under a key that can be no topic; under another one stands the namespace of the topics,
whose names are without it.

Brokers answer SEARCH_OFFSET_BY_TIMESTAMP well but not always exactly: Apache RocketMQ gives the first unit of a queue
file instead of the oldest message, 0 where the log's part is gone, and on batch queues the last record for a time after
it (BatchConsumeQueue, 5.5). So `first_at_or_after` takes its answer as a guess, proved by the store times of the two
messages around it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue
from rocketspark.model.text import shown
from rocketspark.tables.option_values import EARLIEST, EARLIEST_NUMBER, LATEST, LATEST_NUMBER, OffsetTable

Offsets = dict[MessageQueue, int]

# In each topic and broker that had one of its name before, the number of the topic's making; and of each broker that
# tells it the number of its store, as of EACH_TOPIC.
Made = dict[tuple[str, str], int]
EACH_TOPIC = ""

START_KEY = "@start"
MADE_KEY = "@made"
NAMESPACE_KEY = "@namespace"


class OffsetRange(NamedTuple):
    """Queue offsets [first, end) of one queue."""

    queue: MessageQueue
    first: int
    end: int


def to_json(offsets: Mapping[MessageQueue, int]) -> OffsetTable:
    """Return offsets as the JSON of a stream's offset, with its keys in order."""
    table: OffsetTable = {}
    for queue in sorted(offsets):
        table.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return table


def from_json(table: Mapping[str, Any]) -> Offsets:
    """Return the offsets in a stream's JSON. Raises ConfigError for JSON of another form, as a checkpoint may come from
    anywhere.
    """
    found: Offsets = {}
    try:
        for topic, brokers in table.items():
            if topic in (START_KEY, MADE_KEY, NAMESPACE_KEY):
                continue
            if topic.startswith("@"):
                raise ValueError(topic)  # No topic has such a name: a later version's mark.
            for broker, queues in brokers.items():
                for queue, offset in queues.items():
                    if type(offset) is not int:
                        raise TypeError(offset)
                    found[MessageQueue(topic, broker, int(queue))] = offset
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            'the checkpoint is none of a stream of format("rocketmq"), or of another version: give the query a'
            " checkpointLocation of its own"
        ) from None
    return found


def made_of(table: Mapping[str, Any]) -> Made:
    """Return from a stream's offset the number of each topic's making on each broker, which rises when the topic is
    deleted and made again.
    """
    return {(topic, name): at for topic, brokers in table.get(MADE_KEY, {}).items() for name, at in brokers.items()}


def made_json(made: Made) -> dict[str, Any]:
    """Return the entry of a stream's offset that holds the numbers of the topics' making; no entry if none is known."""
    table: dict[str, dict[str, int]] = {}
    for (topic, broker), at in sorted(made.items()):
        table.setdefault(topic, {})[broker] = at
    return {MADE_KEY: table} if table else {}


def tells_namespace(table: Mapping[str, Any], namespace: str, *, fail: bool) -> bool:
    """Tell whether a stream's offset says that its topics are of a namespace, "" for none; False if it cannot tell.

    Raises ConfigError if they are of another one, and with `fail` if the offset names none, as those that an earlier
    version wrote. One whose namespace is null is made of rows, which do not name it.
    """
    noted = table.get(NAMESPACE_KEY, "")
    if noted in (None, namespace):
        return noted is not None
    own = "give it a checkpointLocation of its own, or an archive a folder of its own"
    if noted:
        raise ConfigError(
            f"topics of namespace {shown(str(noted))!r} were read up to here, and the options name"
            f" {repr(namespace) if namespace else 'none'}: {own}"
        )
    if fail:
        raise ConfigError(
            f"what was read up to here names no namespace, and the options name {namespace!r}: {own}; if an earlier"
            " version read it of that namespace, set failOnDataLoss to false once"
        )
    return False


def place(where: str | OffsetTable, oldest: Offsets, newest: Offsets, *, option: str, default: str) -> Offsets:
    """Return the offset that an option means in each queue of `oldest`. `where`: earliest, latest or a table; queues
    that the table does not name get what the word `default` means.

    Raises ConfigError, naming the option, if the table names a queue that is not there.
    """
    ends = {EARLIEST: oldest, LATEST: newest}
    if isinstance(where, str):
        return dict(ends[where])
    placed = dict(ends[default])
    for queue, offset in from_json(where).items():
        if queue not in placed:
            have = ", ".join(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in sorted(placed)) or "none"
            raise ConfigError(
                f"option {option} names queue {queue.queue_id} of topic {queue.topic!r} on broker"
                f" {queue.broker_name!r}, which is not there; there are: {have}"
            )
        if offset == EARLIEST_NUMBER:
            offset = oldest[queue]
        elif offset == LATEST_NUMBER:
            offset = newest[queue]
        placed[queue] = offset
    return placed


def lag(start: Offsets, end: Offsets) -> Offsets:
    """Return how many messages each queue of `end` holds after `start`; 0 for a queue that ends before its start, as
    its topic was made anew.
    """
    return {queue: max(0, end[queue] - start[queue]) for queue in sorted(end)}


def admit(start: Offsets, newest: Offsets, rows_max: int) -> Offsets:
    """Return the offsets at which a micro-batch ends that begins at `start` and takes at most `rows_max` rows.

    The rows are shared among the queues by how much each holds; but each queue gets on, by one row at least, or in turn
    if there are more queues than rows. A queue that ends before its start, as its topic was made anew, keeps that end,
    so that it is noticed.
    """
    rows = lag(start, newest)
    if sum(rows.values()) <= rows_max:
        return dict(newest)
    shares = dict.fromkeys(rows, 0)
    for queue in _in_turn(start, rows)[:rows_max]:
        shares[queue] = 1
    others = {queue: count - shares[queue] for queue, count in rows.items()}
    more = _shares(others, rows_max - sum(shares.values()))
    return {queue: min(newest[queue], start[queue] + share + more[queue]) for queue, share in shares.items()}


def _in_turn(start: Offsets, rows: Offsets) -> list[MessageQueue]:
    """Return the queues that hold rows, first those whose turn it is: the turn goes on by one with each row read."""
    holding = [queue for queue, count in rows.items() if count]
    turn = sum(start[queue] for queue in rows) % max(1, len(holding))
    return holding[turn:] + holding[:turn]


def _shares(rows: Offsets, rows_max: int) -> Offsets:
    total = sum(rows.values())
    if not total:
        return rows
    shares = {queue: rows_max * count // total for queue, count in rows.items()}
    left = rows_max - sum(shares.values())
    # The remainder of the rounding goes to the queues that it cost most.
    for queue in sorted(rows, key=lambda q: (-(rows_max * rows[q] % total), q))[:left]:
        shares[queue] += 1
    return shares


def admit_bytes(start: Offsets, newest: Offsets, sizes: Mapping[MessageQueue, float], bytes_max: int) -> Offsets:
    """Return the offsets at which a micro-batch ends that begins at `start` and takes some `bytes_max` bytes, and at
    least one message. `sizes`: the mean size of each queue's messages.

    Each queue gives the same part of what it holds, and gets on as with `admit`. A queue of unknown size counts as the
    mean of the others.
    """
    rows = lag(start, newest)
    known = [sizes[queue] for queue in rows if queue in sizes]
    mean = sum(known) / len(known) if known else 0
    size_of = {queue: sizes.get(queue, mean) for queue in rows}
    total = sum(count * size_of[queue] for queue, count in rows.items())
    if total <= bytes_max:
        return dict(newest)
    shares, left = dict.fromkeys(rows, 0), float(bytes_max)
    for number, queue in enumerate(_in_turn(start, rows)):
        if number and size_of[queue] > left:
            break
        shares[queue], left = 1, left - size_of[queue]
    if left > 0 and all(shares[queue] for queue, count in rows.items() if count):
        part = left / (total - sum(size_of[queue] * share for queue, share in shares.items()))
        shares = {queue: share + int((rows[queue] - share) * part) for queue, share in shares.items()}
    return {queue: min(newest[queue], start[queue] + share) for queue, share in shares.items()}


def split(ranges: list[OffsetRange], partitions_min: int, rows_max: int | None) -> list[OffsetRange]:
    """Split ranges so that there are at least `partitions_min` and none is over `rows_max`; empty ones are dropped.

    A topic of few rows may make fewer: no part is empty.
    """
    ranges = [r for r in ranges if r.end > r.first]
    total = sum(r.end - r.first for r in ranges)
    parts: list[OffsetRange] = []
    for queue, first, end in ranges:
        rows = end - first
        count = 1
        if rows_max is not None:
            count = -(-rows // rows_max)
        if len(ranges) < partitions_min:
            count = max(count, min(rows, -(-partitions_min * rows // total)))
        parts += (OffsetRange(queue, first + rows * i // count, first + rows * (i + 1) // count) for i in range(count))
    return parts


async def first_at_or_after(
    time_ms: int, oldest: int, end: int, guess: int, stored_ms: Callable[[int], Awaitable[float]]
) -> int:
    """Return the offset of a queue's first message in [oldest, end) that was stored at or after `time_ms`; `end` if
    there is none.

    Args:
        guess: where it should be; two questions prove a right guess, a wrong one costs a binary search.
        stored_ms: asks for the store time of the message at an offset: -inf if it is deleted, inf if not there yet.

    Store times must ascend; where a broker's clock was set back, the result is an offset at which they pass `time_ms`.
    """
    low, high = oldest, end
    guess = min(max(guess, low), high)
    if guess > low:
        if await stored_ms(guess - 1) < time_ms:
            low = guess
        else:
            high = guess - 1
    if low == guess < high:
        if await stored_ms(guess) >= time_ms:
            high = guess
        else:
            low = guess + 1
    while low < high:
        middle = (low + high) // 2
        if await stored_ms(middle) < time_ms:
            low = middle + 1
        else:
            high = middle
    return low
