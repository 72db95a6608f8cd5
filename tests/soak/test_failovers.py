"""Masters killed, ended, stopped and replaced under mixed load, SOAK_CYCLES times (100), and a line for each.

FAILOVERS_KINDS: whose brokers, P ours and J official; FAILOVERS_JAVA (30): how often at most with an official one.
The clients are the simulation's, and its checker judges.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.failovers import ReplicaSet, freeze, kill, leave, turn
from tests.support.nemesis_runs import failed_over

pytestmark = pytest.mark.shows(
    "soak: masters killed, ended, stopped (SIGSTOP) and replaced under mixed load (`make soak`, CYCLES)",
)

# SIGKILL, an election by hand, SIGTERM, SIGSTOP until another is elected: how often of eleven.
ACTS = [kill] * 6 + [turn] * 3 + [leave, freeze]
# Java's needs a minute to become a slave if a transaction is open, and answers sends that no copy has while it is
# replaced by hand.
JAVA_ACTS = [kill]
# A Java broker takes its time to come back.
JAVA_CYCLES = int(os.environ.get("FAILOVERS_JAVA", "30"))
KINDS = os.environ.get("FAILOVERS_KINDS", "PP PJ JP").split()


@pytest.mark.soak
@pytest.mark.parametrize("kinds", KINDS)
def test_no_promise_is_broken_by_failovers(tmp_path: Path, capsys: pytest.CaptureFixture[str], kinds: str) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))
    count = int(os.environ.get("SOAK_CYCLES", "100"))
    if "J" in kinds:
        count = min(count, JAVA_CYCLES)
    chance = random.Random(seed)
    took_s: dict[str, list[float]] = {}

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\nfailovers of {kinds}, SOAK_SEED={seed}")
    controller: Any = "official" if kinds[0] == "J" else "ours"
    found = ReplicaSet(tmp_path, kinds, controller, {"recallMessageEnable": "true"})
    acts = [chance.choice(JAVA_ACTS if "J" in kinds else ACTS) for _ in range(count)]

    def done(act: str, seconds: float) -> None:
        took_s.setdefault(act, []).append(seconds)
        say(f"{sum(map(len, took_s.values()))}: {act}, {seconds:.2f} s")

    try:
        counted = failed_over(found, tmp_path, chance, acts, done)
    finally:
        found.close()
        for name, each in took_s.items():
            least, median, most = min(each), statistics.median(each), max(each)
            say(f"{len(each)} times {name}: {least:.2f}, {median:.2f}, {most:.2f} s (least, median, most)")
    say(f"{counted}: no promise broken")
