"""Which lines of src each test runs, and how long it takes. Rule: what is written down is of tests that pass.

As a plugin of pytest (`-p tests.soak.lines_run`, LINES_RUN=FILE) it notes what is run in this process, on any thread,
from a test's set-up to its end; and, under the name "", what is run before the first test, as by imports.
"""

from __future__ import annotations

import ast
import collections
import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


class Recorder:
    """Notes each test's lines while a run of pytest goes on."""

    def __init__(self, target: Path) -> None:
        from coverage import Coverage

        self.target = target
        self.coverage = Coverage(data_file=None, source_pkgs=["rocketspark"])
        self.coverage.start()
        self.seconds: dict[str, float] = {"": 0.0}
        self.passed: set[str] = {""}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.coverage.switch_context(item.nodeid)
        began = time.monotonic()
        result = yield
        self.seconds[item.nodeid] = time.monotonic() - began
        self.coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        ran: dict[str, dict[str, list[int]]] = {test: collections.defaultdict(list) for test in self.passed}
        for file in data.measured_files():
            for line, tests in data.contexts_by_lineno(file).items():
                for test in self.passed & set(tests):
                    ran[test][file.rpartition("src/rocketspark/")[2]].append(line)
        found = {test: {"seconds": self.seconds[test], "lines": lines} for test, lines in ran.items()}
        self.target.write_text(json.dumps(found))


if os.environ.get("LINES_RUN"):
    # Before pytest loads what imports src.
    recorder = Recorder(Path(os.environ["LINES_RUN"]))

    def pytest_configure(config: pytest.Config) -> None:
        config.pluginmanager.register(recorder)


def lines_that_tell(tree: ast.Module, line: int) -> set[int]:
    """Return the lines of which a test that can notice a change at `line` runs one.

    Those of its statement's head; for a signature those of its body; none for what is run at the import alone.
    """
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    around = [node for node in ast.walk(tree) if isinstance(node, STATEMENTS) and first_line(node) <= line <= end(node)]
    inner = max(around, key=lambda node: (first_line(node), -end(node)))
    within = [node for node in ast.walk(inner) if isinstance(node, STATEMENTS) and node is not inner]
    head_ends = min((first_line(node) for node in within), default=end(inner) + 1)
    if isinstance(inner, functions):
        return set(range(head_ends, end(inner) + 1))
    if not any(isinstance(node, functions) for node in around):
        return set()
    return set(range(first_line(inner), head_ends))


STATEMENTS = ast.stmt | ast.ExceptHandler


def first_line(node: ast.stmt | ast.ExceptHandler) -> int:
    above: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(expression.lineno for expression in above)])


def end(node: ast.stmt | ast.ExceptHandler) -> int:
    return node.end_lineno or node.lineno
