"""Selectors: functions that choose a message's queue by an argument of the application's. Rule: names and results of
RocketMQ's SelectMessageQueueByHash, ByRandom and ByMachineRoom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rocketspark import machine
from rocketspark.errors import UsageError
from rocketspark.model import Message, MessageQueue
from rocketspark.model.text import string_hash

# Gets the topic's queues (ordered by broker and id), the message and the argument of the send call.
Selector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def by_hash(queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
    """Choose one queue for equal arguments: Java's hashCode of a text or whole number, over the queue count."""
    return queues[abs(_java_hash(argument)) % len(queues)]


def by_random(queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
    """Choose any queue."""
    return machine.choice(queues)


def by_machine_room(*rooms: str) -> Selector:
    """Return a selector that chooses any queue of the brokers in these machine rooms, which are named "room@…".

    If the topic has no broker in them, any queue is chosen.
    """
    prefixes = tuple(f"{room}@" for room in rooms)

    def select(queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
        near = [q for q in queues if q.broker_name.startswith(prefixes)]
        return machine.choice(near or queues)

    return select


def select(
    selector: Selector, queues: Sequence[MessageQueue], message: Message, argument: Any
) -> MessageQueue:  # fmt: skip
    """Return the queue that a selector chooses. Raises UsageError if it is none of the topic's."""
    queue = selector(queues, message, argument)
    if not isinstance(queue, MessageQueue) or queue.topic != message.topic:
        raise UsageError(f"the selector returned {queue!r}; it must return one of the queues of {message.topic!r}")
    return queue


def _java_hash(argument: Any) -> int:
    if isinstance(argument, str):
        return string_hash(argument)
    if isinstance(argument, int) and -(1 << 63) <= argument < 1 << 63:
        if -(1 << 31) <= argument < 1 << 31:
            return int(argument)
        folded = (argument ^ (argument >> 32)) & 0xFFFFFFFF
        return folded - (1 << 32) if folded & 0x80000000 else folded
    raise UsageError(f"by_hash takes a text or a whole number of 64 bits, not {argument!r}: pass str(...) of it")
