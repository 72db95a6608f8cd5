"""Kills under pops, SOAK_POP_CYCLES of them (50) with each kind of flush, and a line for each."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.live.pop_kill_cycles import run_pop_cycles

pytestmark = pytest.mark.shows("found again at a start; kills: nothing acknowledged comes again, nothing is lost")


@pytest.mark.soak
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_acknowledged_comes_again_and_nothing_is_lost_by_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flush: str
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\n{flush}, SOAK_SEED={seed}")
    run = run_pop_cycles(tmp_path, int(os.environ.get("SOAK_POP_CYCLES", "50")), seed, say, flush=flush)
    say(f"{len(run.done)} messages acknowledged, {run.again} deliveries again: none lost, none after its end")
