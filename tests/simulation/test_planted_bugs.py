"""Each rule of the checker notices a defect: one planted into the running program, found by its seed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulation import (
    group_mutants,
    moves,  # noqa: F401  Its rules are of the checker, too.
    parts,  # noqa: F401
)
from tests.simulation.checker import RULES
from tests.simulation.mutants import PACKAGE, TABLE, Planted
from tests.simulation.test_world import outcomes_of
from tests.soak import test_planted_defects as of_replication


def outcomes_of_planted(module: str, table: dict[str, Planted]) -> dict[str, dict[str, Any]]:
    """What came of each defect of a module's table, by its name; one process makes ready for all."""
    ran = outcomes_of([(f"tests.simulation.{module}:{name}", planted.seed) for name, planted in table.items()])
    return dict(zip(table, ran, strict=True))


def first_of_each_rule(table: dict[str, Planted]) -> list[str]:
    """Defects by name, so few that each rule has one: `make test` runs these, `make soak` all."""
    noticed: set[str] = set()
    chosen = []
    for name, planted in table.items():
        rules = set(planted.rules.split(","))
        if not rules <= noticed:
            chosen.append(name)
            noticed |= rules
    return chosen


FIRST = first_of_each_rule(TABLE)


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return outcomes_of_planted("mutants", {name: TABLE[name] for name in FIRST})


@pytest.fixture(scope="module")
def found_of_others() -> dict[str, dict[str, Any]]:
    return outcomes_of_planted("mutants", {name: planted for name, planted in TABLE.items() if name not in FIRST})


def check(name: str, outcome: dict[str, Any]) -> None:
    told = outcome["error"].partition("PromiseBroken: ")[2].splitlines()
    broken = {line.partition(" (")[0] for line in told}
    assert set(TABLE[name].rules.split(",")) <= broken, outcome["error"][-2000:]


@pytest.mark.shows("nemesis, planted defects")
@pytest.mark.parametrize("name", FIRST)
def test_a_planted_defect_breaks_its_rules(name: str, found: dict[str, dict[str, Any]]) -> None:
    check(name, found[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in TABLE if name not in FIRST])
def test_another_planted_defect_breaks_its_rules(name: str, found_of_others: dict[str, dict[str, Any]]) -> None:
    check(name, found_of_others[name])


def test_each_rule_has_a_planted_defect() -> None:
    assert RULES.keys() == {rule for name in FIRST for rule in TABLE[name].rules.split(",")}


@pytest.mark.shows("planted defects stand each in one place of today's source")
def test_what_planted_defects_replace_stands_once() -> None:
    """Only `make soak` plants them all."""
    planted = [*TABLE.values(), *group_mutants.TABLE.values(), *of_replication.TABLE]
    assert [one for one in planted if (PACKAGE / one.file).read_text("utf-8").count(one.text) != 1] == []
