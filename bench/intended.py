"""Sends at an even rate, each timed from the moment at which it was meant to leave.

Rule: a send that leaves late, because those before it were slow, has waited as well: its time begins when it was due.
A load that waits for each reply before it sends again leaves out these waits ("coordinated omission").
"""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections.abc import Callable, Sequence

Result = dict[str, float]
NS = 1_000_000_000
WAIT_S_MAX = 120.0
NOT_ENDED, FAILED = -1, -2


def percentiles(sorted_us: Sequence[float]) -> Result:
    """Which times most calls took no longer than."""
    count = len(sorted_us)
    shares = (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999))
    return {name: sorted_us[min(int(count * share), count - 1)] for name, share in shares}


class OpenLoop:
    """One round: `rate` sends a second for `seconds`. `clock` (ns) and `sleep` (s) are the machine's but for tests.

    A send that failed counts in the percentiles as if it had taken the whole round: who refuses gains nothing.
    """

    def __init__(
        self,
        rate: float,
        seconds: float,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.count = max(int(rate * seconds), 1)
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._started_ns = self._last_ns = clock()
        self._taken_ns = array("q", [NOT_ENDED]) * self.count
        self._ends = itertools.count(1)
        self._every = threading.Event()

    def due_ns(self, number: int) -> int:
        """When the send of this number, from 0 on, is meant to leave."""
        return self._started_ns + int(number * NS / self._rate)

    def drive(self, send: Callable[[int], object]) -> None:
        """Call `send` with each number when it is due; where that has passed, at once. What it raises is a failure."""
        clock, sleep = self._clock, self._sleep
        self._started_ns = clock()
        for number in range(self.count):
            due = self.due_ns(number)
            while (left := due - clock()) > 0:
                sleep(left / NS)
            try:
                send(number)
            except Exception as e:
                self.ended(number, e)

    def ended(self, number: int, error: object = None) -> None:
        """The send of this number is acknowledged, or has failed with `error`; by any thread. The first call counts."""
        now = self._clock()
        if self._taken_ns[number] != NOT_ENDED:
            return
        self._taken_ns[number] = FAILED if error is not None else now - self.due_ns(number)
        if next(self._ends) == self.count:
            self._last_ns = now
            self._every.set()

    def result(self) -> Result:
        """The round's result, once every send has ended. Raises SystemExit if one does not."""
        if not self._every.wait(WAIT_S_MAX):
            raise SystemExit(f"{self._taken_ns.count(NOT_ENDED)} of {self.count} sends did not end")
        whole_ns = self._last_ns - self._started_ns
        failed = self._taken_ns.count(FAILED)
        taken = sorted((whole_ns if ns == FAILED else ns) / 1000 for ns in self._taken_ns)
        return {"count": self.count - failed, "seconds": whole_ns / NS, "failed": failed} | percentiles(taken)
