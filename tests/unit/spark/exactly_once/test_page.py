"""The pages on exactly once have the phases in which kills are tried, and the options with their defaults."""

from __future__ import annotations

import re
from pathlib import Path

from rocketspark.spark.exactly_once.failpoints import MOMENTS
from rocketspark.tables.options import parse_write

DOCS = Path(__file__).resolve().parents[4] / "docs"
PAGE, PHASES = ((DOCS / name / "exactly_once.md").read_text("utf-8") for name in ("use", "develop"))


def test_every_phase_stands_in_its_table() -> None:
    table = PHASES.split("| phase |", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^\| ([a-z ]+) \|", table, re.MULTILINE) == list(MOMENTS)


def test_options_have_the_defaults_that_are_told() -> None:
    options = parse_write({"namesrv": "127.0.0.1:9876", "topic": "t"})
    assert options.transactional_id is None
    told = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]+?)`? \|", PAGE, re.MULTILINE))
    assert told == {
        "delivery": "at-least-once",
        "transactionalId": "none",
        "commitTimeoutMs": f"{options.commit_timeout_ms}",
        "differingRepeat": "first" if options.first_rows_stay else "error",
        "comparedColumn": options.compared_column,
    }
