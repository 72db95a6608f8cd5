"""Every part of the benchmark that needs no Java and no Spark runs through at a tiny size; speeds are not looked at."""

from __future__ import annotations

import pytest
from bench.__main__ import PARTS, run_part
from bench.plan import Plan

NEED_JAVA_OR_SPARK = ("consume", "client", "kafka", "spark")


@pytest.mark.parametrize("part", [p for p in PARTS if p not in NEED_JAVA_OR_SPARK])
def test_each_part_runs_through(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_part(part, Plan(size="tiny", runs=1, alone=True))
    shown = capsys.readouterr().out
    assert rows
    for row in rows:
        assert row.name.strip() in shown
    if part != "embedded":
        assert any("RssAnon" in row.name for row in rows)
        assert any(row.us_each is not None for row in rows) or part in ("waiting", "hostile")
