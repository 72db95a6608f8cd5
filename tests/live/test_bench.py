"""Every part of the benchmark that needs no Java and no Spark runs through at a tiny size; rates are not looked at."""

from __future__ import annotations

import pytest
from bench.__main__ import PARTS, run_part
from bench.plan import Plan

pytestmark = pytest.mark.shows(
    "rates for N = 1 and 2, CPU of each process",
    "waiting pulls, connections, queues, backlog, routes, growth of cost",
)

# They need Java or Spark, and v5 and celery many processes.
LEFT_OUT = ("consume", "client", "kafka", "spark", "v5", "celery")


@pytest.mark.parametrize("part", [p for p in PARTS if p not in LEFT_OUT])
def test_each_part_runs_through(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_part(part, Plan(size="tiny", runs=1, alone=True))
    shown = capsys.readouterr().out
    assert rows
    for row in rows:
        assert row.name.strip() in shown
    if part != "embedded":
        assert any("RssAnon" in row.name for row in rows)
        assert any(row.us_each is not None for row in rows) or part in ("waiting", "hostile", "flat")
