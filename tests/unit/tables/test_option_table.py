"""docs/use/spark.md has a row for each option, so that none is forgotten and none is lost."""

from __future__ import annotations

import re
from pathlib import Path

from rocketspark.tables import options

DOCS = Path(__file__).resolve().parents[3] / "docs" / "use" / "spark.md"


def test_each_option_has_a_row() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {*options._READ_NAMES, *options._WRITE_NAMES} - named == set()
