"""Writes tests/vectors/sql92.json: what the official filter of RocketMQ 5.5.0 makes of our table and of random filters.

Run from the project's folder, after `make setup`: .venv/bin/python -m tests.unit.filters.make_vectors
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.java.driver import JARS, java_tool
from tests.unit.filters import random_sql92, sql92_table

SOURCE = Path(__file__).parent / "java" / "Sql92Oracle.java"
TARGET = Path(__file__).resolve().parents[2] / "vectors" / "sql92.json"

Case = tuple[str, dict[str, str]]


def random_cases(seed: int, conditions: int, soups: int) -> list[Case]:
    choose = Random(seed)
    found = [(random_sql92.condition(choose, 3), random_sql92.properties(choose)) for _ in range(conditions)]
    return found + [(random_sql92.soup(choose), random_sql92.properties(choose)) for _ in range(soups)]


def judge(cases: list[Case]) -> list[str]:
    """TRUE, FALSE, UNKNOWN, ERROR or REFUSED for each case, by the official classes."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "asked.json"), Path(folder, "answered.json")
        asked.write_text(json.dumps(cases))
        jars = str(JARS / "server-5.5.0" / "*")
        subprocess.run([java_tool("java"), "-cp", jars, str(SOURCE), str(asked), str(answered)], check=True)
        outcomes: list[str] = json.loads(answered.read_text())
    return outcomes


def main(seed: int = 92, conditions: int = 1500, soups: int = 500) -> None:
    cases = sql92_table.rows() + random_cases(seed, conditions, soups)
    lines = [json.dumps([*case, outcome]) for case, outcome in zip(cases, judge(cases), strict=True)]
    TARGET.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(lines)} cases in {TARGET}", file=sys.stderr)


if __name__ == "__main__":
    main()
