"""The command `rocketspark` on a machine whose clock is wrong: by so many seconds as the file CLOCK_FILE says.

Rule: the wall clock alone is another, as after an operator's or NTP's jump; what measures spans is not.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rocketspark import machine
from rocketspark.cli.main import main

LOOK_S = 0.2


class _Clock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._next = 0.0
        self._ahead_ns = 0

    def time_ns(self) -> int:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_S
            self._ahead_ns = int(float(self._file.read_text()) * 1e9)
        return time.time_ns() + self._ahead_ns

    def time(self) -> float:
        return self.time_ns() / 1e9


if __name__ == "__main__":
    clock = _Clock(Path(os.environ["CLOCK_FILE"]))
    machine.time, machine.time_ns = clock.time, clock.time_ns
    main()
