"""Seeds of the simulation, as many as SOAK_SEEDS (or SOAK_SEEDS_SECONDS of each process) of each scenario.

`SOAK_SEED`: the first; each that fails is printed with the line that repeats it, and with what of its plan it needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.shows("seeds of a simulated cluster by the thousand, seeds an hour printed")

SEEDS = int(os.environ.get("SOAK_SEEDS", "100000"))
SECONDS = float(os.environ.get("SOAK_SEEDS_SECONDS", "0"))
FIRST = int(os.environ.get("SOAK_SEED", "1"))
SCENARIOS = os.environ.get(
    "SOAK_SCENARIOS",
    "failover tests.simulation.mixed:mixed tests.simulation.group:council tests.simulation.group:failover_of_three"
    " tests.simulation.rack:pair tests.simulation.parts.alone:compacted_and_tiered_and_urgent"
    " tests.simulation.parts.alone:light tests.simulation.parts.alone:batched",
).split()


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_seed_breaks_a_promise(scenario: str) -> None:
    count = max(os.cpu_count() or 1, 1)
    began_s = time.monotonic()
    running = []
    for number in range(count):
        first, last = FIRST + SEEDS * number // count, FIRST + SEEDS * (number + 1) // count - 1
        command = [sys.executable, "-m", "tests.simulation.run", "--scenario", scenario, "--shrink"]
        command += ["--seeds", f"{first}-{last}", "--cpu-seconds", str(SECONDS)]
        running.append(subprocess.Popen(command, env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}))
    codes = [process.wait() for process in running]
    print(f"{scenario}: {count} processes, {time.monotonic() - began_s:.0f} s")
    assert codes == [0] * count
