"""An iterator's share of a pull consumer's messages.

Rule: one is done with when the next one is asked for; one that was passed over, as its queue is being given up, is not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from rocketspark.client.consumer.puller import Puller
from rocketspark.model import ReceivedMessage

# Messages of one queue, in order, with the puller that read them.
Run = tuple[Puller, list[ReceivedMessage]]


class MessageIterator:
    """Messages that are given out one by one, in any thread.

    `given`: how many were; the last of them is in work, unless `finished`. `thread`: the thread that iterates.
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
        """Each message once; those of queues that were given up or are read from elsewhere since are left out."""
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
        """Count messages that `before` read and `after` does not read again as read by `after`."""
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
        """Return, by puller, the lowest offset in here that is not finished; the one after all of them if there is
        none.
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
