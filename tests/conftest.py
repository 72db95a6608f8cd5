"""Marks by folder, and which tests share a worker, so that what is dear to start is started once.

Rule: all that needs the official servers or clients goes to one worker, all that needs Spark to one, pipelines on it to
one; other files are shared out whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Machines are shared: how long one example takes says nothing.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

HERE = Path(__file__).resolve().parent
MARKED_FOLDERS = ("java", "spark")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
    places = {group: place for place, group in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(group_of(item.nodeid), len(FIRST)))


# What takes longest is begun first, so that no worker is left with it in the end.
FIRST = ("spark", "jvm", "pipelines")


def group_of(node_id: str) -> str:
    """What a test shares its worker with; node ids are `tests/folder/file.py::name[parameters]`."""
    file, _, name = node_id.partition("::")
    parts = file.split("/")
    if parts[:2] == ["tests", "spark"]:
        # Two sessions: one worker alone would be busy with them long after the other has done all else.
        return "pipelines" if parts[2] == "pipelines" else "spark"
    if parts[:2] == ["tests", "java"] or "apache" in name or file in ONLY_OFFICIAL:
        return "jvm"
    return file


# Files of tests/clients that always need the official servers or clients.
ONLY_OFFICIAL = {
    f"tests/clients/{name}.py" for name in ("test_asked", "test_signed", "test_with_java", "test_with_java_records")
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)
