"""Kills of a driver that writes Delta and Iceberg tables to a store which fails by plan, SOAK_KILLS (20) in
each one's writes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.spark.lakehouse.kills_on_s3a import PLACES, KillsOnS3a

pytestmark = pytest.mark.shows(
    "Delta and Iceberg on s3a:// behind a store that refuses, cuts and errs by plan, driver killed in the "
    "middle of a request"
)


@pytest.mark.soak
def test_every_message_is_once_in_the_tables_on_s3a(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\nSOAK_SEED={seed}")
    run = KillsOnS3a(tmp_path, seed, say)
    run.run(int(os.environ.get("SOAK_KILLS", "20")) * len(PLACES))
    say(f"{run.sent} messages: each once in the Delta and once in the Iceberg table; the store: {run.faults}")
