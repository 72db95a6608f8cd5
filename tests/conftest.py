"""Marks by folder: tests/java are `java`, tests/spark are `spark`, and both share one worker, so JVMs don't pile up.

The Go and the C++ client's tests share a worker each, so that their server is started once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Machines are shared: how long one example takes says nothing.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

HERE = Path(__file__).resolve().parent
HEAVY_FOLDERS = ("java", "spark")
OTHER_CLIENTS = ("go", "cpp")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        if folder in HEAVY_FOLDERS:
            item.add_marker(folder)
            item.add_marker(pytest.mark.xdist_group("jvm"))
        elif folder in OTHER_CLIENTS:
            item.add_marker(pytest.mark.xdist_group(folder))
