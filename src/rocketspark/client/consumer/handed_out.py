"""What a pull consumer fetched, and what of it the application has.

Rule: only what was handed out counts as read, and what an iterator holds only as far as the iterator came: a message
is finished when the next one is asked for; one that was passed over, as its queue is being given up, is not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator

from rocketspark import machine
from rocketspark.client.consumer.puller import Puller
from rocketspark.client.message_batch import Messages
from rocketspark.model import ReceivedMessage

# Messages of one queue, in order, with the puller that read them.
Run = tuple[Puller, Messages]


class MessageIterator:
    """Messages that the application takes one by one, in any thread.

    `given`: how many it took; it works on the last of them until `finished` is true. `thread`: the thread that
    iterates.
    """

    __slots__ = ("_pairs", "_passed", "finished", "given", "thread")

    def __init__(self, runs: list[Run]) -> None:
        self._pairs = [(puller, message) for puller, messages in runs for message in messages]
        # By puller, the lowest offset that was passed over.
        self._passed: dict[Puller, int] = {}
        self.given = 0
        self.finished = False
        self.thread = threading.get_ident()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield each message once, but none of a queue that was given up or moved to another offset meanwhile."""
        for at in range(len(self._pairs)):
            puller, message = self._pairs[at]
            passed = puller.dropped
            if passed:
                # First of all: from here on nothing of it is committed.
                self._passed.setdefault(puller, message.queue_offset)
            self.given += 1
            if not passed:
                yield message
        self.finished = True

    def follow(self, before: Puller, after: Puller) -> None:
        """Let `after`, the puller that replaces `before`, stand for the messages that `before` read and `after` will
        not read again.
        """
        below = after.process_queue.next_offset
        for at, (puller, message) in enumerate(self._pairs):
            if puller is before and message.queue_offset < below:
                self._pairs[at] = (after, message)
        if self._passed.get(before, below) < below:
            self._passed[after] = self._passed.pop(before)

    @property
    def is_through(self) -> bool:
        """Tell whether all of its messages are finished."""
        return self.finished and self.given == len(self._pairs) and not self._passed

    def held(self) -> dict[Puller, int]:
        """Return, by puller, the lowest offset of this iterator's messages that is not finished; if all are, the offset
        after the last.
        """
        done = self.given if self.finished else max(self.given - 1, 0)
        held: dict[Puller, int] = {}
        for puller, message in self._pairs[:done]:
            held[puller] = message.queue_offset + 1
        waiting: set[Puller] = set()
        for puller, message in self._pairs[done:]:
            if puller not in waiting:
                waiting.add(puller)
                held[puller] = message.queue_offset
        for puller, offset in list(self._passed.items()):
            held[puller] = min(offset, held.get(puller, offset))
        return held

    def rest(self) -> list[Run]:
        """Return the messages that were not given out, by the puller that read them."""
        rest: dict[Puller, list[ReceivedMessage]] = {}
        for at, (puller, message) in enumerate(self._pairs):
            passed = self._passed.get(puller)
            if at >= self.given or (passed is not None and message.queue_offset >= passed):
                rest.setdefault(puller, []).append(message)
        return list(rest.items())


class HandedOut:
    """The messages of one consumer on their way to the application. `lent`: the iterators in use."""

    def __init__(self) -> None:
        self.fetched: deque[Run] = deque()
        # Messages that they did not give out yet are not finished.
        self.lent: list[MessageIterator] = []

    def take(self, count_max: int) -> list[Run]:
        """Take up to `count_max` of the fetched messages for the application."""
        taken: list[Run] = []
        room = count_max
        now_ms = int(machine.time() * 1000)
        fetched = self.fetched
        while fetched and room > 0:
            puller, messages = fetched.popleft()
            if puller.dropped:
                continue
            if len(messages) > room:
                fetched.appendleft((puller, messages[room:]))
                messages = messages[:room]
            room -= len(messages)
            puller.process_queue.finish(messages)
            puller.consumed_ms = now_ms
            taken.append((puller, messages))
        return taken

    def lend(self, runs: list[Run]) -> MessageIterator:
        """Put messages that were taken into an iterator for the application; `take_back` must follow."""
        message_iterator = MessageIterator(runs)
        self.lent.append(message_iterator)
        return message_iterator

    def take_back(self, message_iterator: MessageIterator) -> list[Run]:
        """End an iterator; return what it did not give out, nothing if it ended before."""
        if message_iterator not in self.lent:
            return []
        for puller in message_iterator.held():
            self.done(puller)
        self.lent.remove(message_iterator)
        return message_iterator.rest()

    def follow(self, before: Puller, after: Puller) -> None:
        """Note that a puller ended, and that another goes on with its queue."""
        for message_iterator in self.lent:
            message_iterator.follow(before, after)

    def settle(self, pullers: Iterable[Puller]) -> None:
        """Count all messages taken so far as finished; those in iterators only as far as the iterator has come."""
        self.lent = [message_iterator for message_iterator in self.lent if not message_iterator.is_through]
        held: dict[Puller, int] = {}
        for message_iterator in self.lent:
            for puller, offset in message_iterator.held().items():
                held[puller] = min(offset, held.get(puller, offset))
        for puller in pullers:
            lowest = puller.process_queue.lowest
            barred = lowest if puller.barred is None else puller.barred
            puller.done = min(lowest, barred, held.get(puller, lowest))

    def done(self, puller: Puller) -> int:
        """Return the offset to commit of a puller's queue; how far iterators have come by now is looked up first."""
        held = [offsets[puller] for message_iterator in self.lent if puller in (offsets := message_iterator.held())]
        if held:
            # All below what they were lent was settled when they were; what was taken back is not done.
            barred = [] if puller.barred is None else [puller.barred]
            puller.done = max(puller.done, min(held + barred))
        return puller.done
