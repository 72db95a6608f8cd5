"""Each point that a test claims to show is said in words, once at a place, and `make status` finds it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.support.shown_points import TESTS, Shown, shown, shown_by, table

A_FILE = """
import pytest

pytestmark = [pytest.mark.soak, pytest.mark.shows("all of it")]

@pytest.mark.shows("one", 'a "second", '
                   "in two parts")
@pytest.mark.parametrize("n", [1])
def test_plain(n): ...

class TestMore:
    @pytest.mark.shows("three")
    async def test_within(self): ...

@pytest.mark.java
def test_without(): ...
"""


def test_markers_of_files_functions_and_methods_are_found() -> None:
    assert sorted(shown_by(A_FILE, "tests/test_a.py")) == [
        Shown('a "second", in two parts', "tests/test_a.py::test_plain"),
        Shown("all of it", "tests/test_a.py"),
        Shown("one", "tests/test_a.py::test_plain"),
        Shown("three", "tests/test_a.py::test_within"),
    ]


def test_a_file_of_one_marker_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_b.py").write_text('pytestmark = pytest.mark.shows("a | b")')
    points = shown(tmp_path / "tests")
    assert points == [Shown("a | b", "tests/unit/test_b.py")]
    points.append(Shown("a | b", "tests/test_c.py::test_d"))
    assert table(points).splitlines()[2:] == [
        "1 points; what is missing: docs/develop/missing.md.",
        "",
        "## tests/unit",
        "",
        "| point | shown by |",
        "| --- | --- |",
        r"| a \| b | `tests/unit/test_b.py`, `tests/test_c.py::test_d` |",
    ]


@pytest.fixture(scope="module")
def points() -> list[Shown]:
    return shown()


def test_every_marker_of_the_project_is_found(points: list[Shown]) -> None:
    """As many as a look at the text alone finds: one in another form, or in a helper, would be missing in the table."""
    said = {
        file.relative_to(TESTS.parent).as_posix(): count
        for file in TESTS.rglob("*.py")
        if file.parent != TESTS / "support" and file != Path(__file__)
        if (count := len(re.findall(r"\bmark\.shows\(", file.read_text("utf-8"))))
    }
    places = Counter(test.partition("::")[0] for test in {test for _, test in points})
    assert len(said) > 300
    assert said == places


def test_every_point_is_in_words_and_of_one_wording(points: list[Shown]) -> None:
    assert [point for point in points if len(point.point.split()) < 2 or point.point != point.point.strip()] == []
    assert [point for point in points if "\n" in point.point or "  " in point.point] == []
    assert [point for point, times in Counter(points).items() if times > 1] == []
    wordings: dict[str, set[str]] = {}
    for text, _ in points:
        wordings.setdefault(re.sub(r"\W+", " ", text).strip().lower(), set()).add(text)
    assert [texts for texts in wordings.values() if len(texts) > 1] == []
