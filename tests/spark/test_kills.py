"""Executors, driver and broker are killed while streams run on a standalone cluster: every row is once in outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.kills import Kills
from tests.spark.standalone import spark_cluster

pytestmark = pytest.mark.shows("kills of driver, executor and broker under streams to files and to a topic")


@pytest.mark.timeout(1800)
def test_every_row_is_once_in_files_and_topic(tmp_path: Path) -> None:
    with spark_cluster(tmp_path) as standalone:
        Kills(tmp_path / "run", standalone, seed=7).run(["driver", "executor"])
