"""What is done with many queues of a tier, of which some fail. Rule: one that always fails holds no other up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rocketspark.errors import StoreError
from rocketspark.store.tiered.segments import FAILURES_MAX, TierTaken

Queue = tuple[str, int]


class Attempts:
    """The rounds of one kind of work. `failed`: those that failed when they were tried last, in the order in which they
    did, which come last; `errors`: of this round.
    """

    def __init__(self) -> None:
        # As keys: in order.
        self.failed: dict[Queue, None] = {}
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
        known = set(queues)
        self.failed = {queue: None for queue in self.failed if queue in known}
        return [*(queue for queue in queues if queue not in self.failed), *self.failed]

    @contextmanager
    def at(self, queue: Queue) -> Iterator[None]:
        """Keep the error of a queue's work, but for one that says that the tier is another store's now."""
        try:
            yield
        except TierTaken:
            raise
        except StoreError as e:
            self.errors.append(e)
            # Behind those that failed before it: else the same few could be all that is tried again.
            self.failed.pop(queue, None)
            self.failed[queue] = None
        else:
            self.failed.pop(queue, None)
