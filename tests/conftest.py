"""Marks by folder: tests/java are `java`, tests/spark are `spark`, and both share one worker, so JVMs don't pile up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Machines are shared: how long one example takes says nothing.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

HERE = Path(__file__).resolve().parent
HEAVY_FOLDERS = ("java", "spark")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        if folder in HEAVY_FOLDERS:
            item.add_marker(folder)
            item.add_marker(pytest.mark.xdist_group("jvm"))
