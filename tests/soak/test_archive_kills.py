"""Kills of a driver that archives to Delta and Iceberg tables, SOAK_KILLS of each (20), on a disk and on s3a://."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.spark.lakehouse.kills_of_archives import FORMATS, KillsOfArchives

pytestmark = pytest.mark.shows("kills of `archive` in the midst of commits, on a disk and on s3a://")


@pytest.mark.soak
@pytest.mark.parametrize("on_s3a", [False, True], ids=["disk", "s3a"])
def test_every_message_is_once_in_the_archives(
    on_s3a: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\nSOAK_SEED={seed}")
    run = KillsOfArchives(tmp_path, seed, on_s3a=on_s3a, say=say)
    run.run(int(os.environ.get("SOAK_KILLS", "20")) * len(FORMATS))
    say(f"{run.sent} messages: each once in both archives; killed {run.killed}; the store: {run.faults}")
