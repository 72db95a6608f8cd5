"""Small changes of src, drawn by seed, each with the tests of its room: which of them does no test notice?

Rule: a change is made by cosmic-ray in a copy of src, never in the tree. SOAK_MUTANTS=600 says how many are drawn,
MUTANTS_SEED=1 which, MUTANTS_ROOMS="access store" from where. What changes nothing that matters is named in ALIKE.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.patience import LIMIT_S

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "rocketspark"
NOTICED_MIN = 0.9
LIVE = "tests/live/test_"
# What is changed, and the tests that should notice.
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "access": (
        ["access", "broker/access"],
        ["tests/unit/broker/access", LIVE + "access.py", LIVE + "access_decisions.py", LIVE + "plain_acl.py"],
    ),
    "replication": (
        ["broker/replication", "broker/roles", "controller"],
        ["tests/unit/broker/replication", "tests/unit/broker/roles", "tests/unit/controller", LIVE + "replication.py"],
    ),
    "store": (["store"], ["tests/unit/store"]),
    "pop": (
        ["broker/pop", "broker/handlers/pops"],
        ["tests/unit/broker/pop", LIVE + "broker_pop.py", LIVE + "broker_pop_ordered.py", LIVE + "pop_requests.py"],
    ),
    "messages": (
        ["broker/messages"],
        ["tests/unit/broker/messages", LIVE + "broker_transactions.py", LIVE + "broker_timers.py"],
    ),
    "clients": (["client"], ["tests/unit/client", LIVE + "client_live.py"]),
    "proxy": (["proxy"], ["tests/unit/proxy", LIVE + "proxy_remoting.py"]),
    "spark": (["spark/plan", "spark/exactly_once", "spark/option_kinds"], ["tests/unit/spark"]),
}
# Those of cosmic-ray's operators whose changes a reader would call mistakes.
OPERATORS = (
    *("ReplaceComparisonOperator_Eq_NotEq", "ReplaceComparisonOperator_NotEq_Eq", "ReplaceComparisonOperator_Is_IsNot"),
    *("ReplaceComparisonOperator_IsNot_Is", "ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_LtE_Lt"),
    *("ReplaceComparisonOperator_Gt_GtE", "ReplaceComparisonOperator_GtE_Gt", "ReplaceComparisonOperator_Lt_Gt"),
    *("ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Sub_Add", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceBreakWithContinue", "ZeroIterationForLoop"),
)
# Changes that change nothing that matters: file, the changed line.
ALIKE: set[tuple[str, str]] = set()


class Mutant(NamedTuple):
    """One change: the operator's `occurrence`-th place in a file of a room."""

    room: str
    path: Path
    operator: str
    occurrence: int


def drawn(count: int, seed: int, rooms: list[str]) -> list[Mutant]:
    """Draw as many changes of each room, from all of its places."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path

    chosen: list[Mutant] = []
    for room in rooms:
        places: list[Mutant] = []
        for path in sorted(path for folder in ROOMS[room][0] for path in (PACKAGE / folder).rglob("*.py")):
            nodes = list(ast_nodes(get_ast_from_path(path)))
            for name in OPERATORS:
                operator = plugins.get_operator(f"core/{name}")()
                found = sum(len(list(operator.mutation_positions(node))) for node in nodes)
                places += [Mutant(room, path, name, occurrence) for occurrence in range(found)]
        chosen += random.Random(f"{seed} {room}").sample(places, min(count // len(rooms), len(places)))
    return chosen


def changed(mutant: Mutant) -> str:
    """Return the text of the file with the change."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    made = mutate_code(mutant.path.read_text(), plugins.get_operator(f"core/{mutant.operator}")(), mutant.occurrence)
    assert made is not None
    return str(made)


def line_of(mutant: Mutant, text: str) -> tuple[int, str]:
    """Return the first line that differs, and its number."""
    for number, (before, after) in enumerate(
        zip(mutant.path.read_text().splitlines(), text.splitlines(), strict=False), 1
    ):
        if before != after:
            return number, after.strip()
    raise AssertionError(f"{mutant} changes nothing")


def is_noticed(src: Path, tests: list[str], folder: Path) -> bool:
    """Run tests against this src; a hang counts as noticed."""
    environment = os.environ | {"PYTHONPATH": str(src), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not official and not soak"]
    command = [sys.executable, "-m", "pytest", *options, f"--basetemp={folder}", *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=10 * LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    assert done.returncode in (0, 1, 2), done.stdout[-2000:] + done.stderr[-2000:]
    return done.returncode != 0


def test_small_changes_are_noticed(tmp_path: Path) -> None:
    pytest.importorskip(
        "cosmic_ray", reason="pip install 'rocketspark[mutants]' brings the tool that makes the changes"
    )
    rooms = os.environ.get("MUTANTS_ROOMS", " ".join(ROOMS)).split()
    mutants = drawn(int(os.environ.get("SOAK_MUTANTS", "600")), int(os.environ.get("MUTANTS_SEED", "1")), rooms)
    src = tmp_path / "src"
    shutil.copytree(ROOT / "src", src, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    noticed: collections.Counter[str] = collections.Counter()
    counted: collections.Counter[str] = collections.Counter()
    passed: list[str] = []
    for number, mutant in enumerate(mutants, 1):
        name, text = str(mutant.path.relative_to(PACKAGE)), changed(mutant)
        at, line = line_of(mutant, text)
        if (name, line) in ALIKE:
            continue
        target = src / "rocketspark" / name
        target.write_text(text)
        found = is_noticed(src, ROOMS[mutant.room][1], tmp_path / "tests")
        target.write_text(mutant.path.read_text())
        counted[mutant.room] += 1
        noticed[mutant.room] += found
        if not found:
            passed.append(f"{mutant.room}: {name}:{at} {mutant.operator}: {line}")
        print(f"{number} of {len(mutants)}: {'noticed' if found else 'NOT NOTICED'} {name}:{at} {line}", flush=True)
    print("\n".join(f"{room}: {noticed[room]} of {counted[room]} noticed" for room in rooms))
    print("\n".join(passed))
    assert noticed.total() >= NOTICED_MIN * counted.total(), "\n".join(passed)
