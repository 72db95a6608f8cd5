"""Seeds of a cluster under faults: as many as fit into a test's time; more by `make soak PARTS=simulation`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Of one core; on a busy machine fewer seeds are run, not longer.
SECONDS, SECONDS_BUSY, SEEDS = 10, 125, 300


@pytest.mark.shows(
    "a name of two or three brokers under a controller keeps what it acknowledged under kills, halts, cuts, losses of"
    " power, full and failing disks and wrong clocks, by seeds that repeat"
)
def test_no_seed_breaks_a_promise() -> None:
    command = [sys.executable, "-m", "tests.simulation.run", "--scenario", "failover", "--shrink"]
    command += ["--seeds", f"1-{SEEDS}", "--cpu-seconds", str(SECONDS), "--seconds", str(SECONDS_BUSY)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900, env=os.environ | {"PYTHONHASHSEED": "0"})
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
