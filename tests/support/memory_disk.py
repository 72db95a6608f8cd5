"""Temporary folders in memory for tests whose time goes into syncs of a disk; what is synced is theirs to look at, not
whether the disk holds it.

Rule: a run's folder goes with the run, or, if tests failed or it was killed, as the next one begins.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 2 << 30
PREFIX = "rocketspark-tests-"


@pytest.fixture(scope="session")
def tmp_path_factory(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[pytest.TempPathFactory]:
    """pytest's own, in memory where there is enough of it. A conftest that imports it has `tmp_path` there too."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < FREE_BYTES_MIN:
        yield tmp_path_factory
        return
    for left in MEMORY.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX)).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = MEMORY / f"{PREFIX}{os.getpid()}"
    folder.mkdir(mode=0o700)
    in_memory = copy.copy(tmp_path_factory)
    in_memory._basetemp = folder
    yield in_memory
    if not request.session.testsfailed:
        shutil.rmtree(folder, ignore_errors=True)
