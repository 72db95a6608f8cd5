"""The page of bounds, docs/develop/bounds.md: each row names the test that attacks it, and the setting exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketspark.broker.settings import FIELDS

pytestmark = pytest.mark.shows(
    "bounds of connections, frames, headers, held pulls, unread replies, log lines, on brokers, NameServers "
    "and controllers: each row of docs/develop/bounds.md is an attack beside a normal client"
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "develop" / "bounds.md"
# Names of tests that are to be there already while a row is written.
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
_KEY = re.compile(r"`([a-z]\w+)`")


def rows() -> list[list[str]]:
    """The cells of each row under "Bounds"."""
    text = PAGE.read_text("utf-8").split("\n## Bounds\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("| what |")]


ROWS = rows()


def test_there_are_rows_of_one_shape() -> None:
    assert ROWS
    assert {len(row) for row in ROWS} == {5}


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:50] for row in ROWS])
def test_a_row_names_a_test_and_a_setting_that_are_there(row: list[str]) -> None:
    _, _, setting, _, tests = row
    named = _TEST.findall(tests)
    assert named, "no test"
    for path, name in named:
        source = (ROOT / path).read_text("utf-8")
        assert not name or re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), (path, name)
    # Keys of broker.conf stand first; those of others say whose they are.
    if setting and "(" not in setting:
        for key in _KEY.findall(setting):
            assert key in FIELDS, key
