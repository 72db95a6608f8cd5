"""Each rule of the checker notices a defect: one planted into the running program, found by its seed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.simulation.test_world import outcomes

HERE = Path(__file__).parent


def table() -> dict[str, tuple[str, int]]:
    """Return (rules, seed) of each planted defect. The module is read, not imported: it runs in a world of its own."""
    tree = ast.parse((HERE / "mutants.py").read_text())
    rows = next(
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TABLE"
    )
    assert isinstance(rows, ast.Dict)
    found = {}
    for name, row in zip(rows.keys, rows.values, strict=True):
        assert isinstance(name, ast.Constant)
        assert isinstance(row, ast.Call)
        seed = next((ast.literal_eval(each.value) for each in row.keywords if each.arg == "seed"), 1)
        found[name.value] = ast.literal_eval(row.args[0]), seed
    return found


TABLE = table()


@pytest.mark.shows("nemesis, planted defects")
@pytest.mark.parametrize("name", TABLE)
def test_a_planted_defect_breaks_its_rules(name: str) -> None:
    rules, seed = TABLE[name]
    (found,) = outcomes(f"tests.simulation.mutants:{name}", seed)
    told = found["error"].partition("PromiseBroken: ")[2].splitlines()
    broken = {line.partition(" (")[0] for line in told}
    assert set(rules.split(",")) <= broken, found["error"][-2000:]


def test_each_rule_has_a_planted_defect() -> None:
    tree = ast.parse((HERE / "checker.py").read_text())
    rules = {
        node.name.replace("_", " ")
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(each) == "rule" for each in node.decorator_list)
    }
    assert rules == {rule for names, _ in TABLE.values() for rule in names.split(",")}
