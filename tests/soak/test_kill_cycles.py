"""Kills under mixed load, SOAK_CYCLES of them (100) with each kind of flush, and a line for each."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.live.kill_cycles import run_cycles


@pytest.mark.soak
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_is_lost_doubled_or_mixed_up_by_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flush: str
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\n{flush}, SOAK_SEED={seed}")
    run = run_cycles(tmp_path, int(os.environ.get("SOAK_CYCLES", "100")), seed, say, flush=flush)
    say(f"{len(run.sent)} messages, {len(run.client_sent)} more by the client: none lost, doubled or mixed up")
