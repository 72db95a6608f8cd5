"""The half messages that came in batches, in memory: a few bytes for each instead of an object. Pure.

Rule: a message's place is its offset in the half queue; what a run says of it is what its end found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark.broker.messages.half_batches.half_shapes import HalfShape

# OPEN waits for its end; ELSEWHERE: it is one of `Transactions`' own again; COPIED: a newer run has it again.
OPEN, COMMITTED, ROLLED_BACK, ELSEWHERE, COPIED = 0, 1, 2, 3, 4
# Rows of runs without open ones that are kept, so that a repeated end finds its outcome: 9 bytes each.
ENDED_ROWS_MAX = 1 << 20


class HalfRun(msgspec.Struct, eq=False):
    """Half messages of one queue, one behind another in the half queue and in the log.

    `first`: the half queue's offset of the first; `end`: the physical offset after the last; `cut`, `after`: as in
    `half_layouts.HalfForm`; `shape`: of all, if they have one; `states`: of each; `digest`: of topic, group and unique
    ids, which copies have in common.
    """

    first: int
    positions: NDArray[np.int64]
    end: int
    topic: str
    queue_id: int
    group: str
    since_ms: int
    immunity_ms: int
    cut: bytes
    after: int
    shape: HalfShape | None
    states: NDArray[np.uint8]
    open_count: int
    digest: bytes

    @property
    def count(self) -> int:
        """How many messages it has."""
        return len(self.positions)

    def set(self, at: int, count: int, state: int) -> None:
        """Set the state of open messages."""
        self.states[at : at + count] = state
        self.open_count -= count

    def end_of(self, at: int) -> int:
        """Return the physical offset after a message."""
        return int(self.positions[at + 1]) if at + 1 < self.count else self.end


class HalfRuns:
    """All runs, by the offsets of their first messages."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[HalfRun] = []
        self._newest: dict[bytes, HalfRun] = {}
        self._ended: deque[HalfRun] = deque()
        self._ended_rows = 0

    def clear(self) -> None:
        """Forget all."""
        self.__init__()  # type: ignore[misc]

    def __iter__(self) -> Iterator[HalfRun]:
        return iter(list(self._runs))

    @property
    def open_count(self) -> int:
        """How many messages are open."""
        return sum(run.open_count for run in self._runs)

    def add(self, run: HalfRun) -> None:
        """Add a run, which is behind all others."""
        assert not self._firsts or run.first > self._firsts[-1]
        self._firsts.append(run.first)
        self._runs.append(run)
        self._newest[run.digest] = run

    def newest(self, digest: bytes) -> HalfRun | None:
        """Return the run that came last of those with these messages."""
        return self._newest.get(digest)

    def find(self, offset: int) -> HalfRun | None:
        """Return the run that has the message at an offset of the half queue."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0 or offset >= self._runs[at].first + self._runs[at].count:
            return None
        return self._runs[at]

    def oldest_open(self) -> int | None:
        """Return the offset of the first open message."""
        for run in self._runs:
            if run.open_count:
                return run.first + int(np.flatnonzero(run.states == OPEN)[0])
        return None

    def note_ended(self, run: HalfRun) -> None:
        """Keep a run without open messages for a while, and forget the oldest of such."""
        run.shape = None  # It takes some KB.
        self._ended.append(run)
        self._ended_rows += run.count
        while self._ended_rows > ENDED_ROWS_MAX and len(self._ended) > 1:
            gone = self._ended.popleft()
            self._ended_rows -= gone.count
            at = bisect_right(self._firsts, gone.first) - 1
            del self._firsts[at], self._runs[at]
            if self._newest[gone.digest] is gone:
                del self._newest[gone.digest]
