"""Notices when the wall clock jumps: durations do not depend on it, but store times and due times do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rocketspark import machine

log = logging.getLogger("rocketspark.broker")

WATCH_S = 1.0
# Less is what time services do.
JUMP_S_MIN = 2.0


class ClockWatch:
    """Compares the wall clock with one that never jumps. `wall`, `steady`: both in seconds."""

    def __init__(
        self,
        wall: Callable[[], float] = lambda: machine.time(),
        steady: Callable[[], float] = lambda: machine.monotonic(),
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._ahead_s = wall() - steady()

    def look(self) -> float:
        """Compare the clocks, log a jump since the last call, and return its seconds, 0.0 without one."""
        ahead_s = self._wall() - self._steady()
        jump_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        if abs(jump_s) < JUMP_S_MIN:
            return 0.0
        log.warning(
            "the clock of this machine jumped by %+.1f s: what is due or expires goes by the new time",
            jump_s,
        )
        return jump_s
