"""Brokers under controllers as processes, and an attacker that draws by seed what it does to them: NEMESIS_ROUNDS runs.

NEMESIS_KINDS: whose brokers (P ours, J official), drawn of these; NEMESIS_FAULTS of each run; SOAK_SEED draws the same
again. The clients are the simulation's, and its checker judges what they saw and what the stores hold.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from tests.support.nemesis_runs import attacked

pytestmark = pytest.mark.shows("nemesis, planted defects")

ROUNDS, FAULTS = int(os.environ.get("NEMESIS_ROUNDS", "50")), int(os.environ.get("NEMESIS_FAULTS", "8"))
KINDS = os.environ.get("NEMESIS_KINDS", "PP PP PPP PJ JP").split()


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROUNDS))
def test_no_promise_is_broken_whatever_is_done_to_brokers_links_disks_clocks_and_controllers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6)) + number
    told = [f"\nnemesis, SOAK_SEED={seed}"]
    try:
        attacked(tmp_path, random.Random(seed), KINDS, FAULTS, told.append)
    finally:
        with capsys.disabled():
            print("; ".join(told), flush=True)
