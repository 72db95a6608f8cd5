"""How queues are shared out among a group's members. Pure: clients and brokers compute the same from the same lists.

Rule: results of RocketMQ's AllocateMessageQueue… strategies and of QueryAssignmentProcessor, 5.x. All take sorted
lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from rocketspark.model.route import MessageQueue
from rocketspark.model.text import string_hash

# (client id, the topic's queues, client ids of all members) -> the client's share.
Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
# The id of a queue that stands for all queues of its broker.
ALL_QUEUES = -1


def average(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Give each member a run of neighbouring queues; the first members get one more where it does not come out even."""
    if client_id not in members:
        return []
    place = members.index(client_id)
    share, more = divmod(len(queues), len(members))
    start = place * share + min(place, more)
    return list(queues[start : start + share + (place < more)])


def average_by_circle(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Deal the queues out in turn, like cards."""
    if client_id not in members:
        return []
    return list(queues[members.index(client_id) :: len(members)])


# By the names in requests.
BROKER_STRATEGIES: dict[str, Strategy] = {"AVG": average, "AVG_BY_CIRCLE": average_by_circle}


def pop_share(
    strategy: Strategy, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], share_count: int
) -> list[MessageQueue]:
    """Return the queues that a member pops: its own share by `strategy`, and those of the `share_count` members after
    it.

    With `share_count` 0 or less, or as many as there are other members, these are all queues, as one queue -1 for each
    broker. If there are more members than queues, it is one queue.
    """
    if share_count <= 0 or share_count >= len(members) - 1:
        names = dict.fromkeys((q.topic, q.broker_name) for q in queues)
        return [MessageQueue(topic, name, ALL_QUEUES) for topic, name in names]
    if client_id not in members:
        return []
    place = members.index(client_id)
    if len(members) > len(queues):
        return [queues[place % len(queues)]]
    sharers = [members[(place + step) % len(members)] for step in range(share_count + 1)]
    return list(dict.fromkeys(queue for member in sharers for queue in strategy(member, queues, members)))


# Steps of the generator (rule: com.google.common.hash.Hashing.LinearCongruentialGenerator).
_MULTIPLIER = 2862933555777941757
_MASK = (1 << 64) - 1
_RANGE = float(0x80000000)


@lru_cache(maxsize=65536)
def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket, from 0 to `buckets` - 1, that Guava's `Hashing.consistentHash` puts a 64-bit number into."""
    state = value & _MASK
    candidate = 0
    while True:
        state = (state * _MULTIPLIER + 1) & _MASK
        # The upper 31 bits, as a number above 0 and up to 1; Java's cast to int ends at its largest.
        step = (candidate + 1) / (((state >> 33) + 1) / _RANGE)
        following = int(step) if step < _RANGE else 0x7FFFFFFF
        if not 0 <= following < buckets:
            return candidate
        candidate = following


def bucket_of(name: str, buckets: int) -> int:
    """Return the bucket of a text by its Java hash: that of all messages of a message group, or of a lite topic."""
    return consistent_hash(string_hash(name), buckets)
