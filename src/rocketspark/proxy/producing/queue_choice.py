"""The queue of a message: by its message group, as every other proxy chooses it, else the next in turn. Pure.

Rule: Guava's consistentHash of Java's hash of the group, over the queues ordered by broker and id (SendMessageActivity
and MessageQueueSelector, 5.5.0): all messages of a group go to one queue, whichever proxy takes them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from functools import lru_cache

from rocketspark.model import MessageQueue
from rocketspark.model.java import string_hash

# Steps of the generator (rule: com.google.common.hash.Hashing.LinearCongruentialGenerator).
_MULTIPLIER = 2862933555777941757
_MASK = (1 << 64) - 1
_RANGE = float(0x80000000)
# Beyond it round robin begins with any queue again.
TOPICS_KEPT = 10_000


@lru_cache(maxsize=65536)
def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket of a number of 64 bits, as Guava's `Hashing.consistentHash`: 0 to `buckets` - 1."""
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


class QueueChoice:
    """Chooses queues; keeps for each topic whose turn it is."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def of_group(self, message_group: str, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Return the queue of a message group."""
        return queues[consistent_hash(string_hash(message_group), len(queues))]

    def next(self, topic: str, queues: Sequence[MessageQueue], avoid: Collection[str] = ()) -> MessageQueue:
        """Return the next queue in turn; of a broker in `avoid`, which did not answer lately, only if it must be."""
        turn = self._turns.get(topic)
        if turn is None:
            turn = random.randrange(len(queues))
            if len(self._turns) >= TOPICS_KEPT:
                self._turns.clear()
        if avoid:
            for step in range(1, len(queues) + 1):
                queue = queues[(turn + step) % len(queues)]
                if queue.broker_name not in avoid:
                    self._turns[topic] = (turn + step) & 0xFFFFFFFF
                    return queue
        self._turns[topic] = turn = (turn + 1) & 0xFFFFFFFF
        return queues[turn % len(queues)]
