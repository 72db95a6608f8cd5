"""The table of scenarios is whole: no empty cell, each test exists and runs with the client it stands under."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from tests.go.test_go_client import SAME as WITH_GO
from tests.interop.table import CANNOT, CAPABILITIES, CLIENTS, SAME, TABLE, Row, shown_by

pytestmark = pytest.mark.shows("scenarios by client: Java 5.5.0 and 4.9.7, Go, C++")

VERSIONS = {"java_550": "5.5.0", "java_497": "4.9.7"}


def function_of(name: str) -> Any:
    path, _, function = name.partition("::")
    return getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), function)


def versions_of(function: Any) -> set[str]:
    """The Java clients that a test runs with: by its marks, else the newest."""
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    return {value[0] for mark in marks if mark.args[0] == "scene" for value in mark.args[1]} or {"5.5.0"}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.capability}-{row.scenario}".replace(" ", "-"))
def test_each_cell_names_a_test_of_its_client_or_says_why_not(row: Row) -> None:
    for client in CLIENTS:
        cell = getattr(row, client)
        if (name := shown_by(row, client)) is None:
            assert len(cell) > len(CANNOT) + 5, f"{client}: no reason"
            continue
        function = function_of(name)
        if client in VERSIONS:
            assert cell == (row.java_550 if client == "java_550" else SAME)
            assert VERSIONS[client] in versions_of(function), f"{client}: not run with it"
        elif not name.startswith(f"tests/{client}/"):
            assert client == "go"
            assert function.__name__ in {scenario.__name__ for scenario in WITH_GO}, f"{client}: not run with it"


def test_every_capability_has_its_scenarios() -> None:
    assert {row.capability for row in TABLE} == set(CAPABILITIES)
    for number in CAPABILITIES:
        rows = [row for row in TABLE if row.capability == number]
        for client in ("java_550", "java_497"):
            assert any(shown_by(row, client) for row in rows), f"{number}: nothing with {client}"


def test_every_scenario_that_go_plays_stands_in_the_table() -> None:
    named = {function_of(name).__name__ for row in TABLE if (name := shown_by(row, "go"))}
    assert {scenario.__name__ for scenario in WITH_GO} <= named
