"""Each rule of the checker notices a defect: one planted into the running program, found by its seed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulation import moves, parts  # noqa: F401  Their rules are of the checker, too.
from tests.simulation.checker import RULES
from tests.simulation.mutants import TABLE, Planted
from tests.simulation.test_world import outcomes_of


def outcomes_of_planted(module: str, table: dict[str, Planted]) -> dict[str, dict[str, Any]]:
    """What came of each defect of a module's table, by its name; one process makes ready for all."""
    ran = outcomes_of([(f"tests.simulation.{module}:{name}", planted.seed) for name, planted in table.items()])
    return dict(zip(table, ran, strict=True))


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return outcomes_of_planted("mutants", TABLE)


@pytest.mark.shows("nemesis, planted defects")
@pytest.mark.parametrize("name", TABLE)
def test_a_planted_defect_breaks_its_rules(name: str, found: dict[str, dict[str, Any]]) -> None:
    error = found[name]["error"]
    told = error.partition("PromiseBroken: ")[2].splitlines()
    broken = {line.partition(" (")[0] for line in told}
    assert set(TABLE[name].rules.split(",")) <= broken, error[-2000:]


def test_each_rule_has_a_planted_defect() -> None:
    assert RULES.keys() == {rule for planted in TABLE.values() for rule in planted.rules.split(",")}
