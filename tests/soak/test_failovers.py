"""Masters killed, ended, stopped and replaced under mixed load, SOAK_CYCLES times (100), and a line for each."""

from __future__ import annotations

import os
import random
import statistics
import time
from pathlib import Path

import pytest
from tests.support.failovers import Load, ReplicaSet, check, freeze, kill, leave, turn

pytestmark = pytest.mark.shows(
    "soak: masters killed, ended, stopped (SIGSTOP) and replaced under mixed load (`make soak`, CYCLES)",
)

# SIGKILL, an election by hand, SIGTERM, SIGSTOP until another is elected: how often of eleven.
ACTS = [kill] * 6 + [turn] * 3 + [leave, freeze]


@pytest.mark.soak
def test_nothing_answered_is_lost_doubled_or_out_of_order_by_failovers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))
    chance = random.Random(seed)

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\nfailovers, SOAK_SEED={seed}")
    found = ReplicaSet(tmp_path)
    try:
        load = Load(found)
        try:
            load.wait_for_answers(100)
            took_s: dict[str, list[float]] = {}
            for number in range(int(os.environ.get("SOAK_CYCLES", "100"))):
                act = chance.choice(ACTS)
                seconds = act(found, load)
                took_s.setdefault(act.__name__, []).append(seconds)
                say(f"{number + 1}: {act.__name__}, {seconds:.2f} s; {len(load.answered_s)} answered")
                load.wait_for_answers(chance.randrange(1, 300))
            load.end()
            check(found, load)
        finally:
            load.close()
    finally:
        found.close()
    for name, each in took_s.items():
        say(f"{name}: {min(each):.2f}, {statistics.median(each):.2f}, {max(each):.2f} s (least, median, most)")
    say(f"{len(load.answered_s)} messages answered: none lost, doubled or out of order")
