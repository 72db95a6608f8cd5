"""Notices when the wall clock jumps or stands: durations do not depend on it, but store times and due times do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from rocketspark import machine

log = logging.getLogger("rocketspark.broker")

WATCH_S = 1.0
# Less is what time services do.
JUMP_S_MIN = 2.0


class ClockWatch:
    """Compares the wall clock with one that never jumps. `wall`, `steady`: both in seconds. `hearers`: called with the
    seconds of each jump.
    """

    def __init__(
        self,
        wall: Callable[[], float] = lambda: machine.time(),
        steady: Callable[[], float] = lambda: machine.monotonic(),
        hearers: Sequence[Callable[[float], None]] = (),
    ) -> None:
        self._hearers = hearers
        self._wall = wall
        self._steady = steady
        self._last_s, self._stands = wall(), False
        self._ahead_s = self._last_s - steady()

    def look(self) -> float:
        """Compare the clocks, log a jump since the last call, and return its seconds, 0.0 without one.

        A wall that tells the same time as at the last call is logged once; what it is behind once it goes on, as a
        jump.
        """
        wall_s = self._wall()
        ahead_s = wall_s - self._steady()
        jump_s, stood, self._stands = ahead_s - self._ahead_s, self._stands, wall_s == self._last_s
        self._last_s = wall_s
        if self._stands:
            if not stood and jump_s < -WATCH_S / 2:
                log.warning("the clock of this machine stands: nothing becomes due or expires until it goes on")
            return 0.0
        self._ahead_s = ahead_s
        if abs(jump_s) < JUMP_S_MIN:
            return 0.0
        log.warning(
            "the clock of this machine jumped by %+.1f s: what is due or expires goes by the new time",
            jump_s,
        )
        for hear in self._hearers:
            hear(jump_s)
        return jump_s
