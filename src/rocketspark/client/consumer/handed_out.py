"""What a pull consumer fetched and what of it the application has. Rule: only what was handed out counts as read, and
what an iterator holds only as far as that came.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from rocketspark.client.consumer.message_iterator import MessageIterator, Run
from rocketspark.client.consumer.puller import Puller


class HandedOut:
    """The messages of one consumer on their way to the application. `lent`: the iterators in use."""

    def __init__(self) -> None:
        self.fetched: deque[Run] = deque()
        # Messages that they did not give out yet are not finished.
        self.lent: list[MessageIterator] = []

    def take(self, count_max: int) -> list[Run]:
        """Hand out up to so many of the messages that were fetched."""
        taken: list[Run] = []
        room = count_max
        now_ms = int(time.time() * 1000)
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
        """Give messages that were taken to an iterator; `take_back` must follow."""
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
        """Count all messages handed out so far as finished, and those of iterators as far as they came."""
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
        """Return the offset to commit for a queue. Iterators go on without telling the consumer."""
        held = [offsets[puller] for message_iterator in self.lent if puller in (offsets := message_iterator.held())]
        if held:
            # All below what they were lent was settled when they were; what was taken back is not done.
            barred = [] if puller.barred is None else [puller.barred]
            puller.done = max(puller.done, min(held + barred))
        return puller.done
