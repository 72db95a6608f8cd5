"""Property tests draw the same examples on every machine, CI or not; a soak draws new ones that can be drawn again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.shows("a message stayed while a pop waited for it; property tests are the same everywhere")

ROOT = Path(__file__).resolve().parents[2]
A_TEST = """
from hypothesis import given, settings, strategies as st
@settings(max_examples=20)
@given(st.integers(), st.text())
def test_drawn(number, text):
    with open({drawn!r}, "a") as file:
        file.write(f"{{number}} {{text!r}}\\n")
"""


def drawn(tmp_path: Path, *options: str, **variables: str) -> list[str]:
    """Run one test in a process of its own with the project's conftest; return the examples it drew."""
    file, test = tmp_path / "drawn", tmp_path / "test_drawn.py"
    file.unlink(missing_ok=True)
    test.write_text(A_TEST.format(drawn=str(file)))
    (tmp_path / "conftest.py").write_text("from tests.support.examples import TIMES  # noqa: F401")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "EXAMPLES_TIMES")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(test)]
    subprocess.run(command, env=kept | variables, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    return file.read_text().splitlines()


def test_the_same_examples_everywhere_and_new_ones_that_come_again_in_a_soak(tmp_path: Path) -> None:
    plain = drawn(tmp_path)
    assert drawn(tmp_path, CI="true") == plain
    assert len(plain) == 20
    first, again, other = (drawn(tmp_path, f"--hypothesis-seed={seed}", EXAMPLES_TIMES="3") for seed in (7, 7, 8))
    assert first == again
    assert len(first) == len(other) == 60
    assert len({tuple(first[:20]), tuple(other[:20]), tuple(plain)}) == 3


def test_no_test_goes_its_own_way() -> None:
    # Airflow has examples of its own.
    own = re.compile(r"derandomize|register_profile|load_profile|(?<!LOAD)_EXAMPLES\b")
    tests = ROOT / "tests"
    files = [file for file in tests.rglob("*.py") if own.search(file.read_text())]
    assert {str(file.relative_to(tests)) for file in files} == {
        "support/examples.py",
        "unit/test_same_examples.py",
    }
