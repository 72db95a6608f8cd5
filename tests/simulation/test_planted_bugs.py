"""Each rule of the checker notices a defect: one planted into the running program, found by its seed."""

from __future__ import annotations

import pytest
from tests.simulation.checker import RULES
from tests.simulation.mutants import TABLE
from tests.simulation.test_world import outcomes


@pytest.mark.shows("nemesis, planted defects")
@pytest.mark.parametrize("name", TABLE)
def test_a_planted_defect_breaks_its_rules(name: str) -> None:
    planted = TABLE[name]
    (found,) = outcomes(f"tests.simulation.mutants:{name}", planted.seed)
    told = found["error"].partition("PromiseBroken: ")[2].splitlines()
    broken = {line.partition(" (")[0] for line in told}
    assert set(planted.rules.split(",")) <= broken, found["error"][-2000:]


def test_each_rule_has_a_planted_defect() -> None:
    assert RULES.keys() == {rule for planted in TABLE.values() for rule in planted.rules.split(",")}
