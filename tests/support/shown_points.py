"""What the tests show: each point stands at the tests that show it, and `make status` makes one table of them.

A test says it by `@pytest.mark.shows("the point in words")`; a file whose tests show it together by `pytestmark`. A
point may have several tests, a test several points. What no test stands for, but a command, is in a table of its own.
Files are read and not imported, so the table needs no server, no Spark and no second.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
COMMANDS = TESTS / "shown_by_commands.md"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Shown(NamedTuple):
    """A point and one test, or a whole file, that shows it."""

    point: str
    test: str


def texts_of(node: ast.expr) -> Iterator[str]:
    """The points of a marker, or of a list of markers; nothing for markers of other names."""
    if isinstance(node, ast.List | ast.Tuple):
        for item in node.elts:
            yield from texts_of(item)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.shows":
        for argument in node.args:
            yield ast.literal_eval(argument)


def shown_by(source: str, file: str) -> Iterator[Shown]:
    """The points of one file of tests, from its text."""
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from (Shown(text, file) for text in texts_of(node.value))
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            for decorator in node.decorator_list:
                yield from (Shown(text, f"{file}::{node.name}") for text in texts_of(decorator))


def shown(tests: Path = TESTS) -> list[Shown]:
    """The points of all files of tests under a folder, by file."""
    files = sorted(tests.rglob("test_*.py"))
    return [
        point
        for file in files
        if "mark.shows" in (source := file.read_text("utf-8"))
        for point in shown_by(source, file.relative_to(tests.parent).as_posix())
    ]


def table(points: list[Shown]) -> str:
    """One table in Markdown for each folder, a point a row with all its tests; a point stands at its first one."""
    tests_of: dict[str, list[str]] = {}
    for point, test in points:
        tests_of.setdefault(point, []).append(test)
    rows = sorted((tests[0].rpartition("/")[0], point) for point, tests in tests_of.items())
    lines = ["# What the tests show", "", f"{len(rows)} points; what is missing: docs/develop/missing.md."]
    for folder, of_folder in groupby(rows, key=lambda row: row[0]):
        lines += ["", f"## {folder}", "", "| point | shown by |", "| --- | --- |"]
        for _, point in of_folder:
            shown_as = ", ".join(f"`{test}`" for test in tests_of[point])
            lines.append(f"| {point.replace('|', chr(92) + '|')} | {shown_as} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(shown()), COMMANDS.read_text("utf-8"), sep="\n", end="")
