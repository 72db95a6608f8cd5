"""No file imports itself by way of others, at whatever line and for whatever; `.importlinter` says which lies above."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
# The face of a package only hands names on.
FILES = {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in SOURCE.rglob("[a-z]*.py")}


def imported(path: Path) -> set[str]:
    """The files that a file imports, also in a function or for its types alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & FILES.keys()


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of a graph, in the order of its arrows; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(reversed(e.args[1]))
    return []


@pytest.mark.shows(
    "rooms: packages of at most 14 modules, each says what it is and where to start; contracts inside "
    "packages; no circles of imports"
)
def test_no_file_imports_itself_by_way_of_others() -> None:
    graph = {name: imported(path) for name, path in FILES.items()}
    assert sum(map(len, graph.values())) > 3000
    assert circle(graph) == []


@pytest.mark.parametrize(
    ("arrows", "found"),
    [([("a", "b"), ("b", "c")], 0), ([("a", "b"), ("b", "a")], 3), ([("a", "b"), ("b", "c"), ("c", "b")], 3)],
)
def test_a_circle_is_found(arrows: list[tuple[str, str]], found: int) -> None:
    graph: dict[str, set[str]] = {}
    for start, end in arrows:
        graph.setdefault(start, set()).add(end)
    assert len(circle(graph)) == found
