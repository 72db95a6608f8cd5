"""What is done with many queues of a tier, of which some fail. Rule: one that always fails holds no other up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rocketspark.errors import StoreError
from rocketspark.store.tiered.segments import FAILURES_MAX, TierTaken

Queue = tuple[str, int]


class Attempts:
    """The rounds of one kind of work. `failed`: those that failed when they were tried last, which come last; `errors`:
    of this round.
    """

    def __init__(self) -> None:
        self.failed: set[Queue] = set()
        self.errors: list[StoreError] = []

    def begin(self) -> None:
        """Begin a round."""
        self.errors = []

    @property
    def is_over(self) -> bool:
        """Tell whether so many failed that the others wait for the next round."""
        return len(self.errors) >= FAILURES_MAX

    def order(self, queues: list[Queue]) -> list[Queue]:
        """Return queues in the order in which they are tried."""
        self.failed.intersection_update(queues)
        return sorted(queues, key=self.failed.__contains__)

    @contextmanager
    def at(self, queue: Queue) -> Iterator[None]:
        """Keep the error of a queue's work, but for one that says that the tier is another store's now."""
        try:
            yield
        except TierTaken:
            raise
        except StoreError as e:
            self.errors.append(e)
            self.failed.add(queue)
        else:
            self.failed.discard(queue)
