"""Kills of executors, driver and broker under streams of Spark, SOAK_KILLS of them (20), and a line for each."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from tests.spark.kills import VICTIMS, Kills
from tests.spark.standalone import spark_cluster

pytestmark = pytest.mark.shows("kills of driver, executor and broker under streams to files and to a topic")


@pytest.mark.soak
def test_every_row_is_once_in_files_and_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))
    chance = random.Random(seed)
    victims = [chance.choice(VICTIMS) for _ in range(int(os.environ.get("SOAK_KILLS", "20")))]

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\nSOAK_SEED={seed}")
    with spark_cluster(tmp_path) as standalone:
        run = Kills(tmp_path / "run", standalone, seed, say)
        run.run(victims)
    say(f"{run.sent} rows: each once in the files and once in the topic")
